//! Operators and their tensors: bytes that the kernel side copied become names, addresses and shapes.
//!
//! The program may have anything in those bytes. An impossible tensor (dimensions that do not multiply to the number of
//! elements, an unknown type, no device) is not reported.

use std::sync::Arc;

use memscope_common::record::{OBJECT_LIST_INLINE, OBJECT_LIST_WORDS};

use super::super::blocks::Key;
use super::super::rows::{RawCall, Unusable};
use super::super::turn::Turn;
use super::Effect as AnyEffect;
use crate::backend::{Backend, OpUses, Use as SanitizedUse};
use crate::decode::{ObjectCopy, Objects, Phase, word};
use crate::model::{Access, AccessKind, Device, EventKind, Figures, Op, OpPhase, Pool, PoolOperators};
use crate::probes::TorchCall;
use crate::probes::ops::{OpInfo, TensorLayout, Use};

/// Most known operators: several libraries of 3200.
const MAX_OPS: usize = 1 << 16;
/// `c10::DeviceType::CPU`.
const CPU: u8 = 0;

/// `c10::ScalarType`s that a tensor of this project's interest has: name and bytes of an element.
const TYPES: [(&str, u64); 30] = [
    ("torch.uint8", 1),
    ("torch.int8", 1),
    ("torch.int16", 2),
    ("torch.int32", 4),
    ("torch.int64", 8),
    ("torch.float16", 2),
    ("torch.float32", 4),
    ("torch.float64", 8),
    ("torch.complex32", 4),
    ("torch.complex64", 8),
    ("torch.complex128", 16),
    ("torch.bool", 1),
    ("torch.qint8", 1),
    ("torch.quint8", 1),
    ("torch.qint32", 4),
    ("torch.bfloat16", 2),
    ("torch.quint4x2", 1),
    ("torch.quint2x4", 1),
    ("torch.bits1x8", 1),
    ("torch.bits2x4", 1),
    ("torch.bits4x2", 1),
    ("torch.bits8", 1),
    ("torch.bits16", 2),
    ("torch.float8_e5m2", 1),
    ("torch.float8_e4m3fn", 1),
    ("torch.float8_e5m2fnuz", 1),
    ("torch.float8_e4m3fnuz", 1),
    ("torch.uint16", 2),
    ("torch.uint32", 4),
    ("torch.uint64", 8),
];

/// Type of a tensor's elements where unknown.
const UNKNOWN_TYPE: &str = "N/A";

pub(super) const fn has_text(kind: TorchCall) -> bool {
    matches!(kind, TorchCall::Submit)
}

pub(super) const fn figures(kind: TorchCall) -> &'static [Figures] {
    match kind {
        // The numbers of its rows are those of the launches.
        TorchCall::Submit => &[Figures::Launches, Figures::Operators],
        TorchCall::Enter | TorchCall::Leave | TorchCall::Catch => &[Figures::Operators],
    }
}

pub(super) fn interpret(kind: TorchCall, call: RawCall<'_>) -> Option<AnyEffect> {
    match (kind, call.called.phase) {
        (TorchCall::Submit, Phase::Enter) => {
            call.called.text.map(|name| AnyEffect::Torch(Effect::Call(Box::new(OpCall::submitted(name)))))
        }
        _ => None,
    }
}

/// The effect of a call of an operator, or of a dump's row about one.
#[derive(Debug)]
pub(in crate::pipeline) enum Effect {
    Call(Box<OpCall>),
    Op(Op),
    Access(Box<Access>),
}

/// Applies an effect; operators have no state.
pub(in crate::pipeline) fn apply(effect: Effect, turn: &mut Turn<'_>) {
    match effect {
        Effect::Call(op) => passed(&op, turn),
        Effect::Op(op) => turn.emit(turn.device(), EventKind::Op(op)),
        Effect::Access(access) => turn.emit(turn.device(), EventKind::Access(*access)),
    }
}

/// An operator is passed: its name, and the memory it uses.
fn passed(op: &OpCall, turn: &mut Turn<'_>) {
    let device = turn.device();
    let (before, after) = op.marks();
    if let Some(mark) = before {
        turn.emit(device, EventKind::Op(mark));
    }
    for tensor in &op.tensors {
        let device = tensor.device(turn.home.devices.visible());
        let pool = tensor.pool(turn.backend());
        let block = turn.home.blocks.get(Key::Pool(pool, tensor.storage)).filter(|_| tensor.number.is_some());
        let allocation_id = block.map_or(0, |live| live.block.allocation_id);
        turn.emit(device, EventKind::Access(tensor.access(Arc::clone(&op.name), pool, allocation_id)));
    }
    if op.left_out > 0 {
        turn.emit(device, EventKind::UsesLeftOut);
    }
    if let Some(mark) = after {
        turn.emit(device, EventKind::Op(mark));
    }
}

