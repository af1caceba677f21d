"""A plugin that vLLM loads in each of its processes: operators of ATB, which need a library that is missing, do nothing. Their tensors are the
caller's, so memory is what it is with them."""
NAMES = (
    "_npu_flash_attention",
    "_npu_flash_attention_qlens",
    "_npu_matmul_add_fp32",
    "_npu_paged_attention",
    "_npu_paged_attention_splitfuse",
    "_npu_reshape_and_cache",
    "_npu_rotary_embedding",
)
library = None


def register():
    global library
    if library is not None:
        return
    import torch
    import torch_npu  # noqa: F401

    library = torch.library.Library("atb", "IMPL")
    for name in NAMES:
        library.impl(name, lambda *_, **__: None, "PrivateUse1", allow_override=True)
