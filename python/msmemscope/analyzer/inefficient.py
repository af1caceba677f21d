"""Blocks held longer than they are used."""
from memscope_bpf.analyzer import InefficientAnalyzer, InefficientConfig, check_inefficient

__all__ = ["InefficientAnalyzer", "InefficientConfig", "check_inefficient"]
