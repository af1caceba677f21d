//! Words of an object that hold their target. Freed memory keeps its old contents, and so does the rest of a block that
//! is larger than its object: each rule here keeps left-overs of one kind out.

use super::{Graph, Kind, Node, Step, contexts, mindspore};
use crate::holders::python::{Builtin, Keys, Part, Python, Type, Variable, of_object, of_type};

/// A storage has the device's memory in its first words.
const STORAGE_BYTES: u64 = 0x20;
/// A tensor's head: references, storage, autograd's data, its object of Python (c10/core/TensorImpl.h, 2.1 to 2.14). Behind it lie the
/// sizes and strides of up to five dimensions: a tensor with fewer leaves old contents there.
const TENSOR_HEAD_BYTES: u64 = 0x48;
/// Counts of references to a tensor or a storage: strong ones in the lower 32 bits (`c10/util/intrusive_ptr.h`).
pub(super) const COUNTS: u64 = 8;
/// The gradient in autograd's data, behind a name (torch/csrc/autograd/variable.h): a string of 8 or of 32 bytes, by the ABI of C++.
const GRADIENT: [u64; 2] = [0x10, 0x28];
/// Behind it: the function that made the tensor.
pub(super) const MADE_BY: [u64; 2] = [GRADIENT[0] + 8, GRADIENT[1] + 8];
/// In that of a view: the tensor that it is a view of, behind the data that every tensor has (2.1 to 2.14).
const BASE: [u64; 2] = [0xa8, 0xc0];
/// Where a short string has its text, and where that ends: old contents behind it.
const SHORT_NAME: [u64; 2] = [0x18, 0x28];
/// In front of an object's head: the collector's words and those of a managed dict.
const IN_FRONT: u64 = 32;
/// Items of types with items of one byte each (`bytes`-like) can be anything up to here.
const BYTE_ITEMS: u64 = 4096;
/// Most values inside of an object.
const INLINE_VALUES: u64 = 30;
/// Smallest block that is a table of keys.
const MIN_KEYS_BYTES: u64 = 80;

pub(super) fn is_storage(class: &str) -> bool {
    class.ends_with("StorageImpl")
}

pub(super) fn is_tensor(class: &str) -> bool {
    class.ends_with("TensorImpl")
}

/// What a class is without `std::shared_ptr`'s, which counts in the same block.
pub(super) fn counted(class: &str) -> &str {
    let counted = class.strip_prefix("std::_Sp_counted_").and_then(|rest| rest.split_once('<'));
    counted.map_or(class, |(_, rest)| rest.split([',', '*', '>']).next().unwrap_or(rest))
}

/// Whether a `std::shared_ptr` counts in the same block.
pub(super) fn is_shared(class: &str) -> bool {
    class.starts_with("std::_Sp_counted_ptr_inplace<")
}

/// Whether an object has memory of a device, as its owner.
pub(super) fn has_memory(class: &str) -> bool {
    is_storage(class) || mindspore::has_memory(class)
}

/// Autograd's data of a tensor, that of views too: it belongs to its tensor alone (`c10::TensorImpl::autograd_meta_`).
pub(super) fn is_autograd_meta(class: &str) -> bool {
    class.ends_with("AutogradMeta") || is_view_meta(class)
}

pub(super) fn is_view_meta(class: &str) -> bool {
    class.ends_with("DifferentiableViewMeta")
}

/// Whether a word of autograd's data of a tensor is its gradient.
pub(super) fn is_gradient(step: &Step) -> bool {
    GRADIENT.contains(&(step.place - step.parent.start))
}

/// Whether an object of Python is a tensor.
pub(super) fn is_python_tensor(ty: &Type) -> bool {
    ty.name.ends_with("Tensor") || is_parameter(ty)
}

pub(super) fn is_parameter(ty: &Type) -> bool {
    ty.name.ends_with("Parameter")
}

pub(super) fn is_autograd(class: &str) -> bool {
    class.contains("autograd")
}

/// An object of a script: its slots are a vector of values (`aten/src/ATen/core/ivalue.h`).
pub(super) fn is_script_object(class: &str) -> bool {
    class.starts_with("c10::ivalue::")
}

