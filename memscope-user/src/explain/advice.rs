//! The advice: a table, with the settings by their exact names and the versions that have them.
//!
//! Settings change with versions. A line here needs a source; `tests/tests/wheels.rs` looks for them in real builds of `torch_npu`.

use super::card::Advice;
use super::facts::{InForce, Known};
use crate::printable::OneLine;

/// A setting in the environment of a program, which `torch_npu` reads.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// An option in its value, as in `PYTORCH_NPU_ALLOC_CONF`; `None` where the value is the setting.
    pub option: Option<&'static str>,
    /// The value to try; `None` if it depends on the program.
    pub value: Option<&'static str>,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Hint {
    /// The advice; without a setting in at most 66 characters, the room of the first screen.
    pub text: &'static str,
    /// The same as a setting, as it is written.
    pub setting: Option<&'static str>,
    /// The variable of the setting.
    pub variable: Option<Variable>,
    /// It makes sense only while this variable has this value, or may have it.
    pub only_with: Option<(&'static str, &'static str)>,
    /// It excludes this option of the same variable.
    pub excludes: Option<(&'static str, &'static str)>,
    /// Versions that it holds for.
    pub versions: Option<&'static str>,
    /// Its documentation.
    pub sources: &'static [&'static str],
}

const ALLOC_CONF: &str = "https://www.hiascend.com/document/detail/zh/Pytorch/710/comref/Envvariables/Envir_011.html";
const TASK_QUEUE: &str = "https://hiascend.com/document/detail/zh/Pytorch/600/apiref/Envvariables/Envir_019.html";
const REUSE: &str = "https://gitcode.com/Ascend/pytorch/blob/v2.7.1-7.3.0/docs/zh/environment_variable_reference/MULTI_STREAM_MEMORY_REUSE.md";
const REUSE_600: &str = "https://hiascend.com/document/detail/zh/Pytorch/600/apiref/Envvariables/Envir_021.html";
const BUFFER_SIZE: &str =
    "https://www.hiascend.com/document/detail/en/CANNCommunityEdition/900/maintenref/envvar/envref_07_0080.html";
const GROUP_BUFFER: &str =
    "https://www.hiascend.com/document/detail/zh/Pytorch/600/ptmoddevg/trainingmigrguide/performance_tuning_0052.html";

const PLAIN: Hint =
    Hint { text: "", setting: None, variable: None, only_with: None, excludes: None, versions: None, sources: &[] };

const CONF: &str = "PYTORCH_NPU_ALLOC_CONF";
const EXPANDABLE_ON: (&str, &str) = (CONF, "expandable_segments:True");

const fn conf(option: &'static str, value: Option<&'static str>) -> Variable {
    Variable { name: CONF, option: Some(option), value }
}

/// A smaller request.
pub(super) const SMALLER: Hint =
    Hint { text: "Ask for less at this place: a smaller batch, length or bucket", ..PLAIN };
/// Less held at the moment of a failed request.
pub(super) const FREE_HOLDERS: Hint =
    Hint { text: "Free before the request what holds the most, see the evidence", ..PLAIN };
/// Pieces that grow.
pub(super) const EXPANDABLE: Hint = Hint {
    text: "Let segments grow in place of making new ones",
    setting: Some("PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"),
    variable: Some(conf("expandable_segments", Some("True"))),
    versions: Some("torch_npu with Ascend HDK 23.0.0 and newer; several devices in a process: HDK 24.1.RC3 and newer"),
    sources: &[ALLOC_CONF, "https://github.com/vllm-project/vllm-ascend/issues/5855"],
    ..PLAIN
};
/// Large blocks that stay whole.
pub(super) const MAX_SPLIT: Hint = Hint {
    text: "Or keep large blocks whole: N MB, above 20, over the largest activation",
    setting: Some("PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:N"),
    variable: Some(conf("max_split_size_mb", None)),
    excludes: Some(EXPANDABLE_ON),
    versions: Some("torch_npu; not together with expandable_segments:True"),
    sources: &[ALLOC_CONF],
    ..PLAIN
};
/// One stream.
pub(super) const ONE_STREAM: Hint = Hint { text: "Allocate and free what is reused on the same stream", ..PLAIN };
/// The others on the device.
pub(super) const OTHERS: Hint =
    Hint { text: "Stop or move the other processes, or give them a smaller share", ..PLAIN };
