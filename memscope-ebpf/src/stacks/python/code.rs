//! Code objects: their fingerprints, which distinguish objects that lived at one address in turn.

use memscope_common::{
    PythonLayout, StackEnd,
    python::{
        CODE_FROM, CODE_WORDS, LAYOUT_FREES, LAYOUT_TEXTS, LINES_WORD, TEXT_CHARS, TEXT_FROM, TEXT_WORDS, mix,
        mix_code, mix_text, text_bytes, text_room,
    },
};

use super::scratch::{Known, Scratch};
use crate::{
    user_memory::copy_bytes,
    verifier::{element, element_mut, masked},
};

/// Validity of the cached fingerprints: the time between two frees of code objects, where those are probed; else one
/// walk, during which frames keep their code alive.
#[inline(always)]
pub(super) fn epoch(walks: u64, tgid: u64, layout: &PythonLayout) -> u64 {
    if layout.flags & LAYOUT_FREES == 0 {
        return walks;
    }
    mix(mix(tgid, layout.space), layout.freed_ns)
}

/// Gets the fingerprint of a code object.
#[inline(always)]
pub(super) fn identify(scratch: &mut Scratch, layout: &PythonLayout, code: u64) -> Result<(), StackEnd> {
    // Code objects lie at multiples of 16.
    let at = code >> 4 ^ code >> 13;
    let known = *element(&scratch.known, at);
    if known.code == code && known.epoch == scratch.epoch {
        scratch.fingerprint = known.fingerprint as u32;
        return Ok(());
    }
    scratch.pointer = code;
    if !read(scratch, layout) {
        return Err(StackEnd::Fault);
    }
    if scratch.code[0] != layout.code_type {
        return Err(StackEnd::BadState);
    }
    *element_mut(&mut scratch.known, at) =
        Known { code, epoch: scratch.epoch, fingerprint: scratch.fingerprint.into() };
    Ok(())
}

/// Reads the code object at hand, and computes its fingerprint. Returns whether it was readable.
#[inline(always)]
pub(super) fn read(scratch: &mut Scratch, layout: &PythonLayout) -> bool {
    let from = scratch.pointer.wrapping_add(CODE_FROM.into());
    // SAFETY: the array has more words.
    if !unsafe { copy_bytes((&raw mut scratch.code).cast(), 8 * CODE_WORDS as u64, from) } {
        return false;
    }
    // SAFETY: as above.
    let words = unsafe { &*(&raw const scratch.code).cast::<[u64; CODE_WORDS]>() };
    let mut hash = mix_code(0, words, layout.code_words);
    if layout.flags & LAYOUT_TEXTS != 0 {
        hash = mix_texts(scratch, layout, hash);
    }
    scratch.fingerprint = hash as u32;
    true
}

/// Adds the texts and the line table of the code object at hand to a hash.
#[inline(always)]
fn mix_texts(scratch: &mut Scratch, layout: &PythonLayout, hash: u64) -> u64 {
    read_text(scratch, layout.name);
    let hash = mix_text::<TEXT_CHARS>(hash, &scratch.text, text_bytes(&scratch.text));
    // Functions that call each other are often of one file.
    let file = scratch.code_word(layout.file);
    if file != scratch.file {
        read_text(scratch, layout.file);
        scratch.file_hash = mix_text::<TEXT_CHARS>(0, &scratch.text, text_bytes(&scratch.text));
        scratch.file = file;
    }
    let hash = mix(hash, scratch.file_hash);
    read_text(scratch, layout.lines);
    mix_text::<LINES_WORD>(hash, &scratch.text, scratch.text[0] & 0xffff)
}

/// Reads the head and first bytes of a text or line table. Unreadable bytes are zero, the same way
/// each time.
#[inline(always)]
fn read_text(scratch: &mut Scratch, offset: u16) {
    const LEN: u64 = 8 * TEXT_WORDS as u64;
    let from = scratch.code_word(offset).wrapping_add(TEXT_FROM);
    let to = (&raw mut scratch.text).cast();
    // SAFETY: the length is the array's.
    if !unsafe { copy_bytes(to, LEN, from) } && text_room(from) < LEN {
        // A short text may end before a page that was never written.
        // SAFETY: less than the length.
        unsafe { copy_bytes(to, masked::<127>(text_room(from)), from) };
    }
}
