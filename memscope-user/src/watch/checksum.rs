//! The reference's checksum (contract §5.3): a CRC of 64 bits. Its table is made by shifting to the right with the
//! constant of ECMA-182 unreversed, so it equals no published CRC.

/// Tables for bytes with this many others behind them: 8 bytes at a time.
const LANES: usize = 8;
const CONSTANT: u64 = 0x42F0_E1EB_A9EA_3693;
static TABLES: [[u64; 256]; LANES] = tables();

const fn tables() -> [[u64; 256]; LANES] {
    let mut tables = [[0; 256]; LANES];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ CONSTANT };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut lane = 1;
    while lane < LANES {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[lane - 1][byte];
            tables[lane][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        lane += 1;
    }
    tables
}

/// Checksum of bytes that come in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl Checksum {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<LANES>();
        for chunk in whole {
            let word = self.0 ^ u64::from_le_bytes(*chunk);
            let lanes = word.to_le_bytes().into_iter().zip(TABLES.iter().rev());
            self.0 = lanes.fold(0, |crc, (byte, table)| crc ^ table[usize::from(byte)]);
        }
        for byte in rest {
            self.0 = self.0 >> 8 ^ TABLES[0][usize::from(self.0 as u8 ^ byte)];
        }
    }

    /// Of all bytes so far.
    #[must_use]
    pub const fn value(self) -> u64 {
        !self.0
    }
}

/// Of these bytes.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut checksum = Checksum::default();
    checksum.update(bytes);
    checksum.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out bit by bit, without a table, by another program.
    #[test]
    fn vectors() {
        let bytes: Vec<u8> = (0..=255).collect();
        let pattern: Vec<u8> = (0..1000_u32).map(|at| (at * 7 + 3) as u8).collect();
        for (bytes, expected) in [
            (&b""[..], 0),
            (b"\0", 0xeb16_d7a7_87b7_faa0),
            (b"a", 0x8561_76de_4cff_4e76),
            (b"123456789", 0xb868_83e6_fa71_0a9f),
            (&bytes, 0xc484_5563_3bde_63a5),
            (&[0; 4096], 0xaadc_575c_1027_6478),
            (&pattern, 0xac76_5f59_cfb6_f45b),
        ] {
            assert_eq!(checksum(bytes), expected, "{} bytes", bytes.len());
        }
    }

    /// Make sure that it does not matter how the bytes are cut.
    #[test]
    fn parts_give_the_same() {
        let pattern: Vec<u8> = (0..1000_u32).map(|at| (at * 7 + 3) as u8).collect();
        for cut in 0..40 {
            let mut parts = Checksum::default();
            pattern.chunks(cut + 1).for_each(|part| parts.update(part));
            assert_eq!(parts.value(), 0xac76_5f59_cfb6_f45b, "parts of {} bytes", cut + 1);
        }
    }
}
