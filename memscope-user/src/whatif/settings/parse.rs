//! A configuration as in the environment: `KEY:VALUE,KEY:[…],…`. Values that the allocator refuses are refused with its
//! reason.

use std::fmt;

use super::{Family, KEYS, ROUND_CLASSES, Release, Settings};
use crate::printable::OneLine;

/// Read before all others.
const LARGE_SEGMENT: &str = "large_segment_size_mb";
/// Longest configuration that is read.
const MAX_BYTES: usize = 4096;

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", OneLine(&self.0))
    }
}

impl std::error::Error for Refused {}

impl Settings {
    /// The settings of a configuration.
    ///
    /// # Errors
    ///
    /// Values that the allocator of that release refuses, or does not know.
    pub fn parse(text: &str, release: Release) -> Result<Self, Refused> {
        Self { release, ..Self::of(release.family()) }.with(text)
    }

    /// The settings after a script has set others: in `CachingAllocatorConfig::parseArgs`, three return to their defaults, the others stay.
    ///
    /// # Errors
    ///
    /// As [`Settings::parse`]. What releases know is not asked: the script's has taken it.
    pub fn changed(&self, text: &str) -> Result<Self, Refused> {
        let plain = Self::of(self.release.family());
        let kept = Self {
            release: plain.release,
            max_split_bytes: plain.max_split_bytes,
            gc_threshold: plain.gc_threshold,
            round_divisions: plain.round_divisions,
            ..self.clone()
        };
        Ok(Self { release: self.release, ..kept.with(text)? })
    }

    fn with(self, text: &str) -> Result<Self, Refused> {
        let mut settings = self;
        if text.len() > MAX_BYTES {
            return Err(Refused(format!("the settings have {} bytes; {MAX_BYTES} is the most", text.len())));
        }
        let (mut entries, mut rest) = (Vec::new(), text.trim());
        while !rest.is_empty() {
            let (key, value, next) = entry(rest)?;
            entries.push((key, value));
            rest = next;
        }
        // Others have to be at least as large as a segment, so PyTorch reads that first.
        entries.sort_by_key(|(key, _)| settings.release.family() == Family::Cuda && *key != LARGE_SEGMENT);
        for (key, value) in entries {
            settings.set(key, value)?;
        }
        settings.check()?;
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Refused> {
        let release = self.release;
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let known: Vec<&str> = KEYS.iter().filter(|key| key.is_known(release)).map(|key| key.name).collect();
            return Err(Refused(format!("`{name}` is not a setting; there are {}", known.join(", "))));
        };
        if !key.is_known(release) {
            return Err(Refused(match (release.family(), key.since(release.family())) {
                (Family::Npu, Some(since)) => {
                    format!("{name} is not known in torch_npu {}: it came with {}", release.name(), since.name())
                }
                (Family::Npu, None) => format!("torch_npu has no {name}: it is of CUDA's allocator"),
                (Family::Cuda, Some(since)) => {
                    format!("{name} is not known in {}: {} has it", release.name(), since.name())
                }
                (Family::Cuda, None) => format!("CUDA's allocator has no {name}: it is of torch_npu"),
            }));
        }
        (key.set)(self, value).map_err(|reason| Refused(format!("{name}:{value}: {name} {reason}")))
    }

    /// Refuses conflicting settings.
    fn check(&self) -> Result<(), Refused> {
        if self.release.family() != Family::Npu || !self.expandable {
            return Ok(());
        }
        let other = match (self.max_split_bytes != u64::MAX, self.gc_threshold > 0.0) {
            (true, _) => "max_split_size_mb",
            (_, true) => "garbage_collection_threshold",
            _ => return Ok(()),
        };
        Err(Refused(format!("expandable_segments:True excludes {other}: torch_npu ends with an error; leave one out")))
    }

    /// Settings without effect.
    #[must_use]
    pub fn without_effect(&self, fraction: Option<f64>) -> Option<&'static str> {
        (self.gc_threshold > 0.0 && fraction.or(self.fraction).is_none())
            .then_some("garbage_collection_threshold does nothing without a memory fraction: give --fraction")
    }
}

/// First key and value, and the rest.
fn entry(text: &str) -> Result<(&str, &str, &str), Refused> {
    let missing = || Refused(format!("`{text}` has no value: write KEY:VALUE"));
    let (key, behind) = text.split_once(':').ok_or_else(missing)?;
    let behind = behind.trim_start();
    let (value, next) = if behind.starts_with('[') {
        let end = behind.find(']').ok_or_else(|| Refused(format!("`{text}` has a list without `]`")))?;
        let next = behind[end + 1..].trim_start();
        (&behind[..=end], next.strip_prefix(',').unwrap_or(next))
    } else {
        behind.split_once(',').unwrap_or((behind, ""))
    };
    Ok((key.trim(), value.trim(), next.trim_start()))
}

pub(super) fn number(value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| "has to be a whole number".to_owned())
}

pub(super) fn number_from(value: &str, least: u64, most: u64) -> Result<u64, String> {
    let wanted = || {
        let top = u64::MAX >> 20;
        if most >= top { format!("has to be at least {least}") } else { format!("has to be {least} to {most}") }
    };
    let number = number(value)?;
    if (least..=most).contains(&number) { Ok(number) } else { Err(wanted()) }
}

pub(super) fn threshold(value: &str) -> Result<f64, String> {
    let part: f64 = value.parse().map_err(|_| "has to be a number".to_owned())?;
    if part > 0.0 && part < 1.0 { Ok(part) } else { Err("has to be greater than 0 and less than 1".to_owned()) }
}

/// A part from 0 to 1.
pub(super) fn part(value: &str) -> Result<f64, String> {
    let part: Option<f64> = value.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| "has to be 0 to 1".to_owned())
}

pub(super) fn truth(value: &str) -> Result<bool, String> {
    match value {
        "True" => Ok(true),
        "False" => Ok(false),
        _ => Err("has to be True or False".to_owned()),
    }
}

/// One number for all classes, or a list of `MB:NUMBER` with `>` for larger ones.
pub(super) fn divisions(value: &str) -> Result<[u64; ROUND_CLASSES], String> {
    let Some(list) = value.strip_prefix('[').and_then(|list| list.strip_suffix(']')) else {
        return Ok([power(value)?; ROUND_CLASSES]);
    };
    let mut found = [0; ROUND_CLASSES];
    let mut above = 0;
    for pair in list.split(',') {
        let (bound, parts) = pair.split_once(':').ok_or("has to be a list of MB:NUMBER")?;
        let (bound, parts) = (bound.trim(), power(parts.trim())?);
        if bound == ">" {
            found[above..].fill(parts);
            continue;
        }
        // Both allocators take the number itself for the class, without a unit.
        let class = power(bound)?.checked_ilog2().ok_or("has to be of powers of two")? as usize;
        let class = class.min(ROUND_CLASSES - 1);
        if above == 0 {
            found[..class].fill(parts);
        }
        found[class] = parts;
        above = class + 1;
    }
    Ok(found)
}

pub(super) fn power(value: &str) -> Result<u64, String> {
    let number = number(value)?;
    if number == 0 || number.is_power_of_two() { Ok(number) } else { Err("has to be a power of two".to_owned()) }
}
