//! The name of a path: `__main__.model.layers[3].weight`, as a person would write it.

use std::fmt::{self, Display};

use crate::model::HeldAs;

/// A part of a path's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Segment {
    /// Where it begins.
    Root(String),
    /// `.name`
    Attribute(String),
    /// `[3]`; without a number any.
    Index(Option<u64>),
    /// `['name']`, as Python shows it.
    Key(String),
    /// It is the key itself.
    IsKey(String),
    /// Of a set.
    Member,
    /// Of a deque.
    Item,
    /// A variable that an inner function has from outside.
    Closure(String),
    /// A `contextvars.ContextVar` of a context.
    ContextVariable(String),
    /// A variable of a function: of one that runs, of a generator or a coroutine that waits, or of a frame that is
    /// kept. Without a name it is a value on its stack.
    Local { name: String, function: String },
    /// An object named by its type.
    Object(String),
}

impl Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(text) => f.write_str(text),
            Self::Attribute(name) => write!(f, ".{name}"),
            Self::Index(Some(at)) => write!(f, "[{at}]"),
            Self::Index(None) => f.write_str("[*]"),
            Self::Key(text) => write!(f, "[{text}]"),
            Self::IsKey(text) => write!(f, "[key {text}]"),
            Self::Member => f.write_str("{member}"),
            Self::Item => f.write_str("[deque item]"),
            Self::Closure(name) => write!(f, " closure variable `{name}`"),
            Self::ContextVariable(name) => write!(f, " context variable `{name}`"),
            Self::Local { name, .. } if name.is_empty() => f.write_str("value on the stack"),
            Self::Local { name, .. } => write!(f, "local `{name}`"),
            Self::Object(name) => write!(f, " → {name}"),
        }
    }
}

/// The whole name, and the objects of the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Trail {
    /// From the root on.
    pub(super) segments: Vec<Segment>,
    /// Every object, from the block outwards, by its type.
    pub(super) through: Vec<String>,
    /// The purpose of the block, if the path shows it.
    pub(super) held_as: Option<HeldAs>,
}

impl Trail {
    /// It begins with a variable of a function that runs, or waits.
    pub(super) fn is_of_running_function(&self) -> bool {
        self.segments.iter().any(|segment| matches!(segment, Segment::Local { .. }))
    }
}

impl Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&spelt(&self.segments))
    }
}

/// A part of a path: ``local `batch`['x'][3] of serve() server.py:88``.
pub(super) fn spelt(segments: &[Segment]) -> String {
    let mut text = String::new();
    let mut function: Option<&str> = None;
    let end = |text: &mut String, function: Option<&str>| {
        if let Some(function) = function {
            text.push_str(" of ");
            text.push_str(function);
        }
    };
    for segment in segments {
        // The rest of a variable's path is looked up in it, up to the next object with a name of its own.
        if matches!(
            segment,
            Segment::Local { .. } | Segment::Object(_) | Segment::Closure(_) | Segment::ContextVariable(_)
        ) {
            end(&mut text, function.take());
        }
        if let Segment::Local { function: of, .. } = segment {
            if !text.is_empty() {
                text.push_str(" → ");
            }
            function = Some(of);
        }
        text.push_str(&segment.to_string());
    }
    end(&mut text, function);
    text
}

impl Trail {
    /// The part that a person can let go of: an autograd graph is one with its loss.
    pub(super) fn holder(&self) -> String {
        let own = self.segments.iter().position(|segment| matches!(segment, Segment::Object(_)));
        spelt(&self.segments[..own.filter(|own| *own > 0).unwrap_or(self.segments.len())])
    }

    /// What makes it a worse name than another one of the same length: names that are not for users, and keys that are no words.
    pub(super) fn oddness(&self) -> u32 {
        let of = |segment: &Segment| match segment {
            Segment::Attribute(name) if name.starts_with('_') => 1,
            Segment::Key(key) if key.starts_with('<') || key.starts_with("'_") => 4,
            Segment::IsKey(_) => 4,
            _ => 0,
        };
        self.segments.iter().map(of).sum()
    }

    /// With names that need no explanation: a module of torch keeps its contents in three dicts.
    pub(super) fn tidy(mut self) -> Self {
        const DICTS: [&str; 5] = ["_modules", "_parameters", "_buffers", "_cells", "_params"];
        let mut tidied: Vec<Segment> = Vec::with_capacity(self.segments.len());
        for segment in self.segments {
            let is_in_dict = matches!(tidied.last(), Some(Segment::Attribute(name)) if DICTS.contains(&name.as_str()));
            match (is_in_dict, plain_key(&segment)) {
                (true, Some(name)) => {
                    tidied.pop();
                    let number = name.parse().ok();
                    tidied.push(number.map_or_else(|| Segment::Attribute(name), |at| Segment::Index(Some(at))));
                }
                _ => tidied.push(segment),
            }
        }
        self.segments = tidied;
        self
    }

