"""Holds made-up device blocks in all the ways that Python has. Prints `CASES`, a name, an address and the path of each, and waits.

A `c_void_p` has its value in its own memory, as a tensor's storage has the address of its block. The paths are written here by hand;
numbers of lines come from the functions themselves. With the argument `busy` it allocates and frees all the while.
"""
import asyncio
import collections
import concurrent.futures as futures
import contextvars
import ctypes
import dataclasses
import functools
import gc
import json
import os
import queue as queues
import random
import struct
import sys
import threading
import types
import weakref

gc.disable()
BASE, STEP = 0x12C100000000, 0x400000
FILE = os.path.basename(__file__)
CASES = []
NOTHING, RING = "nothing", "ring"


def block(name, path):
    address = BASE + len(CASES) * STEP
    CASES.append([name, address, path])
    return ctypes.c_void_p(address)


def line(code):
    return "%s() %s:%d" % (getattr(code, "co_qualname", code.co_name), FILE, code.co_firstlineno)


history = [block("item of a list", "__main__.history[%d]" % at) for at in range(3)]
cache = {"a": {"history": block("dict in a dict", "__main__.cache['a']['history']")}, ("layer", 7): [block("key of two", "__main__.cache[('layer', 7)][0]")]}


class Engine:
    registry = {}

    def __init__(self):
        self.name = "engine"
        self._cache = block("attribute", "__main__.engine._cache")


Engine.registry["k"] = block("class", "class __main__.Engine.registry['k']")
engine = Engine()


class Slotted:
    __slots__ = ("buffer", "other")


slotted = Slotted()
slotted.buffer = block("slot", "__main__.slotted.buffer")


def closure():
    kept = block("closure", "__main__.hook closure variable `kept`")
    unused = 3
    return lambda: (unused, kept)


hook = closure()


def numbers():
    inner = block("generator", None)
    yield 1
    yield inner


waiting = numbers()
next(waiting)
CASES[-1][2] = "__main__.waiting%s → local `inner` of %s" % (".gi_frame" if sys.version_info < (3, 11) else "", line(numbers.__code__))
partial = functools.partial(print, block("partial", "__main__.partial.args[0]"))
queue = collections.deque([block("deque", "__main__.queue[deque item]")])
ordered = collections.OrderedDict(x=block("OrderedDict", "__main__.ordered['x']"))
default = collections.defaultdict(list)
default[7].append(block("defaultdict", "__main__.default[7][0]"))


class Item:
    pass


item = Item()
item.buffer = block("set", "__main__.members{member}.buffer")
members = {item}
del item


def argument(value=block("default argument", "__main__.argument.__defaults__[0]")):
    return value


def named_argument(*, value=block("default of a named argument", "__main__.named_argument.__kwdefaults__['value']")):
    return value


@dataclasses.dataclass
class Request:
    tensor: object


@functools.lru_cache(maxsize=None)
def cached(size):
    return [size, block("lru_cache", "__main__.cached → functools._lru_cache_wrapper[3][1]")]


request, space = Request(block("dataclass", "__main__.request.tensor")), types.SimpleNamespace(kept=block("SimpleNamespace", "__main__.space.kept"))
cached(3)
todo = queues.Queue()
todo.put(block("queue of threads", "__main__.todo.queue[deque item]"))
urgent = queues.PriorityQueue()
urgent.put((1, block("queue by priority", "__main__.urgent.queue[0][1]")))
result = futures.Future()
result.set_result(block("result of a future", "__main__.result._result"))
batch = collections.namedtuple("Batch", "size tensor")(1, block("namedtuple", "__main__.batch[1]"))
chain = collections.ChainMap({"x": block("ChainMap", "__main__.chain.maps[0]['x']")})
long_queue = collections.deque(range(1000))
long_queue[500] = block("middle of a deque", "__main__.long_queue[deque item]")
sparse = dict.fromkeys(range(100))
for at in range(90):
    del sparse[at]
sparse["last"] = block("dict after deletions", "__main__.sparse['last']")
many = types.SimpleNamespace()
many.of_class = type("Many", (), {})()
for at in range(60):
    setattr(many.of_class, "a%d" % at, None)
many.of_class.a45 = block("object with many attributes", "__main__.many.of_class.a45")
tuples = (1, (2, block("tuple in a tuple", "__main__.tuples[1][1]")))
long_list = [0] * 100000
long_list[77777] = block("long list", "__main__.long_list[77777]")
large = {"k%d" % at: 0 for at in range(50000)}
large["k31234"] = block("large dict", "__main__.large['k31234']")


