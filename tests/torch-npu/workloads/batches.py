"""A network learns from batches of a size. Prints the peaks that torch_npu has of its pool: allocated and reserved bytes.

usage: batches.py BATCH STEPS
"""
import sys

import torch
from torch import nn

batch, steps = int(sys.argv[1]), int(sys.argv[2])
torch.npu.set_device(0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16)).to("npu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(steps):
    x, y = torch.randn(batch, 64).to("npu"), torch.randint(0, 16, (batch,)).to("npu")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.npu.synchronize()
print("peaks", torch.npu.max_memory_allocated(), torch.npu.max_memory_reserved())
