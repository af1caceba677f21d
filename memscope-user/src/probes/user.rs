//! Functions that the user wants to be probed: by option, or by a JSON file.
//!
//! ```text
//! libmypool.so:my_alloc=alloc(size=0,ret=ptr)       void *my_alloc(size_t size)
//! libmypool.so:my_free=free(ptr=0)                  void my_free(void *ptr)
//! libtrain.so:trace_point=mark(text=0)              void trace_point(const char *text)
//! ```
//!
//! In a file: `[{"library": "libmypool.so", "function": "my_alloc", "kind": "alloc", "size": 0, "ret": "ptr"}, …]`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use memscope_common::row::REGISTER_ARGS;
use memscope_common::{Fetch, When};
use serde::Deserialize;

use super::{CallKind, Field, Layer, MstxCall, PoolCall, ProbeSpec};
use crate::regular;

/// A file of probes is read up to here.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Probes that the user may define: each takes a row.
const MAX_PROBES: usize = 256;
/// Bytes of a name.
const MAX_NAME: usize = 512;
/// Bytes of a pool's name, which is a cell of every row.
const MAX_POOL_NAME: usize = 64;
/// The driver's and the program's own memory cannot be redefined.
const TAKEN_POOLS: [&str; 2] = ["HAL", "HOST"];

/// A definition as the user wrote it: names, and what stands where.
#[derive(Debug, Deserialize)]
struct Definition {
    library: String,
    function: String,
    kind: String,
    #[serde(flatten)]
    places: BTreeMap<String, Scalar>,
}

/// A number or a word: `0`, `"ptr"`, `"*1"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Number(u64),
    Word(String),
}

impl Scalar {
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Word(word) => word.clone(),
        }
    }
}

