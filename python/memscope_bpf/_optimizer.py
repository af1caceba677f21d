"""Labels for what optimizers work on: weights, gradients and states, after each step of any optimizer of torch."""
from typing import Any, Callable, Dict, Iterator, Optional, Tuple
from weakref import ref

from ._native import native

_DETAIL_1 = 3
_DEVICES = ("npu", "privateuseone")
_MAX_TOLD = 1 << 20

# Weights and states with their addresses, by the tensor's identity: those that stay in place are reported once. Another tensor may have
# identity and address of one that is gone.
_told: Dict[int, Tuple[Callable[[], Any], int]] = {}


def register(module: Any) -> Optional[Callable[[], None]]:
    """To be called with `torch.optim.optimizer`; gives what undoes it."""
    hook = getattr(module, "register_optimizer_step_post_hook", None)  # torch 2.1
    if hook is None:
        return None
    handle = hook(lambda optimizer, _arguments, _keywords: after_step(optimizer))
    undo: Callable[[], None] = handle.remove
    return undo


def after_step(optimizer: Any) -> None:
    """An optimizer has made a step. Whatever it is like, it is not to fail for our sake."""
    try:
        if native.listening():
            _mark(optimizer)
        else:
            # The next tracer knows of none of them.
            _told.clear()
    except Exception as error:
        from ._hooks import _once

        _once(f"what {type(optimizer).__name__} works on has no labels: {error!r}")


def _mark(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            _label(weight, "weight", once=True)
            # Each step makes new ones, wherever there is room.
            _label(getattr(weight, "grad", None), "gradient", once=False)
    for state in optimizer.state.values():
        for tensor in tensors_of(state):
            _label(tensor, "optimizer_state", once=True)


def tensors_of(state: Any) -> Iterator[Any]:
    """Those of a state."""
    values = state.values() if isinstance(state, dict) else [state]
    return (value for value in values if hasattr(value, "data_ptr") or hasattr(value, "_local_tensor"))


def address_of(tensor: Any) -> Optional[int]:
    """Where a tensor lies, if that is on an NPU; of one that several devices have parts of, the part that is here."""
    local = getattr(tensor, "_local_tensor", None)
    tensor = local if hasattr(local, "data_ptr") else tensor
    device = getattr(tensor, "device", None)
    # Some stand-ins give a plain text.
    if getattr(device, "type", str(device).partition(":")[0]) not in _DEVICES:
        return None
    return int(tensor.data_ptr()) or None


def _label(tensor: Any, label: str, once: bool) -> None:
    address = address_of(tensor)
    if address is None:
        return
    if once:
        known = _told.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == address:
            return
        if len(_told) >= _MAX_TOLD:
            _told.clear()
        _told[id(tensor)] = ref(tensor), address
    native.describe_addr(address, [(label, _DETAIL_1)])
