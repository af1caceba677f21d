//! `pictures`: the screens in the readmes, as today's program prints them for the recording of the demo, the terminal as a moving
//! picture, and the page in a browser. A test holds them against it (`tests/tests/exports.rs`).

use std::{fmt::Write as _, fs, path::Path, process::Output};

use anyhow::{Context as _, Result, ensure};

use crate::{
    apt, build,
    project::{output, program, root, run as run_command, target, tool},
    setup,
};

/// Pages with the screen, behind this line.
const PAGES: [&str; 2] = ["README.md", "README.zh-CN.md"];
const BEGIN: &str = "$ memscope-bpf demo\n";
const END: &str = "\n```";
/// The terminal, in which the command is typed and the screen appears.
const TERMINAL: &str = "docs/pictures/demo.svg";
/// The page, in a window of this size, and the checksum of the page that it shows.
const PAGE: &str = "docs/pictures/page.png";
const PAGE_SIZE: &str = "1360,1100";
const PAGE_SUM: &str = "docs/pictures/page.sha256";
/// It has a button with Chinese letters.
const FONTS: &str = "fonts-wqy-microhei";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(arguments.is_empty(), "usage: ./x pictures");
    build::run()?;
    let screen = screen()?;
    for page in PAGES {
        let path = root().join(page);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{page}`"))?;
        if let Some(renewed) = replaced(&text, &screen) {
            fs::write(&path, renewed).with_context(|| format!("cannot write `{page}`"))?;
            eprintln!("{page}");
        }
    }
    let path = root().join(TERMINAL);
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(&path, terminal(&screen)).with_context(|| format!("cannot write `{TERMINAL}`"))?;
    eprintln!("{TERMINAL}");
    page()
}

/// The page of the demo. Its picture differs with fonts, so that what is held against today's program is its source.
fn page() -> Result<()> {
    let page = target().join("pictures/demo.html");
    demo(&[&format!("--html={}", page.display())])?;
    let sums = output(program("sha256sum").arg(&page))?;
    let sum = sums.split_whitespace().next().context("a checksum")?;
    apt::install(&[FONTS])?;
    photograph(&page, &root().join(PAGE))?;
    fs::write(root().join(PAGE_SUM), format!("{sum}\n")).with_context(|| format!("cannot write `{PAGE_SUM}`"))?;
    eprintln!("{PAGE}");
    Ok(())
}

/// What a browser shows of a page.
fn photograph(page: &Path, picture: &Path) -> Result<()> {
    let profile = target().join("pictures/browser");
    let mut browser = program(setup::browser()?);
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--lang=en"]);
    browser.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    // Its own clock: until the page is drawn.
    browser.args(["--virtual-time-budget=5000", &format!("--window-size={PAGE_SIZE}")]);
    browser.arg(format!("--user-data-dir={}", profile.display()));
    browser.arg(format!("--screenshot={}", picture.display())).arg(format!("file://{}", page.display()));
    run_command(&mut browser)
}

/// A terminal of 82 columns as a picture: the command is typed, then the lines come. Without motion where readers ask for none.
fn terminal(screen: &str) -> String {
    const WIDTH: usize = 720;
    const LINE: usize = 18;
    let mut lines: Vec<String> = vec![BEGIN.trim_end().to_owned()];
    lines.extend(screen.trim_end().lines().map(str::to_owned));
    let height = lines.len() * LINE + 28;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"memscope-bpf demo: a leak, its place, and the memory at the peak\">\n\
         <style>\n\
         text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #d0d7de; white-space: pre; \
         opacity: 0; animation: come 1ms linear forwards; }}\n\
         .verdict {{ fill: #ff7b72; font-weight: bold; }}\n.title {{ fill: #79c0ff; }}\n.typed {{ fill: #7ee787; }}\n\
         @keyframes come {{ to {{ opacity: 1; }} }}\n\
         @media (prefers-reduced-motion: reduce), print {{ text {{ opacity: 1; animation: none; }} }}\n\
         </style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n"
    );
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let class = match line.trim_start() {
            _ if number == 0 => " class=\"typed\"",
            line if line.starts_with('✗') => " class=\"verdict\"",
            line if ["MEMORY", "CHECKS", "TRY"].iter().any(|title| line.starts_with(title)) => " class=\"title\"",
            _ => "",
        };
        let (y, delay) = (number * LINE + 26, if number == 0 { 300 } else { 1200 + number * 60 });
        let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        // Memory takes everything.
        let _ = writeln!(
            svg,
            "<text x=\"14\" y=\"{y}\" xml:space=\"preserve\"{class} style=\"animation-delay:{delay}ms\">{text}</text>"
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// What an installed program shows.
fn screen() -> Result<String> {
    String::from_utf8(demo(&[])?.stdout).context("the screen is no text")
}

/// The demo of an installed program: one that is not in a source tree.
fn demo(options: &[&str]) -> Result<Output> {
    let place = target().join("pictures");
    fs::create_dir_all(&place).with_context(|| format!("cannot create `{}`", place.display()))?;
    let elsewhere = std::env::temp_dir().join(format!("memscope-bpf-{}", std::process::id()));
    fs::copy(tool(), &elsewhere).context("cannot copy the program")?;
    let made = program(&elsewhere).arg("demo").args(options).env("LC_ALL", "C.UTF-8").current_dir(&place).output();
    fs::remove_file(&elsewhere).context("cannot remove the copy")?;
    let made = made.context("cannot run the program")?;
    ensure!(made.status.success(), "the demo failed: {}", String::from_utf8_lossy(&made.stderr));
    Ok(made)
}

/// The page with this screen, if it has one.
fn replaced(text: &str, screen: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{}{END}{after}", screen.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every line is there, as text and not as markup; the first is what was typed.
    #[test]
    fn terminals_are_pictures() {
        let svg = terminal("a & <b>\n\n ✗ LEAK  1\n");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(svg.contains(">a &amp; &lt;b&gt;</text>") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains(" class=\"verdict\" style=\"animation-delay:1380ms\"> ✗ LEAK  1</text>"), "{svg}");
        assert!(svg.contains(
            "y=\"26\" xml:space=\"preserve\" class=\"typed\" style=\"animation-delay:300ms\">$ memscope-bpf demo<"
        ));
        assert_eq!(svg.matches("<text ").count(), 3);
    }

    #[test]
    fn screens_are_replaced() {
        let page = "a\n```text\n$ memscope-bpf demo\nold\nlines\n```\nb ```c```\n";
        let expected = "a\n```text\n$ memscope-bpf demo\nnew\n\n line\n```\nb ```c```\n";
        assert_eq!(replaced(page, "new\n\n line\n").as_deref(), Some(expected));
        assert_eq!(replaced("no screen", "new"), None);
    }
}