/// Reads `LIBRARY:FUNCTION=KIND(PLACE=ARGUMENT,…)`.
///
/// # Errors
///
/// One sentence with the mistake and its fix.
pub fn parse(text: &str) -> Result<&'static ProbeSpec, String> {
    const SHAPE: &str = "write LIBRARY:FUNCTION=KIND(…), such as 'libmypool.so:my_alloc=alloc(size=0,ret=ptr)'";
    let (place, what) = text.split_once('=').ok_or_else(|| format!("no `=` behind the function; {SHAPE}"))?;
    let (library, function) =
        place.split_once(':').ok_or_else(|| format!("no `:` between library and function; {SHAPE}"))?;
    let (kind, list) = what.trim().split_once('(').ok_or_else(|| format!("no `(` behind the kind; {SHAPE}"))?;
    let list = list.strip_suffix(')').ok_or_else(|| format!("no `)` at the end; {SHAPE}"))?;
    let mut places = BTreeMap::new();
    for pair in list.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` has no `=`; {SHAPE}"))?;
        let value = Scalar::Word(value.trim().to_owned());
        if places.insert(name.trim().to_owned(), value).is_some() {
            return Err(format!("`{}` is given twice; give it once", name.trim()));
        }
    }
    let owned = |text: &str| text.trim().to_owned();
    build(&Definition { library: owned(library), function: owned(function), kind: owned(kind), places })
}

/// Reads a JSON file: a list of objects.
///
/// # Errors
///
/// As for [`parse`]; names the definition.
pub fn read_file(path: &Path) -> Result<Vec<&'static ProbeSpec>, String> {
    let name = path.display();
    let mut text = String::new();
    let read = regular::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    read.map_err(|error| format!("cannot read the probes in `{name}`: {error}"))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("`{name}` is larger than 1 MiB; a list of probes is not"));
    }
    parse_file(&text).map_err(|reason| format!("`{name}`: {reason}"))
}

fn parse_file(text: &str) -> Result<Vec<&'static ProbeSpec>, String> {
    const SHAPE: &str = "write a list of objects with \"library\", \"function\", \"kind\" and places, such as \
        [{\"library\": \"libmypool.so\", \"function\": \"my_free\", \"kind\": \"free\", \"ptr\": 0}]";
    let definitions: Vec<Definition> =
        serde_json::from_str(text).map_err(|error| format!("not a list of probes ({error}); {SHAPE}"))?;
    let one = |(definition, number): (&Definition, usize)| {
        build(definition).map_err(|reason| format!("probe {number} (`{}`): {reason}", definition.function))
    };
    definitions.iter().zip(1..).take(MAX_PROBES + 1).map(one).collect()
}

/// Checks all probes of the user together.
///
/// # Errors
///
/// When there are too many, or one function is given twice.
pub fn check_together(specs: &[&'static ProbeSpec]) -> Result<(), String> {
    if specs.len() > MAX_PROBES {
        return Err(format!("more than {MAX_PROBES} probes are defined; leave some out"));
    }
    let mut seen = BTreeSet::new();
    match specs.iter().find(|spec| !seen.insert((spec.libraries, spec.symbol))) {
        Some(spec) => Err(format!(
            "the probe of `{}` in `{}` is given twice; give it once",
            spec.symbol,
            spec.libraries.first().unwrap_or(&"")
        )),
        None => Ok(()),
    }
}

/// The places of one definition, taken one by one.
struct Places<'a> {
    kind: &'a str,
    left: BTreeMap<&'a str, String>,
}

impl Places<'_> {
    fn text(&mut self, name: &str) -> Option<String> {
        self.left.remove(name)
    }

    /// Number of an argument.
    fn argument(&mut self, name: &str) -> Result<Option<u8>, String> {
        self.text(name).map(|text| argument(name, &text)).transpose()
    }

    fn required(&mut self, name: &str) -> Result<u8, String> {
        let missing = || format!("{} needs `{name}=N`, the number of an argument, counted from 0", self.kind);
        let missing = missing();
        self.argument(name)?.ok_or(missing)
    }

    /// All places must have been of use.
    fn finish(self, known: &str) -> Result<(), String> {
        match self.left.keys().next() {
            Some(name) => Err(format!("{} knows no `{name}`; it takes {known}", self.kind)),
            None => Ok(()),
        }
    }
}

fn argument(name: &str, text: &str) -> Result<u8, String> {
    let wrong = || format!("`{name}={text}` names no argument; write a number from 0 to {}", REGISTER_ARGS - 1);
    let number: u8 = text.parse().map_err(|_| wrong())?;
    if usize::from(number) < REGISTER_ARGS { Ok(number) } else { Err(wrong()) }
}

fn build(definition: &Definition) -> Result<&'static ProbeSpec, String> {
    let Definition { library, function, kind, places } = definition;
    check_name("library", library, "/")?;
    check_name("function", function, "*")?;
    let left = places.iter().map(|(name, value)| (name.as_str(), value.text())).collect();
    let mut places = Places { kind, left };
    // The symbol shows the language. A return probe would end a C++ program that throws.
    let may_throw = function.starts_with("_Z");
    let base = ProbeSpec {
        layer: Layer::User,
        libraries: leak(vec![&*library.clone().leak()]),
        symbol: function.clone().leak(),
        when: When::Entry,
        returns_int: false,
        may_throw,
        ..ProbeSpec::BASE
    };
    let spec = match kind.as_str() {
        "alloc" => {
            let mut spec = alloc(base, &mut places)?;
            spec.pool = Some(pool(&mut places, library)?);
            places.finish("size, count, ret, out, device, pool")?;
            spec
        }
        "free" => {
            let pool = pool(&mut places, library)?;
            let ptr = places.text("ptr").ok_or("free needs `ptr=N`, or `ptr=*N` for a pointer to the pointer")?;
            places.finish("ptr, pool")?;
            let fetch = match ptr.strip_prefix('*') {
                Some(number) => Fetch::memory(argument("ptr", number)?, 0),
                None => Fetch::arg(argument("ptr", &ptr)?),
            };
            ProbeSpec {
                meaning: CallKind::Pool(PoolCall::Free),
                fields: leak(vec![(Field::Addr, fetch)]),
                pool: Some(pool),
                ..base
            }
        }
        "mark" | "range_start" => {
            let meaning =
                if kind == "mark" { CallKind::Mstx(MstxCall::Mark) } else { CallKind::Mstx(MstxCall::RangeStart) };
            let text_arg = Some(places.required("text")?);
            places.finish("text")?;
            ProbeSpec { meaning, text_arg, ..base }
        }
        "range_end" => {
            places.finish("nothing")?;
            ProbeSpec { meaning: CallKind::Mstx(MstxCall::RangeEnd), ..base }
        }
        _ => return Err(format!("no kind `{kind}`; there are alloc, free, mark, range_start and range_end")),
    };
    Ok(Box::leak(Box::new(spec)))
}

fn alloc(base: ProbeSpec, places: &mut Places<'_>) -> Result<ProbeSpec, String> {
    let mut fields = vec![(Field::Size, Fetch::arg(places.required("size")?))];
    for (name, field) in [("count", Field::Count), ("device", Field::Device)] {
        fields.extend(places.argument(name)?.map(|number| (field, Fetch::arg(number))));
    }
    let out = places.argument("out")?;
    match (places.text("ret").as_deref(), out) {
        (Some("ptr"), None) => {}
        // The function's returned value shows whether there is a pointer.
        (None, Some(number)) => fields.push((Field::Addr, Fetch::out(number))),
        (Some(other), None) => return Err(format!("`ret={other}` is not known; write `ret=ptr`")),
        (Some(_), Some(_)) => return Err("alloc takes `ret=ptr` or `out=N`, not both; leave one out".to_owned()),
        (None, None) => {
            return Err("alloc needs `ret=ptr` if the function returns the pointer, or `out=N` if it writes it \
                        through argument N and returns 0"
                .to_owned());
        }
    }
    let when = if base.may_throw { When::OwnReturn } else { When::Return };
    Ok(ProbeSpec {
        meaning: CallKind::Pool(PoolCall::Alloc),
        when,
        returns_int: out.is_some(),
        fields: leak(fields),
        ..base
    })
}

/// The named pool, or that of the library.
fn pool(places: &mut Places<'_>, library: &str) -> Result<&'static str, String> {
    let Some(name) = places.text("pool") else {
        let stem = library.split(".so").next().unwrap_or(library).replace('*', "");
        let stem = stem.strip_prefix("lib").unwrap_or(&stem);
        let stem = stem.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let stem: String = stem.chars().take(MAX_POOL_NAME).collect();
        return Ok(if stem.is_empty() { "user" } else { stem.leak() });
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if !first || name.len() > MAX_POOL_NAME || !name.chars().all(plain) {
        return Err(format!(
            "`pool={name}` cannot be a pool's name; write at most {MAX_POOL_NAME} letters, digits, `_`, `-` and `.`, \
             beginning with a letter or digit"
        ));
    }
    if TAKEN_POOLS.iter().any(|taken| name.eq_ignore_ascii_case(taken)) {
        return Err(format!("`pool={name}` is the driver's own; choose another name"));
    }
    Ok(name.leak())
}

fn check_name(what: &str, name: &str, refused: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_graphic() && !refused.contains(c) && c != '"' && c != ',';
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        return Err(match what {
            "library" => format!("`{name}` is no library; write its file name without folders, such as libmypool.so"),
            _ => format!("`{name}` is no function; write its symbol as `nm -D` shows it"),
        });
    }
    if what == "library" && name.matches('*').count() > 1 {
        return Err(format!("`{name}` has more than one `*`; write one at most"));
    }
    Ok(())
}

/// Definitions are few and live as long as the program.
fn leak<T>(list: Vec<T>) -> &'static [T] {
    Box::leak(list.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> String {
        parse(text).expect_err("wrong")
    }

    /// Signatures, and the rows that were worked out from them by hand.
    #[test]
    fn definitions_become_rows() {
        // void *my_alloc(size_t size)
        let spec = parse("libmypool.so:my_alloc=alloc(size=0,ret=ptr)").expect("valid");
        assert_eq!((spec.libraries, spec.symbol, spec.pool), (&["libmypool.so"][..], "my_alloc", Some("mypool")));
        assert_eq!((spec.meaning, spec.when, spec.returns_int), (CallKind::Pool(PoolCall::Alloc), When::Return, false));
        assert_eq!(spec.fields, [(Field::Size, Fetch::arg(0))]);
        // int pool_get(void *pool, void **out, size_t count, size_t size, int device)
        let spec = parse("vllm_C*.so: pool_get = alloc( size=3, count=2, out=1, device=4, pool=vllm )").expect("valid");
        assert_eq!((spec.libraries, spec.pool, spec.returns_int), (&["vllm_C*.so"][..], Some("vllm"), true));
        assert_eq!(
            spec.fields,
            [
                (Field::Size, Fetch::arg(3)),
                (Field::Count, Fetch::arg(2)),
                (Field::Device, Fetch::arg(4)),
                (Field::Addr, Fetch::out(1)),
            ]
        );
        // void my_free(int, void **)
        let spec = parse("libmypool.so:my_free=free(ptr=*1)").expect("valid");
        assert_eq!(
            (spec.meaning, spec.when, spec.fields),
            (CallKind::Pool(PoolCall::Free), When::Entry, &[(Field::Addr, Fetch::memory(1, 0))][..])
        );
        let spec = parse("trainer:note=mark(text=2)").expect("valid");
        assert_eq!(
            (spec.meaning, spec.text_arg, spec.row().has_return()),
            (CallKind::Mstx(MstxCall::Mark), Some(2), false)
        );
        assert_eq!(
            parse("trainer:on=range_start(text=0)").expect("valid").meaning,
            CallKind::Mstx(MstxCall::RangeStart)
        );
        assert_eq!(parse("trainer:off=range_end()").expect("valid").meaning, CallKind::Mstx(MstxCall::RangeEnd));
    }

    /// A C++ function never gets a return probe, whatever the definition asks for.
    #[test]
    fn functions_that_may_throw_get_no_return_probe() {
        let spec = parse("libp.so:_ZN4Pool5allocEm=alloc(size=1,ret=ptr)").expect("valid");
        assert!(spec.may_throw && !spec.row().has_return() && spec.row().has_own_return());
        let spec = parse("libp.so:_ZN4Pool4freeEPv=free(ptr=1)").expect("valid");
        assert!(spec.may_throw && !spec.row().has_return());
    }

    /// Every mistake is answered with its cause and a fix.
    #[test]
    fn mistakes_are_explained() {
        let cases = [
            ("libx.so", "no `=` behind the function"),
            ("libx.so=alloc(size=0)", "no `:` between"),
            ("libx.so:f=alloc", "no `(`"),
            ("libx.so:f=alloc(size=0", "no `)`"),
            ("libx.so:f=alloc(size)", "`size` has no `=`"),
            ("libx.so:f=alloc(size=0,size=1,ret=ptr)", "`size` is given twice"),
            ("libx.so:f=grab(size=0)", "no kind `grab`; there are alloc, free"),
            ("libx.so:f=alloc(ret=ptr)", "alloc needs `size=N`"),
            ("libx.so:f=alloc(size=0)", "alloc needs `ret=ptr`"),
            ("libx.so:f=alloc(size=0,ret=int)", "write `ret=ptr`"),
            ("libx.so:f=alloc(size=0,ret=ptr,out=1)", "not both"),
            ("libx.so:f=alloc(size=6,ret=ptr)", "from 0 to 5"),
            ("libx.so:f=alloc(size=x,ret=ptr)", "from 0 to 5"),
            ("libx.so:f=alloc(size=0,ret=ptr,ptr=1)", "alloc knows no `ptr`; it takes size"),
            ("libx.so:f=free(size=0)", "free needs `ptr=N`"),
            ("libx.so:f=free(ptr=**0)", "from 0 to 5"),
            ("libx.so:f=mark()", "mark needs `text=N`"),
            ("libx.so:f=range_end(text=0)", "it takes nothing"),
            ("/opt/libx.so:f=free(ptr=0)", "without folders"),
            (":f=free(ptr=0)", "is no library"),
            ("lib*x*.so:f=free(ptr=0)", "more than one `*`"),
            ("libx.so:=free(ptr=0)", "is no function"),
            ("libx.so:my*=free(ptr=0)", "is no function"),
            ("libx.so:f=free(ptr=0,pool=hal)", "the driver's own"),
            ("libx.so:f=free(ptr=0,pool=a b)", "cannot be a pool's name"),
            ("libx.so:f=free(ptr=0,pool==1)", "cannot be a pool's name"),
        ];
        for (text, expected) in cases {
            let reason = reason(text);
            assert!(reason.contains(expected), "{text}: {reason}");
        }
    }

    #[test]
    fn files_say_the_same_as_options() {
        let file = r#"[
            {"library": "libmypool.so", "function": "my_alloc", "kind": "alloc", "size": 0, "ret": "ptr"},
            {"library": "libmypool.so", "function": "my_free", "kind": "free", "ptr": "*1", "pool": "other"}
        ]"#;
        let specs = parse_file(file).expect("valid");
        let options = ["libmypool.so:my_alloc=alloc(size=0,ret=ptr)", "libmypool.so:my_free=free(ptr=*1,pool=other)"];
        for (spec, option) in specs.iter().zip(options) {
            let same = parse(option).expect("valid");
            assert_eq!((spec.row(), spec.describe()), (same.row(), same.describe()));
        }
        assert_eq!(specs.len(), 2);
        assert!(check_together(&specs).is_ok());
        assert!(check_together(&[specs[0], specs[0]]).is_err_and(|reason| reason.contains("`my_alloc`")));
    }

    #[test]
    fn mistakes_in_files_are_located() {
        let bad = |text: &str| parse_file(text).expect_err("wrong");
        assert!(bad("{").contains("line 1 column"), "{}", bad("{"));
        assert!(bad(r#"[{"library": "l.so", "kind": "free"}]"#).contains("missing field `function`"));
        let second = r#"[{"library": "l.so", "function": "f", "kind": "free", "ptr": 0},
                         {"library": "l.so", "function": "g", "kind": "free", "ptr": 9}]"#;
        assert!(bad(second).starts_with("probe 2 (`g`): `ptr=9`"), "{}", bad(second));
    }

    /// What programs call their libraries and users their pools never breaks a cell.
    #[test]
    fn pools_are_named_after_their_libraries() {
        let pool = |library: &str| parse(&format!("{library}:f=free(ptr=0)")).expect("valid").pool;
        assert_eq!(pool("libmypool.so.1"), Some("mypool"));
        assert_eq!(pool("vllm_ascend_C*.so"), Some("vllm_ascend_C"));
        assert_eq!(pool("+-.so"), Some("user"));
        assert_eq!(pool("trainer"), Some("trainer"));
    }
}
