//! Cells of rows as numbers, and the faults of cells that are none.

use crate::model::Device;

/// Placeholder of an unknown value.
pub(super) const NOT_AVAILABLE: &str = "N/A";

/// The fault of a row, and its column.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) column: &'static str,
    pub(super) what: String,
}

/// A cell that should be a number: databases have numbers, the rest is text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Digits<'a> {
    Text(&'a str),
    Number(u64),
}

impl Digits<'_> {
    /// The number; a text has to spell it strictly.
    pub(super) fn number(self, column: &'static str) -> Result<u64, Fault> {
        match self {
            Self::Text(text) => number(column, text),
            Self::Number(number) => Ok(number),
        }
    }
}

/// A decimal number, if these digits are one.
pub(super) fn plain_number(digits: &[u8]) -> Option<u64> {
    // This number of digits cannot be too large.
    if matches!(digits.len(), 1..=19) {
        let add = |(number, most): (u64, u8), &byte: &u8| {
            let digit = byte.wrapping_sub(b'0');
            (number.wrapping_mul(10).wrapping_add(u64::from(digit)), most.max(digit))
        };
        let (number, most) = digits.iter().fold((0, 0), add);
        return (most < 10).then_some(number);
    }
    let add = |number: u64, &byte: &u8| {
        byte.is_ascii_digit().then(|| number.checked_mul(10)?.checked_add(u64::from(byte - b'0'))).flatten()
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// A strict decimal number.
pub(super) fn number(column: &'static str, text: &str) -> Result<u64, Fault> {
    plain_number(text.as_bytes()).ok_or_else(|| not(column, text, "a decimal number"))
}

/// `N/A` is an unknown process.
pub(super) fn process_number(column: &'static str, cell: Digits<'_>) -> Result<u32, Fault> {
    if matches!(cell, Digits::Text(NOT_AVAILABLE)) {
        return Ok(0);
    }
    let number = cell.number(column)?;
    u32::try_from(number).map_err(|_| not(column, &number.to_string(), "a process number"))
}

pub(super) fn device(cell: Digits<'_>) -> Result<Device, Fault> {
    const COLUMN: &str = "Device Id";
    match cell {
        Digits::Text("cpu" | "host") => Ok(Device::Cpu),
        Digits::Text(NOT_AVAILABLE | "" | "9999") | Digits::Number(9999) => Ok(Device::None),
        cell => {
            let number = cell.number(COLUMN)?;
            u32::try_from(number).map(Device::Npu).map_err(|_| not(COLUMN, &number.to_string(), "a device number"))
        }
    }
}

pub(super) fn pointer(text: &str) -> Result<Option<u64>, Fault> {
    if text == NOT_AVAILABLE || text.is_empty() {
        return Ok(None);
    }
    address("Ptr", text).map(Some)
}

/// `0x` and at most 16 hexadecimal digits, or a decimal number.
pub(super) fn address(column: &'static str, text: &str) -> Result<u64, Fault> {
    let digit = |number: u64, byte: u8| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        // Leading zeros are allowed.
        (number >> 60 == 0).then_some(number << 4 | u64::from(digit))
    };
    let number = match text.strip_prefix("0x") {
        Some("") => None,
        Some(digits) => digits.bytes().try_fold(0, digit),
        None => plain_number(text.as_bytes()),
    };
    number.ok_or_else(|| not(column, text, "an address"))
}

pub(super) fn not(column: &'static str, text: &str, wanted: &str) -> Fault {
    let start: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(40).is_some() { "…" } else { "" };
    Fault { column, what: format!("`{start}{more}` is not {wanted}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_strict() {
        assert_eq!(number("ID", "18446744073709551615"), Ok(u64::MAX));
        for bad in ["", "-1", "+1", " 1", "1.0", "0x1", "18446744073709551616", "１"] {
            assert!(number("ID", bad).is_err(), "{bad}");
        }
        assert_eq!(address("Ptr", "0x000012c041400000"), Ok(0x12c0_4140_0000));
        // Other tools write them like this.
        assert_eq!(address("Ptr", "20616937734144"), Ok(0x12c0_4140_0000));
        assert_eq!(address("Ptr", "18446744073709551615"), Ok(u64::MAX));
        for bad in ["", "-12", "12c0", "18446744073709551616", "0x", "0xg", "0x+1", "0x12345678123456781"] {
            assert!(address("Ptr", bad).is_err(), "{bad}");
        }
        assert_eq!(
            (device(Digits::Text("cpu")), device(Digits::Text("7")), device(Digits::Text("N/A"))),
            (Ok(Device::Cpu), Ok(Device::Npu(7)), Ok(Device::None))
        );
        assert_eq!((device(Digits::Number(7)), device(Digits::Number(9999))), (Ok(Device::Npu(7)), Ok(Device::None)));
        assert!(device(Digits::Number(1 << 32)).is_err());
        assert_eq!(plain_number(b"9999999999999999999"), Some(9_999_999_999_999_999_999));
        assert_eq!((plain_number(b"000000000000000000000001"), plain_number(b"12a")), (Some(1), None));
        assert!(device(Digits::Text("npu0")).is_err());
    }
}
