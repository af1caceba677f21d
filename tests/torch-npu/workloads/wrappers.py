"""Holds real tensors in what torch wraps around them: hooks, graphs written by hand, compilers, scripts, optimizers, models that are spread
over ranks. Prints `CASES` as `holders.py` does, with the blocks of all other tensors behind them, then looks paths up (`lookups.py`).
"""
import concurrent.futures
import contextvars
import functools
import os
import queue
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch_npu
from torch.utils.checkpoint import checkpoint

import lookups

try:
    from torch.distributed.device_mesh import init_device_mesh
except ImportError:
    # Before 2.2.
    from torch.distributed._tensor import DeviceMesh

    def init_device_mesh(device, shape):
        return DeviceMesh(device, list(range(*shape)), _validate_mesh=False)
try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, distribute_tensor
except ImportError:
    # Before 2.6, where models are sharded on CUDA's devices alone.
    fully_shard = None
    from torch.distributed._tensor import Replicate, distribute_tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.utils.parametrize import register_parametrization

DEVICE = "npu"
FILE = os.path.basename(__file__)
CASES = []


def case(name, held, path):
    CASES.append([name, held.untyped_storage().data_ptr(), path])


def tensor(name, path):
    """Each of a size of its own."""
    made = torch.zeros((300 + len(CASES)) * 1024, device=DEVICE)
    case(name, made, path)
    return made


def batch(width):
    return torch.ones(4, width, device=DEVICE)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(350, 360)
        self.register_buffer("scale", torch.zeros(70000))

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


class Deep(nn.Module):
    """Modules in each other, `depth` of them around the last."""

    def __init__(self, depth):
        super().__init__()
        self.inner = Deep(depth - 1) if depth else nn.Linear(340, 350)

    def forward(self, x):
        return self.inner(x)


def learn(model, width, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False, **options)
    model(batch(width)).sum().backward()
    optimizer.step()
    return optimizer


# Hooks keep what their functions have from outside.
hooked = nn.Linear(400, 300).to(DEVICE)
leaf = torch.zeros(90000, device=DEVICE, requires_grad=True)
graphs = []


def hook(name, register, path):
    """torch numbers all hooks of a process."""
    kept = torch.zeros((300 + len(CASES)) * 1024, device=DEVICE)
    number = register(lambda *_: (kept, None)[1]).id
    case(name, kept, path + f"[{number}] closure variable `kept`")


def hooks():
    hook("hook before a module", hooked.register_forward_pre_hook, "__main__.hooked._forward_pre_hooks")
    hook("hook of a module", hooked.register_forward_hook, "__main__.hooked._forward_hooks")
    hook("hook of a gradient", leaf.register_hook, "__main__.leaf → PyFunctionTensorPreHook")
    hook("hook of a sum", leaf.register_post_accumulate_grad_hook, "__main__.leaf → PyFunctionTensorPostAccGradHooks")
    result = (leaf * 2).sum()
    hook("hook of a function", result.grad_fn.register_hook, "__main__.graphs[0] → SumBackward0 → PyFunctionPostHook")
    graphs.append(result)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, saved, note):
        ctx.save_for_backward(saved)
        ctx.note = note
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


def own_function():
    saved = tensor("saved by a function of Python", "__main__.graphs[1] → PyNode → torch.autograd.function.OwnBackward")
    note = tensor("attribute of a function of Python", "__main__.graphs[1] → PyNode.note")
    graphs.append(Own.apply(leaf, saved, note))


def packed():
    x = torch.zeros(91000, device=DEVICE, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: ("packed", saved), lambda pair: pair[1]):
        y = tensor("packed by a hook", "__main__.graphs[2] → SumBackward0 → MulBackward0 → PySavedVariableHooks[1]")
        graphs.append((x[:1024] * y[:1024]).sum())


def checkpointed():
    x = torch.zeros(93000, device=DEVICE, requires_grad=True)
    end = "PyNode → torch.autograd.function.CheckpointFunctionBackward"
    kept = tensor("argument of a checkpoint", "__main__.graphs[3] → " + end)
    graphs.append(checkpoint(lambda a, b: (a[:1024] * b[:1024]).sum(), x, kept, use_reentrant=True))


def views():
    x = torch.zeros(94000, device=DEVICE, requires_grad=True)
    y = torch.ones(94000, device=DEVICE)
    case("saved in the graph of a view", y, "…MulBackward0")
    graphs.append((x * y).view(94, 1000)[5:9])
    z = torch.ones(95000, device=DEVICE)
    case("saved in a graph that is kept alone", z, "__main__.graphs[5] → MulBackward0")
    graphs.append((torch.zeros(95000, device=DEVICE, requires_grad=True) * z).grad_fn)


# Names of a model are better than those of lists of its parameters, however deep it is.
deep = Deep(10).to(DEVICE)
trained = learn(deep, 340, momentum=0.9)
DEEPEST = "__main__.deep" + ".inner" * 11
case("weight of a deep model", trained.param_groups[0]["params"][0], DEEPEST + ".weight")
case("gradient of a deep model", trained.param_groups[0]["params"][0].grad, DEEPEST + ".weight.grad")
momentum = trained.state[trained.param_groups[0]["params"][0]]["momentum_buffer"]
case("state of its optimizer", momentum, "__main__.trained.state[<Parameter>]['momentum_buffer']")
del momentum
alone = torch.optim.SGD([tensor("of an optimizer alone", "__main__.alone.param_groups[0]['params'][0]").requires_grad_()], lr=1)
average = torch.optim.swa_utils.AveragedModel(Small().to(DEVICE))
case("average of a model", average.module.linear.weight, "__main__.average.module.linear.weight")
parts = nn.ParameterList([nn.Parameter(tensor("list of parameters", "__main__.parts[0]"))])
symmetric = nn.Linear(410, 420).to(DEVICE)
register_parametrization(symmetric, "weight", nn.Identity())
original = symmetric.parametrizations.weight.original
case("original of a parametrization", original, "__main__.symmetric.parametrizations.weight.original")
del original


