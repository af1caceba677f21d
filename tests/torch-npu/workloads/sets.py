"""A script that changes the rules of its pool. Prints the peaks that torch_npu has of its pool: allocated and reserved bytes.

With `fraction` it limits itself to 400 MiB, and one request fails for that; with `settings` it has segments grow for a time, then has
large blocks not be split; with `refused` it asks for settings that torch_npu refuses.

usage: sets.py fraction|settings|refused
"""
import sys

import torch
import torch_npu

torch.npu.set_device(0)


def tensor(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="npu")


def settings(text):
    torch.npu.memory._set_allocator_settings(text)


def turn():
    """Places of these requests depend on the settings: what is free is split, or is not."""
    first, second, third = tensor(30), tensor(70), tensor(3)
    del first, second
    fourth, fifth = tensor(22), tensor(45)
    del third
    return [fourth, fifth, tensor(5)]


held = turn()
if sys.argv[1] == "fraction":
    total = torch.npu.mem_get_info()[1]
    torch.npu.set_per_process_memory_fraction((400 << 20) / total, 0)
    try:
        tensor(500)
        raise SystemExit("the limit does not hold")
    # Before torch_npu 2.9 it is no OutOfMemoryError.
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
    held += turn()
    # What is cached goes before this one gets its memory.
    held.append(tensor(200))
elif sys.argv[1] == "settings":
    settings("expandable_segments:True")
    held += turn()
    settings("expandable_segments:False,max_split_size_mb:40")
    held += turn()
    settings("expandable_segments:True")
    held = turn()
    del held
    held = turn()
else:
    try:
        settings("max_split_size_mb:3")
        raise SystemExit("not refused")
    except (RuntimeError, ValueError):
        pass
    held += turn()
torch.npu.synchronize()
print("peaks", torch.npu.max_memory_allocated(), torch.npu.max_memory_reserved())
