//! Call stacks by number, each once.

use std::{fs::File, io};

use crate::{
    hash::HashMap,
    model::{Stack, Text, end_text},
    parquet_table::{Cell, Form, Table},
};

const STACKS: Form = Form {
    schema: "message stacks {
        REQUIRED INT32 stack (INTEGER(32,false));
        REQUIRED GROUP frames (LIST) { REPEATED GROUP list { REQUIRED BYTE_ARRAY element (STRING); } }
    }",
    sorted_by: &[0],
    delta: &["stack"],
};

pub(super) struct StackTable {
    table: Table,
    numbers: HashMap<Stack, u64>,
}

impl StackTable {
    pub(super) fn new(file: File, about: &[(String, String)]) -> io::Result<Self> {
        Ok(Self { table: Table::new(file, &STACKS, about)?, numbers: HashMap::default() })
    }

    /// The stack's number, from 1; it is written when it is met first. Frames are innermost first, the reason of an early end behind them.
    pub(super) fn number(&mut self, stack: Option<Stack>) -> io::Result<Option<u64>> {
        let Some(stack) = stack else { return Ok(None) };
        if let Some(known) = self.numbers.get(&stack) {
            return Ok(Some(*known));
        }
        let number = self.numbers.len() as u64 + 1;
        let mut frames = stack.frames();
        frames.extend(end_text(stack.end()).map(|why| Text::from(&*format!("<{why}>"))));
        let frames: Vec<&str> = frames.iter().map(|frame| &**frame).collect();
        self.table.row([Cell::unsigned(number), Cell::Texts(&frames)])?;
        self.numbers.insert(stack, number);
        Ok(Some(number))
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.table.finish().map(drop)
    }
}
