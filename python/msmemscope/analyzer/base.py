"""What configurations and analyzers have in common."""
from memscope_bpf.analyzer import _MAX_BYTES as MAX_FILE_SIZE
from memscope_bpf.analyzer import _MAX_PATH as INPUT_STR_MAX_LEN
from memscope_bpf.analyzer import AnalysisConfig, BaseAnalyzer

__all__ = ["AnalysisConfig", "BaseAnalyzer", "INPUT_STR_MAX_LEN", "MAX_FILE_SIZE"]
