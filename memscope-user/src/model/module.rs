//! Names of driver modules, as the driver's headers number them (contract §6.5).

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

/// Name of the driver module that asked for a block; `UNKNOWN` for none and for ids without a name.
#[must_use]
pub const fn module_name(id: Option<u8>) -> &'static str {
    match id {
        Some(id) if (id as usize) < NAMES.len() => NAMES[id as usize],
        _ => "UNKNOWN",
    }
}

/// The id of a module's name.
#[must_use]
pub fn module_id(name: &str) -> Option<u8> {
    NAMES.iter().position(|known| *known == name).map(|id| id as u8)
}

#[cfg(test)]
mod tests {
    use super::{module_id, module_name};

    #[test]
    fn names_lead_back_to_ids() {
        assert_eq!(["HCCL", "APP", "UNKNOWN", ""].map(module_id), [Some(3), Some(33), None, None]);
    }

    /// Names sit at their ids, also at both ends of the table and around long names.
    #[test]
    fn known_ids_have_their_names() {
        let named = [0, 3, 7, 33, 48, 62, 75].map(|id| module_name(Some(id)));
        assert_eq!(named, ["SLOG", "HCCL", "RUNTIME", "APP", "ASCENDCL", "FFTS", "INVLID_MOUDLE_ID"]);
    }

    /// What has no name is unknown, as is a block without a module.
    #[test]
    fn other_ids_are_unknown() {
        assert_eq!([Some(76), Some(255), None].map(module_name), ["UNKNOWN"; 3]);
    }
}
