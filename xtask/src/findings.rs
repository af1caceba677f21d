//! What a tracer prints with `--json`: one line among others.

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The last document of findings in an output.
pub(crate) fn last(said: &str) -> Result<Value> {
    let mut documents = said.lines().rev().filter(|line| is_document(line));
    documents.find_map(|line| serde_json::from_str(line).ok()).context("no findings")
}

/// Whether a line is such a document. Its first key is the schema, or the findings themselves in builds from before schemas.
pub(crate) fn is_document(line: &str) -> bool {
    line.starts_with('{') && line.contains("\"findings\":[")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_with_and_without_a_schema() {
        let said = "starting\n{\"findings\":[],\"end\":{\"lost\":3}}\n{\"schema\":\"memscope/findings/1\",\"findings\":[],\
            \"end\":{\"lost\":4}}\n{\"pid\":7}\n";
        assert_eq!(last(said).expect("one")["end"]["lost"], 4);
        assert_eq!(last(said.split_once("{\"schema").expect("two").0).expect("one")["end"]["lost"], 3);
        assert!(last("nothing\n{\"pid\":7}\n").is_err());
    }
}
