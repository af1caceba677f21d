"""Scripts talk to the memscope-bpf tracer: when to collect, where steps end, what memory is for.

Nothing is collected here. Every call ends in a marker, a function of a few instructions that a tracer has a probe on; without a
tracer it returns at once, and no call ever waits or fails for want of one. See docs/python.md.
"""
from ._control import config, listening, start, step, stop
from ._record import RecordFunction
from ._snapshot import TakeSnapshot, take_snapshot

__all__ = ["RecordFunction", "TakeSnapshot", "config", "listening", "start", "step", "stop", "take_snapshot"]
__version__ = "0.1.0"