    /// Without the user's keys.
    pub(super) fn without_keys(mut self) -> Self {
        for segment in &mut self.segments {
            if let Segment::Key(text) | Segment::IsKey(text) = segment {
                "…".clone_into(text);
            }
        }
        self.through = self.through.into_iter().map(|text| without_key(&text)).collect();
        self
    }
}

/// The contents of brackets, unless a number.
fn without_key(text: &str) -> String {
    let Some((head, rest)) = text.split_once('[') else { return text.to_owned() };
    let inner = rest.strip_suffix(']').unwrap_or(rest);
    if inner.bytes().all(|byte| byte.is_ascii_digit()) { text.to_owned() } else { format!("{head}[…]") }
}

/// The text of a key that is a plain word.
fn plain_key(segment: &Segment) -> Option<String> {
    let Segment::Key(text) = segment else { return None };
    let inner = text.strip_prefix('\'')?.strip_suffix('\'')?;
    let is_plain = !inner.is_empty() && inner.chars().all(|character| character.is_alphanumeric() || character == '_');
    is_plain.then(|| inner.to_owned())
}

/// Whether Python takes a text as a name.
pub(super) fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    let begins = characters.next().is_some_and(|first| first.is_alphabetic() || first == '_');
    begins && characters.all(|character| character.is_alphanumeric() || character == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(name: &str) -> Segment {
        Segment::Attribute(name.to_owned())
    }

    fn key(text: &str) -> Segment {
        Segment::Key(text.to_owned())
    }

    fn trail(segments: Vec<Segment>) -> Trail {
        Trail { segments, through: vec!["list[3]".to_owned(), "dict['secret']".to_owned()], held_as: None }
    }

    #[test]
    fn names_as_one_writes_them() {
        let root = || Segment::Root("__main__".to_owned());
        let model = trail(vec![
            root(),
            attribute("model"),
            attribute("_modules"),
            key("'layers'"),
            attribute("_modules"),
            key("'3'"),
            attribute("_parameters"),
            key("'weight'"),
        ]);
        assert_eq!(model.clone().tidy().to_string(), "__main__.model.layers[3].weight");
        // Not of a module.
        let other = trail(vec![root(), attribute("cache"), key("'x'"), Segment::Index(Some(1))]);
        assert_eq!(other.clone().tidy().to_string(), "__main__.cache['x'][1]");
        assert_eq!(other.clone().without_keys().to_string(), "__main__.cache[…][1]");
        assert_eq!(other.without_keys().through, ["list[3]", "dict[…]"]);
        let graph = trail(vec![root(), attribute("losses"), Segment::Object("MeanBackward0".to_owned())]);
        assert_eq!(graph.to_string(), "__main__.losses → MeanBackward0");
        assert_eq!(graph.holder(), "__main__.losses");
        let local =
            |name: &str, function: &str| Segment::Local { name: name.to_owned(), function: function.to_owned() };
        let waits = trail(vec![
            local("task", "run() a.py:3"),
            attribute("x"),
            Segment::Object("Task".to_owned()),
            local("t", "handle() a.py:7"),
            key("'k'"),
        ]);
        let unnamed = trail(vec![Segment::Root("__main__".to_owned()), attribute("g"), local("", "get() a.py:9")]);
        assert_eq!(unnamed.to_string(), "__main__.g → value on the stack of get() a.py:9");
        assert_eq!(waits.to_string(), "local `task`.x of run() a.py:3 → Task → local `t`['k'] of handle() a.py:7");
    }

    /// By hand: `__dict__` and `_group` are one each, the key of a library and that without a text four each.
    #[test]
    fn odd_names() {
        let root = || Segment::Root("__main__".to_owned());
        let own = trail(vec![root(), attribute("model"), attribute("weight"), Segment::Index(Some(0)), key("'x'")]);
        assert_eq!(own.oddness(), 0);
        let inner = vec![root(), attribute("__dict__"), key("'__state'"), key("<function>"), attribute("_group")];
        assert_eq!(trail(inner).oddness(), 10);
        assert_eq!(trail(vec![root(), attribute("state"), Segment::IsKey("<Parameter>".to_owned())]).oddness(), 4);
    }

    #[test]
    fn names_of_python() {
        assert!(is_name("weight_2") && is_name("_x") && is_name("größe"));
        assert!(!is_name("") && !is_name("2x") && !is_name("a b") && !is_name("a.b"));
    }
}
