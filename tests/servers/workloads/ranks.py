"""A small network learns on several ranks, each on its own device. Prints the mean losses, which are the CPU's with all rows in one batch.

usage: python -m torch.distributed.run --nproc_per_node 2 ranks.py ddp|fsdp2 STEPS [KEEPING_RANK]
       ranks.py cpu STEPS

Each rank has its own account, in a folder `rank N` of TRUTH's. On KEEPING_RANK the outputs of every step stay in a list.
"""
import sys

import torch
from torch import nn

from ranked import network, own_account, rows

kind, steps = sys.argv[1], int(sys.argv[2])
keeping = int(sys.argv[3]) if len(sys.argv) > 3 else None
on_npu = kind != "cpu"
rank, ranks, device = 0, 1, "cpu"
if on_npu:
    rank, ranks = own_account()
    import torch.distributed as dist

    import truth

    device = f"npu:{rank}"
    truth.start(rank)
    dist.init_process_group("hccl")

model = network().to(device)
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
elif kind == "fsdp2":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("npu", (ranks,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
x, y = rows()
kept = []

for step in range(steps):
    x_there, y_there = x[rank::ranks].to(device), y[rank::ranks].to(device)
    out = model(x_there)
    loss = nn.functional.cross_entropy(out, y_there)
    if rank == keeping:
        kept.append(out.detach().clone())  # the leak
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    if on_npu:
        dist.all_reduce(mean)
        truth.mark(f"step {step}")
    if rank == 0:
        print(f"step {step} loss {mean.item() / ranks:.4f}", flush=True)

if on_npu:
    print(f"rank {rank} kept {len(kept)} {sum(out.numel() * out.element_size() for out in kept)}", flush=True)
    truth.finish()
    dist.destroy_process_group()
