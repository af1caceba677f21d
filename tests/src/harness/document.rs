//! JSON documents of the program, held to their published schemas.

use std::{collections::HashMap, sync::OnceLock};

use jsonschema::Validator;
use serde_json::Value;

/// Reads a document. It has to name its schema, and to be valid by it.
#[must_use]
pub fn document(text: &[u8]) -> Value {
    let document: Value = serde_json::from_slice(text)
        .unwrap_or_else(|error| panic!("no JSON: {error}\n{}", String::from_utf8_lossy(text)));
    let name = document["schema"].as_str().unwrap_or_else(|| panic!("no schema: {document:#}"));
    let validator = schemas().get(name).unwrap_or_else(|| panic!("no published schema `{name}`"));
    let errors: Vec<String> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "not valid by `{name}`:\n{}\n{document:#}", errors.join("\n"));
    document
}

/// The NPU of a finding.
#[must_use]
pub fn npu(found: &Value) -> Option<u64> {
    found["device"].as_str()?.strip_prefix("npu:")?.parse().ok()
}

/// The published schemas. Part of the test program: guests have no source tree.
const PUBLISHED: [&str; 11] = [
    include_str!("../../../docs/schema/findings.json"),
    include_str!("../../../docs/schema/explanation.json"),
    include_str!("../../../docs/schema/diff.json"),
    include_str!("../../../docs/schema/comparison.json"),
    include_str!("../../../docs/schema/ranks.json"),
    include_str!("../../../docs/schema/sample.json"),
    include_str!("../../../docs/schema/top.json"),
    include_str!("../../../docs/schema/holders.json"),
    include_str!("../../../docs/schema/whatif.json"),
    include_str!("../../../docs/schema/advice.json"),
    include_str!("../../../docs/schema/forecast.json"),
];

/// The published schemas by name.
fn schemas() -> &'static HashMap<String, Validator> {
    static SCHEMAS: OnceLock<HashMap<String, Validator>> = OnceLock::new();
    let validator = |text: &str| {
        let schema: Value = serde_json::from_str(text).expect("JSON");
        let name = schema["title"].as_str().expect("a name").to_owned();
        (name, jsonschema::validator_for(&schema).expect("a valid schema"))
    };
    SCHEMAS.get_or_init(|| PUBLISHED.into_iter().map(validator).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each published schema refuses a document with a field of the wrong type, so a check against it can fail.
    #[test]
    fn schemas_refuse() {
        let names = ["findings", "explanation", "diff", "comparison", "sample", "whatif", "advice", "forecast"]
            .map(|name| format!("memscope/{name}/1"));
        for name in names {
            let validator = &schemas()[&name];
            assert!(!validator.is_valid(&serde_json::json!({ "schema": name, "tool_version": "1" })), "{name}");
            assert!(!validator.is_valid(&serde_json::json!({ "schema": "other" })), "{name}");
        }
        let rust = serde_json::json!({ "schema": "memscope/findings/1", "tool_version": "1", "end": {},
            "findings": [{ "finding": "device_use", "device": { "Npu": 0 } }] });
        assert!(!schemas()["memscope/findings/1"].is_valid(&rust));
    }
}
