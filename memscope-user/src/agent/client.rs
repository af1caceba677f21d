//! Asks a running agent.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use super::control::{Answer, Request};

/// An answer of more bytes is none of an agent's.
const MAX_ANSWER_BYTES: u64 = 256 << 20;

/// Sends a request, and gives each answer to `took` as it comes.
pub fn ask(socket: &Path, request: &Request, mut took: impl FnMut(Answer)) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answers = BufReader::new(stream.take(MAX_ANSWER_BYTES));
    loop {
        let mut line = Vec::new();
        if answers.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        took(serde_json::from_slice(&line)?);
    }
}
