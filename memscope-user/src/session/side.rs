//! What runs beside the stream of records: the driver's figures, block watch, looks at holders, and the reading of pools.

use super::{
    TraceError,
    log::Speaker,
    looks::Looker,
    options::{RowLevel, TraceOptions},
    pools::PoolReader,
};
use crate::{
    backend::watch::{WatchLevels, flags, rows},
    capture::{Note, note_record},
    crew::Crew,
    follow::libraries::Libraries,
    kernel::Kernel,
    os::clock::monotonic_ns,
    probes::ProbeSpec,
    ring::Reader,
    sinks::{
        log::Level,
        tree::{OutputTree, ProcessDirs},
        watch::WatchFiles,
    },
    usage::{Notice, Options, Sampler, Trigger},
    watch::live::{Notice as WatchNotice, Tap, Watch, WatchOptions},
};

/// The threads beside the stream.
pub(super) struct Side {
    pub(super) usage: Option<Sampler>,
    pub(super) watch: Option<Watch>,
    pub(super) looker: Option<Looker>,
    /// Reads the pools of processes that are attached to, if that is wanted.
    pub(super) pools: Option<PoolReader>,
}

/// The operators at which blocks are compared.
pub(super) fn levels(options: &TraceOptions) -> Option<WatchLevels> {
    let RowLevel { op, kernel } = options.collect.level;
    options.watch.as_ref().map(|_| WatchLevels { op, kernel })
}

/// The user's rows, and those of block watch.
pub(super) fn with_rows(options: &TraceOptions, user: &[&'static ProbeSpec]) -> Vec<&'static ProbeSpec> {
    let own = if options.watch.is_some() { rows() } else { Vec::new() };
    user.iter().copied().chain(own).collect()
}

/// Starts block watch, if requested.
pub(super) fn start_watch(
    options: &TraceOptions,
    kernel: &mut Kernel,
    libraries: &Libraries,
    (tree, dirs): (Option<OutputTree>, ProcessDirs),
    speaker: Speaker,
    crew: &Crew,
) -> Result<Option<(Watch, Tap)>, TraceError> {
    let (Some(spec), Some(levels), Some(tree)) = (options.watch.clone(), levels(options), tree) else {
        return Ok(None);
    };
    let outputs = move |pid| {
        let dir = dirs.of(&tree, pid)?;
        Ok(WatchFiles::new(tree.clone(), dir))
    };
    let notify = move |notice: &WatchNotice<'_>| {
        let level = if notice.warns { Level::Warn } else { Level::Info };
        speaker.say_of(level, notice.place, format_args!("{}", notice.text));
    };
    let rows = libraries.rows().iter().map(|(number, spec)| (*number, *spec, flags(spec, levels))).collect();
    let maps = kernel.watch_maps(&spec.start)?;
    let options = WatchOptions { spec, rows, outputs: Box::new(outputs), notify: Box::new(notify) };
    let started = Watch::start(options, Box::new(move || maps.try_clone()), crew);
    started.map(Some).map_err(TraceError::system("cannot start block watch"))
}

/// Starts asking the driver for its figures, unless they are not wanted.
pub(super) fn start_usage(
    options: &TraceOptions,
    trigger: Trigger,
    reader: &Reader,
    speaker: Speaker,
    crew: &Crew,
) -> Result<Option<Sampler>, TraceError> {
    let usage = options.usage.clone();
    let options = Options { interval: usage.interval, per_second: usage.per_second, library: usage.library };
    if options.interval.is_zero() && options.per_second == 0 {
        return Ok(None);
    }
    let notes = reader.notes();
    let send = move |note: &Note| notes.send(note_record(monotonic_ns(), 0, note));
    let notify = move |notice| {
        match notice {
        Notice::Found(what) => speaker.debug(format_args!("the driver's figures come from {what}")),
        Notice::Absent(why) => speaker.debug(format_args!(
            "{why}: process_used, device_used and the device's line of the ledger are left out"
        )),
        Notice::GivenUp(why) => speaker.warn(format_args!(
            "the driver is not asked for its figures (DCMI) any more: {why}; rows are without process_used and device_used"
        )),
    }
    };
    let started = Sampler::start(options, trigger, send, notify, crew);
    started.map(Some).map_err(TraceError::system("cannot start asking for the driver's figures"))
}
