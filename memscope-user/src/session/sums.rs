//! The sums of a process's pools, read out of its memory: no probe, no trace, and the process is not stopped.

use std::time::Duration;

use super::pools::{Missing, books_of, pool_name};
use crate::{
    backend,
    follow::visible_devices,
    holders::{BooksBudget, DeviceBooks},
    model::{Device, Pool},
    os::process,
    pipeline,
};

/// What the pool of a framework holds on a device, by its own structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSums {
    /// The device.
    pub device: Device,
    /// The pool.
    pub pool: Pool,
    /// Bytes handed out.
    pub used_bytes: u64,
    /// Bytes held from the driver.
    pub reserved_bytes: u64,
    /// Blocks handed out.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
}

/// Reads the pools of a process, again and again for `patience` at most until their sums agree. A device where they do not is left out.
///
/// # Errors
///
/// Why nothing was read.
pub fn pool_sums(pid: u32, patience: Duration) -> Result<Vec<PoolSums>, String> {
    let (_, books) = books_of(pid, BooksBudget { patience, pass: None }).map_err(Missing::reason)?;
    if books.devices.is_empty() {
        return Err("the pool changed all the while".to_owned());
    }
    let pool = backend::current().pool_of_framework(pool_name(books.framework).as_deref());
    let pool = pool.ok_or("the runtime has no such pool")?;
    let list = process::environment(pid).as_deref().and_then(visible_devices);
    let visible = list.as_deref().and_then(pipeline::visible_devices).unwrap_or_default();
    let sums = |books: &DeviceBooks| PoolSums {
        device: Device::Npu(visible.get(books.device as usize).copied().unwrap_or(books.device)),
        pool,
        used_bytes: books.used_bytes,
        reserved_bytes: books.reserved_bytes,
        live_blocks: books.blocks.len() as u64,
        live_bytes: books.blocks.iter().fold(0, |sum, block| sum.saturating_add(block.size_bytes)),
    };
    Ok(books.devices.iter().map(sums).collect())
}
