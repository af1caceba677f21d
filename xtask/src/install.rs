//! `setup`: installs what the other verbs need.

use anyhow::{Result, bail};

use crate::{arch::Arch, setup, vm};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let with_vm = match arguments {
        [] => false,
        [flag] if flag == "--vm" => true,
        _ => bail!("usage: ./x setup [--vm]"),
    };
    setup::to_build()?;
    setup::to_check()?;
    setup::nextest()?;
    setup::to_simulate(Arch::host())?;
    setup::second_compiler()?;
    setup::debuggers()?;
    setup::allocators()?;
    setup::readers()?;
    if with_vm {
        setup::to_simulate(Arch::other())?;
        vm::setup()?;
    }
    Ok(())
}
