//! The typed line: parsed by the options, or refused with the form that was probably meant.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use clap::{
    Arg, Command, CommandFactory as _, Parser as _,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::args::{Cli, DEFAULT_OUTPUT};

/// Called by this name (a link to the program), we take every line as msMemScope does.
const REFERENCE: &str = "msmemscope";
/// Its options. Where one of ours begins alike, its scripts mean these.
const REFERENCE_OPTIONS: [&str; 23] = [
    "help",
    "version",
    "verbose",
    "quiet",
    "debug",
    "log-level",
    "steps",
    "device",
    "level",
    "events",
    "call-stack",
    "collect-mode",
    "analysis",
    "watch",
    "compare",
    "input-path",
    "input",
    "output-path",
    "output",
    "format",
    "data-format",
    "load-api-env",
    "unload-api-env",
];
/// Other tools' words for our commands.
const OTHER_WORDS: [(&str, &str); 7] = [
    ("live", "top"),
    ("monitor", "top"),
    ("record", "run"),
    ("trace", "run"),
    ("start", "run"),
    ("flamegraph", "export"),
    ("convert", "export"),
];
/// Short options that other tools have.
const HABITS: [(&str, &str); 2] = [("-t", "duration"), ("-c", "count")];
/// More are no help.
const MAX_SUGGESTIONS: usize = 4;

/// A line that is not executed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Help and version, and errors best explained by clap.
    Clap(clap::Error),
    /// A sentence of ours.
    Text(String),
}

/// Parses the line; the first word is our own name.
pub(super) fn parse(arguments: &[OsString]) -> Result<Cli, Refusal> {
    let definition = Cli::command();
    let by_reference = arguments.first().is_some_and(|name| Path::new(name).file_name() == Some(OsStr::new(REFERENCE)));
    let first = arguments.get(1).filter(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let subcommand = first.and_then(|word| definition.find_subcommand(word));
    let is_command = subcommand.is_some() || first.is_some_and(|word| word == "help");
    let spelt_out = if by_reference && !is_command { spell_out(arguments, &definition) } else { arguments.to_vec() };
    if let Some(word) = first.filter(|word| !is_command && !by_reference && !names_a_file(word)) {
        return Err(Refusal::Text(no_such_command(word, &definition)));
    }
    let mut cli = Cli::try_parse_from(&spelt_out)
        .map_err(|error| refusal(error, &spelt_out, subcommand.unwrap_or(&definition), &definition))?;
    cli.trace.collect.leak_blocks |= by_reference;
    cli.trace.no_stacks |= by_reference;
    if by_reference {
        cli.trace.collect.output_path.get_or_insert_with(|| DEFAULT_OUTPUT.into());
    }
    // Neither would execute it; a mistake concerns both.
    let executes = cli.pid.is_empty() && !cli.compare;
    match cli.program.first() {
        Some(word)
            if executes && !by_reference && !names_a_file(word) && !is_behind_dashes(arguments, &cli.program) =>
        {
            Err(Refusal::Text(no_such_command(word, &definition)))
        }
        _ => Ok(cli),
    }
}

fn names_a_file(word: &OsStr) -> bool {
    word.as_encoded_bytes().contains(&b'/')
}

/// Whether the whole program stands behind `--`.
fn is_behind_dashes(arguments: &[OsString], program: &[OsString]) -> bool {
    let dashes = arguments.iter().position(|argument| argument == "--");
    dashes.is_some_and(|at| arguments.len() - at - 1 == program.len())
}

/// Completes unambiguous abbreviations among msMemScope's own options.
fn spell_out(arguments: &[OsString], definition: &Command) -> Vec<OsString> {
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let (ours, program) = arguments.split_at(end);
    let complete = |argument: &OsString| -> Option<OsString> {
        let text = argument.to_str()?.strip_prefix("--")?;
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        if name.is_empty() || longs(definition).any(|long| long == name) || REFERENCE_OPTIONS.contains(&name) {
            return None;
        }
        let mut fitting = REFERENCE_OPTIONS.iter().filter(|option| option.starts_with(name));
        let (option, None) = (fitting.next()?, fitting.next()) else { return None };
        Some(value.map_or_else(|| format!("--{option}"), |value| format!("--{option}={value}")).into())
    };
    ours.iter().map(|argument| complete(argument).unwrap_or_else(|| argument.clone())).chain(program.to_vec()).collect()
}

/// A word that is neither a command nor clearly a program. It is not executed: that would be as root, by a typing
/// error.
fn no_such_command(word: &OsStr, definition: &Command) -> String {
    let word = word.to_string_lossy();
    let commands = definition.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
    let mut meant: Vec<String> =
        OTHER_WORDS.iter().filter(|(other, _)| *other == word).map(|(_, ours)| format!("`{ours}`")).collect();
    meant.extend(near(&word, commands).into_iter().map(|name| format!("`{name}`")));
    meant.dedup();
    let meant = if meant.is_empty() { String::new() } else { format!("; did you mean {}?", meant.join(" or ")) };
    let behind = if meant.is_empty() { "; " } else { " " };
    format!(
        "no such command: `{word}`{meant}{behind}`memscope-bpf run -- {word}` traces a program of this name, \
         `memscope-bpf --help` lists the commands"
    )
}

/// The message for an error of clap.
fn refusal(error: clap::Error, arguments: &[OsString], command: &Command, all: &Command) -> Refusal {
    let odd = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(odd))) => odd.clone(),
        _ => return Refusal::Clap(error),
    };
    let is_whole = command.get_name() == all.get_name();
    let name = if is_whole { all.get_name().to_owned() } else { format!("{} {}", all.get_name(), command.get_name()) };
    let at = arguments.iter().position(|argument| argument.to_string_lossy().split('=').next() == Some(&odd));
    let before = at.and_then(|at| arguments.get(at - 1)).and_then(|word| word.to_str()).unwrap_or_default();
    let behind = at.and_then(|at| arguments.get(at..)).unwrap_or_default();
    let advice = advice(&odd, before, behind, command, all);
    let kind = if odd.starts_with('-') { "unknown option" } else { "unexpected argument" };
    Refusal::Text(format!("{kind}: `{odd}`; {advice}`{name} --help` lists what `{name}` takes"))
}