/// Values in place of tensors.
pub(super) const VALUES: Hint =
    Hint { text: "If a list keeps tensors: keep values, .item() or .detach().cpu()", ..PLAIN };
/// A bound.
pub(super) const BOUND: Hint = Hint { text: "Bound the list, cache or request state that keeps these blocks", ..PLAIN };
/// Nothing to do about a cache.
pub(super) const CACHE: Hint = Hint { text: "Nothing, unless this cache is unwanted: then bound it", ..PLAIN };
/// Nothing to do about memory that a pool keeps.
pub(super) const POOL_CACHE: Hint =
    Hint { text: "Nothing, unless others need it: the pool hands it out again", ..PLAIN };
/// Give cached blocks back.
pub(super) const COLLECT: Hint = Hint {
    text: "With set_per_process_memory_fraction, give cached blocks back earlier",
    setting: Some("PYTORCH_NPU_ALLOC_CONF=garbage_collection_threshold:0.8"),
    variable: Some(conf("garbage_collection_threshold", None)),
    excludes: Some(EXPANDABLE_ON),
    versions: Some("torch_npu; not together with expandable_segments:True"),
    sources: &[ALLOC_CONF],
    ..PLAIN
};
/// The cache between phases.
pub(super) const EMPTY_CACHE: Hint =
    Hint { text: "Call torch.npu.empty_cache() between phases of different shapes", ..PLAIN };
/// Shapes that repeat.
pub(super) const BUCKETS: Hint =
    Hint { text: "Pad shapes, or put them into buckets: the largest sets the size", ..PLAIN };
/// Less concurrency.
pub(super) const TASK_QUEUE_1: Hint = Hint {
    text: "Compare with level 1: level 2 may raise the peak",
    setting: Some("TASK_QUEUE_ENABLE=1"),
    variable: Some(Variable { name: "TASK_QUEUE_ENABLE", option: None, value: Some("1") }),
    only_with: Some(("TASK_QUEUE_ENABLE", "2")),
    versions: Some("torch_npu; the default is 1"),
    sources: &[TASK_QUEUE],
    ..PLAIN
};
/// A smaller KV cache.
pub(super) const KV_SHARE: Hint = Hint {
    text: "Leave more outside of the KV cache",
    setting: Some("gpu_memory_utilization"),
    versions: Some("vLLM; it sizes the KV cache from what a profile run left"),
    sources: &[
        "https://github.com/vllm-project/vllm-ascend/issues/1617",
        "https://github.com/vllm-project/vllm-ascend/issues/8260",
    ],
    ..PLAIN
};
/// Shorter or fewer requests.
pub(super) const KV_REQUESTS: Hint =
    Hint { text: "Or lower max_model_len or max_num_seqs", versions: Some("vLLM"), ..PLAIN };
