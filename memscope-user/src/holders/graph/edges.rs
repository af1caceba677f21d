//! The name of a path's step, given the object below it. A step without a name is a wrong one: such a path is rejected.

use super::{
    Graph, Kind, Node, Root, Step, contexts, mindspore, purpose,
    rules::{self, is_items},
};
use crate::holders::{
    python::{Builtin, Part, Python, Type, Variable, of_object, of_type},
    trail::is_name,
};

pub(in crate::holders) use crate::holders::trail::{Segment, Trail};

/// The text that a step adds to the name.
pub(super) enum Edge {
    Says(Segment),
    /// It goes without saying.
    Nothing,
    /// To a dict with names as keys.
    Namespace,
    /// Of an object named by its type.
    Nameless,
}

impl Graph<'_> {
    /// The name of a path; `None` if a step of it has none.
    pub(super) fn trail(&self, steps: &[Step]) -> Option<Trail> {
        let mut segments = Vec::new();
        let mut through = Vec::new();
        let mut in_namespace = false;
        let mut in_closure = false;
        for at in (0..steps.len()).rev() {
            let step = &steps[at];
            let below = at.checked_sub(1).map(|below| &steps[below]);
            let above = steps.get(at + 1);
            let edge = match &step.parent.kind {
                Kind::Root(root) => Edge::Says(root_segment(root)),
                Kind::Plain => self.plain_edge(step, below, above),
                Kind::Cpp(class) => member_edge(class, step, below),
                Kind::Python { object, ty } => self.field_edge(*object, ty, step, steps, at)?,
            };
            let mut text = self.node_text(&step.parent);
            let is_root_object = above.is_none() && step.parent.is_python();
            if is_root_object {
                segments.push(Segment::Root(text.clone()));
            }
            let namespace = std::mem::take(&mut in_namespace);
            let closure = std::mem::take(&mut in_closure);
            match edge {
                // The tuple of a function's variables from outside: they are known by name.
                Edge::Says(Segment::Index(_)) if closure => {}
                Edge::Says(Segment::Key(key)) if namespace => segments.extend(named(&key)),
                // Values of an object without a dict of its own can have any name, too.
                Edge::Says(Segment::Attribute(name)) if !is_name(&name) => segments.extend(named(&format!("'{name}'"))),
                Edge::Says(segment) => {
                    in_closure = matches!(segment, Segment::Closure(_));
                    match &segment {
                        Segment::Root(_) | Segment::Object(_) => {}
                        Segment::Local { .. } if above.is_none() => {}
                        Segment::Local { function, .. } => text = format!("{text}: {segment} of {function}"),
                        _ => text = format!("{text}{segment}"),
                    }
                    segments.push(segment);
                }
                // An object with the address of the block is no holder that a person would name.
                Edge::Nameless if at == 0 && above.is_some() => {}
                Edge::Nothing => {}
                Edge::Namespace => in_namespace = true,
                Edge::Nameless if is_root_object => {}
                Edge::Nameless => segments.push(Segment::Object(text.clone())),
            }
            if !(step.parent.is_plain() && above.is_some_and(|above| above.parent.is_python())) {
                through.push(text);
            }
        }
        through.reverse();
        let held_as = purpose::of(steps, &segments);
        Some(Trail { segments, through, held_as }.tidy())
    }

    /// Memory without a type is named by its owner, if that is Python's or has it as the items of a vector, and not at all between functions of
    /// autograd.
    fn plain_edge(&self, step: &Step, below: Option<&Step>, above: Option<&Step>) -> Edge {
        let is_autograd =
            |step: Option<&Step>| step.is_some_and(|step| step.parent.class().is_some_and(rules::is_autograd));
        let is_owners = above.is_some_and(|above| above.parent.is_python() || self.is_in_vector(above, step.place));
        if is_owners || (is_autograd(below) && is_autograd(above)) {
            return Edge::Nothing;
        }
        Edge::Says(Segment::Object(format!("{} bytes", step.parent.size)))
    }

    fn field_edge(&self, object: u64, ty: &Type, step: &Step, steps: &[Step], at: usize) -> Option<Edge> {
        let python = self.python?;
        let below = at.checked_sub(1).map(|below| &steps[below]);
        let items = below.filter(|below| below.parent.is_plain());
        if let Some(items) = items.filter(|_| is_items(step)) {
            return self.item_edge(python, object, ty, step, items.place);
        }
        let offset = step.place.wrapping_sub(object);
        if step.place < object {
            return Some(Edge::Namespace);
        }
        if let Some(into) = offset.checked_sub(python.layout.tuple_items()).filter(|_| ty.is_tuple()) {
            return Some(Edge::Says(Segment::Index(Some(into / 8))));
        }
        if let Some(edge) = contexts::edge(python, self, object, ty, step) {
            return Some(edge);
        }
        match ty.builtin {
            Builtin::Module => return Some(Edge::Namespace),
            Builtin::Class => return (offset == of_type::DICT as u64 * 8).then_some(Edge::Namespace),
            Builtin::Cell => return Some(Edge::Nothing),
            Builtin::Set => return Some(Edge::Says(Segment::Member)),
            Builtin::Function if offset == python.layout.function_closure() => {
                return self.closure_edge(python, object, below);
            }
            Builtin::Frame | Builtin::Generator => {
                if let Some(edge) = self.variable_edge(python, object, ty, step) {
                    return Some(edge);
                }
            }
            _ => {}
        }
        Some(Self::plain_field(python, object, ty, step, below))
    }

    /// A field of an object without a special rule.
    fn plain_field(python: &Python<'_>, object: u64, ty: &Type, step: &Step, below: Option<&Step>) -> Edge {
        let offset = step.place.wrapping_sub(object);
        if let Some(name) = ty.field(offset) {
            if name == "__dict__" {
                return Edge::Namespace;
            }
            return Edge::Says(Segment::Attribute(name.to_owned()));
        }
        if ty.dict_offset > 0 && ty.dict_offset as u64 == offset {
            return Edge::Namespace;
        }
        if python.layout.has_inline_values(ty.flags) && offset >= ty.basic_size + python.layout.values_head() {
            let at = (offset - ty.basic_size - python.layout.values_head()) / 8;
            if let Some(name) = shared_name(python, ty, at) {
                return Edge::Says(Segment::Attribute(name));
            }
        }
        if let Some(name) = python.layout.own_field(ty, offset) {
            return Edge::Says(Segment::Attribute(name.to_owned()));
        }
        let name = match ty.builtin {
            Builtin::Method if offset == of_object::METHOD_SELF => "__self__",
            Builtin::Method => "__func__",
            Builtin::Function if offset == python.layout.function_defaults() => "__defaults__",
            // By name, those follow (Include/cpython/funcobject.h).
            Builtin::Function if offset == python.layout.function_defaults() + 8 => "__kwdefaults__",
            // A tensor has its implementation there.
            _ if rules::is_python_tensor(ty) => return Edge::Nothing,
            _ if stands_for(ty, below) => return Edge::Nothing,
            _ => return Edge::Nameless,
        };
        Edge::Says(Segment::Attribute(name.to_owned()))
    }

    /// The word at `place` in the block where an object keeps its items.
    fn item_edge(&self, python: &Python<'_>, object: u64, ty: &Type, step: &Step, place: u64) -> Option<Edge> {
        let says = |segment| Some(Edge::Says(segment));
        if ty.is_list() {
            let items = self.memory.word(object + of_object::LIST_ITEMS)?;
            return says(Segment::Index(Some(place.checked_sub(items)? / 8)));
        }
        if ty.builtin == Builtin::Deque {
            return says(Segment::Item);
        }
        if step.place < object {
            let at = place.checked_sub(python.values_of(object)?)? / 8;
            return says(Segment::Attribute(shared_name(python, ty, at)?));
        }
        if ty.builtin == Builtin::Set {
            return says(Segment::Member);
        }
        let table = self.memory.word(object + of_object::DICT_KEYS)?;
        if step.place == object + of_object::DICT_KEYS {
            let (at, part) = python.keys(table)?.part_at(place)?;
            let key = python.key_text(python.key(table, at)?);
            return says(if part == Part::Key { Segment::IsKey(key) } else { Segment::Key(key) });
        }
        let values = self.memory.word(step.place)?.wrapping_add(python.layout.values_head());
        let key = python.key(table, place.checked_sub(values)? / 8)?;
        says(Segment::Key(python.key_text(key)))
    }

    /// `below` leads from the tuple of cells down.
    fn closure_edge(&self, python: &Python<'_>, function: u64, below: Option<&Step>) -> Option<Edge> {
        let below = below?;
        let Kind::Python { object: tuple, .. } = below.parent.kind else { return None };
        let at = below.place.checked_sub(tuple + python.layout.tuple_items())? / 8;
        let code = self.memory.word(function + python.layout.function_code())?;
        Some(Edge::Says(Segment::Closure(python.outer_variable(code, at)?)))
    }

    fn variable_edge(&self, python: &Python<'_>, object: u64, ty: &Type, step: &Step) -> Option<Edge> {
        let (locals, code) = if python.layout.frames_are_objects() {
            if ty.builtin == Builtin::Generator {
                return None;
            }
            (object + ty.basic_size - 8, self.memory.word(object + of_object::FRAME_CODE)?)
        } else {
            self.frame_inside(object, ty)?
        };
        let at = step.place.checked_sub(locals)? / 8;
        let function = python.code_text(code);
        let name = match python.variable(code, at) {
            Variable::Named(name) => name,
            Variable::Unnamed => String::new(),
        };
        Some(Edge::Says(Segment::Local { name, function }))
    }

    /// From 3.11 on a generator's frame is the end of the object, and a frame object's may be: where its variables begin, and
    /// its code.
    pub(super) fn frame_inside(&self, object: u64, ty: &Type) -> Option<(u64, u64)> {
        let python = self.python?;
        let locals = object.checked_add(ty.basic_size)?;
        // The last word counted by a generator's type may be the first variable.
        let starts = [0, 8].into_iter().filter_map(|less| locals.checked_sub(less));
        let mut frames = starts.filter_map(|locals| {
            let frame = locals.checked_sub(python.layout.frame_locals())?;
            Some((locals, python.code_of_frame(frame)?))
        });
        frames.next()
    }

    /// An object by its type, a root object by its name.
    pub(super) fn node_text(&self, node: &Node) -> String {
        match &node.kind {
            Kind::Python { object, ty } => self.object_text(*object, ty),
            Kind::Cpp(class) => class.to_string(),
            Kind::Plain => format!("{} bytes", node.size),
            Kind::Root(root) => root_text(root),
        }
    }

    fn object_text(&self, object: u64, ty: &Type) -> String {
        let Some(python) = self.python else { return ty.full_name() };
        let text = |at: u64| self.memory.word(object + at).and_then(|text| python.text(text));
        match ty.builtin {
            Builtin::Module => text(of_object::MODULE_NAME).unwrap_or_else(|| "a module".to_owned()),
            Builtin::Function => {
                text(python.layout.function_name()).map_or_else(|| ty.full_name(), |name| format!("function {name}"))
            }
            Builtin::Class => {
                let class = python.type_at(object).map_or_else(|| "?".to_owned(), |class| class.full_name());
                format!("class {class}")
            }
            _ => ty.full_name(),
        }
    }
}