/// The form that was probably meant; ends so that another part can follow.
fn advice(odd: &str, before: &str, behind: &[OsString], command: &Command, all: &Command) -> String {
    let has = |long: &str| longs(command).any(|known| known == long);
    if !odd.starts_with('-') {
        if option_of(before, command).is_some_and(Arg::is_require_equals_set) {
            return format!("a value of `{before}` is written `{before}={odd}`; ");
        }
        return match odd.parse::<u32>() {
            Ok(_) if has("pid") => format!("processes are given with `--pid {odd}`; "),
            _ => String::new(),
        };
    }
    if option_of(before, command).is_some_and(|option| option.get_action().takes_values()) {
        return format!("a value of `{before}` that begins with `-` is written `{}`; ", joined(before, odd));
    }
    if let Some((_, long)) = HABITS.iter().find(|(short, long)| *short == odd && has(long)) {
        return format!("it is spelt `--{long}` here; ");
    }
    let next = behind.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let is_json = odd == "--format" && (next == "json" || behind[0].to_string_lossy() == "--format=json");
    if is_json && has("json") {
        return "for JSON give `--json`; ".to_owned();
    }
    if matches!(odd, "-o" | "--output" | "--output-path") && has("json") {
        return "the result goes to stdout, which the shell writes into a file with `> FILE`; ".to_owned();
    }
    let Some(name) = odd.strip_prefix("--") else { return String::new() };
    let fitting: Vec<&str> = visible_longs(command).filter(|long| long.starts_with(name)).collect();
    if fitting.len() > 1 {
        return format!("it could be {}; ", options(&fitting, " or "));
    }
    let close = near(name, visible_longs(command));
    if !close.is_empty() {
        return format!("did you mean {}? ", options(&close, " or "));
    }
    let holders: Vec<&str> = all
        .get_subcommands()
        .filter(|other| !other.is_hide_set() && visible_longs(other).any(|long| long == name))
        .map(Command::get_name)
        .collect();
    if !holders.is_empty() {
        return format!("it is an option of {}; ", holders.join(", "));
    }
    let takes_program = command.get_arguments().any(|argument| argument.get_id() == "program");
    if takes_program { "an option of the program stands behind `--`; ".to_owned() } else { String::new() }
}

/// `--option=-value`, `-o-value`.
fn joined(option: &str, value: &str) -> String {
    if option.starts_with("--") { format!("{option}={value}") } else { format!("{option}{value}") }
}

/// The option that a word names.
fn option_of<'a>(word: &str, command: &'a Command) -> Option<&'a Arg> {
    let long = word.strip_prefix("--");
    let short = word.strip_prefix('-').filter(|rest| rest.chars().count() == 1).and_then(|rest| rest.chars().next());
    command.get_arguments().find(|argument| {
        (long.is_some()
            && argument.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long.unwrap_or(""))))
            || (short.is_some() && argument.get_short() == short)
    })
}

fn longs(command: &Command) -> impl Iterator<Item = &str> {
    command.get_arguments().filter_map(Arg::get_long)
}

fn visible_longs(command: &Command) -> impl Iterator<Item = &str> {
    command.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(Arg::get_long)
}

