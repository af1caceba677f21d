//! Rules as they are written in a file: read, and checked while the reader knows the line.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::super::pattern::Pattern;
use super::{Counts, Ended, Lifetime, Limits, Phase};
use crate::model::Name;

/// Bytes of a component's or rule's name.
const MAX_NAME: usize = 48;
/// Labels of an owner: the levels of msMemScope between framework and user (contract §8.5).
const MAX_LABELS: usize = 4;

/// A file of rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// Whether the built-in rules come behind these.
    pub(super) builtin: Option<bool>,
    /// For people.
    #[serde(rename = "comment")]
    _comment: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    pub(super) rules: Vec<CheckedRule>,
    #[serde(default)]
    pub(super) phases: Vec<CheckedPhase>,
    #[serde(default)]
    pub(super) lifetimes: Vec<Lifetime>,
}

/// A rule as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    name: String,
    #[serde(rename = "comment")]
    _comment: Option<serde::de::IgnoredAny>,
    component: String,
    owner: Option<String>,
    #[serde(default)]
    python: Vec<String>,
    #[serde(default)]
    within: Vec<String>,
    #[serde(default)]
    without: Vec<String>,
    #[serde(default)]
    native: Vec<String>,
    #[serde(default)]
    caller: Vec<String>,
    #[serde(default)]
    pools: Vec<Box<str>>,
    #[serde(default)]
    modules: Vec<Box<str>>,
    #[serde(default)]
    labels: Vec<Box<str>>,
}

#[derive(Debug)]
pub(super) struct CheckedRule {
    pub(super) name: Name,
    pub(super) component: Name,
    pub(super) owner: Box<str>,
    pub(super) python: Vec<Pattern>,
    pub(super) within: Vec<Pattern>,
    pub(super) without: Vec<Pattern>,
    pub(super) native: Vec<Pattern>,
    pub(super) caller: Vec<Pattern>,
    pub(super) pools: Vec<Box<str>>,
    pub(super) modules: Vec<Box<str>>,
    pub(super) labels: Vec<Box<str>>,
}

impl TryFrom<WrittenRule> for CheckedRule {
    type Error = String;

    fn try_from(rule: WrittenRule) -> Result<Self, String> {
        let WrittenRule { name, component, owner, pools, modules, labels, .. } = rule;
        let in_rule = |reason: String| format!("rule `{}`: {reason}", name.escape_debug());
        let (component, owner) =
            (word("component", &component).map_err(in_rule)?, owner_of(owner, &component).map_err(in_rule)?);
        let checked = Self {
            name: word("name", &name)?,
            component,
            owner,
            python: patterns(&rule.python, Pattern::python).map_err(in_rule)?,
            within: patterns(&rule.within, Pattern::python).map_err(in_rule)?,
            without: patterns(&rule.without, Pattern::python).map_err(in_rule)?,
            native: patterns(&rule.native, Pattern::native).map_err(in_rule)?,
            caller: patterns(&rule.caller, Pattern::native).map_err(in_rule)?,
            pools,
            modules,
            labels,
        };
        let says = [checked.python.len(), checked.native.len(), checked.caller.len()];
        let texts = [checked.pools.len(), checked.modules.len(), checked.labels.len()];
        if says.into_iter().chain(texts).all(|count| count == 0) {
            return Err(in_rule(
                "it fits every block; give it python, native, caller, pools, modules or labels".to_owned(),
            ));
        }
        if checked.python.is_empty() && !checked.within.is_empty() {
            return Err(in_rule("`within` needs `python`: it limits where those frames count".to_owned()));
        }
        Ok(checked)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPhase {
    phase: Phase,
    #[serde(default)]
    python: Vec<String>,
    #[serde(default)]
    without: Vec<String>,
    #[serde(default)]
    native: Vec<String>,
}

#[derive(Debug)]
pub(super) struct CheckedPhase {
    pub(super) phase: Phase,
    pub(super) python: Vec<Pattern>,
    pub(super) without: Vec<Pattern>,
    pub(super) native: Vec<Pattern>,
}

impl TryFrom<WrittenPhase> for CheckedPhase {
    type Error = String;

    fn try_from(rule: WrittenPhase) -> Result<Self, String> {
        if rule.python.is_empty() && rule.native.is_empty() {
            return Err("a phase needs frames; give it python or native".to_owned());
        }
        Ok(Self {
            phase: rule.phase,
            python: patterns(&rule.python, Pattern::python)?,
            without: patterns(&rule.without, Pattern::python)?,
            native: patterns(&rule.native, Pattern::native)?,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLifetime {
    name: String,
    #[serde(rename = "comment")]
    _comment: Option<serde::de::IgnoredAny>,
    from: Vec<String>,
    component: String,
    owner: Option<String>,
    #[serde(default)]
    pools: Vec<Box<str>>,
    #[serde(default)]
    freed_in: Vec<Phase>,
    ended: Option<Ended>,
    stack: Option<bool>,
    trained: Option<bool>,
    #[serde(default)]
    born_from: Counts,
    #[serde(default)]
    born_before: Limits,
    #[serde(default)]
    survived: Counts,
    #[serde(default)]
    at_most: Limits,
}

/// Reads a value and checks it while the reader is still at its end, so that an error has its line.
struct Checked<W, T>(PhantomData<(W, T)>);

impl<'de, W: Deserialize<'de>, T: TryFrom<W, Error = String>> Visitor<'de> for Checked<W, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rule, which is an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let written = W::deserialize(MapAccessDeserializer::new(map))?;
        T::try_from(written).map_err(A::Error::custom)
    }
}

impl<'de> Deserialize<'de> for CheckedRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Checked::<WrittenRule, Self>(PhantomData))
    }
}

impl<'de> Deserialize<'de> for CheckedPhase {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Checked::<WrittenPhase, Self>(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Lifetime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Checked::<WrittenLifetime, Self>(PhantomData))
    }
}

