//! Names that events carry by the million: functions, pools.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::hash::{HashMap, HashSet};

/// Most names kept; they are never freed.
const MAX_NAMES: usize = 4096;
/// Bytes of a name; longer ones are cut.
const MAX_BYTES: usize = 256;

static NAMES: Mutex<Option<HashMap<&'static str, Name>>> = Mutex::new(None);

/// A name that is copied like a number. Made of untrusted text: printable ASCII without blanks, quotes, commas and
/// colons, the separators of outputs; everything else became `_`. One word long: every live block has several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(&'static &'static str);

impl Name {
    /// A name known at compile time.
    #[must_use]
    pub const fn fixed(name: &'static &'static str) -> Self {
        Self(name)
    }

    /// Stands for all names beyond a bound.
    pub const OTHER: Self = Self(&"other");

    /// Keeps a name for good, or finds the one kept before.
    #[must_use]
    pub fn keep(text: &str) -> Self {
        Self::keep_if(text, || true).0
    }

    /// Keeps a name that a program has chosen. Beyond `most` names of `given`, those of one program, a new one is
    /// [`OTHER`](Self::OTHER): no program takes the room of all others.
    pub(crate) fn keep_given(text: &str, given: &mut HashSet<Self>, most: usize) -> Self {
        let (name, is_new) = Self::keep_if(text, || given.len() < most);
        if is_new {
            given.insert(name);
        }
        name
    }

    /// The name kept before, or a new one if it `may_be_new`; and whether it is.
    fn keep_if(text: &str, may_be_new: impl FnOnce() -> bool) -> (Self, bool) {
        let plain = |c: char| if c.is_ascii_graphic() && !"\"',:\\".contains(c) { c } else { '_' };
        let name: String = text.chars().take(MAX_BYTES).map(plain).collect();
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let names = names.get_or_insert_default();
        match names.get(name.as_str()) {
            Some(known) => (*known, false),
            None if names.len() >= MAX_NAMES || !may_be_new() => (Self::OTHER, false),
            None => {
                let kept: &'static str = Box::leak(name.into_boxed_str());
                let name = Self(Box::leak(Box::new(kept)));
                names.insert(kept, name);
                (name, true)
            }
        }
    }

    /// The text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl JsonSchema for Name {
    fn schema_name() -> Cow<'static, str> {
        "Name".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one_name() {
        let name = Name::keep(&String::from("aclrtMalloc"));
        assert!(std::ptr::eq(name.as_str(), Name::keep("aclrtMalloc").as_str()));
        assert_ne!(name, Name::keep("aclrtMallocHost"));
    }

    /// A program with ever new names has one for all beyond its bound; names known from elsewhere are not of it.
    #[test]
    fn one_program_does_not_take_the_room_of_all() {
        let mut given = HashSet::default();
        let mut keep = |text: &str| Name::keep_given(text, &mut given, 2).as_str();
        let _ = Name::keep("known elsewhere");
        assert_eq!(
            ["p-1", "p-2", "p-1", "p-3", "known elsewhere", "p-2"].map(&mut keep),
            ["p-1", "p-2", "p-1", "other", "known_elsewhere", "p-2"]
        );
        assert_eq!(Name::keep("p-3").as_str(), "p-3");
    }

    /// Cells stay cells, however a program names its pool.
    #[test]
    fn names_hold_nothing_that_separates() {
        assert_eq!(Name::keep("a,\"b\":c\n d\u{202e}").as_str(), "a__b__c__d_");
        assert_eq!(Name::keep(&"x".repeat(1000)).as_str().len(), MAX_BYTES);
    }
}
