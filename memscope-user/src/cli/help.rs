//! The first help: commands in groups, the options that start a trace, examples.

use std::fmt::Write as _;

/// A group of commands: title, then name and purpose. Every visible command is in one of them.
type Group = (&'static str, &'static [(&'static str, &'static str)]);

const GROUPS: [Group; 5] = [
    (
        "Record",
        &[
            ("attach", "Trace running processes: attach 1234 -d 30s"),
            ("run", "Start a program and trace it: run -- python train.py"),
            ("agent", "Trace a whole machine, always: numbers for Prometheus"),
            ("daemon", "Trace unprivileged Python scripts on request"),
        ],
    ),
    (
        "Live",
        &[
            ("top", "Live screen: how full, by whom, what grows and where"),
            ("stat", "Figures of host, devices and pools, sample by sample"),
            ("holders", "What in a running process still holds device memory"),
        ],
    ),
    (
        "Ask a capture or dumps",
        &[
            ("report", "A page for a browser: all answers, with pictures"),
            ("explain", "What was found, why, and what to try"),
            ("leaks", "Leaks by step, growth, memory held"),
            ("peaks", "What was live when usage was highest"),
            ("decompose", "Memory by owner over time: weights, gradients, KV cache, …"),
            ("fragmentation", "Free memory of pools in pieces, and the blocks that cause it"),
            ("waits", "Memory that waits for streams after its free (record_stream)"),
            ("lifetimes", "How long blocks live, by size and call stack"),
            ("inefficient", "Blocks held longer than they were used"),
            ("diff", "What grew between two runs or moments"),
            ("ranks", "Which rank of a job differs, where, since when"),
            ("whatif", "Other pool settings, or a smaller card: does it fit?"),
            ("advise", "Pool settings that serve a run better"),
            ("forecast", "When memory will be full"),
            ("fleet", "Evidence of many node agents: which rank leaks, who holds most"),
            ("compare", "Two runs, operator by operator or kernel by kernel"),
        ],
    ),
    (
        "Files",
        &[
            ("export", "For other viewers: folded, speedscope, pprof, perfetto, snapshot"),
            ("replay", "Write the outputs of a capture again"),
            ("recover", "Rebuild the outputs of a trace after its tracer was killed"),
        ],
    ),
    (
        "Setup",
        &[
            ("doctor", "Check this machine or a process: what works, how to fix the rest"),
            ("demo", "Show a leak report in a minute, without an NPU"),
            ("schema", "Print the JSON Schema of what --json prints"),
            ("completions", "Generate shell completions"),
            ("help", "Help on a command"),
        ],
    ),
];

/// Template of the help without a command.
pub(super) fn top_level() -> String {
    let mut text = "\
Find out who holds Ascend NPU memory, and at which call. No restart, no code change.

Usage: memscope-bpf COMMAND [OPTIONS]
       memscope-bpf -p PID [OPTIONS]         the same as `attach PID`
       memscope-bpf [OPTIONS] -- PROG ARGS   the same as `run`
"
    .to_owned();
    for (title, commands) in GROUPS {
        // Memory takes everything.
        let _ = write!(text, "\n{title}:\n");
        for (name, about) in commands {
            let _ = writeln!(text, "  {name:<15}{about}");
        }
    }
    text.push_str(
        "\nExamples:
  sudo memscope-bpf attach 1234 -d 30s                        a server grows
  memscope-bpf run --analysis=auto,oom -- bash train.sh       training runs out of memory
  memscope-bpf report --open                                  the newest run in a browser
Each command: memscope-bpf COMMAND -h (in short) or --help (everything).{after-help}",
    );
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::args::Cli;

    /// Each command is in one group, and no other word is.
    #[test]
    fn groups_have_every_command() {
        let definition = Cli::command();
        let visible = definition.get_subcommands().filter(|command| !command.is_hide_set());
        let expected: BTreeSet<&str> = visible.map(clap::Command::get_name).chain(["help"]).collect();
        let listed: Vec<&str> =
            GROUPS.iter().flat_map(|(_, commands)| commands.iter().map(|(name, _)| *name)).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), expected);
        assert_eq!(listed.len(), expected.len());
    }

    /// Makes sure that no help uses words that `./x check` refuses in pages.
    #[test]
    fn help_has_plain_words() {
        const WORDS: &str = include_str!("../../../docs/words.txt");
        for command in Cli::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string().to_lowercase();
            let plain: String = help.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect();
            let plain = format!(" {} ", plain.split_whitespace().collect::<Vec<_>>().join(" "));
            let words = WORDS.lines().filter_map(|line| line.split_once(": ")).map(|(word, _)| word);
            let found: Vec<&str> = words.filter(|word| plain.contains(&format!(" {word} "))).collect();
            assert!(found.is_empty(), "{}: {found:?}", command.get_name());
        }
    }

    /// Makes sure that the first help fits 80 columns and 55 lines.
    #[test]
    fn first_help_is_short() {
        let text = Cli::command().render_long_help().to_string();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(90) && text.lines().count() <= 56, "{widest:?} {}\n{text}", text.lines().count());
    }
}
