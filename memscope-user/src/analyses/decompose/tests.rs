//! Runs of programs written down by hand, and the owners of their memory.

use proptest::prelude::*;

use super::classify::UNKNOWN;
use super::*;
use super::{HeldPart, OwnerNode, OwnerPart, Source};
use crate::analyses::script::{Script, run};
use crate::analyses::select::{Condition, Test};
use crate::backend::ascend::pools;
use crate::model::{Device, EventKind, FreeCause, HeldAs, Name, Stack, StackEnd};

const NPU0: Device = Device::Npu(0);
const MIB: u64 = 1 << 20;

// As CPython 3.11 and torch 2.9 have them, innermost first. Lines are made up, files and names are not.
const TRAIN: &str = "/home/me/train.py(40): main";
const CALL: [&str; 2] = [
    "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1786): Module._call_impl",
    "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1775): Module._wrapped_call_impl",
];
const LINEAR: &str = "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py(134): Linear.forward";
const MODULE_TO: [&str; 3] = [
    "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1355): Module.to.<locals>.convert",
    "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(942): Module._apply",
    "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1369): Module.to",
];
const BACKWARD: [&str; 3] = [
    "/usr/lib/python3.11/site-packages/torch/autograd/graph.py(841): _engine_run_backward",
    "/usr/lib/python3.11/site-packages/torch/autograd/__init__.py(354): backward",
    "/usr/lib/python3.11/site-packages/torch/_tensor.py(625): Tensor.backward",
];
pub(in crate::analyses) const ENGINE: [&str; 3] = [
    "libtorch_cpu.so(torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)+0x10) [0x1]",
    "libtorch_cpu.so(torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)+0x20) [0x2]",
    "libc.so.6(+0x30) [0x3]",
];
const INIT_GROUP: &str = "/usr/lib/python3.11/site-packages/torch/optim/adam.py(175): Adam._init_group";
pub(in crate::analyses) const STEP: [&str; 3] = [
    "/usr/lib/python3.11/site-packages/torch/optim/adam.py(242): Adam.step",
    "/usr/lib/python3.11/site-packages/torch/optim/optimizer.py(79): _use_grad_for_differentiable.<locals>._use_grad",
    "/usr/lib/python3.11/site-packages/torch/optim/optimizer.py(516): Optimizer.profile_hook_step.<locals>.wrapper",
];
const ZERO_GRAD: &str = "/usr/lib/python3.11/site-packages/torch/optim/optimizer.py(1030): Optimizer.zero_grad";

/// Frames, and the script outside of all.
pub(in crate::analyses) fn frames<'a>(inner: &[&'a str]) -> Vec<&'a str> {
    [inner, &[TRAIN]].concat()
}

fn found(script: &Script, rules: RuleSet) -> Vec<Decomposition> {
    run(DecomposeAnalysis::new(Arc::new(rules)), script.events(), &RunEnd::default())
        .into_iter()
        .map(|finding| match finding {
            Finding::Decompose(found) => found,
            other => panic!("not a decomposition: {other:?}"),
        })
        .collect()
}

