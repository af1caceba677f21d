"""Random PyTorch operators, and what a TorchDispatchMode in the same process saw of them.

usage: random_ops.py [COUNT] [SEED] [DEVICE]

Writes operators.json into the folder $TRUTH, a list for each thread: {"tid": …, "events": [[kind, operator, address, bytes,
dtype, shape], …]}, kind one of START, READ, WRITE, END; the last four are null for START and END. Where the program passed a
Python number for a tensor, there is READ with address 0: C++ gets a tensor without dimensions, which the mode does not see.
"""

import json
import os
import random
import sys
import threading

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def tensors(value):
    """All tensors in an argument, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    return []


class Recorder(TorchDispatchMode):
    """Writes down what the operators of this thread use: reads before, writes after the call."""

    def __init__(self):
        super().__init__()
        self.events = []

    def use(self, kind, operator, value):
        for tensor in tensors(value):
            if tensor.data_ptr() != 0 and tensor.numel() != 0:
                size = tensor.numel() * tensor.element_size()
                shape, dtype = list(tensor.shape), str(tensor.dtype)
                self.events.append([kind, operator, tensor.data_ptr(), size, dtype, shape])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = "torch._ops." + str(func)
        schema = func._schema
        self.events.append(["START", name, None, None, None, None])
        given = dict(zip((argument.name for argument in schema.arguments), args)) | kwargs
        returned = {alias for value in schema.returns if value.alias_info for alias in value.alias_info.before_set}
        written = []
        for argument in schema.arguments:
            alias, value = argument.alias_info, given.get(argument.name)
            if alias is None and isinstance(value, (bool, int, float)) and str(argument.type) == "Tensor":
                dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}[type(value)]
                size = torch.empty((), dtype=dtype, device="meta").element_size()
                self.events.append(["READ", name, 0, size, str(dtype), []])
            elif alias is None:
                self.use("READ", name, value)
            elif alias.is_write and not returned & alias.before_set:
                written.append(value)
        # A changed tensor that is not returned is reported at the beginning.
        for value in written:
            self.use("WRITE", name, value)
        result = func(*args, **kwargs)
        results = result if len(schema.returns) > 1 else [result]
        for value, declared in zip(results, schema.returns):
            if declared.alias_info is None or declared.alias_info.is_write:
                self.use("WRITE", name, value)
        self.events.append(["END", name, None, None, None, None])
        return result


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


class Maker:
    """Random tensors and operators."""

    def __init__(self, seed, device):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.device = device

    def size(self, most=9):
        return self.random.randint(1, most)

    def floats(self, *shape):
        return torch.rand(shape, generator=self.generator).to(self.device)

    def any(self):
        shape = [self.size(4) for _ in range(self.random.randint(0, 7))]
        value = torch.randint(0, 5, shape, generator=self.generator).to(self.device)
        return value.to(self.random.choice(DTYPES))

    def one(self):
        """Calls one random operator or function."""
        makers = [getattr(self, name) for name in dir(self) if name.startswith("op_")]
        self.random.choice(makers)()

    def op_pointwise(self):
        x = self.floats(self.size(), self.size())
        getattr(torch, self.random.choice("sin cos exp sqrt abs neg sigmoid tanh relu real floor square".split()))(x)

    def op_binary(self):
        x = self.any()
        y = torch.ones_like(x)
        self.random.choice([torch.eq, torch.ne, torch.maximum, torch.logical_and])(x, y)

    def op_arithmetic(self):
        x, y = self.floats(3, 1, self.size()), self.floats(self.size(), 1)
        self.random.choice([torch.add, torch.sub, torch.mul, torch.div, torch.pow])(x, y)

    def op_in_place(self):
        x = self.floats(self.size(), 4)
        x.add_(1).mul_(2.5).clamp_(0, 3)
        x[0].zero_()
        x.t_().sqrt_()

    def op_matrix(self):
        x, y = self.floats(self.size(), 5), self.floats(5, self.size())
        self.random.choice([torch.mm, torch.matmul])(x, y)

    def op_batch(self):
        n = self.size()
        torch.baddbmm(self.floats(n, 2, 4), self.floats(n, 2, 3), self.floats(n, 3, 4), beta=0.5, alpha=2)

    def op_out(self):
        x, out = self.floats(self.size(), 6), torch.empty(0, device=self.device)
        torch.add(x, x, out=out)
        torch.mm(x, x.t(), out=torch.empty(0, device=self.device))
        torch.cumsum(x, 0, out=out)

    def op_views(self):
        x = self.floats(4, 6, self.size())
        x.view(24, -1).transpose(0, 1)[1:].unsqueeze(0).expand(2, -1, -1).permute(2, 0, 1)
        x.split(2)[1].chunk(2, 1)
        x.select(0, 1).narrow(0, 2, 3).diagonal()
        x.reshape(6, -1).contiguous().flatten()

    def op_many_dimensions(self):
        x = self.floats(*[self.size(3) for _ in range(self.random.randint(6, 9))])
        (x + x).sum(dim=(0, 2))

    def op_empty_and_scalar(self):
        x = self.floats(0, self.size())
        (x + 1).sum()
        torch.tensor(2.0, device=self.device) * self.floats(self.size())

    def op_reductions(self):
        x = self.floats(self.size(), self.size())
        x.max(dim=1)
        x.sort(dim=0, descending=True)
        x.topk(1)
        x.var(unbiased=False)
        x.mean(dim=0, keepdim=True)
        torch.std_mean(x, dim=0)

    def op_lists(self):
        parts = [self.floats(self.size(), 3) for _ in range(self.random.randint(1, 6))]
        torch.cat(parts)
        torch.stack([part[0] for part in parts], 1)
        torch._foreach_add_(parts, 1.0)
        torch._foreach_mul(parts, parts)

    def op_index(self):
        x = self.floats(5, 6, 7)
        rows = torch.randint(0, 5, (self.size(),), generator=self.generator).to(self.device)
        x[rows]
        x[:, rows]
        x[rows, :, rows]
        x[rows] = 1.5
        x.index_select(1, rows)
        x.index_add_(0, rows, torch.ones(len(rows), 6, 7, device=self.device))
        torch.where(x > 0.5, x, torch.zeros_like(x))

    def op_factories(self):
        n = self.size()
        torch.zeros(n, device=self.device)
        torch.full((n, 2), 3.5, device=self.device)
        torch.arange(n, device=self.device)
        torch.eye(n, dtype=torch.float64, device=self.device)
        torch.linspace(0, 1, n, device=self.device)

    def op_casts(self):
        x = self.any()
        x.to(self.random.choice(DTYPES))
        x.float().half()
        x.clone().fill_(1)

    def op_layers(self):
        functional = torch.nn.functional
        x = self.floats(self.size(), 3, 8, 8)
        y = functional.conv2d(x, self.floats(4, 3, 3, 3), self.floats(4), stride=2, padding=1)
        y = functional.batch_norm(y, torch.zeros(4), torch.ones(4), self.floats(4), self.floats(4), training=True)
        y = functional.max_pool2d(functional.gelu(y), 2)
        y = functional.linear(y.flatten(1), self.floats(5, 16), self.floats(5))
        y = functional.layer_norm(y, (5,), self.floats(5), self.floats(5))
        functional.cross_entropy(y, torch.zeros(len(y), dtype=torch.int64, device=self.device))
        functional.dropout(y, 0.5)
        functional.pad(y, (1, 2), value=0.5)
        functional.embedding(torch.tensor([1, 2, 1], device=self.device), self.floats(4, 6))

    def op_gradients(self):
        x = self.floats(self.size(), 4).requires_grad_()
        w = self.floats(4, 3).requires_grad_()
        loss = torch.nn.functional.softmax(x @ w, dim=1).log().sum()
        loss.backward()
        torch.optim.SGD([x, w], lr=0.1, momentum=0.9).step()

    def op_throws(self):
        try:
            torch.mm(self.floats(2, 3), self.floats(2, 3))
        except RuntimeError:
            pass
        try:
            self.floats(3).view(2, 2)
        except RuntimeError:
            pass

    def op_linear_algebra(self):
        x = self.floats(4, 4) + torch.eye(4, device=self.device)
        torch.linalg.inv(x)
        torch.linalg.svd(x)
        torch.einsum("ij,jk->ik", x, x)


def work(seed, count, device, into):
    """One thread."""
    maker = Maker(seed, device)
    recorder = Recorder()
    with recorder:
        while sum(event[0] == "START" for event in recorder.events) < count:
            maker.one()
    into.append({"tid": threading.get_native_id(), "events": recorder.events})


def main():
    count, seed, device = sys.argv[1:] + ["2000", "1", "cpu"][len(sys.argv) - 1 :]
    torch.set_num_threads(1)
    truth = []
    threads = [
        threading.Thread(target=work, args=(int(seed) + n, int(count) // 2, device, truth)) for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open(os.path.join(os.environ["TRUTH"], "operators.json"), "w") as file:
        json.dump(truth, file)


if __name__ == "__main__":
    main()
