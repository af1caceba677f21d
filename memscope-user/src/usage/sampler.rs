//! The thread that asks the helper now and then, and abandons it when it does not answer.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Answer, DeviceFigures, Trigger, library};
use crate::capture::Note;
use crate::crew::Crew;
use crate::error_chain;

/// Longest wait for the driver to set up DCMI.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the figures.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait of a trace's end for the last figures.
const LAST_PATIENCE: Duration = Duration::from_millis(500);
/// Longest answer.
const MAX_ANSWER: usize = 4 << 20;

/// When figures are taken.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interval; zero is never.
    pub interval: Duration,
    /// After memory has changed, at most N times a second; 0 is never.
    pub per_second: u32,
    /// A library instead of the driver's.
    pub library: Option<PathBuf>,
}

/// Messages for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Figures come from here.
    Found(String),
    /// There is no DCMI here.
    Absent(String),
    /// There are no figures from here on.
    GivenUp(String),
}

/// The running thread.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<EventFd>,
    thread: JoinHandle<()>,
}

impl Sampler {
    /// Starts asking. Figures go to `send`, messages for the user to `notice`.
    pub fn start(
        options: Options,
        trigger: Trigger,
        send: impl Fn(&Note) + Send + 'static,
        notice: impl Fn(Notice) + Send + 'static,
        crew: &Crew,
    ) -> io::Result<Self> {
        let stop = Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let stopped = Arc::clone(&stop);
        let thread = crew.spawn("memscope-usage", move |post| {
            let asker = Asker::start(&options, &stopped, &notice);
            let mut send = |note: &Note| {
                post.round();
                send(note);
            };
            let result = asker.and_then(|asker| asker.run(&options, &trigger, &mut send));
            if let Err(Why::Notice(why)) = result {
                // Old figures in new rows would be wrong ones.
                send(&Note::UsageEnded);
                notice(why);
            }
        })?;
        Ok(Self { stop, thread })
    }

    /// Takes figures once more, and ends. Does not wait for a driver that hangs.
    pub fn finish(self) {
        let _ = self.stop.write(1);
        let _ = self.thread.join();
    }
}

/// Asks once whether there is a DCMI that answers: the library and the devices.
pub fn look(given: Option<PathBuf>) -> Result<(String, Vec<u32>), Notice> {
    let options = Options { interval: Duration::ZERO, per_second: 0, library: given };
    let unavailable = |error: io::Error| Notice::GivenUp(error_chain(&error));
    let never = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(|errno| unavailable(errno.into()))?;
    let asker = Asker::start(&options, &never, &|_| {});
    let mut asker = asker.map_err(|why| why.message().unwrap_or(Notice::GivenUp("it was interrupted".to_owned())))?;
    let found = (std::mem::take(&mut asker.library), std::mem::take(&mut asker.devices));
    asker.dismiss();
    Ok(found)
}

/// Why nothing is asked any more.
enum Why {
    Notice(Notice),
    /// The trace ends.
    Stopped,
}

impl Why {
    fn given_up(text: impl Into<String>) -> Self {
        Self::Notice(Notice::GivenUp(text.into()))
    }

    fn message(self) -> Option<Notice> {
        match self {
            Self::Notice(notice) => Some(notice),
            Self::Stopped => None,
        }
    }
}

/// The helper, as this side sees it.
struct Asker<'a> {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    stop: &'a EventFd,
    read: Vec<u8>,
    library: String,
    devices: Vec<u32>,
}

impl<'a> Asker<'a> {
    fn start(options: &Options, stop: &'a EventFd, notice: &dyn Fn(Notice)) -> Result<Self, Why> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("usage-helper").arg0("memscope-usage");
        if let Some(library) = &options.library {
            command.arg("--library").arg(library);
        }
        // Our environment does not decide which libraries are loaded. In a process group of its own, so that Ctrl-C
        // does not reach it.
        command.env_clear().env("LD_LIBRARY_PATH", library::search_path()).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let cannot = |error: &io::Error| Why::given_up(format!("cannot start the helper: {error}"));
        let mut child = command.spawn().map_err(|error| cannot(&error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Why::given_up("cannot talk to the helper"));
        };
        let (library, devices) = (String::new(), Vec::new());
        let mut asker = Self { child, input, output, stop, read: Vec::new(), library, devices };
        match asker.answer(START_PATIENCE, true) {
            Ok(Answer::Ready { library, devices }) => {
                notice(Notice::Found(format!("{library}, {} device(s)", devices.len())));
                (asker.library, asker.devices) = (library, devices);
                Ok(asker)
            }
            Ok(Answer::Absent { looked }) => {
                asker.dismiss();
                Err(Why::Notice(Notice::Absent(format!("no libdcmi.so (looked for {})", looked.join(", ")))))
            }
            Ok(Answer::Failed { reason }) => {
                asker.dismiss();
                Err(Why::given_up(reason))
            }
            Ok(Answer::Figures { .. }) => {
                asker.dismiss();
                Err(Why::given_up("the helper talks out of turn"))
            }
            Err(why) => Err(asker.give_up(why)),
        }
    }

