//! The one place that writes to stdout and stderr. All text is cleaned here: no character that a terminal obeys gets
//! out but our own [`Control`]s, so a hostile name stays a name.
//!
//! Nothing here panics. A message that cannot be written is dropped, which is no failure: the log has it. Output to
//! stdout was requested: a reader that is gone (`| head`) is no failure either, a full disk is one.

use std::{
    env,
    fmt::Display,
    io::{self, BufWriter, IsTerminal as _, Write},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    overview::{Look, Piece, Tone},
    printable::{CleanWriter, OneLine, Style},
};

/// While processes wait for us, a reader of messages has this long to make room.
const PATIENCE: Duration = Duration::from_millis(100);
/// Room of a pipe that is ready for writing.
const PIECE_BYTES: usize = libc::PIPE_BUF;

/// What terminals are meant to obey.
#[derive(Clone, Copy, Debug)]
pub(super) enum Control {
    /// Moves to the start of the line, and clears it.
    ClearLine,
    /// Moves to the first line, and clears the screen.
    ClearScreen,
}

impl Control {
    const fn sequence(self) -> &'static str {
        match self {
            Self::ClearLine => "\r\x1b[2K",
            Self::ClearScreen => "\x1b[H\x1b[2J",
        }
    }
}

/// The terminal's last line is our status.
static HAS_STATUS: AtomicBool = AtomicBool::new(false);
/// Processes may wait for our next action.
static HURRIED: AtomicBool = AtomicBool::new(false);
/// Messages are not read at the moment.
static STUCK: AtomicBool = AtomicBool::new(false);
/// Messages that were not read in time.
static UNSHOWN: AtomicU64 = AtomicU64::new(0);

#[expect(clippy::disallowed_methods, reason = "this is the place")]
fn err() -> io::Stderr {
    io::stderr()
}

#[expect(clippy::disallowed_methods, reason = "this is the place")]
fn out() -> io::Stdout {
    io::stdout()
}

/// A path as short as it can be typed here.
pub(super) fn from_here(path: &Path) -> &Path {
    let here = env::current_dir().ok();
    here.and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path)
}

/// Stdout for a live screen, which escapes what it shows before it makes cells of it.
pub(super) fn screen() -> io::Stdout {
    out()
}

/// Whether messages go to a terminal.
pub(super) fn shows_messages() -> bool {
    err().is_terminal()
}

/// Whether stdout is a terminal.
pub(super) fn shows_output() -> bool {
    out().is_terminal()
}

/// A copy of stdout, for a reader that is no terminal.
pub(super) fn clone_output() -> io::Result<OwnedFd> {
    out().as_fd().try_clone_to_owned()
}

/// From now on the wait for a reader of messages is short: traced processes may wait for us.
pub(super) fn hurry(hurried: bool) {
    HURRIED.store(hurried, Ordering::Relaxed);
}

/// Shows a message, on one line.
pub(super) fn say(text: impl Display) {
    let shown = show(format_args!("{}\n", OneLine(text)));
    let unshown = if shown { UNSHOWN.swap(0, Ordering::Relaxed) } else { UNSHOWN.fetch_add(1, Ordering::Relaxed) };
    if shown && unshown > 0 {
        show(format_args!("[memscope-bpf] Warning: {unshown} message(s) were not shown: they were not read in time\n"));
    }
}

/// Shows text of several lines where messages go.
pub(super) fn say_lines(text: &[u8]) {
    // Memory takes everything.
    let mut clean = Vec::with_capacity(text.len());
    let mut cleaner = CleanWriter::new(&mut clean, Style::Text);
    let _ = cleaner.write_all(text).and_then(|()| cleaner.flush());
    show(String::from_utf8_lossy(&clean));
}

/// Shows a status text in place of the last one.
pub(super) fn show_status(text: impl Display) {
    HAS_STATUS.store(true, Ordering::Relaxed);
    let text = format!("{}{}", Control::ClearLine.sequence(), OneLine(text));
    send(&mut err().lock(), text.as_bytes());
}

/// Gives the terminal's last line back.
pub(super) fn clear_status() {
    if HAS_STATUS.swap(false, Ordering::Relaxed) {
        send(&mut err().lock(), Control::ClearLine.sequence().as_bytes());
    }
}

/// Shows clean text, in one piece with what gives the line back: the traced program may write there, too.
fn show(text: impl Display) -> bool {
    let clear = if HAS_STATUS.swap(false, Ordering::Relaxed) { Control::ClearLine.sequence() } else { "" };
    send(&mut err().lock(), format!("{clear}{text}").as_bytes())
}

/// Writes as much as possible; returns whether that was everything.
fn send(to: &mut (impl Write + AsFd), bytes: &[u8]) -> bool {
    bytes.chunks(PIECE_BYTES).all(|piece| has_room(to) && to.write_all(piece).is_ok())
}

