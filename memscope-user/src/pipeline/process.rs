//! One traced process: its domains' states, and the dispatch of effects to them.

use std::sync::Arc;

use super::blocks::Blocks;
use super::domains::atb::Atb;
use super::domains::dumped::{Doubts, Dumped};
use super::domains::failing::Failing;
use super::domains::launches::Launches;
use super::domains::memory::Memory;
use super::domains::mstx::Mstx;
use super::domains::pools::Pools;
use super::domains::script::{Collection, Script};
use super::domains::{Effect, runtime, torch};
use super::stacks::Codes;
use super::steps::Steps;
use super::turn::{At, Home, Origin, Shared, Turn};
use crate::model::{Device, EventKind, FreeCause, Pool, ProcessStart, Setting};
use crate::settings;

/// One traced process.
pub(super) struct Process {
    home: Home,
    memory: Memory,
    pools: Pools,
    failing: Failing,
    launches: Launches,
    mstx: Mstx,
    atb: Atb,
    script: Script,
    dumped: Dumped,
    /// Code objects. A forked child shares them until either learns another.
    codes: Arc<Codes>,
    /// It has made a call.
    works: bool,
}

impl Process {
    /// A new process; `wanted` are the steps to write, `deferred`: it collects only once its script says so.
    pub(super) fn new(pid: u32, wanted: Arc<[u32]>, deferred: bool) -> Self {
        Self::at_home(Home::new(pid, Steps::new(wanted), Vec::new(), Collection::new(deferred)))
    }

    /// A child that `thread` has forked: knows what its memory knows, but has no device memory.
    pub(super) fn child(&self, thread: u32, pid: u32, wanted: Arc<[u32]>) -> Self {
        let (visible, collection) = (self.home.devices.visible().to_vec(), self.home.collection.child(thread, pid));
        let home = Home::new(pid, Steps::new(wanted), visible, collection);
        let (launches, script) = (self.launches.child(), self.script.child());
        Self { launches, script, codes: Arc::clone(&self.codes), ..Self::at_home(home) }
    }

    fn at_home(home: Home) -> Self {
        Self {
            home,
            memory: Memory::default(),
            pools: Pools::default(),
            failing: Failing::default(),
            launches: Launches::default(),
            mstx: Mstx::default(),
            atb: Atb::default(),
            script: Script::default(),
            dumped: Dumped::default(),
            codes: Arc::default(),
            works: false,
        }
    }

    /// Whether this is its first call.
    pub(super) const fn begins_to_work(&mut self, effect: &Effect) -> bool {
        !matches!(effect, Effect::Code { .. } | Effect::Exec) && !std::mem::replace(&mut self.works, true)
    }

    /// Rows of its dump that contradict others.
    pub(super) const fn doubts(&self) -> Doubts {
        self.dumped.doubts
    }

    /// Its code objects.
    pub(super) fn codes(&self) -> &Codes {
        &self.codes
    }

    /// The state that its domains share.
    pub(super) const fn home_mut(&mut self) -> &mut Home {
        &mut self.home
    }

    /// Whether reports of this pool are not taken.
    pub(super) const fn ignores(&self, pool: Pool) -> bool {
        self.pools.ignores(pool)
    }

    /// Its live blocks.
    pub(super) const fn blocks(&self) -> &Blocks {
        &self.home.blocks
    }

    /// The process joins the trace, or is known better. `device`: what it uses, as it counts them, if that was chosen before.
    pub(super) fn started(
        &mut self,
        at: At,
        start: ProcessStart,
        visible: Option<&str>,
        device: Option<u32>,
        shared: &mut Shared,
    ) {
        self.home.attached = start.attached;
        let devices = &mut self.home.devices;
        devices.see(visible.and_then(visible_devices).unwrap_or_default());
        if let Some(device) = device {
            devices.know(devices.physical(device));
        }
        let mut turn = Turn::of_no_call(at, &mut self.home, shared);
        turn.report(Device::None, EventKind::ProcessStart(start), true);
    }

    /// The process is replaced by another program: all is gone but the counters.
    pub(super) fn exec(&mut self, at: At, shared: &mut Shared) {
        self.is_over(at, FreeCause::ProcessEnd, shared);
        self.home.exec();
        self.failing.exec();
        self.mstx.exec();
        let pools = self.pools.exec();
        (self.memory, self.pools, self.launches) = (Memory::default(), pools, Launches::default());
        (self.atb, self.script, self.codes) = (Atb::default(), Script::default(), Arc::default());
    }

