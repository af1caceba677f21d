use super::*;
use crate::{
    analyses::script::Script,
    backend::ascend::pools,
    model::{Device, FreeCause},
};

const PID: u32 = 7;

fn account(script: &Script) -> Account {
    let mut books = Books::default();
    let start = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
    let first = script.events()[0].clone();
    books.observe(&Event { kind: EventKind::ProcessStart(start), ..first });
    script.events().iter().for_each(|event| books.observe(event));
    books.take()
}

fn of(account: &Account, pool: crate::model::Pool) -> &Series {
    &account.series.iter().find(|(key, _)| key.pool == pool).expect("a series").1
}

/// Each pool has its own account; bytes are added up by hand.
#[test]
fn pools_have_accounts() {
    let mut script = Script::new(PID, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 4096).alloc(pools::PTA, 0x1000, 512).alloc(pools::PTA, 0x1200, 1024);
    script.free(pools::PTA, 0x1000).alloc_failed(pools::HAL, 1 << 40, (1, 1));
    script.alloc_failed(pools::HAL, 1 << 40, (1, 2)).failed_for_good(pools::HAL, 1 << 40, (1, 2));
    script.unknown_free(pools::PTA, 0x9000, true).alloc_failed(pools::HAL, 9, (2, 1)).alloc_recovered(pools::HAL, 9, 2);
    let account = account(&script);
    let pta = of(&account, pools::PTA);
    assert_eq!((pta.allocations, pta.frees, pta.older_frees), (2, 1, 1));
    assert_eq!((pta.allocated_bytes, pta.freed_bytes, pta.live_bytes, pta.live_blocks), (1536, 512, 1024, 1));
    let hal = of(&account, pools::HAL);
    assert_eq!((hal.live_bytes, hal.out_of_memory, hal.recovered, hal.refused), (4096, 1, 1, 0));
    assert_eq!(account.processes[&PID].events, script.events().len() as u64);
    assert_eq!(account.places, 2);
}

/// A block that is found at the attach is live, and its free is one of an older block.
#[test]
fn found_blocks_are_live_and_older() {
    let mut script = Script::new(PID, Device::Npu(0));
    script.older(pools::PTA, 0x1000, 512).older(pools::PTA, 0x2000, 1024).alloc(pools::PTA, 0x3000, 64);
    script.free(pools::PTA, 0x1000);
    let account = account(&script);
    let pta = of(&account, pools::PTA);
    assert_eq!((pta.live_blocks, pta.live_bytes, pta.allocations, pta.allocated_bytes), (2, 1088, 1, 64));
    assert_eq!((pta.frees, pta.freed_bytes, pta.older_frees), (0, 0, 1));
}

/// The note of a child's start comes behind its first calls, and accounts may be taken between them. What never has a start is counted
/// once.
#[test]
fn calls_before_the_start_are_counted() {
    let mut script = Script::new(PID, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 64).alloc(pools::HAL, 0x2000, 32);
    let start = ProcessStart { parent: 1, attached: false, command: "child".into(), pid_within: None };
    let start = Event { kind: EventKind::ProcessStart(start), ..script.events()[0].clone() };
    let mut books = Books::default();
    books.observe(&script.events()[0]);
    assert!(books.take().series.is_empty());
    books.observe(&start);
    books.observe(&script.events()[1]);
    assert_eq!((books.take().processes[&PID].parent, of(&books.take(), pools::HAL).live_bytes), (1, 96));

    let mut books = Books::default();
    books.observe(&script.events()[0]);
    let accounts: Vec<usize> = (0..15).map(|_| books.take().series.len()).collect();
    assert_eq!(accounts, [[0; 10].as_slice(), &[1, 0, 0, 0, 0]].concat());
    assert_eq!(books.places, 0);
}

/// Pools that are left out are in one account with their last figures, and their places are free again. The driver's stay.
#[test]
fn pools_that_are_left_out_are_read_once() {
    let mut script = Script::new(PID, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 64).alloc(pools::PTA, 0x1000, 16).alloc(pools::PTA, 0x1010, 8);
    script.event(EventKind::PoolsLeftOut).alloc(pools::HAL, 0x9000, 32);
    let mut books = Books::default();
    let start = ProcessStart { parent: 0, attached: false, command: "a".into(), pid_within: None };
    books.observe(&Event { kind: EventKind::ProcessStart(start), ..script.events()[0].clone() });
    script.events().iter().for_each(|event| books.observe(event));
    assert_eq!(books.places, 2);
    let account = books.take();
    assert_eq!((account.series.len(), of(&account, pools::HAL).live_bytes), (1, 96));
    let [(key, last)] = &account.parted[..] else { panic!("{:?}", account.parted) };
    assert_eq!((key.pool, last.live_bytes, last.allocations), (pools::PTA, 24, 2));
    assert_eq!((account.processes[&PID].reductions, books.take().parted.len()), (1, 0));
}

/// What a process held is read once after its end; another process of its number begins at zero.
#[test]
fn ended_processes_are_read_once() {
    let mut script = Script::new(PID, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 64).end(FreeCause::ProcessEnd, pools::HAL, 0x1000).process_end();
    let mut books = Books::default();
    let start = ProcessStart { parent: 0, attached: false, command: "a".into(), pid_within: None };
    let start = Event { kind: EventKind::ProcessStart(start), ..script.events()[0].clone() };
    books.observe(&start);
    script.events().iter().for_each(|event| books.observe(event));
    let account = books.take();
    assert!(account.processes[&PID].ended);
    // It was held to the end.
    assert_eq!((of(&account, pools::HAL).live_bytes, of(&account, pools::HAL).frees), (64, 0));
    let empty = books.take();
    assert!(empty.processes.is_empty() && empty.series.is_empty());
    assert_eq!(empty.places, 0);
    books.observe(&start);
    books.observe(&script.events()[0]);
    assert_eq!(of(&books.take(), pools::HAL).allocations, 1);
}
