//! Garbage collection: old free segments go before the driver is asked for more.

use super::Pool;
use super::block::Id;

/// Large blocks of the default pool.
const LARGE: u16 = 1;

impl Pool {
    /// It takes place: a threshold is set, and a fraction.
    pub(super) fn collects(&self) -> bool {
        self.settings.gc_threshold > 0.0 && self.allowed_bytes.is_some()
    }

    /// Gives old segments back: while their age, counted in searches, is at least the mean of the remaining ones, until
    /// enough is freed.
    pub(super) fn collect(&mut self) {
        let limit = (self.settings.gc_threshold * self.allowed_bytes.unwrap_or(u64::MAX) as f64) as u64;
        let Some(wanted) = self.figures.reserved_bytes.checked_sub(limit).filter(|wanted| *wanted > 0) else { return };
        let now = self.racks.classes.get(usize::from(LARGE)).map_or(0, |class| class.searches);
        let mut old: Vec<(Id, u64)> = self
            .racks
            .of_class(LARGE)
            .into_iter()
            .filter(|id| self.blocks.get(*id).is_whole() && self.blocks.get(*id).is_plain())
            .map(|id| (id, now - self.blocks.get(id).tick))
            .collect();
        if old.is_empty() {
            return;
        }
        self.device.calls.synchronize += u64::from(self.settings.waits_for_parts());
        let mut freed = 0;
        while freed < wanted && !old.is_empty() {
            let mean = old.iter().map(|(_, age)| *age as f64).sum::<f64>() / old.len() as f64;
            let (go, stay): (Vec<_>, Vec<_>) = old.into_iter().partition(|(_, age)| *age as f64 >= mean);
            if go.is_empty() {
                return;
            }
            for (id, _) in go {
                freed += self.place(id).1;
                self.release(id);
            }
            old = stay;
        }
    }
}
