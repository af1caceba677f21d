//! `pages FILE…`: opens pages of `report` in a browser, and prints what drawing them takes as a table. Needs `MEMSCOPE_CHROMIUM`.
//!
//! Times are the page's own clock, of one processor without a graphics card: to the end of unpacking and of the first drawing, then
//! the median of nine redraws as the cursor moves, the map of blocks is zoomed, and frames are searched.

use std::{fs, path::Path, process::ExitCode};

use memscope_tests::harness::browser::Page;
use serde_json::Value;

/// A redraw, as a function of its number.
const REDRAWS: [&str; 3] = [
    "i => { const e = document.getElementById('slider'); e.value = 100 * i + 50; e.dispatchEvent(new Event('input')); }",
    "i => document.getElementById('map').dispatchEvent(new WheelEvent('wheel', { ctrlKey: true, deltaY: i % 2 ? 1 : -1, cancelable: true }))",
    "i => { const e = document.getElementById('search'); e.value = 'forward'.slice(0, i % 7 + 1); e.dispatchEvent(new Event('input')); }",
];

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("usage: pages FILE…");
        return ExitCode::from(2);
    }
    println!("| page | MB | unpacked, ms | drawn, ms | heap, MB | cursor, ms | zoom, ms | search, ms |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    for file in files {
        println!("{}", row(Path::new(&file)));
    }
    ExitCode::SUCCESS
}

fn row(file: &Path) -> String {
    let megabytes = fs::metadata(file).expect("a page").len() as f64 / 1e6;
    let mut page = Page::open(&file.canonicalize().expect("a page"));
    let mark = |page: &mut Page, name: &str| {
        number(&page.value(&format!(
            "performance.getEntriesByName('{name}')[0].startTime - performance.getEntriesByName('start')[0].startTime"
        )))
    };
    let (unpacked, drawn) = (mark(&mut page, "unpacked"), mark(&mut page, "drawn"));
    let heap = number(&page.value("performance.memory.usedJSHeapSize")) / 1e6;
    // What is put off to the next frame is done at once, so that it counts.
    page.value("window.requestAnimationFrame = draw => { draw(0); return 0; }, 0");
    let redraws = REDRAWS.map(|redraw| median(&mut page, redraw));
    page.is_quiet();
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let [cursor, zoom, search] = redraws;
    format!(
        "| {name} | {megabytes:.2} | {unpacked:.0} | {drawn:.0} | {heap:.1} | {cursor:.1} | {zoom:.1} | {search:.1} |"
    )
}

/// Milliseconds of a redraw, the median of nine.
fn median(page: &mut Page, redraw: &str) -> f64 {
    let script = format!(
        "(() => {{ const f = {redraw}, took = []; for (let i = 0; i < 9; i++) {{ const t = performance.now(); f(i); \
         took.push(performance.now() - t); }} return took.sort((a, b) => a - b)[4]; }})()"
    );
    number(&page.value(&script))
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}
