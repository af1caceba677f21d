//! Ascend NPUs: CANN's driver, runtime and libraries, `torch_npu`, `MindSpore`, ATB.

pub mod modules;
pub mod pools;
mod probes;
mod sanitizer;
mod tensor;
mod words;

use super::{Backend, Fields, OpUses, Place, PoolWord, Tensor};
use crate::model::{AllocApi, Module, Pool};
use crate::probes::ProbeSpec;

/// Ascend's stack.
#[derive(Clone, Copy, Debug)]
pub struct Ascend;

impl Backend for Ascend {
    fn name(&self) -> &'static str {
        "ascend"
    }

    fn tables(&self) -> &'static [&'static [ProbeSpec]] {
        probes::TABLES
    }

    fn watch_tables(&self) -> &'static [&'static [ProbeSpec]] {
        probes::WATCH_TABLES
    }

    fn begins_capture(&self, symbol: &str) -> bool {
        probes::begins_capture(symbol)
    }

    fn visible_devices(&self) -> &'static str {
        "ASCEND_RT_VISIBLE_DEVICES"
    }

    fn home_variables(&self) -> &'static [&'static str] {
        &["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"]
    }

    fn driver_folders(&self) -> &'static [&'static str] {
        &[
            "/usr/local/Ascend/driver/lib64/driver",
            "/usr/local/Ascend/driver/lib64/common",
            "/usr/local/Ascend/driver/lib64",
        ]
    }

    fn pools(&self) -> &'static [Pool] {
        pools::ALL
    }

    fn driver_pool(&self) -> Pool {
        pools::HAL
    }

    fn host_pool(&self) -> Pool {
        pools::HOST
    }

    fn pool_of_domain(&self, name: &str) -> Option<Pool> {
        pools::of_domain(name)
    }

    fn pool_of_event_type(&self, text: &str) -> Option<Pool> {
        pools::of_event_type(text)
    }

    fn place(&self, api: AllocApi, field: Fields<'_>) -> Option<Place> {
        words::place(api, field)
    }

    fn pins(&self, flags: u64) -> bool {
        flags & words::PINNED != 0
    }

    fn is_device_memory(&self, kind: u64) -> bool {
        // ACL_HBM_MEM of `aclrtMemAttr`; others are its parts by page size.
        kind as u32 == 1
    }

    fn is_out_of_memory(&self, status: i32) -> bool {
        words::OUT_OF_MEMORY.contains(&status)
    }

    fn padding_bytes(&self) -> u64 {
        words::PADDING_BYTES
    }

    fn pool_report(&self, word: u64, size: i64) -> Option<PoolWord> {
        words::pool_report(word, size)
    }

    fn module(&self, id: u8) -> Module {
        modules::of(id)
    }

    fn module_named(&self, name: &str) -> Option<Module> {
        modules::named(name)
    }

    fn is_torch_device(&self, kind: u8) -> bool {
        kind == words::PRIVATE_USE
    }

    fn operation_tensor(&self, bytes: &[u8]) -> Option<Tensor> {
        tensor::read(bytes)
    }

    fn uses_of_mark<'a>(&self, text: &'a str) -> Option<OpUses<'a>> {
        sanitizer::parse(text)
    }
}