/// Fewer graphs.
pub(super) const CAPTURE_SIZES: Hint = Hint {
    text: "Capture fewer sizes: each graph holds memory and streams",
    setting: Some("cudagraph_capture_sizes"),
    versions: Some("vLLM"),
    sources: &["https://docs.vllm.ai/projects/ascend/"],
    ..PLAIN
};
/// No graphs.
pub(super) const EAGER: Hint = Hint {
    text: "Compare with a run without graphs",
    setting: Some("enforce_eager=True"),
    versions: Some("vLLM"),
    ..PLAIN
};
/// The cache when a server sleeps.
pub(super) const EMPTY_AFTER_SLEEP: Hint = Hint {
    text: "Call torch.npu.empty_cache() after sleep()",
    versions: Some("vllm-ascend; reported to help"),
    sources: &[
        "https://github.com/vllm-project/vllm-ascend/issues/9563",
        "https://github.com/vllm-project/vllm-ascend/issues/977",
    ],
    ..PLAIN
};
/// Sleep mode without virtual memory.
pub(super) const NOT_EXPANDABLE: Hint = Hint {
    text: "Run the server that sleeps without expandable segments",
    setting: Some("PYTORCH_NPU_ALLOC_CONF=expandable_segments:False"),
    variable: Some(conf("expandable_segments", Some("False"))),
    only_with: Some(EXPANDABLE_ON),
    versions: Some("vllm-ascend; newer versions may support both"),
    sources: &[
        "https://github.com/modelscope/ms-swift/issues/6636",
        "https://github.com/vllm-project/vllm/pull/11743",
        "https://github.com/vllm-project/vllm-ascend/pull/9242",
    ],
    ..PLAIN
};
/// Smaller buffers.
pub(super) const HCCL_BUFFERS: Hint = Hint {
    text: "Lower the buffer: each communicator takes twice this many MB",
    setting: Some("HCCL_BUFFSIZE"),
    variable: Some(Variable { name: "HCCL_BUFFSIZE", option: None, value: None }),
    versions: Some("CANN; the default is 200 MB"),
    sources: &[BUFFER_SIZE],
    ..PLAIN
};
/// Smaller buffers of some groups.
pub(super) const GROUP_BUFFERS: Hint = Hint {
    text: "Or set it for single groups, and make fewer groups",
    setting: Some("hccl_buffer_size"),
    versions: Some("torch_npu, options of a process group"),
    sources: &[GROUP_BUFFER],
    ..PLAIN
};
/// References that end.
pub(super) const DELETE: Hint = Hint { text: "End references before the next phase: del, or a smaller scope", ..PLAIN };
/// Reuse across streams.
pub(super) const STREAM_REUSE: Hint = Hint {
    text: "Let streams reuse memory; look for record_stream",
    setting: Some("MULTI_STREAM_MEMORY_REUSE=1"),
    variable: Some(Variable { name: "MULTI_STREAM_MEMORY_REUSE", option: None, value: Some("1") }),
    only_with: Some(("MULTI_STREAM_MEMORY_REUSE", "0")),
    versions: Some("torch_npu; the default is 1, newer versions also have 3: see the documentation of yours"),
    sources: &[REUSE, REUSE_600],
    ..PLAIN
};
/// Streams that have done before the free.
pub(super) const WAIT_FOR_STREAM: Hint =
    Hint { text: "Wait for the stream before the free, or look for record_stream", ..PLAIN };
/// A trace from the start.
pub(super) const FROM_START: Hint = Hint { text: "Trace from the start: memscope-bpf run -- PROG", ..PLAIN };
/// Other processes on the device.
pub(super) const LOOK_OUTSIDE: Hint =
    Hint { text: "Look for a profiler, another container, or the driver's own use", ..PLAIN };

/// The whole table.
pub const HINTS: [Hint; 27] = [
    SMALLER,
    FREE_HOLDERS,
    EXPANDABLE,
    MAX_SPLIT,
    ONE_STREAM,
    OTHERS,
    VALUES,
    BOUND,
    CACHE,
    POOL_CACHE,
    COLLECT,
    EMPTY_CACHE,
    BUCKETS,
    TASK_QUEUE_1,
    KV_SHARE,
    KV_REQUESTS,
    CAPTURE_SIZES,
    EAGER,
    EMPTY_AFTER_SLEEP,
    NOT_EXPANDABLE,
    HCCL_BUFFERS,
    GROUP_BUFFERS,
    DELETE,
    STREAM_REUSE,
    WAIT_FOR_STREAM,
    FROM_START,
    LOOK_OUTSIDE,
];

/// Advice from hints, given the settings in force.
#[derive(Debug, Default)]
pub(super) struct Advised {
    /// The advice.
    pub(super) advice: Vec<Advice>,
    /// Settings that are in force already, a line each.
    pub(super) in_force: Vec<String>,
}

/// Makes advice of hints: leaves out settings in force, and those that conflict with them.
pub(super) fn advise(hints: &[Hint], in_force: &InForce<'_>) -> Advised {
    let mut advised = Advised::default();
    for hint in hints {
        let holds = |(name, text): (&str, &str)| in_force.has(name, text);
        if hint.excludes.is_some_and(|other| holds(other) == Some(true)) {
            continue;
        }
        if let Some(Variable { name, option, value: Some(value), .. }) = hint.variable
            && in_force.has(name, &written(option, value)) == Some(true)
        {
            advised
                .in_force
                .push(format!("{name}={} was set at the start: it is not the reason", written(option, value)));
            continue;
        }
        let depends = hint.only_with.map(holds);
        if depends == Some(Some(false)) {
            continue;
        }
        advised.advice.push(advice(hint, depends == Some(None), in_force));
    }
    advised
}

fn written(option: Option<&str>, value: &str) -> String {
    option.map_or_else(|| value.to_owned(), |option| format!("{option}:{value}"))
}

