//! JSON for programs: each document names its schema, and `memscope-bpf schema` prints that.

use std::io::{self, Write};

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::Serialize;

use crate::analyses::{Finding, compare::ComparedDevice, diff::Diff, live_use::Moment, ranks::Ranks, sample::Sample};
use crate::explain::{Card, NotJudged};
use crate::holders::Holders;
use crate::model::{RunEnd, StepsFrom};
use crate::whatif::{
    answers::{Advices, WhatIf},
    forecast::Forecasts,
};

/// Contents of a document.
pub trait Content: Serialize + JsonSchema {
    /// Name and version of its schema. The version changes when a field goes or changes its meaning, not when one is added.
    const SCHEMA: &'static str;
}

/// Findings of a trace, or of a command on files.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Findings<'a> {
    /// By process, then device.
    pub findings: Vec<&'a Finding>,
    /// How the trace ended, and what was lost.
    pub end: &'a RunEnd,
}

/// Cards of a run, made by rules from its findings.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Explained<'a> {
    /// The most urgent first, then those about most bytes.
    pub cards: &'a [Card],
    /// Further ones.
    pub cards_left_out: u64,
    /// Rules without the findings they need.
    pub not_judged: &'a [NotJudged],
    /// How the trace ended, and what was lost.
    pub end: &'a RunEnd,
}

/// How two runs differ, operator by operator.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Comparison<'a> {
    /// By device.
    pub devices: &'a [ComparedDevice],
    /// The origin of the step in either run; absent where all steps are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_from: Option<[StepsFrom; 2]>,
    /// The reference's file, and the one with the changes of memory; absent from Python.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<[String; 2]>,
}

impl Content for Findings<'_> {
    const SCHEMA: &'static str = "memscope/findings/1";
}

impl Content for Explained<'_> {
    const SCHEMA: &'static str = "memscope/explanation/1";
}

impl Content for Diff {
    const SCHEMA: &'static str = "memscope/diff/1";
}

impl Content for Comparison<'_> {
    const SCHEMA: &'static str = "memscope/comparison/1";
}

impl Content for Ranks {
    const SCHEMA: &'static str = "memscope/ranks/1";
}

impl Content for Sample {
    const SCHEMA: &'static str = "memscope/sample/1";
}

impl Content for Moment {
    const SCHEMA: &'static str = "memscope/top/1";
}

impl Content for Holders {
    const SCHEMA: &'static str = "memscope/holders/1";
}

impl Content for WhatIf {
    const SCHEMA: &'static str = "memscope/whatif/1";
}

impl Content for Advices {
    const SCHEMA: &'static str = "memscope/advice/1";
}

impl Content for Forecasts {
    const SCHEMA: &'static str = "memscope/forecast/1";
}

impl<T: Content> Content for &T {
    const SCHEMA: &'static str = T::SCHEMA;
}

/// A document: schema, version of the tool, and contents.
#[derive(Debug, Serialize, JsonSchema)]
struct Document<T> {
    /// Name and version of the schema.
    schema: &'static str,
    /// Version of the program that wrote it.
    tool_version: &'static str,
    #[serde(flatten)]
    content: T,
}

/// Writes a document on one line, without the end of the line.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn write<T: Content>(content: T, out: &mut dyn Write) -> io::Result<()> {
    let document = Document { schema: T::SCHEMA, tool_version: env!("CARGO_PKG_VERSION"), content };
    Ok(serde_json::to_writer(out, &document)?)
}

/// A document as text.
#[must_use]
pub fn to_string<T: Content>(content: T) -> String {
    let mut text = Vec::new();
    match write(content, &mut text) {
        Ok(()) => String::from_utf8(text).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// Names of the schemas, as `memscope-bpf schema` takes them.
pub const NAMES: [&str; 11] = [
    "findings",
    "explanation",
    "diff",
    "comparison",
    "ranks",
    "sample",
    "top",
    "holders",
    "whatif",
    "advice",
    "forecast",
];

/// The JSON Schema (draft 2020-12) of the documents of this name; `None` if there are none.
#[must_use]
pub fn schema(name: &str) -> Option<String> {
    let schema = match name {
        "findings" => schema_of::<Findings<'_>>(),
        "explanation" => schema_of::<Explained<'_>>(),
        "diff" => schema_of::<Diff>(),
        "comparison" => schema_of::<Comparison<'_>>(),
        "ranks" => schema_of::<Ranks>(),
        "sample" => schema_of::<Sample>(),
        "top" => schema_of::<Moment>(),
        "holders" => schema_of::<Holders>(),
        "whatif" => schema_of::<WhatIf>(),
        "advice" => schema_of::<Advices>(),
        "forecast" => schema_of::<Forecasts>(),
        _ => return None,
    };
    serde_json::to_string_pretty(&schema).ok()
}

fn schema_of<T: Content>() -> schemars::Schema {
    let generator: SchemaGenerator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<Document<T>>();
    schema.insert("title".to_owned(), T::SCHEMA.into());
    if let Some(property) = schema.pointer_mut("/properties/schema").and_then(serde_json::Value::as_object_mut) {
        property.insert("const".to_owned(), T::SCHEMA.into());
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published schemas are those of this code: `memscope-bpf schema NAME > docs/schema/NAME.json`.
    #[test]
    fn published_schemas_are_current() {
        for name in NAMES {
            let path = format!("{}/../docs/schema/{name}.json", env!("CARGO_MANIFEST_DIR"));
            let published = std::fs::read_to_string(&path).expect("a schema");
            let current = schema(name).expect("a schema");
            assert!(published.trim_end() == current, "{path} is not what `memscope-bpf schema {name}` prints");
        }
        assert_eq!(schema("nothing"), None);
    }

    #[test]
    fn documents_name_their_schema() {
        let text = to_string(Findings { findings: Vec::new(), end: &RunEnd::default() });
        assert!(text.starts_with(r#"{"schema":"memscope/findings/1","tool_version":""#), "{text}");
    }
}
