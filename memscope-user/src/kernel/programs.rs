//! Names of the BPF programs.

use aya::{Ebpf, programs::ProgramError};

use super::{
    error::{KernelError, refused},
    features::LinkMode,
};

/// Names of the programs that serve all rows.
#[derive(Clone, Copy)]
pub(super) struct Programs {
    pub(super) enter: &'static str,
    pub(super) leave: &'static str,
    pub(super) leave_own: &'static str,
    pub(super) touch: &'static str,
    pub(super) enter_text: &'static str,
    pub(super) hold: &'static str,
    pub(super) tensors: &'static str,
    pub(super) tensor_array: &'static str,
    pub(super) code_freed: &'static str,
}

impl Programs {
    /// The programs for a way of linking; `None` where every row has its own.
    pub(super) const fn of(mode: LinkMode) -> Option<Self> {
        match mode {
            LinkMode::Multi => Some(Self {
                enter: "enter_multi",
                leave: "leave_multi",
                leave_own: "leave_own_multi",
                touch: "touch_multi",
                enter_text: "enter_text_multi",
                hold: "hold_multi",
                tensors: "tensors_multi",
                tensor_array: "tensor_array_multi",
                code_freed: "code_freed_multi",
            }),
            LinkMode::Cookie => Some(Self {
                enter: "enter",
                leave: "leave",
                leave_own: "leave_own",
                touch: "touch",
                enter_text: "enter_text",
                hold: "hold",
                tensors: "tensors",
                tensor_array: "tensor_array",
                code_freed: "code_freed",
            }),
            LinkMode::Slots => None,
        }
    }
}

/// Name of one of the programs that serve this row alone (`slots.rs` in the BPF crate).
pub(super) fn slot(half: &str, row: u16) -> String {
    format!("{half}_{row:03}")
}

/// A program of the object.
pub(super) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, KernelError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let missing = || KernelError::Map { name: "programs", reason: format!("the object has no program `{name}`") };
    let program = ebpf.program_mut(name).ok_or_else(missing)?;
    program.try_into().map_err(|error| refused(name, error))
}
