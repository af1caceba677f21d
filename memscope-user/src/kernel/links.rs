//! Puts probes into files, and takes them out.

use std::{
    os::fd::{AsRawFd as _, BorrowedFd},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use aya::{
    maps::Array,
    programs::{
        UProbe,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
    },
};
use memscope_common::{SitePlaces, site::MAX_SITES};

use super::{
    error::{KernelError, map_error, no_map},
    features::LinkMode,
    object::{Kernel, LinkSet},
    placing::Placing,
    programs::{Programs, slot},
};

/// One place to probe in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Row number.
    pub row: u16,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// Whether the return is probed too.
    pub with_return: bool,
    /// Whether a text is read at entry.
    pub with_text: bool,
    /// The kind of probe.
    pub kind: PointKind,
    /// Where the arguments are, if not where they were at the entry.
    pub places: Option<SitePlaces>,
}

/// The kind of probe at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointKind {
    /// The entry of a call.
    Entry,
    /// The entry of a call with a text that is reported at once.
    Text,
    /// One of the function's own return instructions.
    OwnReturn,
    /// The entry of a call, and an array that its arguments lead to.
    Array,
    /// The loader has mapped files: the thread waits.
    Loader,
}

/// A place to probe, of a row with objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectPoint {
    /// Row number.
    pub row: u16,
    /// Its number in the records.
    pub detail: u32,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
}

impl Kernel {
    /// A set without probes.
    #[must_use]
    pub const fn new_set(&mut self) -> LinkSet {
        self.sets += 1;
        LinkSet(self.sets)
    }

    /// Probes `points` of the open file. Return probes go first: a return without an entry counts as such, while an
    /// entry without a return would look like a call that never returned.
    pub fn attach(&mut self, set: LinkSet, file: BorrowedFd<'_>, points: &[Point]) -> Result<(), KernelError> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let only = |wanted: fn(&Point) -> bool| points.iter().copied().filter(wanted).collect::<Vec<Point>>();
        let returns = only(|point| point.with_return);
        let own_returns = only(|point| point.kind == PointKind::OwnReturn);
        let arrays = only(|point| point.kind == PointKind::Array);
        let (mut points, texts) =
            (only(|point| point.kind == PointKind::Entry), only(|point| point.kind == PointKind::Text));
        let loaders = only(|point| point.kind == PointKind::Loader);
        points.extend(&loaders);
        let entered_texts = if self.enters_text {
            texts
        } else {
            points.extend(texts);
            Vec::new()
        };
        let points = &*points;
        if let Some(Programs { enter, leave, leave_own, touch, enter_text, tensor_array, hold, .. }) =
            self.shared_programs()
        {
            // Of several programs at one place the kernel runs the last attached one first: a call is reported before
            // its arrays.
            if !arrays.is_empty() {
                self.load_once(tensor_array)?;
                self.attach_many(set, tensor_array, &path, &arrays)?;
            }
            // As above: the thread is reported before it waits.
            if self.can_hold {
                self.attach_many(set, hold, &path, &loaders)?;
            }
            self.attach_many(set, leave, &path, &returns)?;
            self.attach_many(set, leave_own, &path, &own_returns)?;
            self.attach_many(set, enter, &path, points)?;
            self.attach_many(set, enter_text, &path, &entered_texts)?;
            if self.can_touch {
                let texts: Vec<Point> = points.iter().copied().filter(|point| point.with_text).collect();
                // So the page is present when the call is reported.
                self.attach_many(set, touch, &path, &texts)?;
            }
            return Ok(());
        }
        for (half, points) in [("leave", &*returns), ("leave_own", &*own_returns), ("enter", points)] {
            for point in points {
                let name = slot(half, point.row);
                self.load_once(&name)?;
                self.attach_many(set, &name, &path, &[*point])?;
            }
        }
        Ok(())
    }

