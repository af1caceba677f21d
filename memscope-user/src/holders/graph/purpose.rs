//! The purpose of a block, by the path that holds it: the tensor is a parameter, a gradient, a state of an optimizer, saved by autograd.
//!
//! Classes and attributes are those of torch 2.1 to 2.14 (`torch.nn.Module.__init__`, `torch.optim.Optimizer`,
//! `torch/csrc/autograd/variable.h`, `torch/csrc/autograd/saved_variable.h`), of transformers (`cache_utils`), and of vLLM
//! (`Attention.kv_cache`, the runner's `kv_caches`).

use super::{Kind, Step, edges::Segment, mindspore, rules};
use crate::model::HeldAs;

/// Where a module keeps its tensors.
const OF_MODULE: [&str; 3] = ["_parameters", "_buffers", "_params"];
/// Attributes of caches of keys and values.
const OF_CACHE: [&str; 4] = ["kv_cache", "kv_caches", "key_cache", "value_cache"];
/// Its classes hold such caches, and nothing else on a device.
const CACHES: &str = "transformers.cache_utils";
/// Parts of a name, from the block on, in which such an attribute counts: a tensor may be in a list of lists.
const NEAR: usize = 4;

/// The purpose that a path shows; `segments` is its name from the root on, with each dict of a module.
pub(super) fn of(steps: &[Step], segments: &[Segment]) -> Option<HeldAs> {
    // That of `MindSpore` may be a part of what stands for it.
    let is_tensor = |step: &Step| step.parent.class().is_some_and(mindspore::is_tensor);
    let tensor = steps.iter().position(|step| step.parent.class().is_some_and(rules::is_tensor) || is_tensor(step))?;
    let tensor = tensor + steps[tensor + 1..].iter().take_while(|step| is_tensor(step)).count();
    let outer = &steps[tensor + 1..];
    match of_tensor(outer) {
        OfTensor::Purpose(held_as) => return Some(held_as),
        OfTensor::None => return None,
        OfTensor::ByContainer => {}
    }
    let attributes = || segments.iter().rev().take(NEAR).filter_map(attribute);
    // What a module registers lies in its own dict: the key is last, the dict before it.
    let is_of_module = segments.iter().rev().nth(1).and_then(attribute).is_some_and(|name| OF_MODULE.contains(&name));
    let types = || outer.iter().filter_map(python_type);
    if is_of_module {
        Some(HeldAs::Weight)
    } else if types().any(|ty| ty.is_optimizer) {
        Some(if is_trained(segments) { HeldAs::Weight } else { HeldAs::OptimizerState })
    } else if attributes().any(|name| OF_CACHE.contains(&name)) || types().any(|ty| ty.module == CACHES) {
        Some(HeldAs::KvCache)
    } else {
        None
    }
}

/// An optimizer has the tensors that it trains in the lists `params` of its groups, and as keys of its states; a program may have made
/// them without `Parameter`.
fn is_trained(segments: &[Segment]) -> bool {
    let of_group = |segment: Option<&Segment>| matches!(segment, Some(Segment::Key(key)) if key == "'params'");
    matches!(segments.last(), Some(Segment::IsKey(_))) || of_group(segments.iter().rev().nth(1))
}

/// What the holder of a tensor itself shows.
enum OfTensor {
    Purpose(HeldAs),
    /// No purpose, whatever is further out.
    None,
    /// Containers further out decide.
    ByContainer,
}

/// By the nearest object that holds it.
fn of_tensor(outer: &[Step]) -> OfTensor {
    // Saved tensors lie in memory of their own, where a function has several.
    let Some(holder) = outer.iter().find(|step| !step.parent.is_plain()) else { return OfTensor::ByContainer };
    match &holder.parent.kind {
        // A view has its base, and `AccumulateGrad` the tensor that it is for.
        Kind::Cpp(class) if rules::is_view_meta(class) && !rules::is_gradient(holder) => OfTensor::None,
        Kind::Cpp(class) if rules::is_autograd_meta(class) => OfTensor::Purpose(HeldAs::Gradient),
        Kind::Cpp(class) if class.ends_with("AccumulateGrad") => OfTensor::None,
        Kind::Cpp(class) if rules::is_autograd(class) => OfTensor::Purpose(HeldAs::Activation),
        Kind::Python { ty, .. } if rules::is_parameter(ty) => OfTensor::Purpose(HeldAs::Weight),
        Kind::Python { ty, .. } if ty.name.ends_with("Backward") => OfTensor::Purpose(HeldAs::Activation),
        _ => OfTensor::ByContainer,
    }
}

fn attribute(segment: &Segment) -> Option<&str> {
    match segment {
        Segment::Attribute(name) => Some(name),
        _ => None,
    }
}

