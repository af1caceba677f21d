//! Pools of Ascend's stack (contract §6.1, §8.2).

use crate::model::{Pool, PoolInfo, PoolLevel, PoolOperators};

/// The driver: the only complete truth for device memory.
pub const HAL: Pool = Pool::known(&HAL_INFO);
/// Host memory handed out by the driver (pinned).
pub const HOST: Pool = Pool::known(&HOST_INFO);
/// `torch_npu`'s caching allocator.
pub const PTA: Pool = Pool::known(&PTA_INFO);
/// `torch_npu`'s workspace allocator.
pub const PTA_WORKSPACE: Pool = Pool::known(&PTA_WORKSPACE_INFO);
/// ATB.
pub const ATB: Pool = Pool::known(&ATB_INFO);
/// `MindSpore`'s pool.
pub const MIND_SPORE: Pool = Pool::known(&MIND_SPORE_INFO);

/// All pools, in order.
pub const ALL: &[Pool] = &[HAL, HOST, PTA, PTA_WORKSPACE, ATB, MIND_SPORE];

static HAL_INFO: PoolInfo = PoolInfo {
    order: 0,
    event_type: "HAL",
    display_name: "Hal memory",
    title: "driver",
    owner: "CANN",
    level: PoolLevel::Driver,
    ..PoolInfo::BASE
};

static HOST_INFO: PoolInfo = PoolInfo {
    order: 1,
    event_type: "HOST",
    display_name: "Host memory",
    title: "host",
    level: PoolLevel::Host,
    ..PoolInfo::BASE
};

static PTA_INFO: PoolInfo = PoolInfo {
    order: 2,
    event_type: "PTA",
    display_name: "Pytorch Caching memory pool",
    title: "PyTorch pool",
    owner: "PTA",
    operators: Some(PoolOperators::Torch),
    heap_is_total: true,
    is_located: true,
    gives_back: true,
    ..PoolInfo::BASE
};

static PTA_WORKSPACE_INFO: PoolInfo = PoolInfo {
    order: 3,
    event_type: "PTA_WORKSPACE",
    also_written: Some("PTA"),
    display_name: "Pytorch Workspace memory pool",
    title: "PyTorch workspaces",
    owner: "PTA_WORKSPACE",
    level: PoolLevel::Workspace,
    grows_in_place: true,
    heap_is_total: true,
    is_located: true,
    ..PoolInfo::BASE
};

static ATB_INFO: PoolInfo = PoolInfo {
    order: 4,
    event_type: "ATB",
    display_name: "ATB memory pool",
    title: "ATB pool",
    owner: "ATB",
    level: PoolLevel::Workspace,
    operators: Some(PoolOperators::Atb),
    ..PoolInfo::BASE
};

static MIND_SPORE_INFO: PoolInfo = PoolInfo {
    order: 5,
    event_type: "MINDSPORE",
    display_name: "Mindspore memory pool",
    title: "MindSpore pool",
    owner: "MINDSPORE",
    has_operators: false,
    heap_is_total: true,
    ..PoolInfo::BASE
};

/// The pool that reports under this name as a domain of mstx (contract §11).
pub(super) fn of_domain(name: &str) -> Option<Pool> {
    Some(match name {
        "ptaCaching" | "msleaks" => PTA,
        "ptaWorkspace" => PTA_WORKSPACE,
        "mindsporeMemPool" => MIND_SPORE,
        "atb" => ATB,
        _ => return None,
    })
}

/// The pool of a row's event type, msMemScope's spellings among them.
pub(super) fn of_event_type(text: &str) -> Option<Pool> {
    let is_named = |pool: &&Pool| pool.event_type() == text;
    if text == "HOST_PINNED" { Some(HOST) } else { ALL.iter().find(is_named).copied() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The level of a pool is the origin of its memory: the driver's own two are device and host memory.
    #[test]
    fn levels_of_pools() {
        let levels = [HAL, HOST, PTA, MIND_SPORE, PTA_WORKSPACE, ATB, Pool::custom("x")].map(Pool::level);
        let (framework, workspace) = (PoolLevel::Framework, PoolLevel::Workspace);
        let expected =
            [PoolLevel::Driver, PoolLevel::Host, framework, framework, workspace, workspace, PoolLevel::Custom];
        assert_eq!(levels, expected);
        assert!([HAL, HOST].iter().all(|pool| pool.is_base()));
        assert_eq!((HAL.is_host(), HOST.is_driver(), PTA.is_base()), (false, false, false));
    }

    /// Tables of pools are in this order; pools with custom names are last, sorted by name.
    #[test]
    fn pools_have_an_order() {
        let mut pools = [Pool::custom("b"), ATB, Pool::custom("a"), MIND_SPORE, PTA_WORKSPACE, HOST, PTA, HAL];
        pools.sort_unstable();
        let spelt: Vec<_> = pools.iter().map(|pool| pool.event_type()).collect();
        assert_eq!(spelt, ["HAL", "HOST", "PTA", "PTA_WORKSPACE", "ATB", "MINDSPORE", "a", "b"]);
    }

    /// In JSON a pool is its event type.
    #[test]
    fn pools_serialize_as_words() {
        let pools = [HAL, PTA_WORKSPACE, Pool::custom("mine")];
        assert_eq!(serde_json::to_string(&pools).expect("JSON"), r#"["HAL","PTA_WORKSPACE","mine"]"#);
    }
}
