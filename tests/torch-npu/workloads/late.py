"""A program that keeps tensors until the end of a step (`keep`), or lets go of each right behind its last use (`del`). Prints the peaks that
torch_npu has of its pool: allocated and reserved bytes.

What it does: `forward` computes; `learn` has gradients, too; `adam` gives an optimizer more of them at once than are recorded; `threads` has a
thread use tensors last; `again` uses one behind its step; `unused` makes some that nothing uses.

usage: late.py keep|del forward|learn|adam|threads|again|unused
"""
import sys
import threading

import torch

torch.npu.set_device(0)
held = []
MIB = 1 << 18  # numbers of 4 bytes


def keep(*tensors):
    if sys.argv[1] == "keep":
        held.extend(tensors)


def tensor(mib):
    return torch.ones(mib * MIB, device="npu")


def forward(x):
    """`first` is used by two operators; blocks of the same size get its address behind it."""
    first = x * 2.0
    second = torch.relu(first)
    third = first + second
    keep(first, second, third)
    del first, second
    wide = torch.cat([third, third, x])
    keep(wide)
    del third
    half = wide[: 2 * MIB] + 1.0
    keep(half)
    del wide
    half.mul_(3.0)
    return half.sum()


def learn(x, weights):
    """What gradients need is used last on the way back, by threads of torch's."""
    out = x
    for weight in weights:
        product = out * weight
        out = torch.sigmoid(product)
        keep(product, out)
        del product
    loss = out.sum()
    del out
    loss.backward()
    with torch.no_grad():
        for weight in weights:
            gradient = weight.grad
            weight.grad = None
            keep(gradient)
            weight.sub_(gradient * 0.5)
            del gradient


def adam(x, weights):
    sum((x * weight).sum() for weight in weights).backward()
    for weight in weights:
        keep(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    large = tensor(64)
    keep(large)


def threads(x):
    tensors = [x + float(number) for number in range(3)]
    keep(*tensors)

    def use():
        while tensors:
            scaled = tensors.pop() * 2.0
            keep(scaled)
            del scaled

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    large = torch.cat([x, x, x])
    keep(large)


def again(x, before):
    if before:
        # Of the step before.
        early = before.pop()
        x = x + early
        keep(x, early)
        del early
    late = x + 2.0
    wide = torch.cat([x, late])
    keep(wide)
    before.append(late)


def unused():
    for mib in [30, 50]:
        empty = torch.empty(mib * MIB, device="npu")
        keep(empty)
        del empty
    tensor(70)


what, x, before = sys.argv[2], tensor(24), []
sizes = {"learn": [24] * 3, "adam": [2] * 12}.get(what, [])
weights = [torch.ones(size * MIB, device="npu", requires_grad=True) for size in sizes]
if what == "adam":
    x = tensor(2)
    optimizer = torch.optim.AdamW(weights, foreach=True)
for step in range(3):
    if what == "forward":
        forward(x)
    elif what == "learn":
        learn(x, weights)
    elif what == "adam":
        adam(x, weights)
    elif what == "threads":
        threads(x)
    elif what == "again":
        again(x, before)
    else:
        unused()
    held.clear()
torch.npu.synchronize()
print("peaks", torch.npu.max_memory_allocated(), torch.npu.max_memory_reserved())
