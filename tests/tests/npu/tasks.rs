//! The three tasks of the documentation: one command each, and the first screen has the place, its bytes and its share, by the program's own books.

use memscope_tests::torch::bench::Program;

const SCRIPT: &str = include_str!("../../torch-npu/workloads/tasks.py");
/// Lines of the first screen.
const LINES: usize = 24;

/// The first screen of a task, and the figures that the program printed itself. The page is made by the same command.
fn screen(task: &str, options: &[&str]) -> (Vec<String>, Vec<u64>) {
    let (run, _) =
        Program::new(&format!("tasks.py {task}")).traced_as(&[&["--report=summary", "--html"], options].concat());
    let books = run.stdout.lines().find_map(|line| line.strip_prefix("books ")).expect("the program's books");
    let books = books.split(' ').map(|word| word.parse().expect("a number")).collect();
    let screen: Vec<String> =
        run.stdout.lines().skip_while(|line| !line.starts_with("memscope-bpf · ")).map(str::to_owned).collect();
    assert!((8..=LINES).contains(&screen.len()), "{}", run.said());
    println!("{}", screen.join("\n"));
    let page = run.folder.capture().with_extension("html");
    let page = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    assert!(page.contains("<html"), "no page");
    (screen, books)
}

fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20))
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", 100.0 * part as f64 / whole as f64)
}

/// `tasks.py:27  remember`, by the remark on the line.
fn frame(remark: &str, function: &str) -> String {
    let number = SCRIPT.lines().position(|line| line.ends_with(&format!("# {remark}"))).expect("the line") + 1;
    format!("     tasks.py:{number}  {function}")
}

/// The lines from the first place on, up to the next one or an empty line.
fn first_place(screen: &[String]) -> &[String] {
    let from = screen.iter().position(|line| line.starts_with(" #1  ")).unwrap_or_else(|| panic!("{screen:#?}"));
    let more = screen[from + 1..].iter().take_while(|line| line.starts_with("     ")).count();
    &screen[from..=from + more]
}

/// The list of a server grows: all of what it has more than at the begin is at one place, and a variable holds it.
#[test]
fn a_server_grows() {
    let (screen, books) = screen("grows 25", &[]);
    let [bytes, blocks] = books[..] else { panic!("{books:?}") };
    assert!(screen[2].starts_with(" ✗ GROWING  "), "{screen:#?}");
    let place = first_place(&screen);
    assert!(place[0].contains(&format!("{} in {blocks} blocks", mib(bytes))), "{bytes}: {screen:#?}");
    assert!(place[0].contains(" 100 % "), "{screen:#?}");
    assert!(place.contains(&frame("grows", "remember")), "{screen:#?}");
    assert!(place.iter().any(|line| line.starts_with("     still held by: __main__.history[*]")), "{screen:#?}");
}

/// A cache takes most of the device, and a request fails.
#[test]
fn a_request_fails() {
    let (screen, books) = screen("fills", &["--analysis=auto,oom"]);
    let [of_cache, all] = books[..] else { panic!("{books:?}") };
    assert!(screen[2].starts_with(" ✗ OUT OF MEMORY  514.00 MiB asked for"), "{screen:#?}");
    let place = first_place(&screen);
    let size = format!("{:.2} GiB in 30 blocks", of_cache as f64 / f64::from(1 << 30));
    assert!(place[0].contains(&size), "{of_cache}: {screen:#?}");
    assert!(place[0].contains(&percent(of_cache, all)), "{of_cache} of {all}: {screen:#?}");
    assert!(place.contains(&frame("fills", "put")), "{screen:#?}");
}

/// Adam's training: weights, as much again in gradients, twice as much in states of the optimizer.
#[test]
fn where_training_memory_goes() {
    let (screen, books) = screen("trains 6", &["--analysis=auto,decompose,peaks"]);
    let [weights, states, peak] = books[..] else { panic!("{books:?}") };
    let title = screen.iter().position(|line| line.starts_with(" OWNERS AT THE PEAK OF THE PyTorch pool"));
    let rows = &screen[title.unwrap_or_else(|| panic!("{screen:#?}")) + 1..];
    let row = |owner: &str| {
        let found = rows.iter().find(|line| line.starts_with(&format!("   {owner} ")));
        found.unwrap_or_else(|| panic!("no {owner}: {screen:#?}"))
    };
    for (owner, bytes) in [("weight", weights), ("optimizer_state", states), ("gradient", weights)] {
        // Blocks are multiples of 512 bytes; of a parameter at most one block is smaller than that.
        let found = row(owner);
        let near = [bytes, bytes + 512 * 8].map(mib);
        assert!(near.iter().any(|size| found.contains(size)), "{owner} {bytes}: {screen:#?}");
        assert!(found.contains(&format!("{:.1} %", 100.0 * bytes as f64 / peak as f64)), "{owner}: {screen:#?}");
    }
    assert!(row("= all").ends_with(&mib(peak)), "{peak}: {screen:#?}");
}
