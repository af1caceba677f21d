//! Operator schemas as they lie in the library: `add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor`.
//!
//! They have facts that the mangled name lacks: the operator's real name, its results, and the tensors that it changes.

use std::collections::{HashMap, HashSet};

use memchr::memmem;

/// Longest schema that is read; real ones have less than 2000 bytes.
const MAX_SCHEMA: usize = 8192;
/// Most schemas read; a library has about 4000.
const MAX_SCHEMAS: usize = 65_536;
/// In every schema, and in little else.
const ARROW: &[u8] = b") -> ";

/// The memory that a tensor shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Alias {
    /// Not in the schema.
    None,
    /// It is, or there is, a view on it: `(a)`.
    View,
    /// It is changed: `(a!)`; the name of the alias set.
    Write(String),
}

/// A parameter or returned value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value<'a> {
    /// Its type without alias: `Tensor`, `Tensor?`, `Tensor[]`, `int`, ….
    pub(super) kind: &'a str,
    pub(super) alias: Alias,
}

/// An operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schema<'a> {
    /// With overload: `add.Tensor`, `relu`.
    pub(super) name: &'a str,
    pub(super) params: Vec<Value<'a>>,
    pub(super) returns: Vec<Value<'a>>,
}

impl<'a> Schema<'a> {
    /// Reads one; `None` for any other text.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (name, rest) = text.split_once('(')?;
        let (params, returns) = rest.rsplit_once(") -> ")?;
        let value = |text: &'a str| Value::parse(text);
        let params = split(params)?.into_iter().filter(|param| *param != "*").map(value).collect::<Option<_>>()?;
        let returns = match returns.strip_prefix('(') {
            Some(list) => split(list.strip_suffix(')')?)?.into_iter().map(value).collect::<Option<_>>()?,
            None => vec![Value::parse(returns)?],
        };
        is_name(name).then_some(Self { name, params, returns })
    }
}

impl<'a> Value<'a> {
    /// `Tensor(a! -> *) self=None` or `Tensor(a)[]`.
    fn parse(text: &'a str) -> Option<Self> {
        let word = text.split_once(' ').map_or(text, |(kind, _)| kind);
        let Some((kind, rest)) = word.split_once('(') else {
            return (!word.is_empty()).then_some(Self { kind: word, alias: Alias::None });
        };
        // The alias may hold blanks, so the whole text counts here.
        let (_, rest) = if rest.contains(')') { (kind, rest) } else { text.split_once('(')? };
        let (alias, suffix) = rest.split_once(')')?;
        let set = alias.split([' ', '|']).next().unwrap_or_default();
        let alias = match set.strip_suffix('!') {
            Some(set) => Alias::Write(set.to_owned()),
            None => Alias::View,
        };
        // A list of tensors keeps its brackets behind the alias.
        let kind = match suffix.as_bytes().first() {
            Some(b'[') if kind == "Tensor" => "Tensor[]",
            Some(b'?') if kind == "Tensor" => "Tensor?",
            _ => kind,
        };
        Some(Self { kind, alias })
    }

    pub(super) fn is_tensor(&self) -> bool {
        self.kind.starts_with("Tensor")
    }
}

/// The parts between commas outside of brackets and texts.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut parts, mut depth, mut start, mut quote) = (Vec::new(), 0_u32, 0, None);
    for (at, byte) in list.bytes().enumerate() {
        match (byte, quote) {
            (b'"' | b'\'', None) => quote = Some(byte),
            (_, Some(open)) => quote = Some(open).filter(|open| *open != byte),
            (b'(' | b'[', None) => depth += 1,
            (b')' | b']', None) => depth = depth.checked_sub(1)?,
            (b',', None) if depth == 0 => {
                parts.push(list.get(start..at)?.trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    let rest = list.get(start..)?.trim();
    if !rest.is_empty() {
        parts.push(rest);
    }
    (depth == 0 && quote.is_none()).then_some(parts)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
}

/// The schemas in a library's constants, by the name that C++ gives the operator: `add_Tensor` for `add.Tensor`.
///
/// `wanted` are these names. A linker stores a text that ends another one only once, so `cos(Tensor self)` may have to
/// be found within `arccos(Tensor self)`.
pub(super) fn find<'a>(constants: &[&'a [u8]], wanted: &HashSet<&str>) -> HashMap<String, Vec<&'a str>> {
    let mut found: HashMap<String, Vec<&str>> = HashMap::new();
    let mut inner: HashMap<String, Vec<&str>> = HashMap::new();
    let all = constants.iter().flat_map(|part| memmem::find_iter(part, ARROW).filter_map(|at| around(part, at)));
    for text in all.take(MAX_SCHEMAS) {
        let Some(name) = text.split('(').next() else { continue };
        for (start, _) in name.char_indices() {
            let (Some(tail), Some(rest)) = (name.get(start..), text.get(start..)) else { continue };
            let cxx = tail.replace('.', "_");
            if !is_name(tail) || !wanted.contains(cxx.as_str()) {
                continue;
            }
            let to = if start == 0 { &mut found } else { &mut inner };
            let list = to.entry(cxx).or_default();
            if !list.contains(&rest) {
                list.push(rest);
            }
        }
    }
    for (name, texts) in inner {
        found.entry(name).or_insert(texts);
    }
    found
}

