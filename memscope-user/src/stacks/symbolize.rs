//! Symbolizes native stacks: adds symbols before the records that need them.

use std::collections::HashSet;

use super::{SharedMappings, SymbolOptions, symbols::Symbols};
use crate::{
    capture::{Note, Symbol, note_record},
    decode::{Body, Frames, Records, Stack},
};

/// Addresses remembered as reported; beyond, they are reported again when needed.
const MAX_REPORTED: usize = 256 << 10;

/// Symbolizes each address once.
pub(super) struct Symbolize {
    mappings: Option<SharedMappings>,
    symbols: Symbols,
    /// Addresses by generation.
    reported: HashSet<(u64, u64)>,
}

impl Symbolize {
    pub(super) fn new(mappings: Option<SharedMappings>, options: SymbolOptions) -> Self {
        Self { mappings, symbols: Symbols::new(options), reported: HashSet::new() }
    }

    /// The records, with symbols before those that need them.
    pub(super) fn process(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        if let Some(mappings) = &self.mappings {
            self.symbols.forget(mappings);
        }
        if !Records::new(&bytes).any(|record| record.is_ok_and(|record| is_native_stack(&record.body))) {
            return bytes;
        }
        self.symbols.next_batch();
        let mut out = Vec::with_capacity(bytes.len());
        for (raw, record) in Records::new(&bytes).with_bytes() {
            if let Ok(record) = record
                && let Body::Stack(stack) = record.body
            {
                let symbols = self.new_symbols(record.pid, &stack);
                if !symbols.is_empty() {
                    let note = Note::Symbols { generation: stack.generation, symbols };
                    out.extend_from_slice(&note_record(record.time_ns, record.pid, &note));
                }
            }
            out.extend_from_slice(raw);
        }
        out
    }

    fn new_symbols(&mut self, pid: u32, stack: &Stack<'_>) -> Vec<Symbol> {
        let Some(mappings) = &self.mappings else { return Vec::new() };
        let generation = stack.generation;
        if self.reported.len() >= MAX_REPORTED {
            self.reported.clear();
        }
        let mut found = Vec::new();
        for (index, address) in stack.frames.addresses().enumerate() {
            if self.reported.contains(&(generation, address)) {
                continue;
            }
            if let Some(symbol) = self.symbols.find(mappings, (generation, pid), (address, index > 0)) {
                self.reported.insert((generation, address));
                found.push(symbol);
            }
        }
        found
    }
}

const fn is_native_stack(body: &Body<'_>) -> bool {
    matches!(body, Body::Stack(Stack { frames: Frames::Native(_), .. }))
}