fn shared_name(python: &Python<'_>, ty: &Type, at: u64) -> Option<String> {
    python.text(python.key(python.shared_keys(ty.address)?, at)?)
}

/// A key of a namespace is an attribute.
fn named(key: &str) -> Vec<Segment> {
    let inner = key.strip_prefix('\'').and_then(|key| key.strip_suffix('\''));
    match inner.filter(|inner| is_name(inner)) {
        Some(name) => vec![Segment::Attribute(name.to_owned())],
        None => vec![Segment::Attribute("__dict__".to_owned()), Segment::Key(key.to_owned())],
    }
}

fn member_edge(class: &str, step: &Step, below: Option<&Step>) -> Edge {
    let child = below.and_then(|below| below.parent.class()).unwrap_or_default();
    if rules::is_autograd_meta(class) && rules::is_tensor(child) {
        // A tensor holds its gradient, and a view its base.
        let name = if rules::is_gradient(step) { "grad" } else { "_base" };
        return Edge::Says(Segment::Attribute(name.to_owned()));
    }
    let is_of_tensor = rules::is_storage(class) || rules::is_tensor(class) || rules::is_autograd_meta(class);
    if is_of_tensor || mindspore::is_part(class) {
        return Edge::Nothing;
    }
    Edge::Says(Segment::Object(short_class(class).to_owned()))
}