# Scripts and compilers.
script = torch.jit.script(Small()).to(DEVICE)
case("buffer of a script", script.scale, "… → c10::ivalue::Object")
traced_model = Small().to(DEVICE)
traced = torch.jit.trace(traced_model, batch(350), check_trace=False)
del traced_model
compiled = torch.compile(Small().to(DEVICE), backend="eager")
compiled(batch(350))
case("weight of a compiled model", compiled._orig_mod.linear.weight, "__main__.compiled._orig_mod.linear.weight")
ahead = torch.compile(Small().to(DEVICE), backend="aot_eager")
x = torch.ones(900, 350, device=DEVICE)
end = "PyNode → torch.autograd.function.CompiledFunctionBackward"
case("saved by a compiled function", x, "__main__.result → SumBackward0 → " + end)
result = ahead(x).sum()
del x


def compiled_function():
    kept = tensor("variable of a compiled function", "__main__.function.__wrapped__ closure variable `kept`")
    return torch.compile(lambda x: x + kept[:16], backend="eager")


function = compiled_function()
function(torch.ones(16, device=DEVICE))

# Objects around tensors.
subclass = tensor("tensor of a class of its own", "__main__.subclass → __main__.Own_tensor").as_subclass(
    type("Own_tensor", (torch.Tensor,), {})
)
storage = tensor("storage", "__main__.storage → torch.storage.UntypedStorage").untyped_storage()
try:
    capsule = torch.utils.dlpack.to_dlpack(tensor("capsule", "__main__.capsule → PyCapsule"))
except RuntimeError:
    # torch_npu 2.5 has no capsules.
    CASES.pop()
future = torch.futures.Future()
future.set_result(tensor("future of torch", "…c10::ivalue::ConcretePyObjectHolder"))
pool = concurrent.futures.ThreadPoolExecutor(1)
answer = pool.submit(lambda: tensor("future of a pool of threads", "__main__.answer._result"))
answer.result()
waiting = queue.Queue()
waiting.put(tensor("queue", "__main__.waiting.queue[deque item]"))


@functools.lru_cache(None)
def cached(number):
    return tensor("lru_cache", "__main__.cached → functools._lru_cache_wrapper[3]")


cached(3)
variable = contextvars.ContextVar("variable")
variable.set(tensor("context", "thread %d context variable `variable`" % os.getpid()))
# No dict has the dispatcher's functions: what they hold is held, and not for sure.
library = torch.library.Library("wrappers", "DEF")
library.define("own(Tensor x) -> Tensor")


def implement():
    kept = tensor("implementation of an operator", "")
    library.impl("own", lambda x: (kept, x)[1], "PrivateUse1")


def fails():
    local = "__main__.error.__traceback__.tb_next.tb_frame → local `inner` of fails() %s:%d"
    inner = tensor("variable of a function that failed", local % (FILE, fails.__code__.co_firstlineno))
    raise ValueError(inner)


for hold in (hooks, own_function, packed, checkpointed, views, implement):
    hold()
try:
    fails()
except ValueError as caught:
    error = caught
    error.args = ()


def wait_in_thread():
    mine = tensor("variable of a thread", "local `mine` of wait_in_thread() %s:%d" % (FILE, wait_in_thread.__code__.co_firstlineno))
    started.set()
    threading.Event().wait()
    return mine


started = threading.Event()
threading.Thread(target=wait_in_thread, daemon=True).start()
started.wait()

# Models that are spread over ranks; here there is one.
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
dist.init_process_group("hccl", rank=0, world_size=1)
mesh = init_device_mesh(DEVICE, (1,))


def data_parallel(**options):
    """A model and the address of its bucket of gradients."""
    buckets = []

    def hook(_, bucket):
        buckets.append(bucket.buffer().data_ptr())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model = nn.parallel.DistributedDataParallel(Small().to(DEVICE), device_ids=[0], **options)
    model.register_comm_hook(None, hook)
    for _ in range(2):
        model(batch(350)).sum().backward()
    return model, buckets[-1]


parallel, bucket = data_parallel(broadcast_buffers=False)
CASES.append(["bucket of gradients", bucket, "__main__.parallel.reducer → torch._C._distributed_c10d.Reducer"])
case("weight of DDP", parallel.module.linear.weight, "__main__.parallel.module.linear.weight")
case("gradient of DDP", parallel.module.linear.weight.grad, "__main__.parallel.module.linear.weight.grad")
in_buckets, bucket = data_parallel(gradient_as_bucket_view=True)
CASES.append(["gradients in buckets", bucket, "….grad"])
flat = FullyShardedDataParallel(Small().to(DEVICE), device_id=torch.device("npu:0"))
flat(batch(350)).sum().backward()
case("parameter of FSDP", flat._flat_param, "….flat_param")
if fully_shard is not None:
    sharded = Small().to(DEVICE)
    fully_shard(sharded, mesh=mesh, reshard_after_forward=False)
    sharded(batch(350)).sum().backward()
    case("shard", sharded.linear.weight.to_local(), "__main__.sharded.linear.weight._local_tensor")
    case("gradient of a shard", sharded.linear.weight.grad.to_local(), "….grad._local_tensor")
spread = distribute_tensor(tensor("spread tensor", "__main__.spread._local_tensor"), mesh, [Replicate()])

lookups.waits(CASES)
