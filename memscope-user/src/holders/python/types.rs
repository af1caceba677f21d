//! Types of Python's objects.

use std::rc::Rc;

use super::{Python, layout::of_type};
use crate::holders::source::ADDRESS_END;

/// Longest name of a type.
const MAX_NAME: usize = 256;
/// Longest name of a field.
const MAX_FIELD: usize = 128;
/// Most bases of a type, and fields of each.
const MAX_BASES: usize = 12;
const MAX_FIELDS: usize = 64;
/// No type's objects have more fields, ...
const MAX_BASIC_SIZE: u64 = 1 << 20;
/// ... or larger items.
const MAX_ITEM_SIZE: u64 = 1 << 16;
/// A field that is an object, in two forms.
const OBJECT_FIELD: [u32; 2] = [6, 16];

/// Types with rules of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::holders) enum Builtin {
    Module,
    Class,
    List,
    Tuple,
    Dict,
    Set,
    Deque,
    Cell,
    Method,
    Function,
    Generator,
    Frame,
    Traceback,
    Descriptor,
    Code,
    Int,
    /// A `contextvars.Context`, ...
    Context,
    /// ... the nodes of its tree with nodes alone, ...
    ContextTree,
    /// ... and those with pairs.
    ContextPairs,
    ContextVariable,
    ContextToken,
    Other,
}

impl Builtin {
    fn of_name(name: &str) -> Self {
        match name {
            "module" => Self::Module,
            "list" => Self::List,
            "tuple" => Self::Tuple,
            "dict" => Self::Dict,
            "set" | "frozenset" => Self::Set,
            "deque" | "collections.deque" => Self::Deque,
            "cell" => Self::Cell,
            "method" | "builtin_function_or_method" => Self::Method,
            "function" => Self::Function,
            "generator" | "coroutine" | "async_generator" => Self::Generator,
            "frame" => Self::Frame,
            "traceback" => Self::Traceback,
            "property" | "staticmethod" | "classmethod" => Self::Descriptor,
            "code" => Self::Code,
            "int" => Self::Int,
            _ => Self::Other,
        }
    }

    /// Types of which a program may have others of the same name.
    fn of_interpreter(name: &str) -> Option<Self> {
        // Without the module up to 3.10; `decimal` has a `Context`, too.
        match name.strip_prefix("_contextvars.").unwrap_or(name) {
            "Context" => Some(Self::Context),
            "hamt" | "hamt_array_node" => Some(Self::ContextTree),
            "hamt_bitmap_node" | "hamt_collision_node" => Some(Self::ContextPairs),
            "ContextVar" => Some(Self::ContextVariable),
            "Token" => Some(Self::ContextToken),
            _ => None,
        }
    }
}

/// A type.
#[derive(Debug)]
pub(in crate::holders) struct Type {
    pub(in crate::holders) address: u64,
    pub(in crate::holders) name: String,
    /// Of a class that Python made; empty of others.
    pub(in crate::holders) module: String,
    pub(in crate::holders) builtin: Builtin,
    pub(in crate::holders) basic_size: u64,
    pub(in crate::holders) item_size: u64,
    pub(in crate::holders) flags: u64,
    pub(in crate::holders) dict_offset: i64,
    /// Named fields, by their offsets.
    pub(in crate::holders) fields: Vec<(u64, String)>,
    /// Its references do not hold their targets.
    pub(in crate::holders) is_weak: bool,
    /// What points at nothing.
    pub(in crate::holders) is_scalar: bool,
    /// It is an `Optimizer`, or made of one.
    pub(in crate::holders) is_optimizer: bool,
}

impl Type {
    const fn has(&self, bit: u32) -> bool {
        self.flags >> bit & 1 == 1
    }

    pub(in crate::holders) const fn has_collector_words(&self) -> bool {
        self.has(14)
    }

    pub(in crate::holders) const fn is_list(&self) -> bool {
        self.has(25)
    }

    pub(in crate::holders) const fn is_tuple(&self) -> bool {
        self.has(26)
    }

    pub(in crate::holders) const fn is_dict(&self) -> bool {
        self.has(29)
    }

    pub(in crate::holders) const fn is_exception(&self) -> bool {
        self.has(30)
    }

    /// Objects of this type are types themselves.
    pub(in crate::holders) const fn is_class(&self) -> bool {
        self.has(31)
    }

    /// Lists, tuples, texts, dicts and exceptions: they hold only objects.
    pub(in crate::holders) const fn holds_objects_alone(&self) -> bool {
        self.flags >> 24 & 0b111_0110 != 0
    }

    /// Numbers, lists, tuples, texts, exceptions and classes: the interpreter's own, which clear the references they
    /// drop.
    pub(in crate::holders) const fn is_of_interpreter(&self) -> bool {
        self.flags >> 24 & 0b1101_0111 != 0
    }

    /// `module.name`, as far as it is known.
    pub(in crate::holders) fn full_name(&self) -> String {
        match self.module.as_str() {
            "" | "builtins" => self.name.clone(),
            module => format!("{module}.{}", self.name),
        }
    }

