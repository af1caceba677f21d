//! The page of `report` in a real browser, used as a reader uses it.
//!
//! `./x test` installs Chromium, unless `--no-browser` was given. Needs `MEMSCOPE_BIN` and `MEMSCOPE_CHROMIUM`.

#[path = "browser/run.rs"]
mod run;

use std::process::Command;

use memscope_tests::harness::{browser::Page, tracer::tracer_path};
use serde_json::{Value, json};
use tempfile::TempDir;

/// What is in use at the most: 24 weights of 1 MiB, the activation of 4 MiB, and in the last step five kept blocks of 256 KiB.
/// 24 + 4 + 5 / 4 = 29.25 MiB, as the page rounds it; the sixth is kept when the activation has gone.
const PEAK: &str = "29.3 MiB";

/// A page of a made-up run, in a folder that goes with it.
fn report(hostile: bool) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let (dump, page) = (folder.path().join("memscope_dump_1.csv"), folder.path().join("report.html"));
    std::fs::write(&dump, run::dump(hostile)).expect("a dump");
    let made = Command::new(tracer_path()).arg("report").arg(&dump).arg("-o").arg(&page).output().expect("the program");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (folder, page)
}

fn text(page: &mut Page, id: &str) -> String {
    page.text(&format!("document.getElementById('{id}').textContent"))
}

/// Sets a control to a value, as its user does.
fn set(page: &mut Page, id: &str, value: &str) {
    page.value(&format!(
        "(() => {{ const e = document.getElementById('{id}'); e.value = {}; e.dispatchEvent(new Event('input')); }})()",
        json!(value)
    ));
}

/// It opens without an error and without asking for anything, and says what the dump says.
#[test]
fn opens_and_says_what_was_found() {
    let (_folder, file) = report(false);
    let mut page = Page::open(&file);
    assert_eq!(page.text("document.title"), "Device memory of process 4242 on NPU 0");
    // 24 weights of 1 MiB, the activation of a step, and at the end of step 5 five blocks of 256 KiB that were left behind.
    assert!(text(&mut page, "cards").contains(PEAK), "{}", text(&mut page, "cards"));
    assert!(text(&mut page, "checks").contains("Metrics.update"), "{}", text(&mut page, "checks"));
    // One of each step but the first, which may fill caches, and the last, which has no step behind it.
    let verdict = text(&mut page, "verdict");
    assert!(verdict.starts_with("Leak: 1.00 MiB in 4 blocks stay, at 1 place"), "{verdict}");
    page.is_quiet();
}

/// The one rule that applies has a card with its place, evidence and advice; its title is in both languages.
#[test]
fn cards_say_what_to_try() {
    let (_folder, file) = report(false);
    let mut page = Page::open(&file);
    let rules = "[...document.querySelectorAll('#advice .finding')].map(e => e.dataset.rule)";
    assert_eq!(page.value(rules), json!(["step-leak"]), "{}", text(&mut page, "advice"));
    let shown = text(&mut page, "advice");
    assert!(shown.contains("Each step leaves blocks behind") && shown.contains("Metrics.update"), "{shown}");
    assert!(shown.contains(".item() or .detach().cpu()"), "{shown}");
    assert_eq!(page.value("document.getElementById('advicePanel').hidden"), false);
    page.value("document.getElementById('language').click()");
    assert!(text(&mut page, "advice").contains("每一步都留下块"), "{}", text(&mut page, "advice"));
    page.is_quiet();
}

/// Other settings have the figures of `advise`, a row each, the run's own first; a part of a run has none.
#[test]
fn other_settings_are_those_of_advise() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../memscope-user/demo/torch.capture");
    let made = |options: &[&str]| {
        let file = folder.path().join("report.html");
        let mut command = Command::new(tracer_path());
        command.args(["report", capture, "-o"]).arg(&file).args(options);
        let output = command.output().expect("the program");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Page::open(&file)
    };
    let output = Command::new(tracer_path()).args(["advise", capture, "--json"]).output().expect("the program");
    let advice: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let advice = &advice["processes"][0];
    let mut page = made(&[]);
    let cells = "[...document.querySelectorAll('#whatIf tbody tr')].map(r => [...r.cells].map(c => c.textContent))";
    let rows = page.value(cells);
    let rows = rows.as_array().expect("rows");
    let better = advice["better"].as_array().expect("settings");
    assert_eq!(rows.len(), 1 + better.len(), "{rows:?}");
    let named = |row: &Value| row[0].as_str().expect("text").to_owned();
    let settings: Vec<_> = better.iter().map(|answer| answer["settings"].as_str().expect("text")).collect();
    assert_eq!(rows[1..].iter().map(named).collect::<Vec<_>>(), settings);
    for (row, answer) in rows.iter().zip([&advice["now"]].into_iter().chain(better)) {
        let peak = &answer["devices"][0]["reserved_peak_bytes"];
        let shown = |bytes: &Value| page_bytes(bytes.as_u64().expect("bytes"));
        let (least, most) = (shown(&peak["least"]), shown(&peak["most"]));
        assert_eq!(row[1], if peak["least"] == peak["most"] { most } else { format!("{least} … {most}") });
    }
    page.is_quiet();
    let mut page = made(&["--until", "20s"]);
    assert_eq!(page.value("document.getElementById('whatIfPanel').hidden"), true);
}

/// As the page rounds.
fn page_bytes(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let Some((unit, shift)) = units.into_iter().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let value = bytes as f64 / (1_u64 << shift) as f64;
    let digits = if value >= 100.0 { 0 } else { usize::from(value < 10.0) + 1 };
    format!("{value:.digits$} {unit}")
}