    /// Probes `points` of the open file, of rows with objects; ends before beginnings if that is their order.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, or has no attach cookies: such points are too many for one program each.
    pub fn attach_objects(
        &mut self,
        set: LinkSet,
        file: BorrowedFd<'_>,
        points: &[ObjectPoint],
    ) -> Result<(), KernelError> {
        /// In one link. The kernel accepts a million, and allocates for all of them at once.
        const MOST: usize = 16_384;
        if points.is_empty() {
            return Ok(());
        }
        let Some(Programs { tensors, .. }) = self.shared_programs() else {
            return Err(KernelError::Map { name: "TENSORS", reason: "this kernel has no attach cookies".to_owned() });
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let most = if self.mode == LinkMode::Multi { MOST } else { 1 };
        for points in points.chunks(most) {
            let cookie = |point: &ObjectPoint| u64::from(point.row) | u64::from(point.detail) << 32;
            let link =
                self.link(tensors, &path, points.iter().map(|point| (point.file_offset, Some(cookie(point)))))?;
            self.links.push((set, link));
        }
        Ok(())
    }

    fn attach_many(&mut self, set: LinkSet, name: &str, path: &Path, points: &[Point]) -> Result<(), KernelError> {
        let with_cookie = self.mode != LinkMode::Slots;
        if points.is_empty() {
            return Ok(());
        }
        let mut places = Vec::with_capacity(points.len());
        for point in points {
            let site = point.places.map_or(Ok(0), |places| self.site_number(places))?;
            places.push((point.file_offset, with_cookie.then_some(u64::from(point.row) | u64::from(site) << 32)));
        }
        let link = self.link(name, path, places.into_iter())?;
        self.links.push((set, link));
        Ok(())
    }

    /// The site's number, for a probe's cookie.
    fn site_number(&mut self, places: SitePlaces) -> Result<u32, KernelError> {
        const NAME: &str = "SITES";
        if let Some(number) = self.sites.get(&places) {
            return Ok(*number);
        }
        let number = self.sites.len() as u32 + 1;
        if number >= MAX_SITES {
            return Err(KernelError::Map { name: NAME, reason: format!("all {} places are taken", MAX_SITES - 1) });
        }
        let map = self.ebpf.map_mut(NAME).ok_or(no_map(NAME))?;
        let mut sites: Array<_, SitePlaces> = Array::try_from(map).map_err(|error| map_error(NAME, &error))?;
        sites.set(number, &places, 0).map_err(|error| map_error(NAME, &error))?;
        self.sites.insert(places, number);
        Ok(number)
    }

    /// Makes one link for places with their cookies.
    fn link(
        &mut self,
        name: &str,
        path: &Path,
        places: impl Iterator<Item = (u64, Option<u64>)>,
    ) -> Result<UProbeLink, KernelError> {
        let placing = Arc::clone(&self.placing);
        let program: &mut UProbe = self.program(name)?;
        let points = places.map(|(file_offset, cookie)| UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(file_offset),
            cookie,
        });
        let refuse = |error| KernelError::Attach { name: name.to_owned(), source: Box::new(error) };
        let _placing = placing.begin();
        let id = program.attach(points, path, UProbeScope::AllProcesses).map_err(refuse)?;
        program.take_link(id).map_err(refuse)
    }

    /// Whether a probe is being placed, for another thread.
    #[must_use]
    pub fn placing(&self) -> Arc<Placing> {
        Arc::clone(&self.placing)
    }

    /// Runs `look` with a temporary probe in place. The probe has no row, so no traced process may hit it.
    pub(crate) fn with_probe<T>(
        &mut self,
        file: BorrowedFd<'_>,
        file_offset: u64,
        look: impl FnOnce() -> T,
    ) -> Result<T, KernelError> {
        let Some(Programs { enter, .. }) = self.shared_programs() else {
            return Err(KernelError::Map { name: "programs", reason: "this kernel has no attach cookies".to_owned() });
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let link = self.link(enter, &path, [(file_offset, Some(0))].into_iter())?;
        let seen = look();
        // Detaching is slow and need not be waited for, unless no more threads are allowed.
        drop(thread::Builder::new().spawn(move || drop(link)));
        Ok(seen)
    }

    /// Lets the kernel side see frees of code objects by the interpreter in an open file. Without it, each walk reads
    /// all its code again.
    pub fn see_freed_code(&mut self, set: LinkSet, file: BorrowedFd<'_>, file_offset: u64) -> Result<(), KernelError> {
        let Some(Programs { code_freed, .. }) = self.shared_programs() else {
            return Err(KernelError::Map { name: "PYTHON", reason: "this kernel has no attach cookies".to_owned() });
        };
        self.load_once(code_freed)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let link = self.link(code_freed, &path, [(file_offset, None)].into_iter())?;
        self.links.push((set, link));
        Ok(())
    }

    /// Takes the probes of these sets out. The kernel does that at once, and then waits until no program runs at any probe: one does in a held
    /// thread, until the caller has answered it. So the wait for the kernel has an end.
    pub fn detach_sets(&mut self, sets: &[LinkSet]) {
        const PATIENCE: Duration = Duration::from_millis(100);
        let (links, taken) = mpsc::channel::<UProbeLink>();
        let (done, is_done) = mpsc::channel::<()>();
        let detach = move || {
            detach_all(taken.into_iter());
            drop(done);
        };
        // Where no more threads are allowed, they stay until the end.
        if thread::Builder::new().name("memscope-detach".to_owned()).spawn(detach).is_ok() {
            for (_, link) in self.links.extract_if(.., |(set, _)| sets.contains(set)) {
                let _ = links.send(link);
            }
            drop(links);
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }

    /// Detaches everything, and returns how long it took. With single links kernels from 6.1 on take about 0.1 s per
    /// probe.
    #[must_use]
    pub fn detach(self) -> Duration {
        let start = Instant::now();
        let Self { links, ebpf, .. } = self;
        thread::scope(|scope| {
            let detach = || detach_all(links.into_iter().map(|(_, link)| link));
            drop(thread::Builder::new().spawn_scoped(scope, detach));
            drop(ebpf);
        });
        start.elapsed()
    }
}

/// The kernel waits for all CPUs once per link: those waits pass together, as far as there may be threads.
fn detach_all(links: impl Iterator<Item = UProbeLink>) {
    thread::scope(|scope| {
        for link in links {
            drop(thread::Builder::new().spawn_scoped(scope, || drop(link)));
        }
    });
}
