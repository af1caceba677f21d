//! `deny`: licences, sources, second versions and advisories of all crates, by cargo-deny and `deny.toml`.

use anyhow::{Result, bail};

use crate::{
    project::{program, run as run_command},
    setup,
};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let checks: &[&str] = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => &["advisories", "bans", "licenses", "sources"],
        ["--no-advisories"] => &["bans", "licenses", "sources"],
        _ => bail!("usage: ./x deny [--no-advisories]"),
    };
    let deny = setup::deny()?;
    run_command(program(deny).arg("check").args(checks))
}
