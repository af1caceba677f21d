"""Which blocks of torch_npu's pool hold tensors."""


def blocks_of(tensors):
    """How many blocks of the pool hold these tensors, and their bytes."""
    from torch_npu.npu import memory

    starts = {tensor.data_ptr() for tensor in tensors}
    found = []
    for segment in memory._snapshot()["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if any(address <= start < address + block["size"] for start in starts):
                found.append(block["size"])
            address += block["size"]
    return len(found), sum(found)


def flat(things):
    """The tensors in lists of lists."""
    return [tensor for thing in things for tensor in (flat(thing) if isinstance(thing, (list, tuple)) else [thing])]


def weights_of(runner):
    """The tensors of vLLM's model."""
    from vllm_ascend.ops import rotary_embedding

    # Made with the model, and kept beside it: the table of cosines and sines.
    return [*runner.model.parameters(), *runner.model.buffers(), rotary_embedding._cos_cache]
