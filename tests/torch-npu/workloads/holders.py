"""Holds real tensors in many ways. Prints `CASES`, a name, the block's address and the path of each, and `SNAPSHOT`, the allocator's own
list of its blocks at that moment; then waits.
"""
import asyncio
import gc
import json
import os
import sys
import threading
import time

import torch
import torch.nn as nn
import torch_npu

gc.disable()
DEVICE = "npu"
FILE = os.path.basename(__file__)
CASES = []
NOTHING, RING = "nothing", "ring"


def case(name, tensor, path):
    CASES.append([name, tensor.untyped_storage().data_ptr(), path])


def tensor(name, path):
    """Each of a size of its own, so that none gets the place of an earlier one."""
    made = torch.zeros((300 + len(CASES)) * 1024, device=DEVICE)
    case(name, made, path)
    return made


def line(code):
    return "%s() %s:%d" % (getattr(code, "co_qualname", code.co_name), FILE, code.co_firstlineno)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = Block()
        self.register_buffer("scale", torch.ones(300 * 1000))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(256, 2000)

    def forward(self, x):
        for layer in self.layers:
            x = layer.mlp(x)
        return self.head(x)


model = Model().to(DEVICE)
case("parameter", model.layers[3].mlp.up.weight, "__main__.model.layers[3].mlp.up.weight")
case("buffer", model.layers[2].scale, "__main__.model.layers[2].scale")
case("parameter of the head", model.head.weight, "__main__.model.head.weight")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
batch = torch.randn(64, 256)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(batch.to(DEVICE)).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss)
del loss
state = optimizer.state[model.layers[1].mlp.up.weight]
case("state of the optimizer", state["exp_avg"], "__main__.optimizer.state[<Parameter>]['exp_avg']")
del state
case("gradient", model.layers[0].mlp.down.weight.grad, "__main__.model.layers[0].mlp.down.weight.grad")
kept = []


def unfinished():
    """A graph that no backward pass has freed, kept by its loss."""
    given = torch.randn(5000, 256).to(DEVICE)
    result = torch.relu(given @ model.layers[0].mlp.up.weight.t())
    case("input that a graph has saved", given, "__main__.kept[0] → SumBackward0 → MulBackward0 → ReluBackward0 → MatmulBackward0")
    case("result that a graph has saved", result, "__main__.kept[0] → SumBackward0 → MulBackward0 → ReluBackward0")
    kept.append((result * 2).sum())


def noted():
    """What a tensor's object of Python holds, while the graph alone keeps the tensor."""
    given = torch.ones(5000, device=DEVICE, requires_grad=True)
    given.note = tensor("attribute of a tensor in a graph", "__main__.kept[1] → SumBackward0 → MulBackward0.note")
    kept.append((given * given).sum())


unfinished()
noted()
cache = {"layer%d" % layer: [tensor("cache", "__main__.cache['layer%d'][%d]" % (layer, at)) for at in range(3)] for layer in range(2)}


class Engine:
    shared = tensor("attribute of a class", "class __main__.Engine.shared")

    def __init__(self):
        self._cache = {"history": []}
        self.view = None


engine = Engine()
engine._cache["history"] += [tensor("history", "__main__.engine._cache['history'][%d]" % at) for at in range(2)]
base = tensor("view", "__main__.engine.view")
engine.view = base[1000:2000].view(10, 100)
del base


def closure():
    inner = tensor("closure", "__main__.hook closure variable `inner`")
    return lambda: inner


hook = closure()


def numbers():
    inner = tensor("generator", "__main__.waiting → local `inner` of " + line(numbers.__code__))
    yield 1
    yield inner


waiting = numbers()
next(waiting)


class Item:
    pass


def ring():
    item = Item()
    item.itself = item
    item.tensor = tensor("ring", RING)


ring()


def main():
    request = {"x": tensor("local variable", "local `request`['x'] of " + line(main.__code__))}

    async def serve():
        inner = tensor("task", "… → local `inner` of " + line(serve.__code__))
        await asyncio.sleep(10000)
        return inner

    async def run():
        task = asyncio.ensure_future(serve())
        await asyncio.sleep(0.05)
        gone = tensor("freed", NOTHING)
        del gone
        torch.npu.synchronize()
        snapshot = torch.npu.memory_snapshot()
        # At once: cases have the last word among their names.
        lines = ["SNAPSHOT " + json.dumps(snapshot, default=str), "CASES " + json.dumps(CASES), "waiting"]
        print("\n".join(lines), flush=True)
        await asyncio.sleep(10000)
        return task, request

    asyncio.run(run())


if "train" not in sys.argv:
    main()
print("CASES " + json.dumps(CASES[:3] + [case for case in CASES if case[0] == "cache"]), flush=True)
print("waiting", flush=True)
end = time.monotonic() + 100
while time.monotonic() < end:
    optimizer.zero_grad()
    model(batch.to(DEVICE)).pow(2).mean().backward()
    optimizer.step()