fn one(script: &Script) -> Decomposition {
    let mut found = found(script, RuleSet::builtin());
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

/// Owner, rule, and blocks ever seen of each part, in order of the owner.
fn named(found: &Decomposition) -> Vec<(&'static str, &'static str, u64)> {
    let one = |part: &OwnerPart| (part.owner.map_or("", Name::as_str), part.rule.as_str(), part.blocks);
    let mut named: Vec<_> = found.parts.iter().map(one).collect();
    named.sort_unstable();
    named
}

/// Component and rule of a block of a pool by where it was allocated.
fn name_of(pool: Pool, python: &[&str], native: &[&str]) -> (&'static str, &'static str) {
    let mut script = Script::new(1, NPU0);
    script.stacks(python, native).alloc(pool, 0x1000, 64);
    let rules = RuleSet { lifetimes: Vec::new(), ..RuleSet::builtin() };
    let part = &found(&script, rules)[0].parts[0];
    (part.component.as_str(), part.rule.as_str())
}

#[test]
fn builtin_rules_are_valid() {
    let rules = RuleSet::of_text(r#"{"rules": []}"#).expect("valid");
    assert_eq!(rules.rules.len(), RuleSet::builtin().rules.len());
    assert!(rules.rules.len() > 40 && rules.lifetimes.len() == 10 && rules.phases.len() == 5);
    let mut names: Vec<&str> = rules.rules.iter().map(|rule| rule.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), rules.rules.len(), "names are given once");
}

/// One line for each built-in rule of stacks: innermost frame, and the block's component. Files and functions are those
/// of the versions that docs/decompose.md names.
#[test]
fn builtin_rules_of_python_frames() {
    let cases = [
        ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py(236): foreach_all_gather", "fsdp2-gathered"),
        ("torch/distributed/_composable/fsdp/_fsdp_collectives.py(100): foreach_all_gather", "fsdp2-gathered"),
        (
            "torch/distributed/fsdp/_fully_shard/_fsdp_param.py(440): FSDPParam.init_all_gather_outputs",
            "fsdp2-gathered",
        ),
        (
            "torch/distributed/fsdp/_fully_shard/_fsdp_param.py(650): FSDPParam.alloc_all_gather_outputs",
            "fsdp2-gathered",
        ),
        ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py(447): foreach_reduce", "fsdp2-gradient"),
        ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py(260): FSDPParam._init_sharded_param", "fsdp2-weight"),
        (
            "torch/distributed/fsdp/_flat_param.py(1360): FlatParamHandle._alloc_padded_unsharded_flat_param",
            "fsdp1-gathered",
        ),
        ("torch/distributed/fsdp/_runtime_utils.py(827): _reduce_grad", "fsdp1-gradient"),
        ("torch/distributed/fsdp/flat_param.py(620): FlatParamHandle._init_flat_param_and_metadata", "fsdp1-weight"),
        ("torch/nn/parallel/distributed.py(1158): DistributedDataParallel._ddp_init_helper", "ddp-buckets"),
        ("torch/distributed/distributed_c10d.py(2800): all_gather_object", "communication"),
        ("deepspeed/runtime/zero/partition_parameters.py(2052): Init._allgather_params_coalesced", "zero-gathered"),
        ("deepspeed/runtime/zero/stage_1_and_2.py(560): DeepSpeedZeroOptimizer.__init__", "zero-master-weight"),
        (
            "deepspeed/runtime/zero/stage3.py(1172): DeepSpeedZeroOptimizer_Stage3._create_fp32_partitions",
            "zero-master-weight",
        ),
        (
            "deepspeed/runtime/zero/stage3.py(791): DeepSpeedZeroOptimizer_Stage3._setup_for_real_optimizer",
            "zero-gradient",
        ),
        ("vllm_ascend/worker/model_runner_v1.py(2703): NPUModelRunner._allocate_kv_cache_tensors", "vllm-kv-cache"),
        ("vllm/v1/worker/gpu_model_runner.py(1): GPUModelRunner._allocate_kv_cache_tensors", "vllm-kv-cache"),
        ("vllm/lora/models.py(1): LoRAModelManager.create_lora_weights", "vllm-lora"),
        ("vllm_ascend/spec_decode/mtp_proposer.py(1): MtpProposer.load_model", "vllm-drafter"),
        ("vllm/model_executor/model_loader/utils.py(1): initialize_model", "vllm-weights"),
        ("vllm_ascend/worker/model_runner_v1.py(2564): NPUModelRunner.load_model", "vllm-weights"),
        ("vllm_ascend/worker/model_runner_v1.py(3335): NPUModelRunner.capture_model", "vllm-graph-pool"),
        ("vllm_ascend/worker/model_runner_v1.py(2541): NPUModelRunner.profile_run", "vllm-profile"),
        ("vllm_ascend/worker/worker.py(442): NPUWorker.compile_or_warm_up_model", "vllm-warmup"),
        ("vllm_ascend/worker/model_runner_v1.py(1108): NPUModelRunner.execute_model", "vllm-serve"),
        (
            "sglang/srt/hardware_backend/npu/memory_pool_npu.py(144): NPUMHATokenToKVPool._create_buffers",
            "sglang-kv-cache",
        ),
        ("sglang/srt/mem_cache/memory_pool.py(2293): MHATokenToKVPool._create_buffers", "sglang-kv-cache"),
        ("sglang/srt/mem_cache/memory_pool.py(406): ReqToTokenPool.__init__", "no-rule"),
        ("sglang/srt/model_loader/loader.py(1): _initialize_model", "sglang-weights"),
        ("torch_npu/npu/graphs.py(600): make_graphed_callables", "graph-pool"),
        ("torch_npu/npu/_graph_tree.py(1185): NPUGraphNode._record", "graph-pool"),
        ("torch/optim/adamw.py(90): AdamW._init_group", "optimizer-init"),
        ("torch/optim/optimizer.py(867): Optimizer.load_state_dict", "optimizer-init"),
        ("torch_npu/optim/npu_fused_adamw.py(53): NpuFusedAdamW._init_param_state", "optimizer-init"),
        (
            "megatron/core/distributed/param_and_grad_buffer.py(1): _ParamAndGradBuffer.__init__",
            "parameter-and-gradient-buffer",
        ),
        ("torch/nn/modules/module.py(2522): Module.load_state_dict", "module-load"),
        ("transformers/modeling_utils.py(1): PreTrainedModel.from_pretrained", "module-load"),
        ("torch/nn/modules/linear.py(106): Linear.__init__", "module-init"),
        ("torch/nn/init.py(500): kaiming_uniform_", "module-init"),
        ("torch/serialization.py(1271): load", "checkpoint-load"),
        ("torch/utils/data/_utils/pin_memory.py(1): pin_memory", "data-loader"),
        ("torch/autograd/function.py(300): BackwardCFunction.apply", "backward"),
        ("torch/nn/modules/module.py(1779): Module._call_impl", "forward"),
        ("torch/nn/functional.py(3450): cross_entropy", "functional"),
        ("torch/optim/sgd.py(120): SGD.step", "optimizer-step"),
        ("torch/nn/utils/clip_grad.py(186): clip_grad_norm_", "optimizer-step"),
        ("torch/optim/lr_scheduler.py(100): LRScheduler.step", "no-rule"),
        ("train.py(1): Trainer.step", "no-rule"),
    ];
    for (frame, rule) in cases {
        let frame = format!("/opt/env/lib/python3.11/site-packages/{frame}");
        assert_eq!(name_of(pools::PTA, &[&frame, "/home/me/train.py(1): Main.run"], &[]).1, rule, "{frame}");
    }
}

#[test]
fn builtin_rules_of_native_frames() {
    let cases = [
        (pools::PTA, "libtorch_npu.so(c10d_npu::ProcessGroupHCCL::allreduce(int)+0x1) [0x1]", "communication-native"),
        (pools::PTA, "libtorch_cpu.so(c10d::Reducer::initialize_buckets(int)+0x1) [0x1]", "ddp-buckets-native"),
        (
            pools::PTA,
            "libtorch_npu.so(at_npu::native::allocate_workspace(unsigned long, void*)+0x1) [0x1]",
            "workspace-native",
        ),
        (pools::PTA, "libtorch_cpu.so(torch::autograd::AccumulateGrad::apply(int)+0x1) [0x1]", "accumulate-grad"),
        (pools::PTA, ENGINE[1], "backward-native"),
        (pools::HAL, "libhccl.so(+0x1) [0x1]", "driver-hccl-stack"),
        (pools::HAL, "libtorch_npu.so(c10_npu::NPUCachingAllocator::MallocBlock(int)+0x1) [0x1]", "driver-segment"),
        (pools::HAL, "libatb.so(atb::Context::f()+0x1) [0x1]", "driver-atb"),
        // The request of a pool to the driver says nothing about the owner.
        (pools::HAL, ENGINE[1], "no-rule"),
        (pools::PTA_WORKSPACE, ENGINE[1], "workspace-pool"),
    ];
    for (pool, frame, rule) in cases {
        assert_eq!(name_of(pool, &[], &[frame, "libc.so.6(+0x1) [0x1]"]).1, rule, "{frame}");
    }
    // The same for frames of Python.
    assert_eq!(name_of(pools::HAL, &CALL, &[]).1, "no-rule");
}

/// The frame behind ACL, the runtime and the driver, with a name or without, shows who requests driver memory.
#[test]
fn callers_of_the_driver() {
    const LAYERS: [&str; 3] = [
        "halMemAlloc",
        "/usr/local/Ascend/lib64/libruntime.so(+0x77) [0x2]",
        "libascendcl.so(aclrtMallocAlign32+0x9) [0x3]",
    ];
    let rule = |behind: &[&str]| name_of(pools::HAL, &[], &[&LAYERS[..], behind].concat());
    let torch_npu = "/opt/torch_npu/lib/libtorch_npu.so(+0x4d5e6) [0x4]";
    assert_eq!(rule(&[torch_npu, "libtorch_cpu.so(at::empty+0x1) [0x5]"]), ("pool_segment", "driver-segment-caller"));
    // An operator's library asks for its own memory, on behalf of torch_npu.
    assert_eq!(rule(&["libopapi.so(+0x1) [0x4]", torch_npu]).1, "no-rule");
    assert_eq!(rule(&["libatb.so(+0x1) [0x4]", torch_npu]).1, "driver-atb");
    assert_eq!((rule(&[]).1, rule(&["[0x9999]", torch_npu]).1), ("no-rule", "no-rule"));
    assert_eq!(name_of(pools::PTA, &[], &[torch_npu]).1, "no-rule");
    let layer = "libascend_hal.so(halMemAlloc+0x0) [0x1]";
    assert_eq!(name_of(pools::HAL, &[], &[layer, torch_npu]).1, "driver-segment-caller");
    let own = r#"{"rules": [{"name": "n", "component": "mine", "pools": ["HAL"], "caller": ["libopapi.so: *"]}]}"#;
    let rules = RuleSet::of_text(own).expect("valid");
    assert!(rules.rules[0].name == Name::fixed(&"n") && rules.rules.len() > 1);
    assert!(RuleSet::of_text(&own.replace("libopapi.so: *", "libopapi.so: ")).is_err());
}

/// `ZeRO` makes its flat weights, and what it steps on, in one function; both before an optimizer's state.
#[test]
fn what_zero_makes_in_its_constructor() {
    let named = |frames: &[&str]| name_of(pools::PTA, frames, &[]).1;
    let constructor = "/x/deepspeed/runtime/zero/stage_1_and_2.py(505): DeepSpeedZeroOptimizer.__init__";
    let flat = "/x/deepspeed/runtime/zero/stage_1_and_2.py(1399): DeepSpeedZeroOptimizer.flatten_dense_tensors_aligned";
    let state = "/x/deepspeed/runtime/zero/stage_1_and_2.py(900): DeepSpeedZeroOptimizer.initialize_optimizer_states";
    assert_eq!(named(&[flat, constructor]), "zero-weight");
    assert_eq!(named(&[flat, "/home/me/train.py(1): main"]), "no-rule");
    assert_eq!(named(&[constructor]), "zero-master-weight");
    assert_eq!(named(&[state, constructor]), "optimizer-init");
    let gathers = "/x/deepspeed/runtime/zero/partition_parameters.py(2052): Init._allgather_params_coalesced";
    let step = "/x/deepspeed/runtime/zero/stage3.py(2841): DeepSpeedZeroOptimizer_Stage3.step";
    assert_eq!(named(&[gathers, step]), "zero-gathered");
}

/// Before Python 3.11 names have no class.
#[test]
fn names_without_their_class() {
    let bare = |frame: &str| name_of(pools::PTA, &[frame, "/home/me/train.py(1): main"], &[]).1;
    assert_eq!(bare("/x/torch/nn/modules/module.py(1520): _call_impl"), "forward");
    assert_eq!(bare("/x/torch/optim/adamw.py(90): _init_group"), "optimizer-init");
    assert_eq!(bare("/x/torch/optim/optimizer.py(280): wrapper"), "optimizer-step");
    assert_eq!(bare("/x/torch/nn/modules/linear.py(96): __init__"), "module-init");
    assert_eq!(bare("/x/torch/nn/modules/module.py(1): register_buffer"), "no-rule");
}

/// Values that are computed again within a backward pass are activations; so are those of a closure of the optimizer.
#[test]
fn passes_within_others() {
    let recompute: Vec<&str> =
        [&CALL[..], &["/x/torch/utils/checkpoint.py(1100): _checkpoint_hook.__init__.<locals>.unpack_hook"], &BACKWARD]
            .concat();
    assert_eq!(name_of(pools::PTA, &recompute, &ENGINE), ("activation", "recompute"));
    // Checkpointing in a forward pass is that pass.
    let forward: Vec<&str> = [&CALL[..], &["/x/torch/utils/checkpoint.py(343): checkpoint"], &CALL].concat();
    assert_eq!(name_of(pools::PTA, &forward, &[]).0, "activation");
    let closure: Vec<&str> = [&CALL[..], &["/home/me/train.py(9): main.<locals>.closure"], &STEP].concat();
    assert_eq!(name_of(pools::PTA, &closure, &[]), ("activation", "forward"));
    let closure: Vec<&str> = [&BACKWARD[..], &["/home/me/train.py(9): main.<locals>.closure"], &STEP].concat();
    assert_eq!(name_of(pools::PTA, &closure, &[]), ("backward", "backward"));
}

/// Without stacks only pools and modules are known (contract §8.5), and a dump's labels.
#[test]
fn owners_without_stacks() {
    let mut script = Script::new(1, NPU0);
    script.alloc(pools::PTA, 0x1000, 10).alloc(pools::PTA_WORKSPACE, 0x2000, 20).alloc(pools::MIND_SPORE, 0x3000, 30);
    script.alloc(pools::ATB, 0x4000, 40).alloc(Pool::custom("mine"), 0x5000, 50);
    script.module(Some(3)).alloc(pools::HAL, 0x6000, 60).module(Some(33)).alloc(pools::HAL, 0x7000, 70);
    script.module(None).alloc(pools::HAL, 0x8000, 80).on(1, Device::Cpu).alloc(pools::HOST, 0x9000, 90);
    let found = found(&script, RuleSet::builtin());
    let reported: Vec<(Pool, Vec<_>)> = found.iter().map(|found| (found.pool, named(found))).collect();
    let expected = [
        (pools::PTA, vec![("PTA", "no-stack", 1)]),
        (pools::PTA_WORKSPACE, vec![("PTA_WORKSPACE", "workspace-pool", 1)]),
        (pools::ATB, vec![("ATB", "no-stack", 1)]),
        (pools::MIND_SPORE, vec![("MINDSPORE", "no-stack", 1)]),
        (Pool::custom("mine"), vec![("mine", "no-stack", 1)]),
        (
            pools::HAL,
            vec![("CANN@APP", "no-stack", 1), ("CANN@HCCL", "driver-hccl", 1), ("CANN@UNKNOWN", "no-stack", 1)],
        ),
        (pools::HOST, vec![("", "no-stack", 1)]),
    ];
    assert_eq!(reported, expected);
    let driver = &found[5];
    let hal: Vec<&str> = driver.tree.iter().map(|node| node.label.as_str()).collect();
    assert_eq!(hal, ["CANN"]);
    assert_eq!((driver.tree[0].peak_bytes, driver.tree[0].children[0].peak_bytes), (210, 80));
}

/// A block's owner in its row, by its stack alone: `PTA@weight` and the like (contract §8.5).
#[test]
fn owners_of_rows() {
    let mut names = Classifier::new(Arc::new(RuleSet::builtin()));
    let mut owner = |pool, module, python: &[&str]| {
        let mut script = Script::new(1, NPU0);
        script.module(module).stacks(python, &[]).alloc(pool, 0x1000, 64);
        let EventKind::Alloc(alloc) = &script.events()[0].kind else { panic!("not an allocation") };
        names.owner(&alloc.block).map(Name::as_str)
    };
    assert_eq!(owner(pools::PTA, None, &MODULE_TO), Some("PTA@weight"));
    assert_eq!(owner(pools::PTA, None, &[INIT_GROUP]), Some("PTA@optimizer_state"));
    assert_eq!(owner(pools::PTA, None, &CALL), Some("PTA@activation"));
    let kv_cache = "/x/vllm_ascend/worker/model_runner_v1.py(1): NPUModelRunner.initialize_kv_cache_tensors";
    assert_eq!(owner(pools::PTA, None, &[kv_cache]), Some("PTA@vllm@kv_cache"));
    let gathered = "/x/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py(1): foreach_all_gather";
    assert_eq!(owner(pools::PTA, None, &[gathered]), Some("PTA@fsdp2@all_gather_output"));
    assert_eq!(owner(pools::PTA_WORKSPACE, None, &CALL), Some("PTA_WORKSPACE"));
    assert_eq!(owner(pools::HAL, Some(3), &CALL), Some("CANN@HCCL"));
    assert_eq!(owner(pools::HAL, Some(200), &[]), Some("CANN@UNKNOWN"));
    assert_eq!((owner(pools::HOST, None, &CALL), owner(pools::ATB, None, &[])), (None, Some("ATB")));
}

/// A run of two training steps, worked out by hand (bytes in MiB).
///
/// | block | allocated | freed | is |
/// |---|---|---|---|
/// | W 100 | `Module.to` | never | weight, by its stack |
/// | L 90 | `Module.to` | before the first forward pass | loading, by its lifetime |
/// | A 10, twice | forward | backward | activation |
/// | T 5, twice | backward | backward | backward |
/// | G 50, twice | backward, no Python | `zero_grad`; the second never | gradient, by its lifetime |
/// | S 200 | `_init_group` | never | optimizer state, by its stack |
/// | U 7 | `step`, elsewhere | never | optimizer state, by its lifetime |
/// | X 3 | `step` | in the same step | optimizer |
pub(in crate::analyses) fn training() -> Script {
    const P: Pool = pools::PTA;
    let mut script = Script::new(1, NPU0);
    script.stacks(&frames(&MODULE_TO), &[]).alloc(P, 0x9000, 90 * MIB).alloc(P, 0x1000, 100 * MIB).free(P, 0x9000);
    for step in 1..=2 {
        let linear = [&[LINEAR], &CALL[..]].concat();
        script.stacks(&frames(&linear), &[]).alloc(P, 0x2000, 10 * MIB);
        script.thread(77).stacks(&[], &ENGINE).alloc(P, 0x3000, 5 * MIB).alloc(P, 0x4000, 50 * MIB);
        script.free(P, 0x3000).free(P, 0x2000).thread(1);
        let init = [&[INIT_GROUP], &STEP[..]].concat();
        if step == 1 {
            script.stacks(&frames(&init), &[]).alloc(P, 0x5000, 200 * MIB);
            script.stacks(&frames(&STEP), &[]).alloc(P, 0x6000, 7 * MIB);
        }
        script.stacks(&frames(&STEP), &[]).alloc(P, 0x7000, 3 * MIB).free(P, 0x7000);
        if step == 1 {
            script.stacks(&frames(&[ZERO_GRAD]), &[]).free(P, 0x4000);
        }
    }
    script
}

#[test]
fn training_is_decomposed() {
    let found = one(&training());
    let expected = [
        ("PTA@activation", "forward", 2),
        ("PTA@backward", "backward-native", 2),
        ("PTA@gradient", "freed-by-zero-grad", 1),
        ("PTA@gradient", "lives-at-optimizer-step", 1),
        ("PTA@loading", "freed-before-forward", 1),
        ("PTA@optimizer", "optimizer-step", 2),
        ("PTA@optimizer_state", "lives-after-optimizer-step", 1),
        ("PTA@optimizer_state", "optimizer-init", 1),
        ("PTA@weight", "module-load", 1),
    ];
    assert_eq!(named(&found), expected);
    // In the second step, just after G: W, A, T, G, S, U.
    assert_eq!(found.peak_bytes, (100 + 10 + 5 + 50 + 200 + 7) * MIB);
    assert_eq!(found.end_bytes, (100 + 50 + 200 + 7) * MIB);
    let at_peak = |source: Source| found.peak_by_source[source as usize] / MIB;
    assert_eq!(Source::ALL.map(at_peak), [0, 0, 100 + 10 + 5 + 200, 50 + 7, 0, 0, 0]);
    let node = &found.tree[0];
    let children: Vec<_> =
        node.children.iter().map(|node| (node.label.as_str(), node.peak_bytes / MIB, node.end_bytes / MIB)).collect();
    assert_eq!(
        children,
        [
            ("optimizer_state", 207, 207),
            ("weight", 100, 100),
            ("gradient", 50, 50),
            ("activation", 10, 0),
            ("backward", 5, 0),
            ("loading", 0, 0),
            ("optimizer", 0, 0)
        ]
    );
    assert_eq!((node.label.as_str(), node.peak_bytes, node.end_bytes), ("PTA", found.peak_bytes, found.end_bytes));
    // The first step of the optimizer ended; the second did so unseen.
    assert_eq!(found.steps, 1);
}

/// The final owner of each block, for the rows of a copy; a block that was held too.
#[test]
fn owners_are_reported_one_by_one() {
    let (analysis, reported) = DecomposeAnalysis::default().with_owners();
    run(analysis, training().events(), &RunEnd::default());
    let reported = reported.recv().expect("owners");
    let mut owners: Vec<(u64, &str)> = reported.iter().map(|((_, block), owner)| (*block, owner.as_str())).collect();
    owners.sort_unstable();
    // Numbers of blocks are those of their events, from 1: L, W, -, A, T, G, -, -, S, U, X, -, -, A, T, G, -, -, X.
    let expected = [
        (1, "PTA@loading"),
        (2, "PTA@weight"),
        (4, "PTA@activation"),
        (5, "PTA@backward"),
        (6, "PTA@gradient"),
        (9, "PTA@optimizer_state"),
        (10, "PTA@optimizer_state"),
        (11, "PTA@optimizer"),
        (14, "PTA@activation"),
        (15, "PTA@backward"),
        (16, "PTA@gradient"),
        (19, "PTA@optimizer"),
    ];
    assert_eq!(owners, expected);
}

/// Averages are sizes times lifetimes over the time of the pool. Times of a script are its events' numbers.
#[test]
fn averages() {
    let mut script = Script::new(1, NPU0);
    // From 0 to 4, and from 1 to 3.
    script.alloc(pools::PTA, 0x1000, 1000).stacks(&CALL, &[]).alloc(pools::PTA, 0x2000, 600).launch();
    script.free(pools::PTA, 0x2000).free(pools::PTA, 0x1000);
    script.event(EventKind::ProcessEnd);
    let found = one(&script);
    // The pool ends with its process, at 5.
    let means: Vec<_> = found.parts.iter().map(|part| (part.component.as_str(), part.mean_bytes)).collect();
    assert_eq!(means, [("unknown", 1000 * 4 / 5), ("activation", 600 * 2 / 5)]);
    assert_eq!((found.mean_bytes, found.peak_bytes, found.peak_ns, found.end_bytes), (1040, 1600, 1, 0));
}

/// Blocks that a forward pass leaves behind for two steps are no activations; those that outlive one may be.
#[test]
fn what_lives_on() {
    let mut script = Script::new(1, NPU0);
    script
        .step_start(1)
        .stacks(&frames(&CALL), &[])
        .alloc(pools::PTA, 0x1000, 64)
        .alloc(pools::PTA, 0x2000, 64)
        .step_end(1);
    script.step_start(2).free(pools::PTA, 0x2000).alloc(pools::PTA, 0x3000, 64).step_end(2).step(3);
    assert_eq!(
        named(&one(&script)),
        [("PTA@activation", "forward", 1), ("PTA@persistent", "lives-on-from-forward", 2)]
    );
}

/// Lifetimes name blocks of code without a rule, if there are stacks: those of one step only, and those that stay.
#[test]
fn lifetimes_of_the_unnamed() {
    let run = |python: &[&str]| {
        let mut script = Script::new(1, NPU0);
        script.stacks(python, &[]).alloc(pools::PTA, 0x1000, 64).step(1).step_start(2).alloc(pools::PTA, 0x2000, 64);
        script.free(pools::PTA, 0x2000).step_end(2).alloc(pools::PTA, 0x3000, 64).step(3).free(pools::PTA, 0x3000);
        named(&one(&script))
    };
    assert_eq!(
        run(&[TRAIN]),
        [("PTA", "no-rule", 1), ("PTA@persistent", "lives-on-from-setup", 1), ("PTA@temporary", "within-a-step", 1)]
    );
    assert_eq!(run(&[]), [("PTA", "no-stack", 3)]);
    // The pool decides how long its segments live.
    let mut script = Script::new(1, NPU0);
    script.stacks(&[TRAIN], &[]).alloc(pools::HAL, 0x1000, 64).step(1).step(2).step(3);
    assert_eq!(named(&one(&script)), [("CANN@UNKNOWN", "no-rule", 1)]);
}

/// A driver block that a pool hands out memory from is a segment, wherever it was allocated: of two blocks one, and the
/// memory behind one of two handles, where it is mapped. What a rule names keeps its name. Pools come before the driver.
#[test]
fn driver_blocks_with_blocks_of_a_pool_are_segments() {
    let mut script = Script::new(1, NPU0);
    script.stacks(&[TRAIN], &[]).alloc(pools::HAL, 0x10_0000, MIB).alloc(pools::HAL, 0x20_0000, MIB);
    script.create(7, MIB).map(0x30_0000, MIB, 7).create(8, MIB).map(0x40_0000, MIB, 8);
    script.stacks(&[], &["libhccl.so(hcclAlloc+0x1) [0x1]"]).alloc(pools::HAL, 0x50_0000, MIB);
    script.stacks(&[TRAIN], &[]);
    for segment in [0x10_0000, 0x30_0000, 0x50_0000] {
        script.alloc(pools::PTA, segment + 0x1000, 64);
    }
    let found = found(&script, RuleSet::builtin());
    let [pool, driver] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((pool.pool, driver.pool), (pools::PTA, pools::HAL));
    let mut parts: Vec<_> =
        driver.parts.iter().map(|part| (part.rule.as_str(), part.component.as_str(), part.peak_bytes)).collect();
    parts.sort_unstable();
    let expected = [
        ("driver-hccl-stack", "communication", MIB),
        ("no-rule", "unknown", 2 * MIB),
        ("pool-in-it", "pool_segment", 2 * MIB),
    ];
    assert_eq!(parts, expected);
}

/// Marked steps count, where there are any; otherwise those of the optimizer.
#[test]
fn steps_of_the_optimizer_count() {
    let mut script = Script::new(1, NPU0);
    script.stacks(&frames(&CALL), &[]).alloc(pools::PTA, 0x1000, 64);
    for _ in 0..2 {
        script.stacks(&frames(&STEP), &[]).alloc(pools::PTA, 0x2000, 64).free(pools::PTA, 0x2000);
        script.stacks(&frames(&CALL), &[]).alloc(pools::PTA, 0x3000, 64).free(pools::PTA, 0x3000);
    }
    let found = one(&script);
    assert_eq!(found.steps, 2);
    assert!(named(&found).contains(&("PTA@persistent", "lives-on-from-forward", 1)), "{:?}", named(&found));
}

/// Only the block of 65 bytes is in the account, and named by the optimizer's two steps, which only the other blocks
/// show. The pool's figure is of all blocks, so nothing is untracked.
#[test]
fn others_are_not_counted_but_tell() {
    let mut script = Script::new(1, NPU0);
    script.reported(Some((500, 4096))).stacks(&frames(&CALL), &[]).alloc(pools::PTA, 0x1000, 65);
    for _ in 0..2 {
        script.stacks(&frames(&STEP), &[]).alloc(pools::PTA, 0x2000, 64).free(pools::PTA, 0x2000);
        script.stacks(&frames(&CALL), &[]).alloc(pools::PTA, 0x3000, 64).free(pools::PTA, 0x3000);
    }
    let only = Filter { conditions: vec![Condition { test: Test::Size(65), wanted: true }], rules: None };
    let found = run(DecomposeAnalysis::default().only(only), script.events(), &RunEnd::default());
    let [Finding::Decompose(found)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(named(found), [("PTA@persistent", "lives-on-from-forward", 1)]);
    assert_eq!((found.peak_bytes, found.peak_untracked_bytes, found.end_untracked_bytes), (65, 0, 0));
}

/// A failed free does not end the block, whatever its name was in between.
#[test]
fn restored_blocks_go_on() {
    let mut script = Script::new(1, NPU0);
    script.thread(7).stacks(&[], &ENGINE).alloc(pools::PTA, 0x1000, 100).free(pools::PTA, 0x1000);
    script.alloc(pools::PTA, 0x2000, 150).restore(pools::PTA, 0x1000);
    script.stacks(&frames(&STEP), &[]).free(pools::PTA, 0x2000);
    let found = one(&script);
    let part = &found.parts[0];
    assert_eq!(named(&found), [("PTA@gradient", "lives-at-optimizer-step", 2)]);
    assert_eq!((part.peak_bytes, part.peak_blocks, part.end_bytes, found.peak_bytes), (250, 2, 100, 250));
}

/// Segments found at the attach are the pool's own, with a live block or without.
#[test]
fn found_segments_without_a_block() {
    let mut script = Script::new(1, NPU0);
    script.older(pools::HAL, 0x10_0000, 2 * MIB).older(pools::HAL, 0x80_0000, MIB);
    script.older(pools::PTA, 0x10_0000, 512).step(1).step(2).step(3).free(pools::HAL, 0x80_0000);
    let found = found(&script, RuleSet::builtin());
    let driver = found.iter().find(|found| found.pool == pools::HAL).expect("the driver");
    let [part] = &driver.parts[..] else { panic!("{driver:#?}") };
    assert_eq!((part.component.as_str(), part.rule.as_str(), part.blocks), ("pool_segment", "pool-in-it", 2));
    assert_eq!((part.peak_bytes, part.end_bytes), (3 * MIB, 2 * MIB));
}

/// The pool's own figure includes blocks from before the trace.
#[test]
fn older_blocks_are_untracked() {
    let mut script = Script::new(1, NPU0);
    script
        .reported(Some((1064, 2048)))
        .alloc(pools::PTA, 0x1000, 64)
        .reported(Some((1000, 2048)))
        .free(pools::PTA, 0x1000);
    let found = one(&script);
    assert_eq!((found.peak_bytes, found.peak_untracked_bytes), (64, 1000));
    assert_eq!((found.end_bytes, found.end_untracked_bytes), (0, 1000));
}

/// Blocks from before the attach have no owner that could be known, whatever they live through, and were there at the peak.
#[test]
fn found_blocks_are_of_before_the_attach() {
    let mut script = Script::new(1, NPU0);
    script.reported(Some((1110, 2048))).alloc(pools::PTA, 0x1000, 110);
    script.reported(Some((1000, 2048))).free(pools::PTA, 0x1000);
    script.older(pools::PTA, 0x2000, 400).older(pools::PTA, 0x3000, 600).step(1).step(2).step(3);
    script.reported(Some((600, 2048))).free(pools::PTA, 0x2000);
    let found = one(&script);
    assert_eq!(named(&found), [("PTA", "before-the-attach", 2), ("PTA", "no-stack", 1)]);
    assert_eq!((found.peak_bytes, found.peak_untracked_bytes), (1110, 0));
    assert_eq!((found.end_bytes, found.end_untracked_bytes), (600, 0));
    let parts: Vec<(u64, u64)> = found.parts.iter().map(|part| (part.peak_bytes, part.end_bytes)).collect();
    assert_eq!(parts, [(1000, 600), (110, 0)]);
}

/// A found block has the purpose that its holders show, if that is known with the block or later. By hand: of 1000 bytes 400 are a weight
/// and 100 a state.
#[test]
fn found_blocks_by_their_holders() {
    let held = [(0x1000, HeldAs::Weight), (0x2000, HeldAs::OptimizerState)];
    let mut at_once = Script::new(1, NPU0);
    at_once.older_held(pools::PTA, 0x1000, 400, held[0].1).older_held(pools::PTA, 0x2000, 100, held[1].1);
    at_once.older(pools::PTA, 0x3000, 500);
    let mut later = Script::new(1, NPU0);
    later.older(pools::PTA, 0x1000, 400).older(pools::PTA, 0x2000, 100).older(pools::PTA, 0x3000, 500);
    later.found_held(pools::PTA, &held);
    for mut script in [at_once, later] {
        script.step(1).step(2).step(3).free(pools::PTA, 0x2000);
        purposes_of_found_blocks(&script);
    }
}

fn purposes_of_found_blocks(script: &Script) {
    let found = one(script);
    assert_eq!(
        named(&found),
        [
            ("PTA", "before-the-attach", 1),
            ("PTA@optimizer_state", "held-by-an-optimizer", 1),
            ("PTA@weight", "held-by-a-module", 1)
        ]
    );
    assert_eq!((found.peak_bytes, found.peak_by_source), (1000, [0, 0, 0, 0, 0, 500, 500]));
    let held = |held_as: HeldAs, size_bytes| HeldPart {
        held_as: held_as.component(),
        by_rule: UNKNOWN,
        taken: held_as.component(),
        blocks: 1,
        size_bytes,
    };
    assert_eq!(found.held, [held(HeldAs::Weight, 400), held(HeldAs::OptimizerState, 100)]);
}

/// Holders name what rules do not know, and correct what they know by the place alone. That autograd has saved a block does not make a
/// weight an activation; a driver's block has the holder of another's address.
#[test]
fn holders_beside_rules() {
    let mut script = Script::new(1, NPU0);
    script.stacks(&frames(&MODULE_TO), &[]);
    script.alloc(pools::PTA, 0x1000, 10).alloc(pools::PTA, 0x2000, 20).alloc(pools::PTA, 0x3000, 40);
    script.stacks(&[TRAIN], &[]).alloc(pools::PTA, 0x4000, 80).alloc(pools::PTA, 0x5000, 160).alloc(
        pools::HAL,
        0x5000,
        320,
    );
    script.looked(
        pools::PTA,
        &[
            (0x1000, HeldAs::Weight),
            (0x2000, HeldAs::Activation),
            (0x3000, HeldAs::OptimizerState),
            (0x4000, HeldAs::KvCache),
        ],
    );
    script.looked(pools::HAL, &[(0x5000, HeldAs::Weight)]).free(pools::PTA, 0x4000);
    let all = found(&script, RuleSet::builtin());
    let found = all.iter().find(|found| found.pool == pools::PTA).expect("a pool");
    assert_eq!(
        named(found),
        [
            ("PTA", "no-rule", 1),
            ("PTA@kv_cache", "held-by-a-cache", 1),
            ("PTA@optimizer_state", "held-by-an-optimizer", 1),
            ("PTA@weight", "module-load", 2),
        ]
    );
    let part = |part: &HeldPart| {
        (part.held_as.as_str(), part.by_rule.as_str(), part.taken.as_str(), part.blocks, part.size_bytes)
    };
    let parts: Vec<_> = found.held.iter().map(part).collect();
    assert_eq!(
        parts,
        [
            ("kv_cache", "unknown", "kv_cache", 1, 80),
            ("optimizer_state", "weight", "optimizer_state", 1, 40),
            ("activation", "weight", "weight", 1, 20),
            ("weight", "weight", "weight", 1, 10),
        ]
    );
    let driver = all.iter().find(|found| found.pool == pools::HAL).expect("the driver");
    assert!(driver.held.is_empty() && driver.peak_by_source[Source::Holder as usize] == 0);
}

/// A rule of one's own that names a found block counts, and the finding says so.
#[test]
fn rules_name_found_blocks_before_holders() {
    let mut script = Script::new(1, NPU0);
    script.older_held(pools::PTA, 0x1000, 400, HeldAs::Weight);
    let text = r#"{"rules": [{"name": "all", "component": "mine", "pools": ["PTA"]}]}"#;
    let found = found(&script, RuleSet::of_text(text).expect("valid")).remove(0);
    assert_eq!(named(&found), [("PTA@mine", "all", 1)]);
    let part = &found.held[0];
    assert_eq!((part.held_as.as_str(), part.by_rule.as_str(), part.taken.as_str()), ("weight", "mine", "mine"));
}

/// A free that did not happen takes what was counted back.
#[test]
fn holders_of_a_block_after_a_failed_free() {
    let mut script = Script::new(1, NPU0);
    script.alloc(pools::PTA, 0x1000, 10).looked(pools::PTA, &[(0x1000, HeldAs::Weight)]);
    script.free(pools::PTA, 0x1000).restore(pools::PTA, 0x1000);
    let found = one(&script);
    let parts: Vec<_> = found.held.iter().map(|part| (part.taken.as_str(), part.blocks, part.size_bytes)).collect();
    assert_eq!((parts, found.end_bytes), (vec![("weight", 1, 10)], 10));
}

/// A cut stack may lack the deciding frame.
#[test]
fn cut_stacks_are_said_to_be() {
    let mut script = Script::new(1, NPU0);
    script.alloc(pools::PTA, 0x1000, 64);
    let mut events = script.events().to_vec();
    let EventKind::Alloc(alloc) = &mut events[0].kind else { panic!("not an allocation") };
    alloc.block.stacks.python = Some(Stack::keep([TRAIN], StackEnd::Depth));
    let found = run(DecomposeAnalysis::default(), &events, &RunEnd::default());
    let [Finding::Decompose(found)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(named(found), [("PTA", "no-rule-stack-cut", 1)]);
}

/// The source of a dump may have known more: labels of msMemScope's hooks and of the user.
#[test]
fn labels_of_dumps_count() {
    let mut script = Script::new(1, NPU0);
    for (addr, owner) in [
        (0x1000, "PTA@weight@ops"),
        (0x2000, "PTA@model@gradient"),
        (0x3000, "PTA@vllm@kv_cache@attn"),
        (0x4000, "PTA@memscope"),
        (0x5000, "PTA"),
    ] {
        script.alloc(pools::PTA, addr, 64);
        script.owned(owner);
    }
    let expected = [
        ("PTA", "no-stack", 1),
        ("PTA@memscope", "no-stack", 1),
        ("PTA@model@gradient", "label-gradient", 1),
        ("PTA@vllm@kv_cache@attn", "label-kv-cache", 1),
        ("PTA@weight@ops", "label-weight", 1),
    ];
    assert_eq!(named(&one(&script)), expected);
}

/// Rules of the user come first, and may stand alone.
#[test]
fn rules_of_the_user() {
    let mut script = Script::new(1, NPU0);
    let mine = "/home/me/model.py(3): Rotary.forward";
    script.stacks(&frames(&[&[mine], &CALL[..]].concat()), &[]).alloc(pools::PTA, 0x1000, 64);
    script.stacks(&frames(&CALL), &[]).alloc(pools::PTA, 0x2000, 64).free(pools::PTA, 0x2000);
    let rules = |more: &str| {
        let text = format!(
            r#"{{{more}"rules": [{{"name": "rotary", "component": "table", "owner": "mine@rotary", "python": ["model.py: Rotary.*"]}}],
            "lifetimes": [{{"name": "short", "from": ["activation"], "ended": "freed", "component": "brief"}}]}}"#
        );
        RuleSet::of_text(&text).expect("valid")
    };
    let reported = |rules| found(&script, rules).iter().flat_map(named).collect::<Vec<_>>();
    assert_eq!(reported(rules("")), [("PTA@brief", "short", 1), ("PTA@mine@rotary", "rotary", 1)]);
    assert_eq!(reported(rules("\"builtin\": false, ")), [("PTA", "no-rule", 1), ("PTA@mine@rotary", "rotary", 1)]);
}

/// Every mistake is answered with its line, its cause, and a fix.
#[test]
fn mistakes_in_rules() {
    let rule = |inner: &str| format!("{{\"rules\": [\n{{\"name\": \"r\", \"component\": \"c\"{inner}}}\n]}}");
    let lifetime = |inner: &str| format!("{{\"lifetimes\": [\n{{\"name\": \"r\", \"component\": \"c\", {inner}}}\n]}}");
    let cases = [
        (rule(""), "rule `r`: it fits every block; give it python, native, caller, pools, modules or labels at line 2"),
        (rule(", \"python\": [\"f\"]"), "`f` is no pattern of a Python frame; write `FILE: NAME`"),
        (rule(", \"pythn\": []"), "unknown field `pythn`"),
        (rule(", \"native\": [1]"), "expected a string at line 2"),
        (rule(", \"pools\": [\"PTA\"], \"owner\": \"a b\""), "`owner` is `a b`; write at most 4 labels"),
        (rule(", \"native\": [\"f\"], \"within\": [\"a.py: f\"]"), "`within` needs `python`"),
        (rule(", \"pools\": [\"PTA\"]").replace("\"c\"", "\"=1\""), "`component` is `=1`; write at most 48 letters"),
        (lifetime("\"from\": []"), "rule `r`: `from` names no component"),
        (lifetime("\"from\": [\"x\"], \"freed_in\": [\"lunch\"]"), "unknown variant `lunch`"),
        (lifetime("\"from\": [\"x\"], \"survived\": {\"steps\": 1}"), "unknown field `steps`"),
        (
            "{\"phases\": [\n{\"phase\": \"forward\"}\n]}".to_owned(),
            "a phase needs frames; give it python or native at line 2",
        ),
        ("{\n\"rules\": [\n".to_owned(), "EOF while parsing a list at line 3"),
        ("[]".to_owned(), "line 1"),
    ];
    for (text, part) in cases {
        let reason = RuleSet::of_text(&text).expect_err("wrong");
        assert!(reason.contains(part) && reason.contains("line "), "{reason}");
        assert!(!reason.contains('\n'), "{reason}");
    }
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("rules.json");
    assert!(RuleSet::read(&path).expect_err("is not there").contains("cannot read the rules in"));
    std::fs::write(&path, "{\"rules\": 1}").expect("written");
    let reason = RuleSet::read(&path).expect_err("wrong");
    assert!(reason.contains("rules.json` is no table of rules: ") && reason.contains("at line 1"), "{reason}");
}

/// A random program: for each of a few addresses, allocate or free it, somewhere.
pub(in crate::analyses) fn actions() -> impl Strategy<Value = Vec<(u64, u8, u64, bool)>> {
    prop::collection::vec((0_u64..6, 0_u8..6, 1_u64..1000, any::<bool>()), 0..80)
}

pub(in crate::analyses) fn perform(actions: &[(u64, u8, u64, bool)]) -> Script {
    let mut script = Script::new(1, NPU0);
    // Only blocks that the program seemed to free come back.
    let mut last_cause = BTreeMap::new();
    for (addr, place, size_bytes, special) in actions {
        match place {
            0 => script.stacks(&frames(&MODULE_TO), &[]),
            1 => script.stacks(&frames(&CALL), &[]),
            2 => script.stacks(&[], &ENGINE),
            3 => script.stacks(&frames(&STEP), &[]),
            4 => script.stacks(&frames(&[ZERO_GRAD]), &[]),
            _ => script.stacks(&[], &[]),
        };
        let addr = 0x1000 * (addr + 1);
        if script.is_live(pools::PTA, addr) {
            let cause = if *special { FreeCause::Replaced } else { FreeCause::Program };
            script.end(cause, pools::PTA, addr);
            last_cause.insert(addr, cause);
        } else if *special && last_cause.get(&addr) == Some(&FreeCause::Program) {
            script.restore(pools::PTA, addr);
        } else {
            script.alloc(pools::PTA, addr, *size_bytes);
        }
    }
    script
}

fn children_are_within(node: &OwnerNode) -> bool {
    let sum: u64 = node.children.iter().map(|child| child.peak_bytes).sum();
    sum <= node.peak_bytes && node.children.iter().all(children_are_within)
}

/// Hand-made parameters beside a frozen model: each step leaves gradients of their size. A copy of one that was made
/// for averages, before or after the first step, is none: it has no gradients.
#[test]
fn trained_blocks_are_weights() {
    const P: Pool = pools::PTA;
    let mut script = Script::new(1, NPU0);
    script.stacks(&frames(&MODULE_TO), &[]).alloc(P, 0x1000, 100 * MIB);
    let lora = ["/home/me/train.py(12): add_lora"];
    script.stacks(&frames(&lora), &[]).alloc(P, 0x2000, 3 * MIB).alloc(P, 0x3000, 3 * MIB).alloc(P, 0x4000, 5 * MIB);
    for step in 1..=4_u64 {
        let linear = [&[LINEAR], &CALL[..]].concat();
        script.stacks(&frames(&linear), &[]).alloc(P, 0x5000, 10 * MIB);
        script.thread(77).stacks(&[], &ENGINE).alloc(P, 0x6000, 3 * MIB).alloc(P, 0x7000, 3 * MIB);
        script.free(P, 0x5000).thread(1);
        script.stacks(&frames(&STEP), &[]).alloc(P, 0x8000, MIB).free(P, 0x8000);
        script.stacks(&frames(&[ZERO_GRAD]), &[]).free(P, 0x6000).free(P, 0x7000);
        if step == 2 {
            script.stacks(&frames(&["/home/me/train.py(30): update_ema"]), &[]).alloc(P, 0x9000, 3 * MIB);
        }
    }
    let found = one(&script);
    let held: Vec<_> = found.parts.iter().filter(|part| part.end_bytes > 0).collect();
    let mut held: Vec<_> = held
        .iter()
        .map(|part| (part.owner.map_or("", Name::as_str), part.rule.as_str(), part.end_bytes / MIB))
        .collect();
    held.sort_unstable();
    let expected = [
        ("PTA@persistent", "lives-on-from-a-step", 3),
        ("PTA@persistent", "lives-on-from-setup", 5),
        ("PTA@weight", "module-load", 100),
        ("PTA@weight", "trained", 6),
    ];
    assert_eq!(held, expected);
}

proptest! {
    /// The components are the pool: at the peak, at the end, and at every moment of the timeline.
    #[test]
    fn components_add_up(actions in actions()) {
        let script = perform(&actions);
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut highest, mut blocks) = (0, 0);
        for event in script.events() {
            match &event.kind {
                EventKind::Alloc(alloc) => {
                    blocks += u64::from(!alloc.restored);
                    live.insert(alloc.block.allocation_id, alloc.block.size_bytes);
                }
                EventKind::Free(free) => drop(live.remove(&free.block.allocation_id)),
                _ => {}
            }
            highest = highest.max(live.values().sum());
        }
        for found in found(&script, RuleSet::builtin()) {
            let sum = |of: fn(&OwnerPart) -> u64| found.parts.iter().map(of).sum::<u64>();
            prop_assert_eq!(sum(|part| part.blocks), blocks);
            prop_assert_eq!(sum(|part| part.peak_bytes), found.peak_bytes);
            prop_assert_eq!(found.peak_by_source.iter().sum::<u64>(), found.peak_bytes);
            // A free that failed hides that there was more.
            let restored = script.events().iter().any(|event| matches!(&event.kind, EventKind::Alloc(it) if it.restored));
            let is_highest = found.peak_bytes == highest || (restored && found.peak_bytes > highest);
            prop_assert!(is_highest, "{} is not {highest}", found.peak_bytes);
            prop_assert_eq!(sum(|part| part.end_bytes), live.values().sum::<u64>());
            prop_assert_eq!(found.end_bytes, live.values().sum::<u64>());
            prop_assert_eq!(found.tree.iter().map(|node| node.peak_bytes).sum::<u64>(), found.peak_bytes);
            prop_assert!(found.tree.iter().all(children_are_within));
            let last = found.timeline.samples.last().expect("a sample");
            prop_assert_eq!(last.bytes.iter().sum::<u64>(), found.end_bytes);
            for sample in &found.timeline.samples {
                prop_assert!(restored || sample.bytes.iter().sum::<u64>() <= sample.highest_bytes);
            }
        }
    }
}

