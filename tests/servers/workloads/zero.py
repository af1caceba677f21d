"""A small network learns with DeepSpeed on two ranks, each on its own device. Prints the mean losses, which are the CPU's with all rows in one batch.

usage: python -m torch.distributed.run --nproc_per_node 2 zero.py STAGE STEPS [KEEPING_RANK]
       zero.py cpu STEPS

STAGE is ZeRO's: 1 parts the optimizer's state among the ranks, 2 the gradients, too, 3 the weights, too. Each rank has its own account, in a
folder `rank N` of TRUTH's, and says at the end which blocks hold what DeepSpeed keeps. On KEEPING_RANK the outputs of every step stay in a list.
"""
import sys

import torch
from torch import nn

from ranked import network, own_account, rows

stage, steps = sys.argv[1], int(sys.argv[2])
keeping = int(sys.argv[3]) if len(sys.argv) > 3 else None
on_npu = stage != "cpu"
rank, ranks, device = 0, 1, "cpu"
# Elements of the buffer in which gradients are reduced: as many as the largest weight has.
BUCKET = 1 << 16
if on_npu:
    rank, ranks = own_account()
    import deepspeed
    import torch.distributed as dist

    import truth
    from blocks import blocks_of

    device = f"npu:{rank}"
    truth.start(rank)
    deepspeed.init_distributed(dist_backend="hccl")


def say(*words):
    """A line in one write, since the ranks share the output."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def say_blocks():
    """What DeepSpeed keeps, by its own names: blocks of the pool, and their bytes."""
    zero = optimizer
    states = [value for state in zero.optimizer.state.values() for value in state.values() if value.device.type == "npu"]
    # The norm of the last step's gradients stays with them.
    states.append(zero._global_grad_norm)
    learning = [parameter for group in zero.optimizer.param_groups for parameter in group["params"]]
    weights, gathered, gradients = list(model.parameters()), [], []
    if stage == "3":
        # Weights below a size are whole on each rank from one step to the next.
        gathered = [weight for weight in weights if weight.numel()]
        weights, learning = [weight.ds_tensor for weight in weights], zero.fp32_partitioned_groups_flat
        gradients = [zero.grad_partitions_flat_buffer, *[bucket.buffer for bucket in zero.ipg_buckets.values()]]
    kinds = {"weights": weights + learning, "gathered": gathered, "gradients": gradients, "optimizer_state": states}
    for kind, tensors in kinds.items():
        say("rank", rank, kind, *blocks_of(tensors))


model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
x, y = rows()
kept = []
if on_npu:
    config = {
        "train_micro_batch_size_per_gpu": len(x) // ranks,
        "zero_optimization": {"stage": int(stage), "reduce_bucket_size": BUCKET},
    }
    model, optimizer, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    truth.mark("model")

for step in range(steps):
    x_there, y_there = x[rank::ranks].to(device), y[rank::ranks].to(device)
    out = model(x_there)
    loss = nn.functional.cross_entropy(out, y_there)
    if rank == keeping:
        kept.append(out.detach().clone())  # the leak
    if on_npu:
        model.backward(loss)
        model.step()
    else:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    mean = loss.detach().clone()
    if on_npu:
        dist.all_reduce(mean)
        truth.mark(f"step {step}")
    if rank == 0:
        say(f"step {step} loss {mean.item() / ranks:.4f}")

if on_npu:
    say("rank", rank, "kept", len(kept), sum(out.numel() * out.element_size() for out in kept))
    say_blocks()
    truth.finish()
    dist.destroy_process_group()
