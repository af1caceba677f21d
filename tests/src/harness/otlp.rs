//! An agent that sends to a receiver of OTLP, and what it is to have there.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use super::agent::Agent;
use crate::checkers::page::Page;

/// Settings of an agent that sends to an endpoint, with further lines.
#[must_use]
pub fn settings(endpoint: &str, further: &str) -> String {
    format!("[otlp]\nendpoint = \"{endpoint}\"\ninterval_seconds = 0.3\n{further}")
}

/// A program that allocates until it is to end, with a request that fails. Gives its number, the page while it works, and the one behind its end.
#[must_use]
pub fn works(agent: &Agent, name: &str) -> (u32, [Page; 2]) {
    let mut target = agent.target_at_work(name);
    target.signal(Signal::SIGUSR1);
    let working =
        agent.wait_for_page("its failed request", |page| page.count("memscope_bundles_total", &[]) == Some(1));
    target.signal(Signal::SIGTERM);
    assert!(target.wait().success());
    (target.pid(), [working, agent.wait_for_processes(0)])
}

/// Name of each instrument, and the family of the page that it is made of: the table of the documentation.
#[must_use]
pub fn instruments() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/agent.md");
    let text = fs::read_to_string(path).expect("readable");
    let cells = text.lines().map(|line| line.split('|').map(|cell| cell.trim().trim_matches('`')).collect::<Vec<_>>());
    let rows = cells
        .filter(|cells| cells.len() == 6 && cells[1].starts_with("memscope.") && cells[2].starts_with("memscope_"));
    rows.map(|cells| (cells[1].to_owned(), cells[2].to_owned())).collect()
}