#[test]
fn search_says_how_much_matches() {
    let (_folder, file) = report(false);
    let mut page = Page::open(&file);
    set(&mut page, "search", "no such frame");
    assert!(text(&mut page, "match").starts_with("0 B (0 %)"));
    set(&mut page, "search", "Model.__init__");
    assert!(text(&mut page, "match").starts_with("24.0 MiB"), "{}", text(&mut page, "match"));
    page.is_quiet();
}

/// The slider shows another moment; the arrow keys move on from there.
#[test]
fn slider_and_keys_move_the_cursor() {
    let (_folder, file) = report(false);
    let mut page = Page::open(&file);
    let at_peak = text(&mut page, "segHint");
    set(&mut page, "slider", "1");
    assert_ne!(text(&mut page, "segHint"), at_peak);
    let before = text(&mut page, "when");
    page.value("document.getElementById('curve').focus()");
    page.key("ArrowRight");
    assert_ne!(text(&mut page, "when"), before);
    page.is_quiet();
}

#[test]
fn click_zooms_the_icicle_and_shows_a_block() {
    let (_folder, file) = report(false);
    let mut page = Page::open(&file);
    page.click("flame", 0.03, 50.0);
    let crumbs = page.value("document.querySelectorAll('#crumbs button').length");
    assert!(crumbs.as_u64().is_some_and(|count| count > 1), "{crumbs}");
    for y in (4..370).step_by(6) {
        page.click("map", 0.7, f64::from(y));
        if text(&mut page, "block").contains("Block") {
            break;
        }
    }
    assert!(text(&mut page, "block").contains("of PTA"), "{}", text(&mut page, "block"));
    page.is_quiet();
}

/// By keys alone: down into the icicle, Enter zooms, Escape goes back.
#[test]
fn icicle_is_used_by_keys() {
    let (_folder, file) = report(false);
    let mut page = Page::open(&file);
    page.value("document.getElementById('flame').focus()");
    for key in ["ArrowDown", "ArrowDown", "Enter"] {
        page.key(key);
    }
    assert_eq!(page.value("document.querySelectorAll('#crumbs button').length"), 3);
    page.key("Escape");
    assert_eq!(page.value("document.querySelectorAll('#crumbs button').length"), 1);
    page.is_quiet();
}

#[test]
fn theme_and_language_are_switched() {
    let (_folder, file) = report(false);
    let mut page = Page::open(&file);
    let picture = "document.getElementById('curve').toDataURL()";
    let light = page.text(picture);
    page.value("document.getElementById('theme').click()");
    assert_eq!(page.text("document.documentElement.dataset.theme"), "dark");
    assert_ne!(page.text(picture), light);
    page.value("document.getElementById('language').click()");
    assert_eq!(page.text("document.documentElement.lang"), "zh");
    assert!(text(&mut page, "verdict").starts_with("泄漏：1 个位置留下 4 个块"));
    // Both languages say all there is to say.
    let missing = "Object.keys(WORDS.en).filter(k => !(k in WORDS.zh)).concat(Object.keys(WORDS.zh).filter(k => !(k in WORDS.en)))";
    assert_eq!(page.value(missing), json!([]));
    page.is_quiet();
}

#[test]
fn prints() {
    let (_folder, file) = report(false);
    let mut page = Page::open(&file);
    let pdf = page.call("Page.printToPDF", &json!({ "printBackground": true }));
    assert!(pdf["data"].as_str().is_some_and(|data| data.starts_with("JVBERi") && data.len() > 20_000));
    page.is_quiet();
}

/// Each control has a name, each chart a label and a table that says the same.
#[test]
fn controls_and_charts_have_names() {
    let (_folder, file) = report(false);
    let mut page = Page::open(&file);
    let nameless = "[...document.querySelectorAll('button,input,select,canvas,summary')].filter(e => e.offsetParent && \
        !(e.textContent.trim() || e.getAttribute('aria-label') || [...(e.labels || [])].some(l => l.textContent.trim()))).map(e => e.id || e.outerHTML.slice(0, 60))";
    assert_eq!(page.value(nameless), json!([]));
    let twins = "['curveTable', 'places', 'blockTable', 'segTable'].map(id => document.querySelectorAll('#' + id + ' tbody tr').length > 0)";
    assert_eq!(page.value(twins), json!([true, true, true, true]));
    page.is_quiet();
}

/// Strings that attack who shows them stay text: no script runs, nothing is asked for, no character turns the line around.
#[test]
fn hostile_strings_stay_text() {
    let (_folder, file) = report(true);
    let mut page = Page::open(&file);
    assert_eq!(page.text("document.title"), "Device memory of process 4242 on NPU 0");
    assert_eq!(page.value("document.querySelectorAll('img,svg,iframe,object,embed').length"), 0);
    assert_eq!(page.value("document.scripts.length"), 1);
    let links = "[...document.links].every(a => a.getAttribute('href').startsWith('#'))";
    assert_eq!(page.value(links), true);
    for id in ["search", "fold"] {
        set(&mut page, id, "alert");
    }
    page.value("document.querySelectorAll('details').forEach(d => d.open = true)");
    let shown = "/[\\u202a-\\u202e\\u2066-\\u2069\\u200b\\u001b]/.test(document.body.innerText)";
    assert_eq!(page.value(shown), false);
    assert_eq!(page.value("document.body.innerText.includes('alert(1)')"), true);
    page.is_quiet();
}