/// Findings of a dump with these rows.
fn offline(rows: &str) -> Vec<Decomposition> {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("memscope_dump_1.csv");
    std::fs::write(&path, format!("{}\n{rows}", crate::sinks::row::COLUMNS.join(","))).expect("written");
    let outcome = crate::input::run(&[path], vec![Box::new(DecomposeAnalysis::default())]).expect("read");
    assert_eq!(outcome.notes.lines(), [""; 0]);
    let one = |finding| match finding {
        Finding::Decompose(found) => found,
        other => panic!("not a decomposition: {other:?}"),
    };
    outcome.findings.into_iter().map(one).collect()
}

/// A dump gives the same as its trace, stacks included.
#[test]
fn dumps_say_the_same() {
    let script = training();
    let mut names = Classifier::new(Arc::new(RuleSet::builtin()));
    let mut rows = Vec::new();
    for event in script.events() {
        let mut event = event.clone();
        if let EventKind::Alloc(alloc) = &mut event.kind {
            alloc.block.owner = names.owner(&alloc.block);
        }
        crate::sinks::row::Row::of(&event).expect("a row").write_csv(&mut rows);
    }
    let rows = String::from_utf8(rows).expect("text");
    assert!(rows.contains(",owner:PTA@weight}\""), "{rows}");
    let time_ns = script.events().last().expect("an event").time_ns;
    let online = run(DecomposeAnalysis::default(), script.events(), &RunEnd { time_ns, ..RunEnd::default() });
    let [Finding::Decompose(online)] = online.as_slice() else { panic!("{online:?}") };
    assert_eq!(offline(&rows), std::slice::from_ref(online));
}

