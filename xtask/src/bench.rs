//! `bench`: what the analyses find, and what that costs, by made-up programs.

use anyhow::{Result, bail};

use crate::{
    build,
    project::{cargo, program, run as run_command, target, tool},
    setup,
};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (leaks, sizes) = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => (true, true),
        ["leaks"] => (true, false),
        ["sizes"] => (false, true),
        _ => bail!("bench takes leaks, sizes, or nothing for both"),
    };
    setup::to_build()?;
    run_command(cargo().args(["build", "--release", "--locked", "--package", "memscope-bench"]))?;
    let bench = target().join("release/memscope-bench");
    if leaks {
        run_command(program(&bench).arg("leaks"))?;
    }
    if sizes {
        build::run()?;
        run_command(program(&bench).arg("sizes").arg(tool()))?;
    }
    Ok(())
}
