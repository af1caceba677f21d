"""Labels for what vLLM's workers load and reserve."""
from memscope_bpf import _vllm

__all__ = ["VllmAscendTaggers"]


class VllmAscendTaggers:
    """To be called after a worker's functions, with their result and their arguments."""

    tag_model_weights = staticmethod(_vllm.vllm_weights)
    tag_kv_cache = staticmethod(_vllm.vllm_kv_caches)