    /// The process ends.
    pub(super) fn end(&mut self, at: At, shared: &mut Shared) {
        self.is_over(at, FreeCause::ProcessEnd, shared);
        Turn::of_no_call(at, &mut self.home, shared).report(Device::None, EventKind::ProcessEnd, true);
    }

    /// Ends all open state: requests have failed for good, blocks have ended for this cause.
    pub(super) fn is_over(&mut self, at: At, cause: FreeCause, shared: &mut Shared) {
        let mut turn = Turn::of_no_call(at, &mut self.home, shared);
        self.pools.all_refused(&mut turn, &mut self.failing);
        self.failing.all_failed(&mut turn);
        turn.free_all(cause);
    }

    /// Calls about blocks of its pools are passed over from here on, or are traced again.
    pub(super) fn trace_pool_blocks(&mut self, at: At, traced: bool, shared: &mut Shared) {
        let was_traced = self.pools.trace_blocks(traced);
        if traced || !was_traced {
            return;
        }
        self.home.meanwhile = None;
        self.failing.pool_is_silent();
        let mut turn = Turn::of_no_call(at, &mut self.home, shared);
        turn.let_go_of_pools();
        turn.report(Device::None, EventKind::PoolsLeftOut, true);
    }

    /// Whether calls about blocks of its pools are passed over.
    #[cfg(feature = "trace")]
    pub(super) const fn is_reduced(&self) -> bool {
        self.pools.are_left_out()
    }

    /// Time has passed: silent threads have given up.
    pub(super) fn waited_long_enough(&mut self, time_ns: u64, shared: &mut Shared) {
        self.failing.waited_long_enough(&mut Turn::of_no_call(At::new(time_ns, 0), &mut self.home, shared));
    }

    /// Applies an effect of this process.
    pub(super) fn apply(&mut self, at: At, origin: Origin<'_>, effect: Effect, shared: &mut Shared) {
        let Self { home, memory, pools, failing, launches, mstx, atb, script, dumped, codes, works: _ } = self;
        let turn = &mut Turn::new(at, origin, home, shared);
        failing.before(&effect, turn);
        match effect {
            Effect::Memory(effect) => memory.apply(&effect, turn, failing),
            Effect::Failing(effect) => failing.apply(&effect, turn, pools),
            Effect::Runtime(effect) => runtime::apply(effect, turn),
            Effect::Launch(effect) => launches.apply(effect, turn),
            Effect::Mstx(effect) => mstx.apply(effect, turn, pools, failing),
            Effect::Pool(effect) => pools.apply(&effect, turn, failing),
            Effect::Atb(effect) => atb.apply(effect, turn, pools),
            Effect::Torch(effect) => torch::apply(effect, turn),
            Effect::Script(effect) => script.apply(effect, turn),
            Effect::Dumped(effect) => dumped.apply(&effect, turn),
            Effect::Code { address, fingerprint, code } => Arc::make_mut(codes).insert(address, fingerprint, code),
            Effect::Fork { .. } | Effect::Exec | Effect::Note(_) => {}
        }
    }
}

/// Settings of a note that this program knows, each once.
pub(super) fn known_settings(settings: &[(String, String)]) -> Arc<[Setting]> {
    let known = |name: &'static str| {
        let (_, value) = settings.iter().find(|(of, _)| of == name)?;
        Some(Setting { name, value: settings::kept(value) })
    };
    settings::NAMES.into_iter().filter_map(known).collect()
}

/// The list of devices that a program sees, strictly of decimal numbers.
pub(crate) fn visible_devices(list: &str) -> Option<Vec<u32>> {
    let number = |item: &str| item.bytes().all(|byte| byte.is_ascii_digit()).then(|| item.parse().ok())?;
    list.split(',').map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A capture may contain anything: unknown names are ignored, values are bounded.
    #[test]
    fn settings_of_a_note_are_known_ones() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let note = [pair("TOKEN", "x"), pair("HCCL_BUFFSIZE", &"7".repeat(4096)), pair("HCCL_BUFFSIZE", "8")];
        let [Setting { name: "HCCL_BUFFSIZE", value }] = &known_settings(&note)[..] else { panic!("one") };
        assert_eq!(*value, "7".repeat(512));
    }

    #[test]
    fn visible_devices_are_strict() {
        assert_eq!(visible_devices("4,5,07"), Some(vec![4, 5, 7]));
        for bad in ["", "4,", "4, 5", "0x4", "-1", "+4", "4,npu5", "99999999999"] {
            assert_eq!(visible_devices(bad), None, "{bad}");
        }
    }
}
