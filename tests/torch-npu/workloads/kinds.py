"""A model learns with AdamW, and says of each block of its memory what it is for, at moments when it knows that.

usage: kinds.py mlp|transformer STEPS

Into the folder TRUTH goes `kinds.jsonl`: for each moment, which is also a mark `kinds STEP MOMENT` in the trace, the kinds of
the blocks that are live, by address. What holds parameters and buffers is `weight`, their gradients are `gradient`, the
optimizer's tensors `optimizer_state`, a batch `input`. What is live besides these after the forward pass, the backward pass has
yet to use: `activation`. At other moments it is not printed.
"""
import json
import os
import sys

import torch
from torch import nn

import truth
from torch_npu.npu import memory

kind, steps = sys.argv[1], int(sys.argv[2])
torch.npu.set_device(0)
torch.manual_seed(0)
file = open(os.path.join(os.environ["TRUTH"], "kinds.jsonl"), "w", encoding="ascii")


class Transformer(nn.Module):
    def __init__(self, width=128, heads=4, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1000)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens))).flatten(0, 1)


def live():
    """Addresses of the blocks that are handed out."""
    found = []
    for segment in memory._snapshot()["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                found.append(address)
            address += block["size"]
    return found


def tell(moment, batch, is_after_forward=False):
    torch.npu.synchronize()
    truth.mstx.mstxMarkA(f"kinds {moment}".encode("ascii"), None)
    kinds = {}
    for parameter in list(model.parameters()) + list(model.buffers()):
        kinds[parameter.data_ptr()] = "weight"
        if parameter.grad is not None:
            kinds[parameter.grad.data_ptr()] = "gradient"
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.device.type == "npu":
                kinds[value.data_ptr()] = "optimizer_state"
    for tensor in batch:
        kinds[tensor.data_ptr()] = "input"
    blocks = {address: kinds.get(address, "activation" if is_after_forward else None) for address in live()}
    file.write(json.dumps({"mark": f"kinds {moment}", "pid": os.getpid(), "blocks": blocks}) + "\n")


if kind == "mlp":
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    batches = [(torch.randn(128, 256), torch.randint(0, 10, (128,))) for _ in range(steps)]
else:
    model = Transformer()
    batches = [(torch.randint(0, 1000, (8, 32)), torch.randint(0, 1000, (8 * 32,))) for _ in range(steps)]
model = model.to("npu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step, (x, y) in enumerate(batches):
    x, y = x.to("npu"), y.to("npu")
    loss = nn.functional.cross_entropy(model(x), y)
    tell(f"{step} forward", (x, y), is_after_forward=True)
    optimizer.zero_grad()
    loss.backward()
    tell(f"{step} backward", (x, y))
    optimizer.step()
    tell(f"{step} step", (x, y))
file.close()
