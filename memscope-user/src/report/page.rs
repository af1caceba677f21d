//! The file: one HTML page that needs nothing else.
//!
//! Its policy lets one script and one style run, by their digests, and nothing be fetched; no text can become markup
//! (`require-trusted-types-for`).

use std::io::{self, Write};

use super::{Options, Reduced, data, pack};
use crate::analyses::Finding;
use crate::digest::{base64, sha256};

const SHELL: &str = include_str!("page/report.html");
const STYLE: &str = include_str!("page/report.css");
const SCRIPT: &str = concat!(
    include_str!("page/words.js"),
    include_str!("page/data.js"),
    include_str!("page/curve.js"),
    include_str!("page/flame.js"),
    include_str!("page/map.js"),
    include_str!("page/panels.js"),
    include_str!("page/main.js"),
);

/// Start of a page of ours: identifies it.
pub const PAGE_START: &str = "<!doctype html>\n<!-- memscope-bpf report -->\n";

/// Writes the page of a run.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn write(run: &Reduced, findings: &[Finding], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let data = base64(&pack::deflate(&data::plain(run, findings, options)));
    let policy = policy();
    let mut rest = SHELL;
    out.write_all(PAGE_START.as_bytes())?;
    // One walk: inserted text is not searched.
    while let Some((before, (mark, after))) = rest.split_once("{{").and_then(|(a, b)| Some((a, b.split_once("}}")?))) {
        out.write_all(before.as_bytes())?;
        out.write_all(match mark {
            "policy" => policy.as_bytes(),
            "style" => STYLE.as_bytes(),
            "script" => SCRIPT.as_bytes(),
            "data" => data.as_bytes(),
            _ => b"",
        })?;
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

fn policy() -> String {
    let digest = |text: &str| format!("'sha256-{}'", base64(&sha256(text.as_bytes())));
    format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        digest(SCRIPT),
        digest(STYLE)
    )
}