/// Takes a mark of `torch_npu`'s sanitizer about the memory of an operator; false if it is a mark of the user's.
pub(super) fn sanitized(text: Option<&str>, turn: &mut Turn<'_>) -> bool {
    let Some(OpUses { name, uses }) = text.and_then(|text| turn.backend().uses_of_mark(text)) else { return false };
    let (device, pool) = (turn.device(), tensor_pool(turn.backend()));
    let name: Arc<str> = name.into();
    for SanitizedUse { kind, addr, size_bytes } in uses {
        // A tensor that begins within a block has none, as the start of its memory is unknown.
        let block = turn.home.blocks.get(Key::Pool(pool, addr)).map(|live| live.block);
        let (allocation_id, device) = block.map_or((0, device), |block| (block.allocation_id, block.device));
        let access = Access {
            kind,
            op: Arc::clone(&name),
            allocation_id,
            pool,
            addr,
            size_bytes,
            dtype: UNKNOWN_TYPE,
            format: None,
            shape: Arc::default(),
        };
        turn.emit(device, EventKind::Access(access));
    }
    true
}

/// The pool that `PyTorch`'s tensors on devices are in.
fn tensor_pool(backend: &dyn Backend) -> Pool {
    backend.pool_of_operators(PoolOperators::Torch).unwrap_or_else(|| backend.driver_pool())
}

/// The operators behind the details of records with objects.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Operators(Vec<Option<Operator>>);

#[derive(Debug)]
struct Operator {
    name: Arc<str>,
    enter: Box<[Use]>,
    leave: Box<[Use]>,
    layout: Option<TensorLayout>,
}

/// A seen operator.
#[derive(Debug)]
pub(in crate::pipeline) struct OpCall {
    pub(in crate::pipeline) name: Arc<str>,
    phase: OpPhase,
    pub(in crate::pipeline) tensors: Vec<TensorUse>,
    /// Tensors that were unreadable, or did not fit.
    pub(in crate::pipeline) left_out: u64,
}

/// A tensor that an operator uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pipeline) struct TensorUse {
    kind: AccessKind,
    /// Start of the memory that it lies in.
    pub(in crate::pipeline) storage: u64,
    addr: u64,
    size_bytes: u64,
    dtype: &'static str,
    shape: Arc<[i64]>,
    /// Number of the device in the program's numbering; `None` for host memory.
    number: Option<u8>,
}

impl OpCall {
    /// One that is submitted to the device.
    pub(in crate::pipeline) fn submitted(name: String) -> Self {
        Self { name: name.into(), phase: OpPhase::Submit, tensors: Vec::new(), left_out: 0 }
    }

    /// The events before and after its tensors.
    pub(in crate::pipeline) fn marks(&self) -> (Option<Op>, Option<Op>) {
        let mark = Some(Op { phase: self.phase, name: Arc::clone(&self.name) });
        if self.phase == OpPhase::End { (None, mark) } else { (mark, None) }
    }
}

impl TensorUse {
    /// Its device; `visible` are the physical numbers of the visible ones.
    pub(in crate::pipeline) fn device(&self, visible: &[u32]) -> Device {
        self.number.map_or(Device::Cpu, |number| {
            let number = u32::from(number);
            Device::Npu(visible.get(number as usize).copied().unwrap_or(number))
        })
    }

    /// The pool of its memory.
    fn pool(&self, backend: &dyn Backend) -> Pool {
        if self.number.is_some() { tensor_pool(backend) } else { backend.host_pool() }
    }

    pub(in crate::pipeline) fn access(&self, op: Arc<str>, pool: Pool, allocation_id: u64) -> Access {
        Access {
            kind: self.kind,
            op,
            allocation_id,
            pool,
            addr: self.addr,
            size_bytes: self.size_bytes,
            dtype: self.dtype,
            format: None,
            shape: Arc::clone(&self.shape),
        }
    }
}

impl Operators {
    /// Adds operators; too large numbers are passed over.
    pub(in crate::pipeline) fn extend(&mut self, first: u32, layout: Option<TensorLayout>, operators: Vec<OpInfo>) {
        for (info, index) in operators.into_iter().zip(first as usize..MAX_OPS) {
            if index >= self.0.len() {
                self.0.resize_with(index + 1, || None);
            }
            let OpInfo { name, enter, leave } = info;
            let name = format!("torch._ops.{name}").into();
            if let Some(slot) = self.0.get_mut(index) {
                *slot = Some(Operator { name, enter: enter.into(), leave: leave.into(), layout });
            }
        }
    }

