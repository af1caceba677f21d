//! Reads the pools of processes that are not traced, or traced without them, in a thread of its own.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    os::priority,
    session::{PoolSums, pool_sums},
};

/// A pool that changes all the while is read again for this long.
const PATIENCE: Duration = Duration::from_millis(100);
/// Times that a reading took, from its end to the next: a two-hundredth of a processor.
const PAUSE: u32 = 199;
/// Readings that wait to be taken.
const MAX_READINGS: usize = 1024;

/// What came of a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReading {
    /// The process.
    pub pid: u32,
    /// The sums of its pools, or why there are none.
    pub pools: Result<Vec<PoolSums>, String>,
}

/// Has pools read.
#[derive(Debug)]
pub(super) struct Reader {
    asked: SyncSender<Vec<u32>>,
    readings: Arc<Mutex<Vec<PoolReading>>>,
}

impl Reader {
    pub(super) fn start() -> std::io::Result<Self> {
        // Without room: who asks while it reads, or rests, asks for nothing.
        let (asked, taken) = mpsc::sync_channel(0);
        let readings = Arc::default();
        let found = Arc::clone(&readings);
        thread::Builder::new().name("memscope-pools".to_owned()).spawn(move || work(&taken, &found))?;
        Ok(Self { asked, readings })
    }

    pub(super) fn ask(&self, pids: Vec<u32>) {
        if !pids.is_empty() {
            // It is at work.
            let _ = self.asked.try_send(pids);
        }
    }

    pub(super) fn take(&self) -> Vec<PoolReading> {
        std::mem::take(&mut self.readings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn work(asked: &Receiver<Vec<u32>>, found: &Mutex<Vec<PoolReading>>) {
    priority::give_way(priority::LOW);
    for pids in asked {
        let begin = Instant::now();
        for pid in pids {
            let reading = PoolReading { pid, pools: pool_sums(pid, PATIENCE) };
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            if found.len() < MAX_READINGS {
                found.push(reading);
            }
        }
        thread::sleep(begin.elapsed().saturating_mul(PAUSE));
    }
}