    /// The name of the field at an offset.
    pub(in crate::holders) fn field(&self, offset: u64) -> Option<&str> {
        self.fields.iter().find(|(at, _)| *at == offset).map(|(_, name)| name.as_str())
    }
}

impl Python<'_> {
    /// The type at an address, if there is one.
    pub(in crate::holders) fn type_at(&self, address: u64) -> Option<Rc<Type>> {
        /// Most types kept, and words mistaken for one.
        const MAX_KNOWN: usize = 1 << 18;
        const LOWEST: u64 = 4096;
        if !address.is_multiple_of(8) || !(LOWEST..ADDRESS_END).contains(&address) {
            return None;
        }
        if let Some(known) = self.types.borrow().get(&address) {
            return known.clone();
        }
        let found = self.read_type(address).map(Rc::new);
        let mut types = self.types.borrow_mut();
        if types.len() >= MAX_KNOWN {
            types.clear();
        }
        types.insert(address, found.clone());
        found
    }

    /// The type of an object.
    pub(in crate::holders) fn type_of(&self, object: u64) -> Option<Rc<Type>> {
        self.type_at(self.memory.word(object.checked_add(8)?)?)
    }

    fn read_type(&self, address: u64) -> Option<Type> {
        let words = self.memory.words(address, of_type::WORDS)?;
        if !self.is_metatype(words[1]) {
            return None;
        }
        let name = self.memory.text(words[of_type::NAME], MAX_NAME)?;
        let (basic_size, item_size) = (words[of_type::BASIC_SIZE], words[of_type::ITEM_SIZE]);
        if name.is_empty() || basic_size > MAX_BASIC_SIZE || item_size > MAX_ITEM_SIZE {
            return None;
        }
        let flags = words[of_type::FLAGS];
        let is_made_by_python = flags >> 9 & 1 == 1;
        let module = (is_made_by_python && !name.contains('.')).then(|| self.module_of(words[of_type::DICT]));
        let own = Builtin::of_interpreter(&name).filter(|_| !is_made_by_python);
        let is_class = flags >> 31 & 1 == 1;
        let builtin = if is_class { Builtin::Class } else { own.unwrap_or_else(|| Builtin::of_name(&name)) };
        let mut found = Type {
            address,
            module: module.flatten().unwrap_or_default(),
            builtin,
            name,
            basic_size,
            item_size,
            flags,
            dict_offset: words[of_type::DICT_OFFSET] as i64,
            fields: Vec::new(),
            is_weak: false,
            is_scalar: false,
            is_optimizer: false,
        };
        self.read_bases(&mut found);
        Some(found)
    }

    fn module_of(&self, dict: u64) -> Option<String> {
        self.text(self.dict_item(dict, "__module__")?)
    }

    /// `type` itself, or what leads to it in two steps at most.
    fn is_metatype(&self, meta: u64) -> bool {
        let next = |ty: u64| self.memory.word(ty.checked_add(8)?);
        meta == self.type_type
            || next(meta).is_some_and(|first| {
                first == self.type_type || next(first).is_some_and(|second| second == self.type_type)
            })
    }

    /// Fields of the type and of its bases: objects never get smaller, so offsets do not collide.
    fn read_bases(&self, ty: &mut Type) {
        let mut base = ty.address;
        for _ in 0..MAX_BASES {
            let Some(words) = self.memory.words(base, of_type::BASE + 1) else { return };
            let name = self.memory.text(words[of_type::NAME], MAX_NAME).unwrap_or_default();
            let last = name.rsplit('.').next().unwrap_or_default();
            ty.is_weak |= name.starts_with("weak") || name.ends_with("weakref") || last == "ReferenceType";
            ty.is_optimizer |= last == "Optimizer";
            ty.is_scalar |= matches!(
                name.as_str(),
                "int"
                    | "str"
                    | "bytes"
                    | "float"
                    | "complex"
                    | "bytearray"
                    | "code"
                    | "numpy.generic"
                    // Of texts alone, with words of numbers and their padding.
                    | "re.Pattern"
                    // Nothing but a flag, with seven bytes behind it that are not cleared.
                    | "_thread.lock"
                    | "_thread.RLock"
            );
            self.read_fields(words[of_type::MEMBERS], &mut ty.fields);
            let next = words[of_type::BASE];
            if next == 0 || next == base {
                return;
            }
            base = next;
        }
    }

    fn read_fields(&self, table: u64, fields: &mut Vec<(u64, String)>) {
        const ENTRY_WORDS: usize = 5;
        let mut entry = table;
        for _ in 0..MAX_FIELDS {
            let words = if entry == 0 { None } else { self.memory.words(entry, ENTRY_WORDS) };
            let Some(words) = words.filter(|words| words[0] != 0) else { return };
            if OBJECT_FIELD.contains(&(words[1] as u32))
                && let Some(name) = self.memory.text(words[0], MAX_FIELD)
            {
                fields.push((words[2], name));
            }
            let Some(next) = entry.checked_add(ENTRY_WORDS as u64 * 8) else { return };
            entry = next;
        }
    }
}
