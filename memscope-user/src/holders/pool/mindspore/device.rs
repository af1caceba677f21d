//! The device of a process of `MindSpore`, which has one: what `set_device` says, else `set_context` and the environment.

use super::super::exported::{self, Exported};
use crate::holders::source::Source;

/// `device type, number, whether that is the default` (`DeviceManagerConf`, 2.7.0 to 2.10.0).
pub(super) const SET: Exported = ("libmindspore_core", "_ZN9mindspore17DeviceManagerConf9instance_E");
/// `MsContext`: flags, seven numbers of 32 bits, the first of which is the device, two floating-point numbers, texts.
const CONTEXT: Exported = ("libmindspore_core", "_ZN9mindspore9MsContext13inst_context_E");
const CONTEXT_BYTES: usize = 256;
/// From the device's number to the end of the floating-point numbers.
const NUMBERS: usize = 9;
const MAX_DEVICES: u32 = 512;

pub(super) fn number(source: &dyn Source) -> Option<u32> {
    /// `DeviceType` of Ascend.
    const ASCEND: u32 = 2;
    let set = halves(source, SET, 12)?;
    let number = match set[..] {
        [ASCEND, number, default] if default as u8 == 0 => number,
        [ASCEND, _, _] => of_context(&halves(source, CONTEXT, CONTEXT_BYTES)?)?,
        _ => return None,
    };
    (number < MAX_DEVICES).then_some(number)
}

/// What an exported pointer points at.
fn halves(source: &dyn Source, pointer: Exported, bytes: usize) -> Option<Vec<u32>> {
    let variable = exported::variable(source, &[pointer])?;
    let object = source.read_pieces(&[variable], 8).first_chunk().copied().map(u64::from_le_bytes)?;
    let bytes = (object != 0).then(|| source.read_pieces(&[object], bytes))?;
    Some(bytes.as_chunks().0.iter().map(|half| u32::from_le_bytes(*half)).collect())
}

/// The number in front of the others: the texts behind them begin with a pointer, in front of which padding may be, with any contents.
fn of_context(halves: &[u32]) -> Option<u32> {
    /// The upper half of a pointer is none of the numbers, which are small.
    const LOWEST: u32 = 1 << 12;
    /// Flags come first.
    const FIRST: usize = 16;
    let is_pointer = |at: &usize| matches!(halves.get(*at..at + 2), Some([_, LOWEST..0x10000]));
    let texts = (FIRST..halves.len()).step_by(2).find(is_pointer)?;
    let fitting = [texts, texts - 1].map(|end| numbers_before(halves, end));
    match fitting {
        [Some(number), None] | [None, Some(number)] => Some(number),
        _ => None,
    }
}

/// The first of the numbers that end here, if the last two are the largest memory of a device and the size of a block, in GiB.
fn numbers_before(halves: &[u32], end: usize) -> Option<u32> {
    /// Small whole numbers are far smaller as floating-point ones.
    const GIB: std::ops::RangeInclusive<f32> = 0.001..=1024.0;
    let numbers = halves.get(end.checked_sub(NUMBERS)?..end)?;
    let [most, block] = [NUMBERS - 2, NUMBERS - 1].map(|at| f32::from_bits(numbers[at]));
    (GIB.contains(&most) && GIB.contains(&block)).then(|| numbers[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers behind flags: the device, six more, then 1024.0 and 1.0.
    fn context(device: u32, behind: &[u32]) -> Vec<u32> {
        let mut halves = vec![0x0001_0100, 0, u32::MAX, 0];
        halves.resize(21, 0);
        halves.extend([device, 2, 0, 0, 1000, 1, 900, 1024.0_f32.to_bits(), 1.0_f32.to_bits()]);
        halves.extend(behind);
        halves.extend([0x5555_1000, 0x7f10, 0x5555_2000, 0x7f10]);
        halves
    }

    /// With and without padding; what is in it does not count, and where it looks like a size nothing is known.
    #[test]
    fn devices_of_contexts() {
        assert_eq!(of_context(&context(3, &[])), Some(3));
        let without = [&[0, 0, 0][..], &context(5, &[])[4..]].concat();
        assert_eq!(without.len() % 2, 1);
        for (padding, expected) in [(0, Some(5)), (0x2e79_7c6d, Some(5)), (2.0_f32.to_bits(), None)] {
            let padded = [&[0, 0, 0][..], &context(5, &[padding])[4..]].concat();
            assert_eq!(of_context(&padded), expected, "{padding:#x}");
        }
        assert_eq!((of_context(&[]), of_context(&[0x5555_1000, 0x7f10])), (None, None));
    }
}
