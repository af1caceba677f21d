"""Leaks between marks."""
from memscope_bpf.analyzer import LeaksAnalyzer, LeaksConfig, check_leaks

__all__ = ["LeaksAnalyzer", "LeaksConfig", "check_leaks"]
