"""What of vLLM is known by how it looks: the tensors of its models and caches. Nothing of it is imported."""
from typing import Any, Dict, Iterable, Iterator, Tuple

from ._native import native

_COMPONENT, _DETAIL_1, _DETAIL_2 = 1, 3, 4


def _label(address: int, *labels: str) -> None:
    native.describe_addr(address, list(zip(labels, (_COMPONENT, _DETAIL_1, _DETAIL_2))))


def _tensors(module: Any) -> Iterator[Tuple[str, Any]]:
    """Parameters before buffers."""
    for method in ("named_parameters", "named_buffers"):
        if callable(getattr(module, method, None)):
            yield from getattr(module, method)()


def vllm_weights(_result: Any, runner: Any, *_others: Any, **_keywords: Any) -> None:
    """Weights of a model that is loaded: those of LoRA first, then the drafter's, then the model's; each address once."""
    labelled = set()

    def label_all(tensors: Iterable[Tuple[str, Any]], *label: str) -> None:
        for _, tensor in tensors:
            address = tensor.data_ptr()
            if address and address not in labelled:
                labelled.add(address)
                _label(address, "vllm", "weights", *label)

    model = getattr(runner, "model", None)
    label_all(((name, tensor) for name, tensor in _tensors(model) if "lora" in name.lower()), "lora")
    drafter = getattr(runner, "drafter", None)
    label_all(_tensors(getattr(drafter, "model", drafter)), "drafter")
    label_all(_tensors(model))


def kind_of(spec: Any) -> str:
    """What a cache is for, by the class of its specification."""
    name = type(spec).__name__
    if "mamba" in name.lower():
        return "mamba"
    return "hidden_state" if name in ("HiddenStateCacheSpec", "HiddenStateSpec") or "hidden_state" in name.lower() else "attn"


def vllm_kv_caches(caches: Any, runner: Any, config: Any = None, *_others: Any, **_keywords: Any) -> None:
    """Caches that were made: a mapping from layers to tensors, or to several of them. Layers without a specification have no label."""
    if not isinstance(caches, dict):
        return
    kinds: Dict[str, str] = {}
    for group in getattr(config or getattr(runner, "kv_cache_config", None), "kv_cache_groups", None) or ():
        spec = getattr(group, "kv_cache_spec", None)
        if spec is not None:
            kinds.update((layer, kind_of(spec)) for layer in getattr(group, "layer_names", ()))
    for layer, tensors in caches.items():
        if layer in kinds:
            for tensor in tensors if isinstance(tensors, (list, tuple)) else [tensors]:
                if hasattr(tensor, "data_ptr"):
                    _label(tensor.data_ptr(), "vllm", "kv_cache", kinds[layer])
