//! One vendor's memory runtime for the rest of the program: its pools, and the meaning of its words.
//!
//! All other code uses the words of the [model](crate::model): a pool has a level, a block has a device and a module. A
//! second vendor is a second folder here.

pub mod ascend;
pub mod watch;

use std::fmt;
use std::sync::Arc;

use crate::model::{AccessKind, AllocApi, Device, Module, PageType, Pool, PoolOperators};
use crate::probes::{self, Field, ProbeSpec};

/// Fetched values of a call, by their names.
pub type Fields<'a> = &'a dyn Fn(Field) -> Option<u64>;

/// The place and the user of a request to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The driver's pool of device or host memory.
    pub pool: Pool,
    /// Device.
    pub device: Device,
    /// The user, where the driver gets it.
    pub module_id: Option<Module>,
    /// Page size.
    pub page: PageType,
    /// It is memory; otherwise addresses without any.
    pub is_memory: bool,
}

/// A change of a pool's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolChange {
    /// Handed a block out.
    Alloc,
    /// The program gave the block back.
    Free,
    /// The pool can hand the block out again.
    Returned,
}

/// A pool's report of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolWord {
    /// The pool.
    pub pool: Pool,
    /// The change.
    pub change: PoolChange,
    /// Device, as the program numbers it.
    pub device: u32,
}

/// A tensor of a library of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Where it lies on the device; 0 is not on a device.
    pub addr: u64,
    /// Its bytes.
    pub size_bytes: u64,
    /// Type of its elements, as the library names it.
    pub dtype: &'static str,
    /// Its layout, as the library names it.
    pub format: &'static str,
    /// Sizes of its dimensions.
    pub shape: Arc<[i64]>,
}

/// Memory that an operator uses, by a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// How.
    pub kind: AccessKind,
    /// Where.
    pub addr: u64,
    /// Bytes.
    pub size_bytes: u64,
}

/// An operator, and the memory that it uses, by a mark.
#[derive(Debug, PartialEq, Eq)]
pub struct OpUses<'a> {
    /// The operator.
    pub name: &'a str,
    /// The memory it uses.
    pub uses: Vec<Use>,
}

/// One vendor's memory runtime, and the frameworks on it.
pub trait Backend: fmt::Debug + Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// Tables of the probed functions.
    fn tables(&self) -> &'static [&'static [ProbeSpec]];

    /// Tables for block watch only.
    fn watch_tables(&self) -> &'static [&'static [ProbeSpec]] {
        &[]
    }

    /// Whether the function begins to capture a graph; the others of its kind end that.
    fn begins_capture(&self, _symbol: &str) -> bool {
        false
    }

    /// The variable that limits a program to some of the devices.
    fn visible_devices(&self) -> &'static str;

    /// Variables that name the folder of the vendor's software.
    fn home_variables(&self) -> &'static [&'static str] {
        &[]
    }

    /// Where the driver's libraries are.
    fn driver_folders(&self) -> &'static [&'static str] {
        &[]
    }

    /// Its pools, in their order: those of the driver, then the frameworks'.
    fn pools(&self) -> &'static [Pool];

    /// Device memory, from the driver itself.
    fn driver_pool(&self) -> Pool;

    /// Host memory, from the driver.
    fn host_pool(&self) -> Pool;

    /// The pool that reports under this name as a domain of marks.
    fn pool_of_domain(&self, _name: &str) -> Option<Pool> {
        None
    }

    /// The pool of a row's event type, spelt by us or another tool.
    fn pool_of_event_type(&self, text: &str) -> Option<Pool> {
        self.pools().iter().find(|pool| pool.event_type() == text).copied()
    }

    /// The place of this call's request to the driver; `None` if its values do not contain it.
    fn place(&self, api: AllocApi, field: Fields<'_>) -> Option<Place>;

    /// Whether a registration of host memory with these flags pins it.
    fn pins(&self, _flags: u64) -> bool {
        false
    }

    /// Whether a call returns this when memory is out.
    fn is_out_of_memory(&self, status: i32) -> bool;

    /// Whether this kind of memory is all of a device's.
    fn is_device_memory(&self, _kind: u64) -> bool {
        false
    }

    /// Most bytes requested from the driver beyond the request to the runtime.
    fn padding_bytes(&self) -> u64 {
        0
    }

    /// Reads a pool's report of a block of this size, negative at its end; `None` if no pool reports so.
    fn pool_report(&self, _word: u64, _size: i64) -> Option<PoolWord> {
        None
    }

    /// The module of this number.
    fn module(&self, id: u8) -> Module;

    /// The module of this name.
    fn module_named(&self, name: &str) -> Option<Module>;

    /// Whether `PyTorch` counts this type of devices as the backend's.
    fn is_torch_device(&self, _kind: u8) -> bool {
        false
    }

    /// Reads a tensor of the library of operations; `None` if that is none.
    fn operation_tensor(&self, _bytes: &[u8]) -> Option<Tensor> {
        None
    }

    /// Reads a framework's mark about an operator's memory; `None` if it is a mark of the user's.
    fn uses_of_mark<'a>(&self, _text: &'a str) -> Option<OpUses<'a>> {
        None
    }

    /// The pool that these operators work on.
    fn pool_of_operators(&self, operators: PoolOperators) -> Option<Pool> {
        self.pools().iter().find(|pool| pool.operators() == Some(operators)).copied()
    }

    /// The pool of a framework, by the event type in notes about its books; without one, that of `PyTorch`.
    fn pool_of_framework(&self, event_type: Option<&str>) -> Option<Pool> {
        match event_type {
            Some(event_type) => self.pool_of_event_type(event_type),
            None => self.pool_of_operators(PoolOperators::Torch),
        }
    }

    /// A pool named by a program or the user; never one of the backend's, whatever the name.
    fn custom_pool(&self, name: &str) -> Pool {
        let is_taken = self.pools().iter().any(|pool| pool.event_type().eq_ignore_ascii_case(name));
        if is_taken { Pool::custom(&format!("pool_{name}")) } else { Pool::custom(name) }
    }

    /// One of the frameworks' pools by its event type, or another.
    fn framework_or_custom_pool(&self, name: &str) -> Pool {
        let is_it = |pool: &&Pool| pool.is_known_framework() && pool.event_type() == name;
        self.pools().iter().find(is_it).copied().unwrap_or_else(|| self.custom_pool(name))
    }
}

