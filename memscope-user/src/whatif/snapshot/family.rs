//! Which allocator a snapshot is of, and its settings.

use super::pickle::{Pickle, Value, number};
use crate::whatif::settings::{Family, Settings};

/// Where snapshots of `PyTorch` have their settings, but for old ones. `torch_npu` has no such entry: wheels of 2.9.0 and 2.14.0 were looked at.
const SETTINGS: &str = "allocator_settings";
/// The settings in there as they were given, under the names of the variable.
const CONFIGURATIONS: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// The allocator: CUDA's where the snapshot has settings, or a block with less room behind what was asked for than `torch_npu`'s pad.
pub(super) fn family(pickle: &Pickle<'_>) -> Family {
    let is_cuda = pickle.get(pickle.root, SETTINGS).is_some() || has_unpadded(pickle);
    if is_cuda { Family::Cuda } else { Family::Npu }
}

fn has_unpadded(pickle: &Pickle<'_>) -> bool {
    let list = |value: Option<Value>| value.and_then(|value| pickle.list(value)).unwrap_or(&[]);
    let pad_bytes = Settings::of(Family::Npu).pad_bytes;
    let segments = list(pickle.get(pickle.root, "segments")).iter();
    segments.flat_map(|segment| list(pickle.get(*segment, "blocks"))).any(|block| {
        let field = |name: &str| pickle.get(*block, name);
        let is_used = field("state").and_then(|state| pickle.text(state)).is_some_and(|state| state != "inactive");
        let [size, asked] = ["size", "requested_size"].map(|name| field(name).and_then(number).unwrap_or(0));
        is_used && asked > 0 && size.checked_sub(asked).is_some_and(|room| room < pad_bytes)
    })
}

/// The settings that were in force.
pub(super) fn configuration(pickle: &Pickle<'_>) -> Option<String> {
    let settings = pickle.get(pickle.root, SETTINGS)?;
    let text = CONFIGURATIONS.iter().find_map(|name| pickle.get(settings, name));
    text.and_then(|text| pickle.text(text)).map(str::to_owned)
}
