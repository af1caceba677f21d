//! Operators and their tensors, as records with bytes made by hand.

use memscope_common::Kind;
use memscope_common::record::{OBJECT_HEAD, OBJECT_INNER};

use super::{Who, main};
use crate::capture::Note;
use crate::probes::ops::{OpInfo, TensorLayout, Use};
use crate::probes::{CallKind, Layer, RowInfo, TorchCall};

/// Offsets behind `storage_` in libtorch 2.3 to 2.12.
const LAYOUT: TensorLayout = TensorLayout { sizes_at: 48, offset_at: 136, count_at: 144, type_at: 152, device_at: 154 };
/// Numbers of the rows at which operators begin and end.
pub(crate) const ENTER: u16 = 300;
pub(crate) const LEAVE: u16 = 301;

/// Notes about the operators.
pub(crate) fn notes() -> Vec<u8> {
    let row = |meaning| RowInfo {
        layer: Layer::Ops,
        symbol: "at::_ops".to_owned(),
        meaning,
        fields: Vec::new(),
        pool: None,
        own_return: false,
    };
    let operator = OpInfo { name: "aten.mul.Tensor".to_owned(), enter: vec![Use::Read; 2], leave: vec![Use::Write] };
    let rows = Note::Rows {
        first: ENTER,
        rows: vec![row(CallKind::Torch(TorchCall::Enter)), row(CallKind::Torch(TorchCall::Leave))],
    };
    [rows, Note::Operators { first: 5, layout: Some(LAYOUT), operators: vec![operator] }]
        .iter()
        .flat_map(|note| main(0).note(note))
        .collect()
}

/// A tensor as the kernel side copies it.
pub(crate) struct Copied {
    head: [u8; OBJECT_HEAD],
    inner: [u8; OBJECT_INNER],
}

impl Copied {
    /// Of bytes on NPU 1: `storage` is where its memory starts.
    pub(crate) fn of(storage: u64, sizes: &[u64]) -> Self {
        let mut copied = Self { head: [0; OBJECT_HEAD], inner: [0; OBJECT_INNER] };
        copied.word(48, sizes.len() as u64);
        for (index, size) in sizes.iter().enumerate() {
            copied.word(56 + 8 * index, *size);
        }
        copied.word(144, sizes.iter().copied().fold(1, u64::wrapping_mul));
        copied.head[154..157].copy_from_slice(&[20, 1, 1]);
        copied.inner[..8].copy_from_slice(&storage.to_le_bytes());
        copied
    }

    fn word(&mut self, at: usize, word: u64) {
        self.head[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// With another word at an offset.
    pub(crate) fn with(mut self, at: usize, word: u64) -> Self {
        self.word(at, word);
        self
    }
}

/// Bytes of both ids.
const STACK_IDS: usize = 16;

impl Who {
    /// An operator begins ([`ENTER`]) or ends ([`LEAVE`]); number 5 is the known one.
    pub(crate) fn passed(self, row: u16, detail: u32, tensors: &[(u8, Copied)]) -> Vec<u8> {
        let mut body = detail.to_le_bytes().to_vec();
        body.extend((tensors.len() as u16).to_le_bytes());
        body.extend([0; 2 + STACK_IDS]);
        for (value, tensor) in tensors {
            body.extend([0; 8]);
            body.extend([*value, 0, 0, 0, 0, 0, 0, 0]);
            body.extend(tensor.head);
            body.extend(tensor.inner);
        }
        self.record(Kind::Objects, row, &body)
    }
}