/// A type of a script's: its attributes have names, and in short ones what was there before (`aten/src/ATen/core/class_type.h`).
fn is_script_type(class: &str) -> bool {
    class.starts_with("c10::") && class.ends_with("Type")
}

/// A function that `PyTorch` generates: its class is known to keep nothing in memory of unknown make but vectors.
fn is_generated(class: &str) -> bool {
    class.contains("autograd::generated::")
}

/// Whether a class is a function of autograd's graph.
pub(super) fn is_function(class: &str) -> bool {
    is_generated(class) || is_autograd(class) && ["Node", "AccumulateGrad", ">"].iter().any(|end| class.ends_with(end))
}

/// Functions written in Python have an object of it.
fn is_python_function(class: &str) -> bool {
    class.contains("Py")
}

impl Graph<'_> {
    /// Whether a word of `step.parent` holds the child.
    pub(super) fn admits(&self, step: &Step, child: &Node) -> bool {
        let is_meta = child.class().is_some_and(is_autograd_meta);
        if is_meta && !step.parent.class().is_some_and(is_tensor) {
            return false;
        }
        match &step.parent.kind {
            Kind::Python { object, ty } => self.admits_field(*object, ty, step, child),
            Kind::Plain => self.admits_entry(&step.parent, step.place, child),
            Kind::Cpp(class) => self.admits_member(class, step, child),
            Kind::Root(_) => true,
        }
    }

    fn admits_field(&self, object: u64, ty: &Type, step: &Step, child: &Node) -> bool {
        let Some(python) = self.python else { return false };
        if Self::is_through_deque(step) {
            return child.is_plain() && step.value == child.start;
        }
        let place = step.place;
        let is_head = place == object || place == object + of_object::TYPE;
        let is_collectors = (object - 16..object).contains(&place) && ty.has_collector_words();
        if place < object.saturating_sub(IN_FRONT) || is_head || is_collectors {
            return false;
        }
        if !owns_whole_block(ty) && place >= object + self.object_bytes(python, object, ty) {
            return false;
        }
        // Its first word is a flag, with seven bytes behind it that are not cleared (`c10::MaybeOwned`).
        let may_be_flag = |class| !is_tensor(class) && !mindspore::is_tensor(class);
        if is_python_tensor(ty) && child.class().is_some_and(may_be_flag) {
            return false;
        }
        let offset = place.wrapping_sub(object);
        if contexts::is_last_value(ty, offset) {
            return false;
        }
        let is_start = child.is_plain() && step.value == child.start;
        match ty.builtin {
            _ if ty.builtin == Builtin::List => offset == of_object::LIST_ITEMS && is_start,
            // Shared keys of a class are names; other data behind its fields is the interpreter's.
            _ if ty.is_class() => {
                let is_field = place < object + of_type::BYTES;
                is_field || (child.is_plain() && python.keys(child.start).is_some())
            }
            _ if ty.is_tuple() && place >= object + python.layout.tuple_items() => {
                child.is_python() && (offset - python.layout.tuple_items()) / 8 < self.items(object)
            }
            _ if ty.is_dict() && offset == of_object::DICT_KEYS => is_start,
            // Nodes of ordered dicts have keys alone.
            _ if ty.is_dict() && child.is_plain() => place < object || offset == of_object::DICT_VALUES,
            // Other blocks of a deque are its reserve.
            Builtin::Deque if child.is_plain() => place < object || of_object::DEQUE_BLOCKS.contains(&offset),
            // The stack of a function that does not run: left-overs.
            Builtin::Frame => !self.is_unnamed(object, ty, step),
            _ => true,
        }
    }

    /// Number of items of an object that has any.
    fn items(&self, object: u64) -> u64 {
        const MAX_ITEMS: u64 = 1 << 30;
        let count = self.memory.word_or_0(object + of_object::SIZE) as i64;
        count.unsigned_abs().min(MAX_ITEMS)
    }

    /// Bytes of an object from its head on.
    fn object_bytes(&self, python: &Python<'_>, object: u64, ty: &Type) -> u64 {
        const MAX_ITEM_BYTES: u64 = 4096;
        let items = match ty.item_size {
            0 => 0,
            1 => self.items(object).max(BYTE_ITEMS),
            size if size < MAX_ITEM_BYTES => size * self.items(object),
            _ => 0,
        };
        let values = if python.layout.has_inline_values(ty.flags) {
            // Its room is their head's first byte (`PyDictValues`, Include/internal/pycore_dict.h); what is behind is not cleared.
            let room = self.memory.word_or_0(object + ty.basic_size) & 0xff;
            python.layout.values_head() + 8 * room.min(INLINE_VALUES)
        } else {
            0
        };
        ty.basic_size + items + values
    }

    /// A word of plain memory: in a table of keys only the used entries count as references.
    fn admits_entry(&self, parent: &Node, place: u64, child: &Node) -> bool {
        let Some(python) = self.python.filter(|_| child.is_python()) else { return true };
        match python.keys(parent.start) {
            // A deque fills a block from its middle on: what was a table before may be left in front.
            Some(keys) if self.is_table(parent, &keys) => keys.has(place) || self.is_deque_block(parent.start),
            _ => true,
        }
    }

    fn is_table(&self, block: &Node, keys: &Keys) -> bool {
        const MAX_REFERENCES: u64 = 1 << 32;
        let references = self.memory.word_or_0(block.start);
        keys.used > 0
            && keys.end() <= block.start.saturating_add(block.size + 8)
            && block.size >= MIN_KEYS_BYTES
            && (1..MAX_REFERENCES).contains(&references)
    }

    fn admits_member(&self, class: &str, step: &Step, child: &Node) -> bool {
        if is_storage(class) {
            let is_early = step.place - step.parent.start <= STORAGE_BYTES;
            return is_early && child.is_plain() && child.start == step.value && !self.is_host_data(step);
        }
        if mindspore::is_part(class) {
            return mindspore::may_hold(class, child);
        }
        let offset = step.place - step.parent.start;
        if is_tensor(class) {
            return offset < TENSOR_HEAD_BYTES
                && match &child.kind {
                    Kind::Cpp(class) => is_storage(class) || is_autograd_meta(class),
                    Kind::Python { .. } => self.owns_object(step),
                    // A device's memory belongs to a storage.
                    _ => self.heap.block(step.value).is_none_or(|block| block.start != child.start),
                };
        }
        // An empty `std::optional` beside it may have the address of a storage, which belongs to tensors.
        let has_no_storage = is_autograd_meta(class) || is_generated(class);
        if has_no_storage && child.class().is_some_and(is_storage) {
            return false;
        }
        if is_autograd_meta(class) && !self.admits_meta(class, step, child) {
            return false;
        }
        if is_function(class) && self.is_unused_input(step.parent.start, offset) {
            return false;
        }
        if is_generated(class) && child.is_plain() && self.vector_end(step).is_none() {
            return false;
        }
        // Padding is not cleared: of autograd's nodes those written in Python alone have objects of Python.
        !(is_autograd(class) && !is_python_function(class) && child.is_python())
    }

    /// Where the items of a vector end, if a step is by one: its first three words are where they begin, where they end, and where its room does.
    fn vector_end(&self, step: &Step) -> Option<u64> {
        let block = self.heap.block(step.value).filter(|block| block.start == step.value)?;
        let words = self.memory.words(step.place, 3)?;
        let (end, room) = (words[1], words[2]);
        let is_vector = words[0] == step.value && step.value <= end && end <= room && room <= block.start + block.size;
        is_vector.then_some(end)
    }

    /// Whether a word of a function is in the room for what it has no input of: each has room for two, which is not cleared
    /// (`c10::SmallVector<InputMetadata, 2>`, torch/csrc/autograd/function.h). It begins with its own address, its length and its room; so does the shape
    /// of an input, behind eight bytes of options (`torch/csrc/autograd/input_metadata.h`, 2.1 to 2.14).
    fn is_unused_input(&self, function: u64, offset: u64) -> bool {
        const FROM: u64 = 0x80;
        const WORDS: usize = 32;
        const INPUT_BYTES: u64 = 96;
        const ROOM: u64 = 2;
        let Some(words) = self.memory.words(function + FROM, WORDS) else { return false };
        let mut places = (FROM..).step_by(8).zip(words.windows(4));
        places.any(|(at, words)| {
            let items = at + 16;
            let used = words[1] & u64::from(u32::MAX);
            let is_vector = words[0] == function + items && words[1] >> 32 == ROOM && used <= ROOM;
            let is_shape = words[3] == function + items + 24;
            let unused = items + used * INPUT_BYTES..items + ROOM * INPUT_BYTES;
            is_vector && (used == 0 || is_shape) && unused.contains(&offset)
        })
    }

    /// Whether a storage's word is its data on the host, which are numbers: unlike the owner of borrowed data, they are their own context.
    fn is_host_data(&self, step: &Step) -> bool {
        let beside = [step.place.wrapping_sub(8), step.place.wrapping_add(8)];
        self.heap.block(step.value).is_some() && beside.iter().any(|place| self.memory.word(*place) == Some(step.value))
    }

    /// Whether a tensor's implementation owns its object of Python. Up to `PyTorch` 2.9 the lowest bit of its address says it, and that object owns nothing
    /// then (`c10/core/impl/PyObjectSlot.h`). Later, the implementation keeps the object while it is held by more than that (`c10/util/intrusive_ptr.h`).
    pub(super) fn owns_object(&self, step: &Step) -> bool {
        const HAS_OBJECT: u64 = 1 << 63;
        let counts = self.memory.word_or_0(step.parent.start + COUNTS);
        let is_tagged = self.memory.word(step.place).is_some_and(|word| word & 1 == 1);
        is_tagged || (counts & HAS_OBJECT != 0 && counts as u32 > 1)
    }

    /// Whether a tensor's object of Python owns its implementation.
    pub(super) fn owns_tensor(&self, object: u64, tensor: &Node) -> bool {
        let head = self.memory.words(tensor.start, (TENSOR_HEAD_BYTES / 8) as usize);
        head.is_some_and(|words| !words.contains(&(object | 1)))
    }

    /// Whether a word of autograd's data of a tensor holds the child.
    fn admits_meta(&self, class: &str, step: &Step, child: &Node) -> bool {
        let (meta, offset) = (step.parent.start, step.place - step.parent.start);
        if child.class().is_some_and(is_tensor) {
            return is_gradient(step) || (is_view_meta(class) && BASE.contains(&offset));
        }
        let [text, end] = SHORT_NAME;
        let has_short_name = self.memory.word(meta + 8) == meta.checked_add(text);
        !(has_short_name && (text..end).contains(&offset))
    }

    /// Whether a word of plain memory counts, by the owner of that memory: `step` leads from it up, and `place` is the
    /// word. `has_object`: the word points at an object of Python.
    pub(super) fn is_owned(&self, step: &Step, place: u64, has_object: bool) -> bool {
        let (Kind::Python { object, ty }, Some(python)) = (&step.parent.kind, self.python) else {
            let is_type = step.parent.class().is_some_and(is_script_type);
            return !is_type && self.vector_end(step).is_none_or(|end| place < end);
        };
        let object = *object;
        let is_container =
            ty.holds_objects_alone() || matches!(ty.builtin, Builtin::Deque | Builtin::Set) || step.place < object;
        if !has_object && is_container {
            return false;
        }
        let offset = step.place.wrapping_sub(object);
        if ty.is_class() && step.place >= object + of_type::BYTES {
            return false;
        }
        if ty.is_list() {
            let items = self.memory.word_or_0(object + of_object::LIST_ITEMS);
            return place.wrapping_sub(items) / 8 < self.items(object);
        }
        if ty.builtin == Builtin::Deque {
            return self.is_deque_item(object, step.value, place);
        }
        if ty.is_dict() && offset == of_object::DICT_KEYS {
            let keys = python.keys(self.memory.word_or_0(step.place));
            return keys.is_some_and(|keys| keys.part_at(place).is_some());
        }
        if ty.is_dict() && offset == of_object::DICT_VALUES {
            let values = self.memory.word_or_0(step.place).wrapping_add(python.layout.values_head());
            let table = self.memory.word_or_0(object + of_object::DICT_KEYS);
            return has_value(python, table, values, place);
        }
        if step.place < object && !ty.is_class() {
            return is_value_of(python, object, ty, place);
        }
        true
    }

    /// Whether a place in a block of a deque is between its first and its last item.
    fn is_deque_item(&self, deque: u64, block: u64, place: u64) -> bool {
        let count = self.memory.word_or_0(deque + of_object::SIZE);
        // A link to the block before, then items.
        let Some(at) = (place.wrapping_sub(block) / 8).checked_sub(1) else { return false };
        let word = |offset| self.memory.word_or_0(deque + offset);
        let ([first, last], [left, right]) = (of_object::DEQUE_BLOCKS, of_object::DEQUE_INDICES);
        let is_behind_left = word(first) != block || at >= word(left);
        let is_before_right = word(last) != block || at <= word(right);
        count != 0 && is_behind_left && is_before_right
    }

    /// Whether a place of a frame object has no variable.
    fn is_unnamed(&self, object: u64, ty: &Type, step: &Step) -> bool {
        let Some(python) = self.python else { return true };
        let locals = if python.layout.frames_are_objects() {
            let code = self.memory.word(object + of_object::FRAME_CODE);
            (object + ty.basic_size).checked_sub(8).zip(code)
        } else {
            self.frame_inside(object, ty)
        };
        let at = locals.and_then(|(locals, code)| Some((code, step.place.checked_sub(locals)? / 8)));
        at.is_some_and(|(code, at)| python.variable(code, at) == Variable::Unnamed)
    }

    /// Whether a word is an item of a vector, which `step` leads up to.
    pub(super) fn is_in_vector(&self, step: &Step, place: u64) -> bool {
        self.vector_end(step).is_some_and(|end| place < end)
    }

    /// Whether an object has the plain memory below it, and the word at `place` there, as the items of a vector, and nothing else looks as if it had: of
    /// objects with a class only such a one.
    pub(super) fn is_only_vector(&self, step: &Step, items: &Node, place: u64) -> bool {
        let has_class = step.parent.class().is_some();
        let all = self.parents(items);
        let counts = |other: &&Step| (!has_class || other.parent.class().is_some()) && self.is_in_vector(other, place);
        let mut vectors = all.iter().filter(counts);
        vectors.next().is_some_and(|other| other.place == step.place) && vectors.next().is_none()
    }

    /// Whether a word points at a key, not at a value.
    pub(super) fn is_key(&self, step: &Step, place: u64) -> bool {
        let (Kind::Python { object, .. }, Some(python)) = (&step.parent.kind, self.python) else { return false };
        let keys = python.keys(self.memory.word_or_0(step.place));
        step.place == object + of_object::DICT_KEYS
            && keys.is_some_and(|keys| keys.part_at(place).is_some_and(|(_, part)| part == Part::Key))
    }
}

