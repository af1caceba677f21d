"""A small network learns. Prints the first and the last loss, which are the CPU's.

usage: train.py sgd|adamw STEPS HIDDEN [npu|cpu] [ATTACH_AT_STEP]
"""
import sys

import torch
from torch import nn

kind, steps, hidden = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
device = sys.argv[4] if len(sys.argv) > 4 else "npu"
attach_at = int(sys.argv[5]) if len(sys.argv) > 5 else None
on_npu = device == "npu"
if on_npu:
    import truth

    truth.start()

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
).to(device)
if kind == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
random = torch.Generator().manual_seed(1)
x, y = torch.randn(128, 64, generator=random), torch.randint(0, 10, (128,), generator=random)

for step in range(steps):
    if on_npu and step == attach_at:
        truth.wait_for_tracer()
        truth.mark("attached")
    x_there, y_there = x.to(device), y.to(device)
    loss = nn.functional.cross_entropy(model(x_there), y_there)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = loss.item()
    if on_npu:
        truth.mark(f"step {step}")
    if step in (0, steps - 1):
        print(f"step {step} loss {value:.6f}")

if on_npu:
    del x_there, y_there, loss
    truth.finish()