/// As msMemScope writes it: workspaces are called PTA but for their owner, a block's rows come when it dies, and what its
/// hooks knew is in the owner.
#[test]
fn dumps_of_the_reference() {
    let rows = "\
5,MALLOC,PTA,N/A,50,9,9,0,0x0000000000003000,\"{allocation_id:3,addr:0x0000000000003000,size:30,used:30,total:99,owner:PTA_WORKSPACE}\",,
6,FREE,PTA,N/A,60,9,9,0,0x0000000000003000,\"{allocation_id:3,addr:0x0000000000003000,size:30,used:0,total:99}\",,
1,MALLOC,HAL,N/A,10,9,9,0,0x0000000000001000,\"{allocation_id:1,addr:0x0000000000001000,size:1000,used:1000,owner:CANN@APP,page_type:normal,alloc_type:alloc}\",,
9,FREE,HAL,N/A,90,9,9,0,0x0000000000001000,\"{allocation_id:1,addr:0x0000000000001000,size:1000,shadow:true}\",,
3,MALLOC,PTA,N/A,30,9,9,0,0x0000000000002000,\"{allocation_id:2,addr:0x0000000000002000,size:20,used:20,total:99,owner:PTA@weight@ops}\",\"/x/torch/nn/modules/module.py(942): Module._apply
/x/train.py(1): Main.run
\",
10,FREE,PTA,N/A,91,9,9,0,0x0000000000002000,\"{allocation_id:2,addr:0x0000000000002000,size:20,shadow:true}\",,
";
    let found = offline(rows);
    let reported: Vec<_> =
        found.iter().map(|found| (found.pool, named(found), found.peak_bytes, found.end_bytes)).collect();
    let expected = [
        (pools::PTA, vec![("PTA@weight@ops", "module-load", 1)], 20, 20),
        (pools::PTA_WORKSPACE, vec![("PTA_WORKSPACE", "workspace-pool", 1)], 30, 0),
        (pools::HAL, vec![("CANN@APP", "no-stack", 1)], 1000, 1000),
    ];
    assert_eq!(reported, expected);
}