/// The text, between NULs, around `at`.
fn around(part: &[u8], at: usize) -> Option<&str> {
    let first = at.saturating_sub(MAX_SCHEMA);
    let start = memchr::memrchr(0, part.get(first..at)?).map_or(first, |nul| first + nul + 1);
    let end = at + memchr::memchr(0, part.get(at..(at + MAX_SCHEMA).min(part.len()))?)?;
    std::str::from_utf8(part.get(start..end)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(schema: &Schema<'_>) -> Vec<String> {
        let alias = |value: &Value<'_>| match &value.alias {
            Alias::None => value.kind.to_owned(),
            Alias::View => format!("{} view", value.kind),
            Alias::Write(set) => format!("{} write {set}", value.kind),
        };
        schema.params.iter().map(alias).chain(["->".to_owned()]).chain(schema.returns.iter().map(alias)).collect()
    }

    /// Spellings that real libraries have.
    #[test]
    fn spellings() {
        let cases: [(&str, &str, &[&str]); 7] = [
            (
                "add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
                "add.Tensor",
                &["Tensor", "Tensor", "Scalar", "->", "Tensor"],
            ),
            ("zero_(Tensor(a!) self) -> Tensor(a!)", "zero_", &["Tensor write a", "->", "Tensor write a"]),
            (
                "split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
                "split.Tensor",
                &["Tensor view", "SymInt", "int", "->", "Tensor[] view"],
            ),
            (
                "cat.out(Tensor[] tensors, int dim=0, *, Tensor(a!) out) -> Tensor(a!)",
                "cat.out",
                &["Tensor[]", "int", "Tensor write a", "->", "Tensor write a"],
            ),
            (
                "_foreach_add_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()",
                "_foreach_add_.Scalar",
                &["Tensor[] write a", "Scalar", "->"],
            ),
            (
                "max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
                "max.dim",
                &["Tensor", "int", "bool", "->", "Tensor", "Tensor"],
            ),
            (
                "pad(Tensor self, SymInt[] pad, str mode=\"con, (st\", float? value=None) -> Tensor",
                "pad",
                &["Tensor", "SymInt[]", "str", "float?", "->", "Tensor"],
            ),
        ];
        for (text, name, expected) in cases {
            let schema = Schema::parse(text).expect(text);
            assert_eq!((schema.name, kinds(&schema)), (name, expected.iter().map(|kind| (*kind).to_owned()).collect()));
        }
    }

    #[test]
    fn other_texts_are_none() {
        for text in ["", "(", ") -> ", "f) -> Tensor", "f(Tensor a -> Tensor", "f(Tensor a)] -> Tensor", "a b() -> ()"]
        {
            assert_eq!(Schema::parse(text), None, "{text}");
        }
    }

    /// Exact texts beat tails of longer ones, and only whole names count.
    #[test]
    fn found_whole_and_as_tails() {
        let constants: &[u8] = b"\0arccos(Tensor self) -> Tensor\0mm(Tensor a) -> Tensor\0bmm(Tensor b) -> Tensor\0";
        let found = find(&[constants], &["cos", "mm", "os_x"].into());
        assert_eq!(found.get("cos").map(Vec::as_slice), Some(&["cos(Tensor self) -> Tensor"][..]));
        assert_eq!(found.get("mm").map(Vec::as_slice), Some(&["mm(Tensor a) -> Tensor"][..]));
        assert_eq!(found.len(), 2);
    }
}