/// Whether a write would not block, where blocking must not happen. A halted terminal (Ctrl-S) has no room, either.
fn has_room(to: &impl AsFd) -> bool {
    if !HURRIED.load(Ordering::Relaxed) {
        return true;
    }
    let patience = if STUCK.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO);
    let has_room = !matches!(poll(&mut [PollFd::new(to.as_fd(), PollFlags::POLLOUT)], timeout), Ok(0));
    STUCK.store(!has_room, Ordering::Relaxed);
    has_room
}

/// Prints what `write` writes.
pub(super) fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    or_gone(print_as(Style::Text, None, write))
}

/// Prints the JSON that `write` writes: characters that must not reach a terminal are escaped as in JSON.
pub(super) fn print_json(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    or_gone(print_as(Style::Json, None, write))
}

/// Prints a screen of text: in colour on a terminal, as wide as it is; plain elsewhere.
pub(super) fn print_screen(make: impl FnOnce(Look) -> Vec<Vec<Piece>>) -> io::Result<()> {
    let is_terminal = shows_output();
    let unset = |name| env::var_os(name).is_none_or(|value| value.is_empty());
    let colour = is_terminal && unset("NO_COLOR") && env::var_os("TERM").is_some_and(|term| term != "dumb");
    let mut text = String::new();
    for line in make(Look { width: width(is_terminal), unicode: has_unicode() }) {
        for Piece { tone, text: piece } in line {
            let (begin, end) = if colour { sequences(tone) } else { ("", "") };
            text.extend([begin, &OneLine(piece).to_string(), end]);
        }
        text.push('\n');
    }
    or_gone(out().lock().write_all(text.as_bytes()))
}

/// What makes a terminal show a tone, and what ends it.
const fn sequences(tone: Tone) -> (&'static str, &'static str) {
    const END: &str = "\x1b[0m";
    match tone {
        Tone::Plain => ("", ""),
        Tone::Alarm => ("\x1b[1;31m", END),
        Tone::Doubt => ("\x1b[33m", END),
        Tone::Good => ("\x1b[32m", END),
        Tone::Title => ("\x1b[1m", END),
        Tone::Faint => ("\x1b[2m", END),
    }
}

/// Columns of a screen.
fn width(is_terminal: bool) -> usize {
    const USUAL: usize = 80;
    /// On narrower ones lines wrap.
    const LEAST: usize = 60;
    /// Longer lines are hard to read.
    const MOST: usize = 120;
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: stdout is open, and the kernel fills a `winsize`.
    let answer = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if is_terminal && answer == 0 && size.ws_col > 0 { usize::from(size.ws_col).clamp(LEAST, MOST) } else { USUAL }
}

/// Whether the locale has UTF-8, as POSIX chooses it.
fn has_unicode() -> bool {
    let chosen =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| env::var(name).ok().filter(|it| !it.is_empty()));
    chosen.is_some_and(|locale| {
        let locale = locale.to_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// Prints a line.
pub(super) fn print_line(text: impl Display) -> io::Result<()> {
    print(|out| writeln!(out, "{}", OneLine(text)))
}

/// Prints for a reader that the command exists for: its end is an error, too.
pub(super) fn print_as(
    style: Style,
    control: Option<Control>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = out().lock();
    let control = control.map_or("", Control::sequence);
    out.write_all(control.as_bytes())?;
    let mut buffer = BufWriter::new(CleanWriter::new(out, style));
    let printed = write(&mut buffer).and_then(|()| buffer.flush());
    // Unread output is not written again on drop.
    let _ = buffer.into_parts();
    printed
}

fn or_gone(printed: io::Result<()>) -> io::Result<()> {
    printed.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A reader of stdout that is gone is no failure, and a full disk is one.
    #[test]
    fn a_reader_who_is_gone_is_no_failure() {
        or_gone(Err(io::ErrorKind::BrokenPipe.into())).expect("no failure");
        or_gone(Err(io::ErrorKind::StorageFull.into())).expect_err("a failure");
    }

    /// A full disk, a closed pipe and a reader that does not read cost only the message.
    #[test]
    fn messages_that_cannot_be_written() {
        let mut full = File::options().write(true).open("/dev/full").expect("/dev/full");
        assert!(!send(&mut full, b"text"));
        let (reader, mut closed) = io::pipe().expect("a pipe");
        drop(reader);
        assert!(!send(&mut closed, b"text"));
        let (_reader, mut pipe) = io::pipe().expect("a pipe");
        hurry(true);
        let sent = (0..10_000).take_while(|_| send(&mut pipe, &[b'x'; 1000])).count();
        hurry(false);
        // Linux gives a pipe 64 KiB, in pages.
        assert!((10..100).contains(&sent), "{sent}");
    }
}
