"""Ranges that a script names."""
from memscope_bpf import RecordFunction

__all__ = ["RecordFunction"]
