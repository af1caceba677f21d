"""holders.py SETTING: holds tensors in many ways, on the device that `set_device` or `set_context` names. Prints `CASES`, a name, the block's
address and the path of each, and `POOL`, the pool's own figures; then waits.
"""
import collections
import contextvars
import dataclasses
import functools
import gc
import json
import os
import sys
import threading
import time

import mindspore as ms
import numpy as np
from mindspore import Parameter, mint, nn

import truth

if sys.argv[1] == "set_device":
    ms.set_device("Ascend", 1)
else:
    ms.set_context(device_target="Ascend", device_id=1)
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.runtime.set_memory(max_size="1GB")
gc.disable()
FILE = os.path.basename(__file__)
CASES = []


def case(name, tensor, path):
    CASES.append([name, tensor.data_ptr(), path])


def plain():
    """Each of a size of its own, so that none gets the place of an earlier one."""
    made = ms.Tensor(np.ones((40 + len(CASES), 300), np.float32))
    return made + made


def tensor(name, path):
    made = plain()
    case(name, made, path)
    return made


def line(code):
    return "%s() %s:%d" % (getattr(code, "co_qualname", code.co_name), FILE, code.co_firstlineno)


class Layer(nn.Cell):
    def __init__(self, number):
        super().__init__()
        self.weight = Parameter(tensor(f"a weight {number}", ""), name=f"weight {number}")

    def construct(self, x):
        return mint.matmul(x, mint.transpose(self.weight, 0, 1))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer(number) for number in range(3)])
        self.head = Layer(3)


def weights(net):
    """A parameter's memory is on the device from its first use on."""
    cells = [("layers[%d]" % number, layer) for number, layer in enumerate(net.layers)] + [("head", net.head)]
    for name, cell in cells:
        cell.weight + 0
        ms.runtime.synchronize()
        case("weight " + name, cell.weight, "__main__.net." + name + ".weight")


net = Net()
CASES.clear()
weights(net)


class Slots:
    __slots__ = ("value",)


slots = Slots()
slots.value = tensor("slots", "__main__.slots.value")


@dataclasses.dataclass
class Data:
    batch: object


data = Data(tensor("dataclass", "__main__.data.batch"))


class Cache:
    def __init__(self):
        self.history = {}


cache = Cache()
for step in range(8):
    cache.history[step] = tensor(f"dict {step}", f"__main__.cache.history[{step}]")
losses = [tensor(f"list {index}", f"__main__.losses[{index}]") for index in range(8)]


@functools.lru_cache
def cached(number):
    return tensor("lru_cache", "__main__.cached → functools._lru_cache_wrapper → functools._lru_list_elem")


cached(1)
queue = collections.deque([tensor("deque", "__main__.queue[deque item]")])
nested = {"a": [(1, {"b": tensor("nested", "__main__.nested['a'][0][1]['b']")})]}
ordered = collections.OrderedDict(k=tensor("ordered", "__main__.ordered['k']"))
variable = contextvars.ContextVar("user")
variable.set(tensor("context", f"thread {os.getpid()} context variable `user`"))


def outer():
    inside = tensor("closure", "__main__.function closure variable `inside`")
    return lambda: inside


function = outer()


def generate():
    held = tensor("generator", "__main__.generator → local `held` of " + line(generate.__code__))
    yield
    del held


generator = generate()
next(generator)
ready = threading.Event()


def worker():
    mine = tensor("thread", "local `mine` of " + line(worker.__code__))
    ready.set()
    time.sleep(10000)
    del mine


threading.Thread(target=worker, daemon=True).start()
ready.wait()


def fail():
    local = tensor("traceback", "__main__.error.__traceback__.tb_next.tb_frame → local `local` of " + line(fail.__code__))
    raise ValueError(local.shape)


try:
    fail()
except ValueError as raised:
    error = raised
ring = [tensor("ring", "ring")]
ring.append(ring)
del ring
base = tensor("view", "__main__.part")
part = base[3:7]
del base


def main():
    batch = tensor("local", "local `batch` of " + line(main.__code__))
    gone = plain()
    address = gone.data_ptr()
    del gone
    ms.runtime.synchronize()
    CASES.append(["dropped", address, "nothing"])
    print("CASES", json.dumps(CASES, ensure_ascii=False))
    print("POOL", json.dumps(truth.figures()))
    truth.wait_for_tracer()
    del batch


main()
