//! Line tables: which line an instruction belongs to. Three formats, by version.

/// Line of the instruction of a frame: `last` in the unit of its version
/// ([`PythonFrame`](memscope_common::PythonFrame)), `first` the line of the `def`. `None`: the compiler gave it no
/// line, or the table ends before it.
#[must_use]
pub fn line(version: u8, table: &[u8], first: u32, last: u32) -> Option<u32> {
    let last = i64::from(last.cast_signed());
    if last < 0 {
        // The code has not begun.
        return Some(first);
    }
    let line = match version {
        ..=9 => Some(of_increments(table, first.into(), last)),
        10 => of_pairs(table, first.into(), last * 2),
        11.. => of_locations(table, first.into(), last),
    };
    line.and_then(|line| u32::try_from(line).ok())
}

/// Up to 3.9: increments of address and line. A line continues until an increment leads beyond the address.
fn of_increments(table: &[u8], mut line: i64, wanted: i64) -> i64 {
    let mut address = 0;
    for [bytes, lines] in table.as_chunks().0 {
        address += i64::from(*bytes);
        if address > wanted {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

/// 3.10: numbers of bytes of code, each with the increment of the line.
fn of_pairs(table: &[u8], mut line: i64, wanted: i64) -> Option<i64> {
    const NO_LINE: i8 = -128;
    let mut end = 0;
    for [bytes, lines] in table.as_chunks().0 {
        end += i64::from(*bytes);
        let lines = lines.cast_signed();
        if lines != NO_LINE {
            line += i64::from(lines);
        }
        if wanted < end {
            return (lines != NO_LINE).then_some(line);
        }
    }
    None
}

/// From 3.11 on: entries of several bytes; only the first byte of each has its highest bit set. It contains the number
/// of two-byte units of code, and the form of the line, which follows (with columns, unused here).
fn of_locations(table: &[u8], mut line: i64, wanted: i64) -> Option<i64> {
    const STARTS: u8 = 0x80;
    let mut end = 0;
    let mut rest = table;
    while let [head, tail @ ..] = rest {
        let len = tail.iter().position(|byte| byte & STARTS != 0).unwrap_or(tail.len());
        let (entry, next) = tail.split_at(len);
        rest = next;
        end += (i64::from(head & 7) + 1) * 2;
        let form = head >> 3 & 15;
        line += match form {
            // Lines and columns, or lines alone.
            13 | 14 => signed(entry),
            // One to two lines further.
            10..=12 => i64::from(form) - 10,
            _ => 0,
        };
        if wanted < end {
            return (form != 15).then_some(line);
        }
    }
    None
}

/// A number in groups of six bits, lowest first; its own lowest bit is the sign. More bits than a line has are dropped.
fn signed(bytes: &[u8]) -> i64 {
    const MORE: u8 = 0x40;
    let mut value = 0_i64;
    for (byte, shift) in bytes.iter().zip((0..36).step_by(6)) {
        value |= i64::from(byte & 0x3f) << shift;
        if byte & MORE == 0 {
            break;
        }
    }
    if value & 1 == 0 { value >> 1 } else { -(value >> 1) }
}

#[cfg(test)]
mod tests;
