"""Snapshots of what torch_npu's pool and the current device hold."""
from memscope_bpf import TakeSnapshot, take_snapshot
from memscope_bpf._snapshot import get_device_memory_info

__all__ = ["TakeSnapshot", "get_device_memory_info", "take_snapshot"]
