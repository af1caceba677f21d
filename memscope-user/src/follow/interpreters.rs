//! Python interpreters in traced processes: found, and given to the kernel side, which walks their stacks.
//!
//! An interpreter is searched for whenever a process has mapped a file, and until it has started, again from time to
//! time: [`find`](crate::locate::python::find) reads files and memory, [`btf`](crate::os::btf) has the offset of a
//! thread's pointer to itself.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    os::fd::AsFd as _,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use memscope_common::{PythonLayout, python::LAYOUT_FREES};

use crate::{
    kernel::{Kernel, KernelError, LinkSet},
    locate::python::find::{Files, Found, FreesCode, Missing},
    os::{mapped, maps::FileId},
};

/// An interpreter that has not started is examined again after this time at first, ...
const SOON: Duration = Duration::from_millis(50);
/// ... and after this time at last: the time doubles.
const LATE: Duration = Duration::from_secs(2);
/// A malformed interpreter may be starting or ending; after this many tries it counts as none.
const MAX_NONSENSE: u32 = 12;

/// The interpreters that the kernel side follows, by process; shared with the reader of code objects.
#[derive(Clone, Debug, Default)]
pub struct Layouts(Arc<Mutex<BTreeMap<u32, PythonLayout>>>);

impl Layouts {
    /// The layout of a process.
    #[must_use]
    pub fn get(&self, pid: u32) -> Option<PythonLayout> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).copied()
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<u32, PythonLayout>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The interpreter of a process, or why its stacks cannot be taken now; `None`: it has none.
#[must_use]
pub fn look_into(pid: u32) -> Option<Result<String, String>> {
    match Files::default().find(pid) {
        Ok(found) => Some(Ok(format!("CPython 3.{}", found.layout.version))),
        Err(Missing::Interpreter) => None,
        Err(Missing::Start) => Some(Err("it has not begun".to_owned())),
        Err(Missing::Sense(why)) => Some(Err(why.to_owned())),
        Err(Missing::Support(why)) => Some(Err(why)),
    }
}

/// A process with an interpreter that is not followed yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    next: Instant,
    pause: Duration,
    nonsense: u32,
}

/// All traced processes' interpreters.
#[derive(Debug)]
pub struct Interpreters {
    files: Files,
    layouts: Layouts,
    pending: BTreeMap<u32, Pending>,
    spaces: u64,
    messages: Vec<String>,
    /// Processes that cannot have Python stacks.
    unsupported: BTreeSet<u32>,
    /// Files of interpreters: the probe of frees of code there, or that there can be none.
    see_frees: BTreeMap<FileId, Option<LinkSet>>,
}

impl Default for Interpreters {
    fn default() -> Self {
        Self::new()
    }
}

impl Interpreters {
    /// Without any interpreter.
    #[must_use]
    pub fn new() -> Self {
        Self {
            files: Files::default(),
            layouts: Layouts::default(),
            pending: BTreeMap::new(),
            spaces: 0,
            messages: Vec::new(),
            unsupported: BTreeSet::new(),
            see_frees: BTreeMap::new(),
        }
    }

    /// The followed interpreters, kept up to date.
    #[must_use]
    pub fn layouts(&self) -> Layouts {
        self.layouts.clone()
    }

    /// Messages for the user since the last call.
    pub fn take_messages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.messages)
    }

    /// A process may have mapped an interpreter.
    pub fn look(&mut self, kernel: &mut Kernel, pid: u32) -> Result<(), KernelError> {
        // Its later mappings change neither.
        if self.layouts.get(pid).is_some() || self.unsupported.contains(&pid) {
            return Ok(());
        }
        let now = Instant::now();
        let before = self.pending.remove(&pid);
        let nonsense = match self.files.find(pid) {
            Ok(Found { layout, frees_code }) => {
                self.spaces += 1;
                let sees = frees_code.is_some_and(|place| self.sees_frees(kernel, pid, &place));
                let flags = layout.flags | if sees { LAYOUT_FREES } else { 0 };
                let layout = PythonLayout { space: self.spaces, flags, ..layout };
                kernel.set_python(pid, &layout)?;
                self.layouts.change(|layouts| layouts.insert(pid, layout));
                return Ok(());
            }
            Err(Missing::Interpreter) => return Ok(()),
            Err(Missing::Support(why)) => {
                self.unsupported.insert(pid);
                self.messages.push(format!("process {pid} has no Python stacks: {why}"));
                return Ok(());
            }
            Err(Missing::Start) => 0,
            Err(Missing::Sense(why)) => {
                let looks = before.map_or(0, |pending| pending.nonsense) + 1;
                if looks == MAX_NONSENSE {
                    self.messages.push(format!("process {pid} has no Python stacks: {why}; is it a release build?"));
                    return Ok(());
                }
                looks
            }
        };
        let pause = before.map_or(SOON, |pending| (pending.pause * 2).min(LATE));
        self.pending.insert(pid, Pending { next: now + pause, pause, nonsense });
        Ok(())
    }

    /// Whether it is seen when an interpreter frees code; once for each file.
    fn sees_frees(&mut self, kernel: &mut Kernel, pid: u32, place: &FreesCode) -> bool {
        if let Some(sees) = self.see_frees.get(&place.file) {
            return sees.is_some();
        }
        // Without it, walks take longer and are as right.
        let Ok(file) = mapped::open(pid, &place.range, &place.path, place.file) else { return false };
        let links = kernel.new_set();
        let sees = kernel.see_freed_code(links, file.as_fd(), place.file_offset).is_ok();
        self.see_frees.insert(place.file, sees.then_some(links));
        sees
    }

    /// Files of interpreters that were examined.
    pub(super) fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.files.ids()
    }

    /// Gives files back that no process has mapped, and takes their probes out.
    pub(super) fn forget(&mut self, kernel: &mut Kernel, unused: &HashSet<FileId>) {
        self.files.forget(unused);
        let out: Vec<LinkSet> =
            self.see_frees.extract_if(.., |file, _| unused.contains(file)).filter_map(|(_, links)| links).collect();
        kernel.detach_sets(&out);
    }

    /// A process runs another program.
    pub fn executed(&mut self, kernel: &mut Kernel, pid: u32) -> Result<(), KernelError> {
        self.ended(pid);
        kernel.forget_python(pid)?;
        self.look(kernel, pid)
    }

    /// A child has what its parent has; the kernel side has copied it.
    pub fn forked(&mut self, parent: u32, child: u32) {
        self.layouts.change(|layouts| {
            if let Some(layout) = layouts.get(&parent).copied() {
                layouts.insert(child, layout);
            }
        });
        if let Some(pending) = self.pending.get(&parent).copied() {
            self.pending.insert(child, pending);
        }
    }

    /// A process is gone.
    pub fn ended(&mut self, pid: u32) {
        self.layouts.change(|layouts| layouts.remove(&pid));
        self.pending.remove(&pid);
        self.unsupported.remove(&pid);
    }

    /// Whether there are interpreters that have not started.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Looks again at interpreters that had not begun; to be called regularly.
    pub fn look_again(&mut self, kernel: &mut Kernel) -> Result<(), KernelError> {
        let now = Instant::now();
        let due: Vec<u32> =
            self.pending.iter().filter(|(_, pending)| pending.next <= now).map(|(pid, _)| *pid).collect();
        due.into_iter().try_for_each(|pid| self.look(kernel, pid))
    }
}
