"""Labels for what optimizers work on: `weight`, `gradient` and `optimizer_state`."""
from __future__ import annotations

from memscope_bpf import _optimizer
from memscope_bpf.describe import DETAIL_1, describe_addr

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Tuple

    _Labels = List[Tuple[str, int]]

__all__ = [
    "OptimizerStepHook", "append_tensor_info", "disable_optimizer_step_hook", "enable_optimizer_step_hook", "global_optimizer_step_hook",
    "optimizer_step_hook", "process_param",
]


def append_tensor_info(tensor_info_list: List[Tuple[int, _Labels]], tensor: Any, labels: _Labels) -> None:
    """Appends address and labels of a tensor, if it is on an NPU; of one that several devices share, of the part that is here."""
    address = _optimizer.address_of(tensor)
    if address is not None:
        tensor_info_list.append((address, labels))


def process_param(tensor_info_list: List[Tuple[int, _Labels]], param: Any, opt: Any) -> None:
    """Appends a weight, its gradient and its states."""
    append_tensor_info(tensor_info_list, param, [("weight", DETAIL_1)])
    if getattr(param, "grad", None) is not None:
        append_tensor_info(tensor_info_list, param.grad, [("gradient", DETAIL_1)])
    for tensor in _optimizer.tensors_of(opt.state[param] if param in opt.state else {}):
        append_tensor_info(tensor_info_list, tensor, [("optimizer_state", DETAIL_1)])


def global_optimizer_step_hook(opt: Any, args: Any, kwargs: Any) -> None:
    """An optimizer has made a step: what it works on is labelled."""
    found: List[Tuple[int, _Labels]] = []
    for group in opt.param_groups:
        for param in group["params"]:
            process_param(found, param, opt)
    for address, labels in found:
        describe_addr(address, labels)


class OptimizerStepHook:
    """The hook after the steps of all optimizers, on and off."""

    def __init__(self) -> None:
        self._undo: Optional[Callable[[], None]] = None

    @property
    def enabled(self) -> bool:
        """Whether it is on."""
        return self._undo is not None

    def enable(self) -> None:
        """From here on. ImportError: there is no torch."""
        if self._undo is None:
            import torch.optim.optimizer

            self._undo = _optimizer.register(torch.optim.optimizer)

    def disable(self) -> None:
        """No longer."""
        if self._undo is not None:
            self._undo()
            self._undo = None


optimizer_step_hook = OptimizerStepHook()


def enable_optimizer_step_hook() -> None:
    """As optimizer_step_hook.enable()."""
    optimizer_step_hook.enable()


def disable_optimizer_step_hook() -> None:
    """As optimizer_step_hook.disable()."""
    optimizer_step_hook.disable()