/// A label that a block gets after its allocation names its final owner; lifetimes are not consulted.
#[test]
fn labels_that_come_late() {
    let (late, never) = (0x1000, 0x2000);
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::PTA, late, 3 * MIB).alloc(pools::PTA, never, MIB);
    let events: Vec<Event> = {
        script.free(pools::PTA, late).free(pools::PTA, never);
        script.events().to_vec()
    };
    let relabelled = events.into_iter().map(|mut event| {
        if let EventKind::Free(free) = &mut event.kind
            && free.block.addr == late
        {
            free.owner = Some(Name::keep("PTA@optimizer_state"));
        }
        event
    });
    let relabelled: Vec<Event> = relabelled.collect();
    let (analysis, owners) = DecomposeAnalysis::default().with_owners();
    drop(run(analysis, &relabelled, &RunEnd::default()));
    let owners = owners.recv().expect("owners");
    let owner = |number: u64| owners.get(&(7, number)).map(|owner| owner.as_str());
    assert_eq!((owner(1), owner(2)), (Some("PTA@optimizer_state"), Some("PTA")));
}

/// A copy of a model follows the mean of its weights, which an optimizer trains: the copy is not trained. The copies of
/// its layer that a module makes for itself, and a copy that is trained instead of the original, are weights.
#[test]
fn copies_of_weights() {
    const P: Pool = pools::PTA;
    const COPY: [&str; 2] = [
        "/usr/lib/python3.11/site-packages/torch/nn/parameter.py(68): Parameter.__deepcopy__",
        "/usr/lib/python3.11/copy.py(153): deepcopy",
    ];
    let clones = [
        "/usr/lib/python3.11/site-packages/torch/nn/modules/transformer.py(1179): _get_clones",
        "/usr/lib/python3.11/site-packages/torch/nn/modules/transformer.py(292): TransformerEncoder.__init__",
    ];
    for trains_copy in [false, true] {
        let mut script = Script::new(1, NPU0);
        script.stacks(&frames(&[&COPY[..], &clones].concat()), &[]).alloc(P, 0x1000, 6 * MIB);
        if !trains_copy {
            script.stacks(&frames(&MODULE_TO), &[]).alloc(P, 0x2000, 3 * MIB);
        }
        script.stacks(&frames(&COPY), &[]).alloc(P, 0x3000, 3 * MIB);
        for _ in 1..=4 {
            script.thread(77).stacks(&[], &ENGINE).alloc(P, 0x6000, 3 * MIB).thread(1);
            script.stacks(&frames(&STEP), &[]).alloc(P, 0x8000, MIB).free(P, 0x8000);
            script.stacks(&frames(&[ZERO_GRAD]), &[]).free(P, 0x6000);
        }
        let found = one(&script);
        let bytes = |owner: &str| {
            let of = found.parts.iter().filter(|part| part.owner.is_some_and(|name| name.as_str() == owner));
            of.map(|part| part.end_bytes / MIB).sum::<u64>()
        };
        let expected = if trains_copy { (9, 0) } else { (9, 3) };
        assert_eq!((bytes("PTA@weight"), bytes("PTA@persistent")), expected, "trained: {trains_copy}");
    }
}
