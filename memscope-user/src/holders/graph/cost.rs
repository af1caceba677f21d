//! The best of several paths: the one that names what a person would name. A parameter is `model.layers[3].weight`,
//! though the path through its optimizer is shorter.

use super::{Graph, Kind, Node, Root, Step, contexts, rules};
use crate::holders::python::{Builtin, Type, of_object};

/// A path that repeats another one, or is likely a left-over.
const REDUNDANT: u32 = 45;
/// A root that may be a left-over costs at least this.
const WEAK: u32 = 40;
/// The same for roots without a name.
const HARDLY: u32 = 60;
/// A field without a name of a type written in C, which may not clear it.
const NAMELESS: u32 = 14;
/// A key of a dict: its value is the wanted one.
pub(super) const KEY: u32 = 22;
/// Plain memory that an object points at without being known to keep its items there.
pub(super) const NO_ITEMS: u32 = 14;
/// A parameter in a list: that of an optimizer's group, or of `DistributedDataParallel`.
pub(super) const LISTED: u32 = 20;

impl Root {
    /// Whether it may be a left-over.
    pub(super) const fn is_weak(&self) -> bool {
        self.cost() >= WEAK
    }

    pub(super) const fn cost(&self) -> u32 {
        match self {
            Self::Local { .. } => 6,
            Self::Context { .. } => 4,
            Self::Global { is_known_holder: true, .. } => 28,
            Self::Value { .. } => REDUNDANT,
            Self::Stack { .. } => HARDLY,
            Self::Global { is_known_holder: false, .. } => 70,
            Self::Unknown { .. } => 80,
        }
    }
}

impl Graph<'_> {
    pub(super) fn cost(&self, step: &Step, child: &Node) -> u32 {
        match &step.parent.kind {
            Kind::Python { object, ty } => self.cost_of_field(*object, ty, step, child),
            Kind::Cpp(class) => {
                let is_inside = !child.is_python() && step.value != child.start && step.value != child.start + 16;
                cost_of_class(class) + if is_inside { 4 } else { 0 }
            }
            Kind::Plain => match &child.kind {
                // Each module of a model is an object and two dicts: what names a step well costs little, or deep models lose their names.
                Kind::Python { .. } => 0,
                Kind::Cpp(class) if rules::is_autograd(class) => 3,
                _ => 20,
            },
            Kind::Root(root) => root.cost(),
        }
    }

    fn cost_of_field(&self, object: u64, ty: &Type, step: &Step, child: &Node) -> u32 {
        if self.is_redundant(object, ty, step) {
            return REDUNDANT;
        }
        if child.is_python() && Self::is_nameless(object, ty, step) {
            return NAMELESS;
        }
        match ty.builtin {
            // Holds the same tensors as the model.
            _ if ty.module.starts_with("torch.optim") => 28,
            Builtin::Module | Builtin::Class | Builtin::Context | Builtin::ContextTree | Builtin::ContextPairs => 0,
            Builtin::Frame => 6,
            Builtin::Traceback => 8,
            Builtin::Method => 4,
            _ if child.is_plain() => 1,
            _ if ty.name.contains("numpy") => 20,
            _ if Self::is_namespace(object, ty, step) => 0,
            _ => 2,
        }
    }

    /// Globals of functions and frames: the module names them better. Fields of a generator: its variables do.
    pub(super) fn is_redundant(&self, object: u64, ty: &Type, step: &Step) -> bool {
        let Some(python) = self.python else { return false };
        let offset = step.place.wrapping_sub(object);
        match ty.builtin {
            Builtin::Function => python.layout.is_function_globals(offset),
            Builtin::Frame if python.layout.frames_are_objects() => {
                step.place < object + ty.basic_size - 8 && offset != of_object::OLD_FRAME_BACK
            }
            Builtin::Generator | Builtin::Frame if !python.layout.frames_are_objects() => {
                let is_back = ty.builtin == Builtin::Frame && offset == of_object::FRAME_BACK;
                !is_back && self.frame_inside(object, ty).is_none_or(|(locals, _)| step.place < locals)
            }
            _ => false,
        }
    }

    /// Whether a word of an object is its own dict.
    fn is_namespace(object: u64, ty: &Type, step: &Step) -> bool {
        step.place < object || ty.dict_offset == step.place.wrapping_sub(object) as i64
    }

    pub(super) fn is_nameless(object: u64, ty: &Type, step: &Step) -> bool {
        let offset = step.place.wrapping_sub(object);
        if Self::is_namespace(object, ty, step) || ty.field(offset).is_some() {
            return false;
        }
        if ty.is_dict() {
            return offset >= of_object::DICT_BYTES;
        }
        let is_own_way = matches!(
            ty.builtin,
            Builtin::Cell
                | Builtin::Method
                | Builtin::Function
                | Builtin::Module
                | Builtin::Frame
                | Builtin::Traceback
                | Builtin::Generator
                | Builtin::Set
                | Builtin::Descriptor
        );
        let has_rules = is_own_way || contexts::is_part(ty.builtin);
        (16..ty.basic_size).contains(&offset) && !ty.is_of_interpreter() && !has_rules
    }
}

fn cost_of_class(class: &str) -> u32 {
    match class {
        _ if rules::is_storage(class) || rules::is_tensor(class) => 1,
        _ if rules::is_autograd_meta(class) => 3,
        // Tensors point at them weakly.
        _ if class.contains("AccumulateGrad") => 25,
        _ if rules::is_autograd(class) => 4,
        _ => 9,
    }
}
