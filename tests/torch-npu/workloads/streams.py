"""Programs with blocks that other streams still use when they are freed, as their users write them.

usage: streams.py prefetch|gather|offload|serve STEPS SEED

`prefetch` copies the next batch, of a seeded length, on a stream of its own. `gather` does as FSDP does: each layer's parameters are joined on a
stream of their own before it is used, and its gradients leave on that stream. `offload` takes activations away on a stream of its own and brings them
back. `serve` answers requests that grow, and samples on a stream of its own. Prints `peaks ALLOCATED RESERVED` of the device.
"""
import random
import sys

import torch
import torch_npu

MIB = 1 << 20
kind, steps, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
seeded = random.Random(seed)
torch.npu.set_device(0)
side = torch.npu.Stream()
main = torch.npu.current_stream()


def new(size_bytes):
    return torch.empty(max(1, int(size_bytes)), dtype=torch.uint8, device="npu")


def work(tensor, times=1):
    """Operators that use the tensor on the current stream."""
    for _ in range(times):
        torch.bitwise_not(tensor[:256], out=tensor[:256])
    return tensor


def on_side(size_bytes, times):
    with torch.npu.stream(side):
        return work(new(size_bytes), times)


def prefetch():
    def load():
        return on_side(seeded.randint(1, 12) * MIB, 6)

    weights = [work(new(seeded.randint(2, 20) * MIB)) for _ in range(6)]
    batch = load()
    for step in range(steps):
        main.wait_stream(side)
        batch.record_stream(main)
        coming = load()
        activations = [work(new(batch.numel() * seeded.choice([1, 2, 3])), 3) for _ in weights]
        while activations:
            work(activations.pop(), 3)
        batch = coming
        if step % 4 == 3:
            weights[0][:1].cpu()


def gather():
    sizes = [seeded.randint(3, 24) * MIB for _ in range(8)]
    shards = [work(new(size // 4)) for size in sizes]
    for step in range(steps):
        activations = []
        for size in sizes + sizes[::-1]:
            whole = on_side(size, 2)
            main.wait_stream(side)
            whole.record_stream(main)
            if len(activations) < len(sizes):
                activations.append(work(new(seeded.randint(1, 6) * MIB), 3))
            else:
                work(activations.pop(), 3)
                gradient = work(new(size))
                side.wait_stream(main)
                with torch.npu.stream(side):
                    work(gradient, 2)
                gradient.record_stream(side)
                del gradient
            work(whole)
            del whole
        if step % 3 == 2:
            shards[0][:1].cpu()


def offload():
    weights = [work(new(seeded.randint(2, 16) * MIB)) for _ in range(6)]
    for step in range(steps):
        sizes = [seeded.randint(2, 16) * MIB for _ in weights]
        for size in sizes:
            activation = work(new(size), 2)
            side.wait_stream(main)
            with torch.npu.stream(side):
                work(activation, 3)
            activation.record_stream(side)
            del activation
        for size in reversed(sizes):
            back = on_side(size, 3)
            main.wait_stream(side)
            back.record_stream(main)
            work(back, 2)
            del back
        weights[0][:1].cpu()


def serve():
    weights = [work(new(seeded.choice([4, 11, 22]) * MIB + 4096)) for _ in range(8)]
    active = []
    for step in range(steps):
        while len(active) < 10 and seeded.random() < 0.6:
            length = int(min(4000, seeded.lognormvariate(5.2, 1.1)))
            active.append([length, seeded.randrange(4, 40), [new(length * 4096), new(length * 4096)]])
        total = sum(length for length, _, _ in active) // 8 + 1
        for _ in range(3):
            scores = work(new(min(total * total, 48 * MIB) + total))
            out = work(new(total * 4096))
            del scores
        side.wait_stream(main)
        with torch.npu.stream(side):
            logits = work(new(len(active) * 64000 + 1), 2)
            chances = work(new(len(active) * 128000 + 1), 2)
        logits.record_stream(main)
        out.record_stream(side)
        del logits, chances, out
        for request in active:
            request[1] -= 1
            if step % 16 == 15:
                request[2].append(new(128 * 1024))
        active = [request for request in active if request[1] > 0]
        if step % 10 == 9:
            weights[0][:1].cpu()


{"prefetch": prefetch, "gather": gather, "offload": offload, "serve": serve}[kind]()
torch.npu.synchronize()
stats = torch.npu.memory_stats(0)
print("peaks", *(stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved")), flush=True)
print("counts", stats["num_alloc_retries"], stats["allocation.all.allocated"], file=sys.stderr)