/// The backend of this program.
#[must_use]
pub fn current() -> &'static dyn Backend {
    &ascend::Ascend
}

/// [`current`].
impl Default for &'static dyn Backend {
    fn default() -> Self {
        current()
    }
}

/// All built-in rows.
pub fn builtin() -> impl Iterator<Item = &'static ProbeSpec> {
    current().tables().iter().chain(probes::OWN).copied().flatten()
}

#[cfg(test)]
mod tests {
    use memscope_common::Fetch;

    use super::ascend::{Ascend, pools};
    use super::*;
    use crate::probes::Group;

    /// Whatever a program names its pool, it is not confused with one of ours, or with a formula.
    #[test]
    fn custom_pools_are_never_ours() {
        let spelt = |name: &str| Ascend.custom_pool(name).event_type();
        assert_eq!(
            ["mine", "HAL", "Hal", "pta", "", "=1+1", "@x", "a b,c"].map(spelt),
            ["mine", "pool_HAL", "pool_Hal", "pool_pta", "pool_", "pool_=1+1", "pool_@x", "a_b_c"]
        );
        assert_eq!(spelt(&"x".repeat(1000)).len(), 64);
        assert_eq!(Ascend.framework_or_custom_pool("MINDSPORE"), pools::MIND_SPORE);
        assert_eq!(Ascend.framework_or_custom_pool("HAL"), Ascend.custom_pool("HAL"));
    }

    /// A C++ function may throw, and no function that may throw has a return probe.
    #[test]
    fn no_return_probe_where_something_may_be_thrown() {
        for spec in builtin() {
            let cxx = spec.symbol.starts_with("_Z") || spec.locator.is_some();
            assert!(spec.may_throw || !cxx, "{} is C++", spec.symbol);
            assert!(!(spec.may_throw && spec.row().has_return()), "{} may throw", spec.symbol);
            // A frame that an exception left would count as the outermost call of its group.
            assert!(!spec.may_throw || spec.group == Group::None, "{} may throw", spec.symbol);
        }
    }

    /// The kernel side fetches the values of a list's rows in this fixed order.
    #[test]
    fn rows_with_lists_have_their_values_in_order() {
        for spec in builtin().filter(|spec| spec.list.is_some()) {
            assert_eq!(spec.fields[0].1, Fetch::arg(0), "{}", spec.symbol);
            for (index, (_, fetch)) in spec.fields.iter().enumerate().skip(1) {
                let list_arg = spec.list.map_or(0, |list| list.arg);
                let expected = if index == memscope_common::row::COMPANION_VALUE {
                    Fetch::companion(list_arg)
                } else {
                    Fetch::element(list_arg, 8 * (index as u16 - 1))
                };
                assert_eq!(*fetch, expected, "{}", spec.symbol);
            }
        }
    }
}