/// The hint as a sentence. `depends`: whether it applies is not known.
fn advice(hint: &Hint, depends: bool, in_force: &InForce<'_>) -> Advice {
    let mut condition = String::new();
    if let Some((name, value)) = hint.only_with.filter(|_| depends) {
        condition = format!(", if {name} is {value}");
    } else if let Some(Variable { name, option, value, .. }) = hint.variable {
        condition = match in_force.value(name) {
            // A program may set it later, as vLLM does.
            Known::No | Known::NotSet if value.is_some() => ", unless in force".to_owned(),
            Known::Set(now) if option.is_none() => format!(" (it was {} at the start)", OneLine(now)),
            _ => condition,
        };
    }
    let text = match hint.setting {
        Some(setting) => format!("{}: {setting}{condition}", hint.text),
        None => format!("{}{condition}", hint.text),
    };
    let short = format!("{}{condition}", hint.setting.unwrap_or(hint.text));
    Advice { text, short, setting: hint.setting, versions: hint.versions, sources: hint.sources }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Setting;
    use crate::settings::NAMES;

    /// The tracer reads every variable that advice depends on; sentences fit the first screen; all but our own have a source.
    #[test]
    fn the_table_is_sound() {
        for hint in HINTS {
            let shown = hint.setting.unwrap_or(hint.text);
            assert!((1..=66).contains(&shown.chars().count()), "{shown}");
            assert!(hint.text.starts_with(char::is_uppercase) && !hint.text.ends_with('.'), "{}", hint.text);
            if let Some(Variable { name, value, .. }) = hint.variable {
                assert!(NAMES.contains(&name), "{name}");
                let setting = hint.setting.expect("a variable is a setting");
                assert!(setting.starts_with(name) && value.is_none_or(|value| setting.ends_with(value)), "{setting}");
                assert!(!hint.sources.is_empty() && hint.versions.is_some(), "{setting}");
            }
            assert!(hint.sources.iter().all(|source| source.starts_with("https://")), "{}", hint.text);
        }
    }

    fn texts(hints: &[Hint], settings: Option<&[(&'static str, &str)]>) -> (Vec<String>, Vec<String>) {
        let owned: Option<Vec<_>> =
            settings.map(|all| all.iter().map(|&(name, value)| Setting { name, value: value.to_owned() }).collect());
        let Advised { advice, in_force } = advise(hints, &InForce(owned.as_deref()));
        (advice.into_iter().map(|advice| advice.text).collect(), in_force)
    }

    /// Advice depends on the settings at the start: a program may have set more itself. A setting in force is not
    /// advised, nor one that conflicts with it.
    #[test]
    fn what_is_in_force_is_not_advised() {
        let pieces = [EXPANDABLE, MAX_SPLIT];
        let (unknown, _) = texts(&pieces, None);
        assert!(
            unknown[0].ends_with(": PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, unless in force"),
            "{unknown:?}"
        );
        assert_eq!(unknown.len(), 2);
        let (free, _) = texts(&pieces, Some(&[]));
        assert_eq!(free, unknown);
        let conf = "garbage_collection_threshold:0.8, expandable_segments:True";
        let (none, in_force) = texts(&pieces, Some(&[("PYTORCH_NPU_ALLOC_CONF", conf)]));
        assert_eq!(none, [""; 0]);
        assert_eq!(
            in_force,
            ["PYTORCH_NPU_ALLOC_CONF=expandable_segments:True was set at the start: it is not the reason"]
        );
    }

    /// Level 1 is no advice if it is in force: by default, or set. If that is unknown, the condition is in the
    /// sentence.
    #[test]
    fn advice_depends_on_another_value() {
        let asked = |settings| texts(&[TASK_QUEUE_1], settings).0;
        assert_eq!(asked(Some(&[])), [""; 0]);
        assert_eq!(asked(Some(&[("TASK_QUEUE_ENABLE", "1")])), [""; 0]);
        assert_eq!(asked(Some(&[("TASK_QUEUE_ENABLE", "2")])).len(), 1);
        assert!(asked(None)[0].ends_with("TASK_QUEUE_ENABLE=1, if TASK_QUEUE_ENABLE is 2"), "{:?}", asked(None));
    }

    /// A value that depends on the program is shown beside the advice.
    #[test]
    fn a_value_is_shown() {
        let (shown, _) = texts(&[HCCL_BUFFERS], Some(&[("HCCL_BUFFSIZE", "1024")]));
        assert!(shown[0].ends_with("HCCL_BUFFSIZE (it was 1024 at the start)"), "{shown:?}");
    }
}