/// The name of a class: that of what a `std::shared_ptr` counts for the block that it counts in, and of autograd's functions without their
/// namespaces.
fn short_class(class: &str) -> &str {
    let class = rules::counted(class);
    if rules::is_autograd(class) { class.rsplit("::").next().unwrap_or(class) } else { class }
}

/// Whether an object of Python stands for the one of C++ below it.
fn stands_for(ty: &Type, below: Option<&Step>) -> bool {
    below.and_then(|below| below.parent.class()).is_some_and(|class| short_class(class) == ty.name)
}

fn root_segment(root: &Root) -> Segment {
    match root {
        Root::Local { name, function } => Segment::Local { name: name.clone(), function: function.clone() },
        other => Segment::Root(root_text(other)),
    }
}

fn root_text(root: &Root) -> String {
    match root {
        Root::Local { name, function } => format!("local `{name}` of {function}"),
        Root::Value { function } => format!("value on the stack of {function}"),
        Root::Global { name, .. } => name.clone(),
        Root::Context { tid: 0 } => "a thread".to_owned(),
        Root::Context { tid } => format!("thread {tid}"),
        Root::Stack { tid: 0 } => "stack of a thread".to_owned(),
        Root::Stack { tid } => format!("stack of thread {tid}"),
        Root::Unknown { page } => format!("memory of unknown make at {page:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::short_class;

    #[test]
    fn names_of_classes() {
        assert_eq!(short_class("torch::autograd::generated::MulBackward0"), "MulBackward0");
        assert_eq!(short_class("c10::ivalue::Future"), "c10::ivalue::Future");
        let inplace = "std::_Sp_counted_ptr_inplace<torch::autograd::AccumulateGrad, std::allocator<void>, (__gnu_cxx::_Lock_policy)2>";
        assert_eq!(short_class(inplace), "AccumulateGrad");
        assert_eq!(short_class("std::_Sp_counted_ptr<server::Pool*, (__gnu_cxx::_Lock_policy)2>"), "server::Pool");
        assert_eq!(short_class("std::_Sp_counted_deleter"), "std::_Sp_counted_deleter");
    }
}
