"""Programs with blocks that other streams still use when they are freed, as their users write them.

usage: streams.py prefetch|gather|offload|serve|buckets|pipeline|swap STEPS SEED

`prefetch` copies the next batch, of a seeded length, on a stream of its own. `gather` does as FSDP does: each layer's parameters are joined on a
stream of their own before it is used, and its gradients leave on that stream. `offload` takes activations away on a stream of its own and brings them
back. `serve` answers requests that grow, and samples on a stream of its own. `buckets` sums gradients in buckets, as DDP does. `pipeline` is a stage of
one: micro-batches come and go on two further streams. `swap` answers requests, some of which are swapped out and in. Prints `peaks ALLOCATED RESERVED` of the device.
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


def buckets():
    parameters = [work(new(seeded.randint(1, 12) * MIB)) for _ in range(16)]
    for step in range(steps):
        activations = [work(new(seeded.randint(1, 8) * MIB), 2) for _ in parameters]
        bucket, summed = [], []
        for parameter in reversed(parameters):
            work(activations.pop(), 2)
            bucket.append(work(new(parameter.numel())))
            size_bytes = sum(gradient.numel() for gradient in bucket)
            if size_bytes > 25 * MIB:
                flat = work(new(size_bytes), len(bucket))
                side.wait_stream(main)
                with torch.npu.stream(side):
                    work(flat, 4)
                for tensor in [flat, *bucket]:
                    tensor.record_stream(side)
                summed.append(flat)
                bucket = []
                del flat, tensor
        main.wait_stream(side)
        for flat in summed:
            work(flat)
        del bucket, summed, flat
        for parameter in parameters:
            work(parameter)
        if step % 5 == 4:
            parameters[0][:1].cpu()


def pipeline():
    weights = [work(new(seeded.randint(4, 16) * MIB)) for _ in range(4)]
    out = torch.npu.Stream()
    under_way = []

    def received(size_bytes):
        tensor = on_side(size_bytes, 3)
        main.wait_stream(side)
        tensor.record_stream(main)
        return tensor

    def forward():
        given = received(seeded.randint(2, 14) * MIB)
        activations = [work(new(given.numel()), 2) for _ in weights]
        result = work(new(given.numel()))
        out.wait_stream(main)
        with torch.npu.stream(out):
            work(result, 3)
        result.record_stream(out)
        under_way.append((given, activations))

    def backward():
        given, activations = under_way.pop(0)
        gradient = received(given.numel())
        while activations:
            work(activations.pop(), 3)
        del given, gradient

    for step in range(steps // 3):
        for _ in range(3):
            forward()
        for _ in range(5):
            forward()
            backward()
        while under_way:
            backward()
        work(weights[0], 8)
        if step % 2:
            weights[0][:1].cpu()


def swap():
    weights = [work(new(22 * MIB)) for _ in range(5)]
    active = []
    for step in range(2 * steps):
        if len(active) < 24 and seeded.random() < 0.7:
            active.append([new(seeded.choice([1, 2, 3, 5]) * MIB) for _ in range(seeded.randint(1, 4))])
        for _ in range(2):
            work(new(seeded.randint(1, 30) * MIB), 2)
        if len(active) > 8 and seeded.random() < 0.4:
            swapped = active.pop(seeded.randrange(len(active)))
            side.wait_stream(main)
            with torch.npu.stream(side):
                for tensor in swapped:
                    work(tensor, 2)
            for tensor in swapped:
                tensor.record_stream(side)
            del swapped, tensor
        if seeded.random() < 0.3:
            back = on_side(seeded.randint(1, 8) * MIB, 3)
            main.wait_stream(side)
            back.record_stream(main)
            active.append([back])
            del back
        if active and seeded.random() < 0.3:
            active.pop(0)
        if step % 2:
            weights[0][:1].cpu()


kinds = [prefetch, gather, offload, serve, buckets, pipeline, swap]
{function.__name__: function for function in kinds}[kind]()
torch.npu.synchronize()
stats = torch.npu.memory_stats(0)
print("peaks", *(stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved")), flush=True)
print("counts", stats["num_alloc_retries"], stats["allocation.all.allocated"], file=sys.stderr)
