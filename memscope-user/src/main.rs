//! The program: see [`memscope::cli`].

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "cli/terminal.rs writes to terminals")]

fn main() -> std::process::ExitCode {
    memscope::cli::main()
}
