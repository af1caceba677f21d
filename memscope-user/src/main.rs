//! The program: see [`memscope::cli`].

fn main() -> std::process::ExitCode {
    memscope::cli::main()
}
