"""Operators of torch. The tracer sees them from outside (events launch and access, level op), so there is nothing to switch on in the process."""
from memscope_bpf._refuse import refused

__all__ = ["AtenCollector", "aten_collector", "disable_aten_collector", "enable_aten_collector"]


class AtenCollector:
    """Has no effect: which operators have rows is config()'s, and the tracer's options'."""

    enabled = False

    def enable(self) -> None:
        """Nothing."""

    def disable(self) -> None:
        """Nothing."""


aten_collector = AtenCollector()
enable_aten_collector, disable_aten_collector = aten_collector.enable, aten_collector.disable
_WHY = "operators are seen from outside; no dispatch mode of torch is put up"
MemoryDispatchMode = refused("MemoryDispatchMode", _WHY)
ArgumentHandler = refused("ArgumentHandler", _WHY)