    /// The operator of a record, with the number of tensors left out.
    pub(super) fn interpret(
        &self,
        kind: TorchCall,
        backend: &dyn Backend,
        objects: &Objects<'_>,
    ) -> Result<(AnyEffect, u64), Unusable> {
        let operator = self.0.get(objects.detail as usize).and_then(Option::as_ref).ok_or(Unusable)?;
        let (phase, uses) = match kind {
            TorchCall::Enter => (OpPhase::Start, &operator.enter),
            TorchCall::Leave => (OpPhase::End, &operator.leave),
            TorchCall::Submit | TorchCall::Catch => return Err(Unusable),
        };
        let mut call =
            OpCall { name: Arc::clone(&operator.name), phase, tensors: Vec::new(), left_out: objects.left_out.into() };
        for object in objects.iter() {
            let (Some(layout), Some(usage)) = (operator.layout, uses.get(usize::from(object.value))) else { continue };
            match tensor(&object, layout, *usage, backend) {
                Tensor::Used(tensor) => call.tensors.push(tensor),
                Tensor::Nothing => {}
                Tensor::Unreadable => call.left_out += 1,
            }
        }
        let left_out = call.left_out;
        Ok((AnyEffect::Torch(Effect::Call(Box::new(call))), left_out))
    }
}

/// The kind of an object.
#[derive(Debug, PartialEq, Eq)]
enum Tensor {
    Used(TensorUse),
    /// No tensor, or one without memory to report.
    Nothing,
    /// Unreadable, or impossible.
    Unreadable,
}

fn tensor(object: &ObjectCopy<'_>, layout: TensorLayout, usage: Use, backend: &dyn Backend) -> Tensor {
    if !object.readable || !object.inner_readable || !object.list_readable {
        return Tensor::Unreadable;
    }
    let device_at = usize::from(layout.device_at);
    let Some(&[kind, number, has_device]) = object.head.get(device_at..).and_then(<[u8]>::first_chunk) else {
        return Tensor::Unreadable;
    };
    // The undefined tensor has no device; memory of other kinds is not ours.
    let on_device = backend.is_torch_device(kind);
    if has_device != 1 || !(on_device || kind == CPU) {
        return if has_device > 1 { Tensor::Unreadable } else { Tensor::Nothing };
    }
    match read(object, layout) {
        // Nothing is used of a tensor without elements.
        Some(found) if found.addr == 0 || found.size_bytes == 0 => Tensor::Nothing,
        Some(Found { storage, addr, size_bytes, dtype, shape }) => {
            let access = if usage == Use::Read { AccessKind::Read } else { AccessKind::Write };
            // A single device may be given as "the current one".
            let number = on_device.then_some(if number == u8::MAX { 0 } else { number });
            Tensor::Used(TensorUse { kind: access, storage, addr, size_bytes, dtype, shape: shape.into(), number })
        }
        None => Tensor::Unreadable,
    }
}

struct Found {
    storage: u64,
    addr: u64,
    size_bytes: u64,
    dtype: &'static str,
    shape: Vec<i64>,
}

fn read(object: &ObjectCopy<'_>, layout: TensorLayout) -> Option<Found> {
    const { assert!(OBJECT_LIST_INLINE as usize <= OBJECT_LIST_WORDS) };
    let head = |at: u16| word(object.head, at.into());
    let dimensions = usize::try_from(head(layout.sizes_at)?).ok().filter(|count| *count <= OBJECT_LIST_WORDS)?;
    let size = |index: usize| word(object.head, usize::from(layout.sizes_at) + 8 * (index + 1)).map(u64::cast_signed);
    let shape: Vec<i64> = (0..dimensions).map(size).collect::<Option<_>>()?;
    let product = shape.iter().try_fold(1_i64, |product, size| product.checked_mul(*size).filter(|_| *size >= 0))?;
    let count = head(layout.count_at)?.cast_signed();
    let type_at = usize::from(layout.type_at);
    let number = u16::from_le_bytes(*object.head.get(type_at..)?.first_chunk()?);
    let (dtype, element_bytes) = *TYPES.get(usize::from(number))?;
    let offset = head(layout.offset_at)?;
    if product != count || offset.cast_signed() < 0 {
        return None;
    }
    let storage = word(object.inner, 0)?;
    // Without a storage there is nothing to add to.
    let addr = if storage == 0 { 0 } else { storage.checked_add(offset.checked_mul(element_bytes)?)? };
    let size_bytes = count.cast_unsigned().checked_mul(element_bytes)?;
    Some(Found { storage, addr, size_bytes, dtype, shape })
}
