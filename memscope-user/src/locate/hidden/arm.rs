//! aarch64.
//!
//! Instructions are aligned words, so scans see them all. An unknown instruction is assumed to overwrite every register
//! that it could name; an overestimate only finds less.

use super::op::{Flow, Op, Read};
use crate::{
    locate::site::arm::{branch_distance, words},
    os::elf::dynamic::Mapping,
};

/// `x0` to `x5`.
pub(super) const ARGUMENTS: [u8; 6] = [0, 1, 2, 3, 4, 5];
/// `sp`, and where that makes no sense, `xzr`.
pub(super) const STACK_POINTER: u8 = 31;

/// `x0` to `x18` and the link register: a called function need not keep them.
const CALL_CLOBBERS: u32 = 0x4007_ffff;

/// Most instructions between the computation of a page and the load.
const MAX_DISTANCE: usize = 1024;

pub(super) fn ops(bytes: &[u8], start: u64) -> Vec<Op> {
    words(bytes).map(|(offset, word)| op(start.wrapping_add(u64::from(offset)), word)).collect()
}

pub(super) fn loads(bytes: &[u8], start: u64, slot: u64) -> Vec<u64> {
    load_sites(&Mapping { vaddr: start, bytes }, slot).collect()
}

/// `adrp` of the slot's page and `ldr` of the rest, with nothing between that would change the register.
pub(super) fn load_sites<'m>(mapping: &'m Mapping<'_>, slot: u64) -> impl Iterator<Item = u64> + use<'m> {
    let (vaddr, bytes) = (mapping.vaddr, mapping.bytes);
    // 64 bits, unsigned offset, in units of 8.
    let low = (slot & 0xfff) as u32;
    let load = 0xf940_0000 | (low / 8) << 10;
    let hits = words(bytes).filter(move |(_, word)| low.is_multiple_of(8) && word & 0xffff_fc00 == load);
    hits.filter(move |(offset, word)| page_before(vaddr, bytes, *offset, field(*word, 5)) == Some(slot & !0xfff))
        .map(move |(offset, _)| vaddr.wrapping_add(u64::from(offset)))
}

/// `bl` and `b`.
pub(super) fn call_sites<'m>(mapping: &'m Mapping<'_>, target: u64) -> impl Iterator<Item = u64> + use<'m> {
    let distance = target.wrapping_sub(mapping.vaddr);
    let hits = words(mapping.bytes).filter(move |(offset, word)| {
        let to = branch_distance(*word).map(|far| u64::from(*offset).wrapping_add_signed(far));
        is_far_branch(*word) && to == Some(distance)
    });
    hits.map(|(offset, _)| mapping.vaddr.wrapping_add(u64::from(offset)))
}

/// The page that `register` holds at `offset`, if the instruction that last wrote it is an `adrp`.
fn page_before(vaddr: u64, bytes: &[u8], offset: u32, register: u32) -> Option<u64> {
    let (before, _) = bytes.get(..offset as usize)?.as_chunks::<4>();
    let back = before.iter().enumerate().rev().take(MAX_DISTANCE).map(|(at, word)| (at, u32::from_le_bytes(*word)));
    let (at, word) = back.into_iter().find(|(_, word)| op(0, *word).clobbers & 1 << register != 0)?;
    (word & 0x9f00_0000 == 0x9000_0000).then(|| page(vaddr.wrapping_add(4 * at as u64), word))
}

/// The page that an `adrp` at `address` computes.
fn page(address: u64, word: u32) -> u64 {
    let pages = (word >> 5 & 0x7_ffff) << 2 | word >> 29 & 3;
    let signed = i64::from((pages << 11).cast_signed() >> 11);
    (address & !0xfff).wrapping_add_signed(signed << 12)
}

fn field(word: u32, low_bit: u32) -> u32 {
    word >> low_bit & 0x1f
}

/// `b` and `bl`.
fn is_far_branch(word: u32) -> bool {
    word & 0x7c00_0000 == 0x1400_0000
}

