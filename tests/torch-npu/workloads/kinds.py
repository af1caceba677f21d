"""A model learns with AdamW, and says of each block of its memory what it is for, at moments when it knows that.

usage: kinds.py mlp|transformer|ema|lora STEPS [ATTACHED]

Into the folder TRUTH goes `kinds.jsonl`: for each moment, which is also a mark `kinds STEP MOMENT` in the trace, the kinds of
the blocks that are live, by address. What holds parameters and buffers is `weight`, their gradients are `gradient`, the
optimizer's tensors `optimizer_state`, a batch `input`. What is live besides these after the forward pass, the backward pass has
yet to use: `activation`. At other moments it is not printed.

With ATTACHED it waits for a tracer in that step, after the forward pass: gradients of the step before are live still.

With `ema` a copy of the MLP follows the mean of its weights, as trainers keep it for evaluation: its parameters are `average`. With `lora` the MLP's
weights are frozen, and only factors of low rank learn, which are made by hand and added in forward hooks: these are `factor`.
"""
import copy
import json
import os
import sys

import torch
from torch import nn

import truth
from torch_npu.npu import memory

kind, steps = sys.argv[1], int(sys.argv[2])
attached = int(sys.argv[3]) if len(sys.argv) > 3 else None
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


def record(moment, batch, is_after_forward=False):
    torch.npu.synchronize()
    truth.mstx.mstxMarkA(f"kinds {moment}".encode("ascii"), None)
    kinds = {}
    for parameter in list(model.parameters()) + list(model.buffers()):
        kinds[parameter.data_ptr()] = "weight"
        if parameter.grad is not None:
            kinds[parameter.grad.data_ptr()] = "gradient"
    for parameter in factors:
        kinds[parameter.data_ptr()] = "factor"
        if parameter.grad is not None:
            kinds[parameter.grad.data_ptr()] = "gradient"
    for parameter in average.parameters() if average else ():
        kinds[parameter.data_ptr()] = "average"
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.device.type == "npu":
                kinds[value.data_ptr()] = "optimizer_state"
    for tensor in batch:
        kinds[tensor.data_ptr()] = "input"
    blocks = {address: kinds.get(address, "activation" if is_after_forward else None) for address in live()}
    file.write(json.dumps({"mark": f"kinds {moment}", "pid": os.getpid(), "blocks": blocks}) + "\n")


def adapt(layer, rank=8):
    """Factors of low rank beside a frozen layer, without a module of their own."""
    down = torch.randn(rank, layer.in_features, device="npu").mul_(0.01).requires_grad_()
    up = torch.zeros(layer.out_features, rank, device="npu").requires_grad_()
    layer.register_forward_hook(lambda _, inputs, out: out + inputs[0] @ down.t() @ up.t())
    return [down, up]


if kind != "transformer":
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    batches = [(torch.randn(128, 256), torch.randint(0, 10, (128,))) for _ in range(steps)]
else:
    model = Transformer()
    batches = [(torch.randint(0, 1000, (8, 32)), torch.randint(0, 1000, (8 * 32,))) for _ in range(steps)]
model = model.to("npu")
average, factors = None, []
if kind == "ema":
    average = copy.deepcopy(model)
if kind == "lora":
    model.requires_grad_(False)
    factors = [factor for layer in model if isinstance(layer, nn.Linear) for factor in adapt(layer)]
optimizer = torch.optim.AdamW(factors or model.parameters(), lr=1e-3)

for step, (x, y) in enumerate(batches):
    x, y = x.to("npu"), y.to("npu")
    loss = nn.functional.cross_entropy(model(x), y)
    record(f"{step} forward", (x, y), is_after_forward=True)
    if step == attached:
        file.flush()
        truth.wait_for_tracer()
    optimizer.zero_grad()
    loss.backward()
    record(f"{step} backward", (x, y))
    optimizer.step()
    if average:
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters()):
                mean.lerp_(parameter, 0.1)
    record(f"{step} step", (x, y))
file.close()
