//! How much shows that a path is one: memory of unknown make may have old addresses, and so may objects of C++ that are of no known class.

use super::{Graph, Kind, Node, Step, counts::keeps_tensors, rules};

/// From the least on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::holders) enum Proof {
    /// It may be made of left-overs.
    Weak,
    /// Memory of unknown make is on it, and what that holds counts as many references as are known, or it is the items of a vector.
    Counted,
    /// Each of its objects is of a kind that is known to hold the next one.
    Typed,
}

impl Graph<'_> {
    /// `steps`: from the block to a root.
    pub(super) fn proof(&self, steps: &[Step]) -> Proof {
        let is_known = steps.iter().any(|step| matches!(step.parent.kind, Kind::Python { .. } | Kind::Cpp(_)));
        let root = steps.last().map(|step| &step.parent.kind);
        if !is_known || matches!(root, Some(Kind::Root(root)) if root.is_weak()) {
            return Proof::Weak;
        }
        let mut pairs = steps.array_windows().enumerate();
        if pairs.any(|(at, [child, step])| self.is_uncounted(step, steps.get(at + 2), &child.parent)) {
            return Proof::Weak;
        }
        let links = steps.array_windows().map(|[child, items, up]| self.proof_of_owner(&child.parent, items, up));
        links.min().unwrap_or(Proof::Typed)
    }

    /// That `items`, if it is memory without a type, is that of the object to which `up` leads.
    fn proof_of_owner(&self, child: &Node, items: &Step, up: &Step) -> Proof {
        let is_vector = || self.is_only_vector(up, &items.parent, items.place);
        let if_counted = |is_so: bool| if is_so { Proof::Counted } else { Proof::Weak };
        match &up.parent.kind {
            _ if !items.parent.is_plain() => Proof::Typed,
            Kind::Cpp(class) if keeps_tensors(class) && self.is_in_vector(up, items.place) => Proof::Typed,
            Kind::Cpp(_) | Kind::Root(_) => if_counted(self.is_counted(child) || is_vector()),
            Kind::Plain => if_counted(is_vector()),
            Kind::Python { .. } if rules::is_items(up) || child.is_python() || is_vector() => Proof::Typed,
            Kind::Python { .. } => if_counted(child.is_plain() || self.is_counted(child)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::holders::sample::{DEVICE, Sample};

    const HELD: &str = "__main__.own → own.Pool";

    /// An object of an extension, with a field that leads to `to`.
    fn own_field(sample: &mut Sample, to: u64) -> u64 {
        let ty = sample.add_type("own.Pool", 32, 0);
        let object = sample.block(32);
        sample.put_words(object, &[1, ty, to, 0]);
        object
    }

    /// The same at `__main__.own`.
    fn own(sample: &mut Sample, to: u64) {
        let object = own_field(sample, to);
        sample.module("__main__", &[("own", object)]);
    }

    /// A tensor without an object of Python, which counts its references.
    fn implementation(sample: &mut Sample, count: u64) -> u64 {
        let storage = sample.cpp("N3c1011StorageImplE", &[1, DEVICE, DEVICE, 0]);
        sample.cpp("N3c1010TensorImplE", &[count, storage, 0, 0])
    }

    /// Memory of an extension has the address of a tensor, and other memory, which nothing holds, has it too: one of them is old, if the tensor counts one
    /// reference.
    #[test]
    fn counts_prove_memory_of_unknown_make() {
        for (count, others, expected) in [(1, 0, HELD), (1, 1, "?__main__.own → own.Pool"), (2, 1, HELD)] {
            let mut sample = Sample::new();
            let tensor = implementation(&mut sample, count);
            let memory = sample.block(64);
            sample.image.put(memory + 24, tensor);
            for _ in 0..others {
                let other = sample.block(64);
                sample.image.put(other + 40, tensor);
            }
            own(&mut sample, memory);
            assert_eq!(sample.ask(&[DEVICE]), [expected], "{count} {others}");
        }
    }

    /// Items of a vector in a class without a table of functions: an address behind the end is none of them, and what else leads there is no proof.
    #[test]
    fn vectors_hold_their_items() {
        for (end, expected) in [(16, HELD), (8, "?__main__.own → own.Pool → 40 bytes")] {
            let mut sample = Sample::new();
            let tensor = implementation(&mut sample, 1);
            let items = sample.block(32);
            sample.put_words(items, &[0, tensor]);
            let class = sample.block(64);
            sample.put_words(class, &[0, 0, items, items + end, items + 32]);
            own(&mut sample, class);
            assert_eq!(sample.ask(&[DEVICE]), [expected], "{end}");
        }
    }

    /// Autograd's data of a view has an empty `std::optional` with the address of a storage, which two tensors of C++ have, and more that counts.
    #[test]
    fn storages_belong_to_tensors() {
        let mut sample = Sample::new();
        let storage = sample.cpp("N3c1011StorageImplE", &[3, DEVICE, DEVICE, 0]);
        for _ in 0..2 {
            sample.cpp("N3c1010TensorImplE", &[1, storage, 0, 0]);
        }
        let meta = sample.cpp("N5torch8autograd22DifferentiableViewMetaE", &[0, 0, 0, 0, 0, 0, 0, 0, storage]);
        let view = sample.tensor(DEVICE + 4096);
        let implementation = sample.image_word(view + 24);
        sample.image.put(implementation + 24, meta);
        sample.module("__main__", &[("view", view)]);
        assert_eq!(sample.ask(&[DEVICE, DEVICE + 4096]), ["NoRoot", "__main__.view"]);
    }

    /// Memory of another process that several tensors share: what opened it has the address of the first of them. A path through that is none, where a
    /// storage has the address itself.
    #[test]
    fn storages_have_their_own_address() {
        let mut sample = Sample::new();
        let opened = sample.block(64);
        sample.image.put(opened + 16, DEVICE);
        let mut tensor = |address: u64| {
            let storage = sample.cpp("N3c1011StorageImplE", &[1, address, opened, 0]);
            let implementation = sample.cpp("N3c1010TensorImplE", &[1, storage, 0, 0]);
            own_field(&mut sample, implementation)
        };
        let (first, second) = (tensor(DEVICE), tensor(DEVICE + 4096));
        sample.module("__main__", &[("first", first), ("second", second)]);
        assert_eq!(sample.ask(&[DEVICE, DEVICE + 4096]), ["__main__.first → own.Pool", "__main__.second → own.Pool"]);
    }

    /// All functions of a module have its dict, and one of them names what is in it, if the module does not.
    #[test]
    fn globals_are_named_once() {
        let mut sample = Sample::new();
        let ty = sample.add_type("function", 152, 1 << 14);
        let tensor = sample.tensor(DEVICE);
        let globals = sample.dict(&[("kept", tensor)]);
        let functions: Vec<u64> = (0..3).map(|_| sample.block(16 + 152) + 16).collect();
        for function in &functions {
            sample.put_words(*function, &[1, ty, globals]);
        }
        sample.module("__main__", &[("a", functions[0]), ("b", functions[1]), ("c", functions[2])]);
        assert_eq!(sample.ask(&[DEVICE]), ["__main__.a → function['kept']"]);
    }

    /// A compiler has the variables of a module in a list of its own: they are the module's.
    #[test]
    fn variables_of_a_module_are_its_own() {
        let mut sample = Sample::new();
        let tensor = sample.tensor(DEVICE);
        let module = sample.module("__main__", &[("kept", tensor)]);
        let variables = sample.image_word(module + 16);
        let scopes = sample.list(&[variables]);
        sample.module("compiler", &[("scopes", scopes)]);
        assert_eq!(sample.ask(&[DEVICE]), ["__main__.kept"]);
    }

    /// A parameter is named by its model before a list, which is the shorter way.
    #[test]
    fn models_name_their_parameters() {
        let mut sample = Sample::new();
        let parameter = sample.tensor(DEVICE);
        let ty = sample.add_type("Parameter", 64, 1 << 14);
        sample.image.put(parameter + 8, ty);
        let inner = sample.dict(&[("weight", parameter)]);
        let middle = sample.dict(&[("inner", inner)]);
        let (outer, all) = (sample.dict(&[("middle", middle)]), sample.list(&[parameter]));
        sample.module("__main__", &[("all", all), ("model", outer)]);
        assert_eq!(sample.ask(&[DEVICE]), ["__main__.model['middle']['inner']['weight'] and __main__.all[0]"]);
    }
}