fn python_type(step: &Step) -> Option<&crate::holders::python::Type> {
    match &step.parent.kind {
        Kind::Python { ty, .. } => Some(ty),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::holders::{
        graph::Node,
        python::{Builtin, Type},
    };

    fn step(kind: Kind) -> Step {
        Step { parent: Rc::new(Node { start: 0, size: 64, kind }), place: 0, value: 0 }
    }

    fn cpp(class: &str) -> Step {
        step(Kind::Cpp(class.into()))
    }

    fn python(module: &str, name: &str, is_optimizer: bool) -> Step {
        let ty = Type {
            address: 0,
            name: name.to_owned(),
            module: module.to_owned(),
            builtin: Builtin::Other,
            basic_size: 16,
            item_size: 0,
            flags: 0,
            dict_offset: 0,
            fields: Vec::new(),
            is_weak: false,
            is_scalar: false,
            is_optimizer,
        };
        step(Kind::Python { object: 0, ty: Rc::new(ty) })
    }

    fn attribute(name: &str) -> Segment {
        Segment::Attribute(name.to_owned())
    }

    fn key(text: &str) -> Segment {
        Segment::Key(text.to_owned())
    }

    /// A storage, its tensor, and what holds that.
    fn held(by: Vec<Step>, segments: &[Segment]) -> Option<HeldAs> {
        of(&[vec![cpp("c10::StorageImpl"), cpp("c10::TensorImpl")], by].concat(), segments)
    }

    #[test]
    fn by_the_holder_of_the_tensor() {
        let parameter = || python("torch.nn.parameter", "Parameter", false);
        assert_eq!(held(vec![parameter()], &[]), Some(HeldAs::Weight));
        assert_eq!(
            held(vec![python("vllm.model_executor.parameter", "ModelWeightParameter", false)], &[]),
            Some(HeldAs::Weight)
        );
        // A parameter in an optimizer's groups is no state of it.
        assert_eq!(held(vec![parameter(), python("torch.optim.adam", "Adam", true)], &[]), Some(HeldAs::Weight));
        let gradient = vec![cpp("torch::autograd::AutogradMeta"), cpp("c10::TensorImpl"), parameter()];
        assert_eq!(held(gradient, &[]), Some(HeldAs::Gradient));
        let saved = vec![cpp("torch::autograd::generated::PowBackward0"), cpp("torch::autograd::AutogradMeta")];
        assert_eq!(held(saved.clone(), &[]), Some(HeldAs::Activation));
        assert_eq!(held([vec![step(Kind::Plain)], saved].concat(), &[]), Some(HeldAs::Activation));
        let function = vec![step(Kind::Plain), python("__main__", "MyFunctionBackward", false)];
        assert_eq!(held(function, &[]), Some(HeldAs::Activation));
        assert_eq!(held(vec![cpp("torch::autograd::AccumulateGrad")], &[attribute("x")]), None);
        assert_eq!(held(vec![cpp("torch::autograd::DifferentiableViewMeta")], &[attribute("x")]), None);
        // Of no tensor: memory of another library.
        assert_eq!(of(&[cpp("Buffer"), parameter()], &[]), None);
    }

    #[test]
    fn by_containers() {
        let tensor = || vec![python("torch", "Tensor", false)];
        let name = [attribute("model"), attribute("_buffers"), key("'running_mean'")];
        assert_eq!(held(tensor(), &name), Some(HeldAs::Weight));
        // A list in a dict of that name is none of the module's tensors.
        let deeper = [attribute("model"), attribute("_buffers"), key("'cache'"), Segment::Index(Some(3))];
        assert_eq!(held(tensor(), &deeper), None);
        // What it trains is in its groups, and a key of its states.
        let adam = || [tensor(), vec![python("torch.optim.adam", "Adam", true)]].concat();
        let group = || vec![attribute("opt"), attribute("param_groups"), Segment::Index(Some(0))];
        let params = [group(), vec![key("'params'"), Segment::Index(Some(7))]].concat();
        assert_eq!(held(adam(), &params), Some(HeldAs::Weight));
        assert_eq!(held(adam(), &[group(), vec![key("'lr'")]].concat()), Some(HeldAs::OptimizerState));
        let state = [attribute("opt"), attribute("state"), key("<Tensor>"), key("'exp_avg'")];
        assert_eq!(held(adam(), &state), Some(HeldAs::OptimizerState));
        let state_key = [attribute("opt"), attribute("state"), Segment::IsKey("<Tensor>".to_owned())];
        assert_eq!(held(adam(), &state_key), Some(HeldAs::Weight));
        let cache = [attribute("runner"), attribute("kv_caches"), Segment::Index(Some(3))];
        assert_eq!(held(tensor(), &cache), Some(HeldAs::KvCache));
        let layer = [tensor(), vec![python("transformers.cache_utils", "DynamicLayer", false)]].concat();
        assert_eq!(held(layer, &[attribute("past"), attribute("keys")]), Some(HeldAs::KvCache));
        assert_eq!(held(tensor(), &[attribute("losses"), Segment::Index(Some(3))]), None);
    }
}
