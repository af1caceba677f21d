"""Scripts talk to the memscope-bpf tracer: when to collect, where steps end, what memory is for. And they ask its analyses about dumps.

Nothing is collected here. Every call ends in a marker, a function of a few instructions that a tracer has a probe on; without a
tracer it returns at once, and no call ever waits or fails for want of one. See docs/python.md.
"""
from ._control import config, listening, start, step, stop
from ._lazy import cleanup_framework_hooks, enable_npu_sanitizer, init_framework_hooks
from ._offline import Table, ask, compare, decompose, diff, fragmentation, inefficient, leaks, peaks
from ._record import RecordFunction
from ._snapshot import TakeSnapshot, take_snapshot
from ._tracer import tracer
from ._watcher import watcher

__all__ = [
    "RecordFunction", "Table", "TakeSnapshot", "ask", "cleanup_framework_hooks", "compare", "config", "decompose", "diff",
    "enable_npu_sanitizer", "fragmentation", "inefficient", "init_framework_hooks", "leaks", "listening", "peaks", "start", "step", "stop",
    "take_snapshot", "tracer", "watcher",
]
__version__ = "0.1.0"