fn options(names: &[&str], between: &str) -> String {
    names.iter().map(|name| format!("`--{name}`")).collect::<Vec<_>>().join(between)
}

/// Names with a typing error or two relative to `word`, or that it abbreviates, the closest first.
fn near<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let word: Vec<char> = word.to_lowercase().chars().collect();
    // In a short word one typing error is much.
    let most = (word.len() / 3).clamp(1, 2);
    let distance = |name: &str| {
        let name: Vec<char> = name.chars().collect();
        if word.len() >= 2 && name.starts_with(&word) { 0 } else { slips(&word, &name) }
    };
    let mut found: Vec<(usize, &str)> =
        names.map(|name| (distance(name), name)).filter(|(far, _)| *far <= most).collect();
    found.sort_unstable();
    found.truncate(MAX_SUGGESTIONS);
    found.into_iter().map(|(_, name)| name).collect()
}

/// Letters to insert, leave out, replace, or swap with the next one (optimal string alignment).
fn slips(from: &[char], to: &[char]) -> usize {
    // A word of this length is no typing error, and the table would be large.
    const LONGEST: usize = 64;
    if from.len() > LONGEST {
        return usize::MAX;
    }
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for (i, letter) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, wanted) in to.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(letter != wanted);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == to[j - 1] && from[i - 1] == *wanted {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;
    use crate::{cli::args::Command, session};

    fn line(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn refused(text: &str) -> String {
        match parse(&line(text)) {
            Err(Refusal::Text(text)) => text,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn accepted(text: &str) -> Cli {
        parse(&line(text)).unwrap_or_else(|refusal| panic!("{text}: {refusal:?}"))
    }

    /// Makes sure that a mistyped command is not taken for a program, wherever it stands, and that the nearest commands
    /// and the way to trace a program are named.
    #[test]
    fn mistyped_commands_are_no_programs() {
        for (typed, word, meant) in [
            ("memscope-bpf monitor", "monitor", "did you mean `top`?"),
            ("memscope-bpf lekas run1", "lekas", "did you mean `leaks`?"),
            ("memscope-bpf stats --pid 1", "stats", "did you mean `stat`?"),
            ("memscope-bpf -q live", "live", "did you mean `top`?"),
            ("memscope-bpf --events alloc python x.py", "python", "run -- python"),
            ("memscope-bpf live -- x", "live", "did you mean `top`?"),
            ("memscope-bpf frobnicate --foo", "frobnicate", "run -- frobnicate"),
            ("memscope-bpf dif", "dif", "did you mean `diff`?"),
        ] {
            let text = refused(typed);
            assert!(text.starts_with(&format!("no such command: `{word}`")), "{text}");
            assert!(text.contains(meant) && text.contains(&format!("`memscope-bpf run -- {word}`")), "{text}");
        }
    }

    /// A clear program is still one: behind `--`, with a slash, or under msMemScope's name.
    #[test]
    fn programs_are_programs() {
        for (typed, words) in [
            ("memscope-bpf -- top -d 1", 3),
            ("memscope-bpf --events alloc -- python x.py", 2),
            ("memscope-bpf ./train x", 2),
            ("memscope-bpf --events=alloc /usr/bin/python x.py --steps=1", 2),
            ("/usr/bin/msmemscope python x.py --steps=1", 2),
            ("msmemscope -- top", 1),
        ] {
            assert_eq!(accepted(typed).program.len(), words, "{typed}");
        }
    }

    /// Under msMemScope's name outputs go where its scripts look for them; else each run has a folder of its own.
    #[test]
    fn outputs_go_where_the_name_says() {
        let of = |typed: &str| accepted(typed).trace.collect.output_path;
        assert_eq!(of("msmemscope python x.py").as_deref(), Some(Path::new("memscopeDumpResults")));
        assert_eq!(of("msmemscope -o out python x.py").as_deref(), Some(Path::new("out")));
        assert_eq!(of("memscope-bpf -- python x.py"), None);
        let analyses = |typed: &str| accepted(typed).trace.collect.analysis.chosen;
        assert_eq!(analyses("msmemscope python x.py"), session::Analyses::default());
        assert_eq!(analyses("memscope-bpf -- python x.py"), session::Analyses::default());
        let options = |typed: &str| {
            let trace = accepted(typed).trace;
            let output = trace.writing(session::Traced::Processes(vec![12])).expect("options").output;
            output.map(|output| (output.directory.display().to_string(), output.new_directory))
        };
        let (folder, is_new) = options("memscope-bpf -p 12").expect("outputs");
        assert!(folder.starts_with("memscope-12-20") && is_new, "{folder}");
        assert_eq!(options("memscope-bpf -p 12 -o x"), Some(("x".to_owned(), false)));
    }

    /// Makes sure that processes are taken as users of other tools type them.
    #[test]
    fn processes_are_taken_in_all_spellings() {
        for typed in ["attach 12 13", "attach 12,13", "attach -p 12,13", "attach --pid 12 -p 13", "attach -d 5s 12 13"]
        {
            let Some(Command::Attach(args)) = accepted(&format!("memscope-bpf {typed}")).command else {
                panic!("{typed}: no attach")
            };
            assert_eq!(args.processes.all(), [12, 13], "{typed}");
        }
        assert_eq!(accepted("memscope-bpf -p 12 -d 5s").pid, [12]);
        let Some(Command::Stat(args)) = accepted("memscope-bpf stat 12 -n 3").command else { panic!("no stat") };
        assert_eq!((args.samples.processes.all(), args.samples.count), (vec![12], Some(3)));
        let Some(Command::Top(args)) = accepted("memscope-bpf top 12 -n 3").command else { panic!("no top") };
        assert_eq!((args.samples.processes.all(), args.samples.count), (vec![12], Some(3)));
        for typed in ["attach", "top", "attach 0", "attach x"] {
            let refused = parse(&line(&format!("memscope-bpf {typed}")));
            assert!(refused.is_err(), "{typed}");
        }
    }

    /// Bytes that are no UTF-8 arrive unchanged: in a program's words and in a path.
    #[test]
    fn arguments_are_bytes() {
        let odd = OsString::from_vec(b"x\xff".to_vec());
        let mut typed = line("memscope-bpf -- touch");
        typed.push(odd.clone());
        assert_eq!(parse(&typed).expect("accepted").program[1], odd);
        let mut typed = line("memscope-bpf -o");
        typed.extend([odd.clone(), "--".into(), "true".into()]);
        assert_eq!(parse(&typed).expect("accepted").trace.collect.output_path(), Path::new(&odd));
        let text = match parse(&["memscope-bpf".into(), odd]) {
            Err(Refusal::Text(text)) => text,
            other => panic!("{other:?}"),
        };
        assert!(text.starts_with("no such command: `x\u{fffd}`"), "{text}");
    }

    /// Makes sure that clear abbreviations and repeated options are taken, the last one counting, as getopt does.
    #[test]
    fn abbreviations_and_repetitions() {
        let cli = accepted("memscope-bpf --ev=alloc --an none --events=free -o a --outp b -q -q -- x");
        assert_eq!(cli.trace.collect.events.rows.bits(), 2);
        assert_eq!(cli.trace.collect.analysis.chosen.bits(), 0);
        assert_eq!(cli.trace.collect.output_path(), Path::new("b"));
        // Of ours --since and --filter begin alike; msMemScope has neither.
        let cli = accepted("msmemscope --s=1,2 --f db python x.py");
        assert_eq!(cli.trace.collect.steps.map(|steps| steps.0), Some(vec![1, 2]));
        let text = refused("memscope-bpf --s=1 -- x");
        assert!(text.contains("it could be `--steps` or `--since`"), "{text}");
    }

    /// Advice is right: no `-- -1`, no option unrelated to the typed one.
    #[test]
    fn advice_is_right() {
        for (typed, wanted) in [
            ("memscope-bpf --steps -1 -- x", "a value of `--steps` that begins with `-` is written `--steps=-1`"),
            ("memscope-bpf attach --pid 12 -t 5s", "it is spelt `--duration` here"),
            ("memscope-bpf doctor 12", "processes are given with `--pid 12`"),
            ("memscope-bpf demo --html x.html", "a value of `--html` is written `--html=x.html`"),
            ("memscope-bpf leaks x --format json", "for JSON give `--json`"),
            ("memscope-bpf leaks x -o out.txt", "`> FILE`"),
            ("memscope-bpf leaks x --device 0", "it is an option of run, attach, replay, recover, demo"),
            ("memscope-bpf run --evnets=alloc x", "did you mean `--events`?"),
            ("memscope-bpf run --lr=1 x", "an option of the program stands behind `--`"),
        ] {
            let text = refused(typed);
            assert!(text.contains(wanted), "{typed}: {text}");
            assert!(!text.contains("similar") && !text.contains("'-- "), "{typed}: {text}");
        }
    }

    /// Makes sure that distances are those worked out by hand.
    #[test]
    fn distances() {
        for (from, to, wanted) in [("", "abc", 3), ("lekas", "leaks", 1), ("kitten", "sitting", 3), ("a", "a", 0)] {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            assert_eq!(slips(&letters(from), &letters(to)), wanted, "{from} {to}");
        }
    }
}
