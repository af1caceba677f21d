"""A model learns, and lists keep the loss and three outputs of each step, as programs do that mean to print them later. Python frees the lists at
its end.

usage: keeps.py marked|plain STEPS

With `marked` each step is a range of mstx named `step start`. After the first step the weights are copied, once: that is kept, too. Prints how many
tensors the lists have, and their bytes.
"""
import copy
import ctypes
import sys

import torch
import torch_npu
from torch import nn

marked, steps = sys.argv[1] == "marked", int(sys.argv[2])
mstx = ctypes.CDLL("libms_tools_ext.so")
mstx.mstxRangeStartA.restype = ctypes.c_uint64
torch.npu.set_device(0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16)).to("npu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
random = torch.Generator().manual_seed(1)
x, y = torch.randn(128, 64, generator=random), torch.randint(0, 16, (128,), generator=random)
losses, outputs, average = [], [], None

for step in range(steps):
    mark = mstx.mstxRangeStartA(b"step start", None) if marked else None
    x_there, y_there = x.to("npu"), y.to("npu")
    for _ in range(3):
        out = model(x_there)
        outputs.append(out.detach())
    loss = nn.functional.cross_entropy(out, y_there)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    if step == 0:
        average = copy.deepcopy(model)
    if marked:
        mstx.mstxRangeEnd(ctypes.c_uint64(mark))
torch.npu.synchronize()
kept = [tensors[0].numel() * 4 for tensors in (losses, outputs)]
print(f"kept {len(losses)} {kept[0]} {len(outputs)} {kept[1]}")