/// Frames and generators have their variables behind what their types count.
fn owns_whole_block(ty: &Type) -> bool {
    matches!(ty.builtin, Builtin::Generator | Builtin::Frame)
}

/// Whether a place is a value that has a key.
fn has_value(python: &Python<'_>, table: u64, values: u64, place: u64) -> bool {
    let at = place.wrapping_sub(values) / 8;
    python.keys(table).is_some_and(|keys| at < keys.used) && python.key(table, at).is_some()
}

fn is_value_of(python: &Python<'_>, object: u64, ty: &Type, place: u64) -> bool {
    let Some(table) = python.shared_keys(ty.address) else { return true };
    let values = python.values_of(object).unwrap_or(0);
    let at = place.wrapping_sub(values) / 8;
    python.keys(table).is_some_and(|keys| at < keys.used)
}

/// Whether an object keeps its items in the block that this word points at.
pub(super) fn is_items(step: &Step) -> bool {
    let Kind::Python { object, ty } = &step.parent.kind else { return true };
    let offset = step.place.wrapping_sub(*object);
    step.place < *object
        || (ty.is_list() && offset == of_object::LIST_ITEMS)
        || (ty.is_dict() && matches!(offset, of_object::DICT_KEYS | of_object::DICT_VALUES))
        || matches!(ty.builtin, Builtin::Deque | Builtin::Set)
}
