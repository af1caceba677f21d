//! What commands print to stdout. Whoever reads it may have seen enough (`| head`): that they are gone is no failure, and ends
//! neither a trace nor what a command has still to do.

use std::{
    fmt::Display,
    io::{self, BufWriter, Write},
};

/// Prints what `write` writes.
pub(super) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = write(&mut out).and_then(|()| out.flush());
    // What nobody reads is not tried again when it is dropped.
    let _ = out.into_parts();
    or_gone(printed)
}

/// Prints a line.
pub(super) fn line(text: impl Display) -> io::Result<()> {
    print(|out| writeln!(out, "{text}"))
}

fn or_gone(printed: io::Result<()>) -> io::Result<()> {
    printed.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_who_is_gone_is_no_failure() {
        or_gone(Err(io::ErrorKind::BrokenPipe.into())).expect("no failure");
        or_gone(Err(io::ErrorKind::StorageFull.into())).expect_err("a failure");
    }
}