impl TryFrom<WrittenLifetime> for Lifetime {
    type Error = String;

    fn try_from(written: WrittenLifetime) -> Result<Self, String> {
        let WrittenLifetime { name, from, component, owner, pools, freed_in, ended, stack, .. } = written;
        let in_rule = |reason: String| format!("rule `{}`: {reason}", name.escape_debug());
        let (component, owner) =
            (word("component", &component).map_err(in_rule)?, owner_of(owner, &component).map_err(in_rule)?);
        if from.is_empty() {
            return Err(in_rule("`from` names no component; give it those that it may rename".to_owned()));
        }
        Ok(Self {
            component,
            owner,
            from: from.iter().map(|from| word("from", from)).collect::<Result<_, _>>().map_err(in_rule)?,
            name: word("name", &name)?,
            pools,
            freed_in,
            ended,
            stack,
            trained: written.trained,
            born_from: written.born_from,
            born_before: written.born_before,
            survived: written.survived,
            at_most: written.at_most,
        })
    }
}

fn patterns(texts: &[String], parse: fn(&str) -> Result<Pattern, String>) -> Result<Vec<Pattern>, String> {
    texts.iter().map(|text| parse(text)).collect()
}

fn is_plain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !text.is_empty()
        && text.len() <= MAX_NAME
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(plain)
}

fn word(what: &str, text: &str) -> Result<Name, String> {
    if is_plain(text) {
        return Ok(Name::keep(text));
    }
    Err(format!(
        "`{what}` is `{}`; write at most {MAX_NAME} letters, digits, `_`, `-` and `.`, beginning with a letter or digit",
        text.chars().take(80).flat_map(char::escape_debug).collect::<String>()
    ))
}

/// The given labels, or the component.
fn owner_of(given: Option<String>, component: &str) -> Result<Box<str>, String> {
    let owner = given.unwrap_or_else(|| component.to_owned());
    let labels: Vec<&str> = owner.split('@').collect();
    if owner.is_empty() || (labels.len() <= MAX_LABELS && labels.iter().all(|label| is_plain(label))) {
        return Ok(owner.into());
    }
    Err(format!(
        "`owner` is `{}`; write at most {MAX_LABELS} labels joined with `@`, or nothing",
        owner.chars().take(80).flat_map(char::escape_debug).collect::<String>()
    ))
}