    /// Asks until the trace ends, then once more.
    fn run(mut self, options: &Options, trigger: &Trigger, send: &mut dyn FnMut(&Note)) -> Result<(), Why> {
        loop {
            match self.figures(trigger, PATIENCE, true) {
                Ok(devices) => devices.into_iter().for_each(|figures| send(&note(figures))),
                Err(why) => return Err(self.give_up(why)),
            }
            if self.pause(options, trigger) {
                break;
            }
        }
        match self.figures(trigger, LAST_PATIENCE, false) {
            Ok(devices) => devices.into_iter().for_each(|figures| send(&note(figures))),
            Err(_) => return Err(self.give_up(Why::Stopped)),
        }
        self.dismiss();
        Ok(())
    }

    fn figures(&mut self, trigger: &Trigger, patience: Duration, stoppable: bool) -> Result<Vec<DeviceFigures>, Why> {
        let devices: Vec<String> = trigger.devices().iter().map(ToString::to_string).collect();
        let line = devices.join(" ") + "\n";
        // A line is far shorter than a pipe's buffer, and the helper has answered all before it.
        self.input.write_all(line.as_bytes()).map_err(|_| Why::given_up("the helper is gone"))?;
        match self.answer(patience, stoppable)? {
            Answer::Figures { devices } => Ok(devices),
            Answer::Failed { reason } => Err(Why::given_up(reason)),
            Answer::Ready { .. } | Answer::Absent { .. } => Err(Why::given_up("the helper talks out of turn")),
        }
    }

    /// Waits for the next line of the helper.
    fn answer(&mut self, patience: Duration, stoppable: bool) -> Result<Answer, Why> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|_| Why::given_up("the helper talks nonsense"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let (mut answers, mut stops) = (false, false);
            if !left.is_zero() {
                [answers, stops] = ready([self.output.as_fd(), self.stop.as_fd()], left);
            }
            if stops && stoppable {
                return Err(Why::Stopped);
            }
            if answers {
                self.fill()?;
            } else if left.is_zero() {
                let text = format!("the driver has not answered for {} s", patience.as_secs_f64());
                return Err(Why::given_up(text));
            }
        }
    }

    fn fill(&mut self) -> Result<(), Why> {
        let mut bytes = [0; 4096];
        match self.output.read(&mut bytes) {
            Ok(0) => Err(Why::given_up("the helper has ended")),
            Ok(count) if self.read.len() + count <= MAX_ANSWER => {
                self.read.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Ok(_) => Err(Why::given_up("the helper talks too much")),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(Why::given_up(format!("cannot hear the helper: {error}"))),
        }
    }

    /// Waits until figures are wanted again; true when the trace ends.
    fn pause(&self, options: &Options, trigger: &Trigger) -> bool {
        let begin = Instant::now();
        let rest = options.per_second.checked_sub(1).map(|_| Duration::from_secs(1) / options.per_second);
        loop {
            let left = (!options.interval.is_zero()).then(|| options.interval.saturating_sub(begin.elapsed()));
            let wait = left.into_iter().chain(rest).min().unwrap_or(Duration::MAX);
            if ready([self.stop.as_fd()], wait) == [true] {
                return true;
            }
            let due = left.is_some_and(|left| left <= wait);
            if due || (rest.is_some() && trigger.take()) {
                return false;
            }
        }
    }

    /// Ends a helper that answers: it exits when its input is closed.
    fn dismiss(self) {
        let Self { mut child, input, output, .. } = self;
        drop((input, output));
        let _ = child.kill();
        let _ = child.wait();
    }

    /// A helper that may hang in the driver, where not even being killed ends it: it is not waited for.
    fn give_up(self, why: Why) -> Why {
        let mut child = self.child;
        let _ = child.kill();
        let _ = child.try_wait();
        why
    }
}

/// The readable ones of the descriptors, within some time.
fn ready<const N: usize>(fds: [BorrowedFd<'_>; N], wait: Duration) -> [bool; N] {
    let mut polled = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    // Rounded up, so that it is not asked again and again in the last millisecond.
    let milliseconds = wait.as_millis().saturating_add(1).min(i32::MAX as u128) as i32;
    let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX);
    match poll(&mut polled, timeout) {
        Ok(_) => polled.map(|fd| fd.any().unwrap_or(false)),
        Err(_) => [false; N],
    }
}

fn note(figures: DeviceFigures) -> Note {
    let DeviceFigures { device, used_bytes, total_bytes, processes } = figures;
    Note::Usage { device, used_bytes, total_bytes, processes }
}
