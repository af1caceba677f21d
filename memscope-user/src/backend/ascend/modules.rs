//! Modules of the driver, as its headers number them (contract §6.5).

use crate::model::{Module, ModuleInfo, ModuleRole, UNKNOWN_MODULE};

/// Name of a module by its id, spelt as in the headers, `INVLID_MOUDLE_ID` included.
const NAMES: [&str; 76] = [
    "SLOG",
    "IDEDD",
    "IDEDH",
    "HCCL",
    "FMK",
    "HIAIENGINE",
    "DVPP",
    "RUNTIME",
    "CCE",
    "HDC",
    "DRV",
    "MDCFUSION",
    "MDCLOCATION",
    "MDCPERCEPTION",
    "MDCFSM",
    "MDCCOMMON",
    "MDCMONITOR",
    "MDCBSWP",
    "MDCDEFAULT",
    "MDCSC",
    "MDCPNC",
    "MLL",
    "DEVMM",
    "KERNEL",
    "LIBMEDIA",
    "CCECPU",
    "ASCENDDK",
    "ROS",
    "HCCP",
    "ROCE",
    "TEFUSION",
    "PROFILING",
    "DP",
    "APP",
    "TS",
    "TSDUMP",
    "AICPU",
    "LP",
    "TDT",
    "FE",
    "MD",
    "MB",
    "ME",
    "IMU",
    "IMP",
    "GE",
    "MDCFUSA",
    "CAMERA",
    "ASCENDCL",
    "TEEOS",
    "ISP",
    "SIS",
    "HSM",
    "DSS",
    "PROCMGR",
    "BBOX",
    "AIVECTOR",
    "TBE",
    "FV",
    "MDCMAP",
    "TUNE",
    "HSS",
    "FFTS",
    "OP",
    "UDF",
    "HICAID",
    "TSYNC",
    "AUDIO",
    "TPRT",
    "ASCENDCKERNEL",
    "ASYS",
    "ATRACE",
    "RTC",
    "SYSMONITOR",
    "AML",
    "INVLID_MOUDLE_ID",
];

/// Ids of the runtime and of HCCL (ascend-abi §2.2).
const RUNTIME: usize = 7;
const HCCL: usize = 3;

/// Every value of the byte in a flag word: unnamed values are modules, too.
static MODULES: [ModuleInfo; 256] = table();

const fn table() -> [ModuleInfo; 256] {
    let mut modules = [ModuleInfo { id: 0, name: UNKNOWN_MODULE, role: ModuleRole::Other }; 256];
    let mut id = 0;
    while id < modules.len() {
        modules[id].id = id as u8;
        if id < NAMES.len() {
            modules[id].name = NAMES[id];
        }
        id += 1;
    }
    modules[RUNTIME].role = ModuleRole::Runtime;
    modules[HCCL].role = ModuleRole::Communication;
    modules
}

/// The module of an id.
#[must_use]
pub const fn of(id: u8) -> Module {
    Module::known(&MODULES[id as usize])
}

/// The module of a name.
#[must_use]
pub fn named(name: &str) -> Option<Module> {
    NAMES.iter().position(|known| *known == name).map(|id| of(id as u8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::module_name;

    #[test]
    fn names_lead_back_to_ids() {
        let id = |name| named(name).map(Module::id);
        assert_eq!(["HCCL", "APP", "UNKNOWN", ""].map(id), [Some(3), Some(33), None, None]);
    }

    /// Names sit at their ids, also at both ends of the table and around long names.
    #[test]
    fn known_ids_have_their_names() {
        let named = [0, 3, 7, 33, 48, 62, 75].map(|id| module_name(Some(of(id))));
        assert_eq!(named, ["SLOG", "HCCL", "RUNTIME", "APP", "ASCENDCL", "FFTS", "INVLID_MOUDLE_ID"]);
    }

    /// An unnamed module is unknown, as is a block without a module.
    #[test]
    fn other_ids_are_unknown() {
        assert_eq!([Some(of(76)), Some(of(255)), None].map(module_name), ["UNKNOWN"; 3]);
        assert_eq!(of(200).id(), 200);
    }

    /// Reports have separate lines for two of them.
    #[test]
    fn roles_of_modules() {
        let role = |name| named(name).map(Module::role);
        assert_eq!(
            ["RUNTIME", "HCCL", "APP"].map(role),
            [Some(ModuleRole::Runtime), Some(ModuleRole::Communication), Some(ModuleRole::Other)]
        );
    }
}