fn op(address: u64, word: u32) -> Op {
    let (read, written) = access(word);
    let flow = flow(address, word);
    let called = if matches!(flow, Flow::Call(_)) { CALL_CLOBBERS } else { 0 };
    Op { address, flow, read, copy: copy(word), clobbers: called | written }
}

fn flow(address: u64, word: u32) -> Flow {
    let target = branch_distance(word).map(|distance| address.wrapping_add_signed(distance));
    match (word, target) {
        (w, Some(target)) if is_far_branch(w) && w >> 31 == 1 => Flow::Call(Some(target)),
        (w, Some(target)) if is_far_branch(w) => Flow::Jump(target),
        (_, Some(target)) => Flow::Branch(target),
        // blr, with its authenticated kin.
        (w, _) if w & 0xfee0_0000 == 0xd620_0000 => Flow::Call(None),
        // br, ret, eret and their kin; brk and udf.
        (w, _) if w & 0xfe00_0000 == 0xd600_0000 || w & 0xffe0_001f == 0xd420_0000 || w >> 16 == 0 => Flow::Leave,
        _ => Flow::Next,
    }
}

/// `mov xd, xm`.
fn copy(word: u32) -> Option<(u8, u8)> {
    (word & 0xffe0_ffe0 == 0xaa00_03e0).then(|| (field(word, 0) as u8, field(word, 16) as u8))
}

/// The read of an instruction relative to a register, and the registers that it may write.
fn access(word: u32) -> (Option<Read>, u32) {
    let [first, base, second, third] = [0, 5, 10, 16].map(|low_bit| field(word, low_bit));
    let bits = |registers: &[u32]| registers.iter().fold(0, |mask, n| mask | 1 << n);
    let vector = word >> 26 & 1 == 1;
    let read = |offset, size_bytes| Some(Read { base: base as u8, offset, size_bytes });
    match word {
        // Pairs.
        w if w & 0x3a00_0000 == 0x2800_0000 => {
            let loads = w >> 22 & 1 == 1;
            let shift = if vector { 2 + (w >> 30) } else { 2 + (w >> 31) };
            let offset = i64::from((w << 10).cast_signed() >> 25) << shift;
            // Before and after, the base itself moves.
            let moved = if w >> 23 & 1 == 1 { bits(&[base]) } else { 0 };
            let plain = loads && moved == 0;
            let targets = if loads && !vector { bits(&[first, second]) } else { 0 };
            (if plain { read(offset, 2 << shift) } else { None }, targets | moved)
        }
        // One register at an offset scaled by its size.
        w if w & 0x3b00_0000 == 0x3900_0000 => {
            let (shift, loads) = scale(w, vector);
            let targets = if loads && !vector { bits(&[first]) } else { 0 };
            (if loads { read(i64::from(w >> 10 & 0xfff) << shift, 1 << shift) } else { None }, targets)
        }
        // One register at an offset in bytes.
        w if w & 0x3b20_0c00 == 0x3800_0000 => {
            let (shift, loads) = scale(w, vector);
            let targets = if loads && !vector { bits(&[first]) } else { 0 };
            let offset = i64::from((w << 11).cast_signed() >> 23);
            (if loads { read(offset, 1 << shift) } else { None }, targets)
        }
        // `ldar`: how atomic pointers are read.
        w if w & 0x3fff_fc00 == 0x08df_fc00 => (read(0, 1 << (w >> 30)), bits(&[first])),
        // Branches, compares and tests of conditions write no general register; `blr` and `bl` are calls.
        w if branch_distance(w).is_some() || w & 0xfe00_0000 == 0xd600_0000 => (None, 0),
        // All other memory access: some write three registers, or move the base.
        w if w & 0x0a00_0000 == 0x0800_0000 => (None, bits(&[first, base, second, third])),
        _ => (None, bits(&[first])),
    }
}

/// Logarithm of the size, and whether it is a load.
fn scale(word: u32, vector: bool) -> (u32, bool) {
    let (size, kind) = (word >> 30, word >> 22 & 3);
    match (vector, kind) {
        (true, 2 | 3) => (4, kind == 3),
        // `prfm` looks like one, and loads nothing of use.
        (false, _) if size == 3 && kind == 2 => (3, false),
        _ => (size, kind != 0),
    }
}