def ring():
    one, other = Item(), Item()
    one.other, other.other = other, one
    one.buffer = block("ring", RING)


ring()
target = Item()
target.buffer = block("weak references beside it", "__main__.target.buffer")
weak, weak_values = weakref.ref(target), weakref.WeakValueDictionary(z=target)
model = Item()
model.layers = [Item() for _ in range(4)]
model.layers[3].mlp = Item()
model.layers[3].mlp.weight = block("deep", "__main__.model.layers[3].mlp.weight")
model.__dict__["odd key"] = block("odd key", "__main__.model.__dict__['odd key']")


class Page(tuple):
    pass


page = Page((0, block("subclass of tuple", "__main__.page[1]")))


class Table(dict):
    pass


table = Table(row=block("subclass of dict", "__main__.table['row']"))


class Tree(list):
    pass


tree = Tree([block("subclass of list", "__main__.tree[0]")])
quote = {"it's": block("quote in a key", "__main__.quote[\"it's\"]"), "esc\x1b[31m": block("control in a key", None)}
CASES[-1][2] = "__main__.quote['esc\x1b[31m']"
both = [block("two holders", "__main__.both[0]")]
also = {"second": {"deeper": both[0]}}
freed = [block("freed", NOTHING)]
del freed


# C's memory does not show whether a word in it holds an object: the object's count of references does.
noted = {"x": block("a left-over beside it", "__main__.noted['x']")}
left_over, owner = ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
struct.pack_into("Q", left_over, 64, id(noted))
owned = {"x": block("memory of C", "__main__.owner → ctypes.c_char_Array_256['x']")}
struct.pack_into("Q", owner, 64, id(owned))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(owned))
del owned


def worker():
    held = block("thread", "local `held` of " + line(worker.__code__))
    ready.set()
    stop.wait()
    return held


ready, stop = threading.Event(), threading.Event()
threading.Thread(target=worker, daemon=True).start()
ready.wait()


# A context keeps few variables in one node of its tree, and more in further ones.
request_id, user, session = contextvars.ContextVar("request_id"), contextvars.ContextVar("user"), contextvars.Context()
session.run(request_id.set, [block("context", "__main__.session context variable `request_id`[0]")])
many_variables = [contextvars.ContextVar("v%d" % at) for at in range(1000)]
full = contextvars.Context()
for at, variable in enumerate(many_variables):
    full.run(variable.set, block("context of many", "__main__.full context variable `v700`") if at == 700 else at)
# What a variable gives by itself, what it had before a change, and what it gave last, but no longer holds.
preset = contextvars.ContextVar("preset", default=block("default of a context variable", "__main__.preset → default"))
user.set(block("change of a context variable", "__main__.token.old_value"))
token = user.set(None)
contextvars.Context().run(user.set, block("last value of a context variable", NOTHING))


def own_context():
    number = "thread %d" % threading.get_native_id() if sys.version_info >= (3, 11) else "a thread"
    request_id.set(block("context of a thread", number + " context variable `request_id`"))
    is_set.set()
    stop.wait()


is_set = threading.Event()
threading.Thread(target=own_context, daemon=True).start()
is_set.wait()


def failing():
    lost = block("traceback", None)
    CASES[-1][2] = "__main__.error.__traceback__.tb_next.tb_frame → local `lost` of " + line(failing.__code__)
    raise ValueError(lost is None)


try:
    failing()
except ValueError as caught:
    error = caught


def busy():
    kept = {}
    while True:
        at = random.randrange(2000)
        kept[at] = [object() for _ in range(random.randrange(300))]
        kept.pop(random.randrange(2000), 0)


def serve(served):
    request = {"tensors": [block("frame", "local `request`['tensors'][0] of " + line(serve.__code__))]}

    async def handle():
        inner = block("task", "… → local `inner` of " + line(handle.__code__))
        await asyncio.sleep(1000)
        return inner

    async def main():
        task = asyncio.ensure_future(handle())
        await asyncio.sleep(0.01)
        print("CASES " + json.dumps(CASES), flush=True)
        print("ready", flush=True)
        if "busy" in sys.argv:
            busy()
        await asyncio.sleep(1000)
        return task

    asyncio.run(main())
    return request, served


serve(engine)
