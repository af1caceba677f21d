//! Rows and numbers of operators, made when a library needs them.

use memscope_common::{Fetch, ProbeRow, row::MAX_VALUES};

use super::Libraries;
use crate::{
    capture::Note,
    kernel::{Kernel, KernelError, ObjectPoint},
    locate::ops::{self, OpsPlan},
    probes::{CallKind, Layer, RowInfo, TorchCall, ops::CATCH},
};

/// Key of a row of operators.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OpRow {
    when: u8,
    param: i64,
    fetch: [Fetch; MAX_VALUES],
}

impl Libraries {
    /// Gives the operators of a library their numbers and rows, and writes notes of both.
    pub(super) fn number_ops(&mut self, kernel: &mut Kernel, plan: OpsPlan) -> Result<Vec<ObjectPoint>, KernelError> {
        if plan.points.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows = Vec::with_capacity(plan.rows.len());
        for (row, meaning) in &plan.rows {
            rows.push(self.op_row(kernel, row, *meaning)?);
        }
        let first = self.next_op;
        self.next_op = first.saturating_add(plan.ops.len() as u32);
        if !plan.ops.is_empty() {
            self.note(Note::Operators { first, layout: plan.layout, operators: plan.ops });
        }
        let point = |point: &ops::OpPoint| {
            Some(ObjectPoint {
                row: *rows.get(point.row)?,
                detail: first.checked_add(point.op as u32)?,
                file_offset: point.file_offset,
            })
        };
        Ok(plan.points.iter().filter_map(point).collect())
    }

    fn op_row(&mut self, kernel: &mut Kernel, row: &ProbeRow, meaning: CallKind) -> Result<u16, KernelError> {
        let key = OpRow { when: row.when, param: row.param, fetch: row.fetch };
        if let Some(number) = self.op_rows.get(&key) {
            return Ok(*number);
        }
        let number = kernel.add_row(row)?;
        self.op_rows.insert(key, number);
        let symbol = if meaning == CallKind::Torch(TorchCall::Catch) { CATCH } else { "at::_ops" }.to_owned();
        let info = RowInfo { layer: Layer::Ops, symbol, meaning, fields: Vec::new(), pool: None, own_return: false };
        self.note(Note::Rows { first: number, rows: vec![info] });
        Ok(number)
    }
}
