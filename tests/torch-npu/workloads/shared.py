"""Tensors that another process uses, by torch's queues. Each of both says what it holds, and how: `CASES` on the output of the one that made them, `USER`, a number of
a process and its cases, of the other. `UNSHARED` where torch_npu has no way.
"""
import gc
import json
import multiprocessing.connection
import sys
import types

import torch
import torch.multiprocessing as mp
import torch_npu

# Functions of the first module have their variables elsewhere in a process that is started by itself.
store = sys.modules["store"] = types.ModuleType("store")


def case(name, tensor, path):
    return [name, tensor.untyped_storage().data_ptr(), path]


def use(tensors, answers):
    store.kept = tensors.get()
    store.cache = {"x": [tensors.get(), tensors.get()]}
    batch = tensors.get()
    sums = [float(tensor.sum()) for tensor in [store.kept, *store.cache["x"], batch]]
    cases = [case("kept", store.kept, "store.kept")]
    cases += [case("in a cache", tensor, "store.cache['x'][%d]" % at) for at, tensor in enumerate(store.cache["x"])]
    code = use.__code__
    cases.append(case("in a variable", batch, "local `batch` of use() shared.py:%d" % code.co_firstlineno))
    answers.put((mp.current_process().pid, cases, sums))
    multiprocessing.connection.wait([mp.parent_process().sentinel])


def main():
    global first, others
    if not hasattr(torch.UntypedStorage, "_share_npu_"):
        print("UNSHARED\nCASES []\nwaiting", flush=True)
        mp.Event().wait()
    mp.set_start_method("spawn")
    tensors, answers = mp.Queue(), mp.Queue()
    mp.Process(target=use, args=(tensors, answers), daemon=True).start()
    first = torch.ones(300 << 10, device="npu")
    others = [torch.full((at << 18,), float(at), device="npu") for at in (2, 3, 4)]
    for tensor in [first, *others]:
        tensors.put(tensor)
    pid, cases, sums = answers.get()
    assert sums == [300 << 10, 4 << 18, 9 << 18, 16 << 18], sums
    own = [case("first", first, "__main__.first")]
    own += [case("other", tensor, "__main__.others[%d]" % at) for at, tensor in enumerate(others)]
    print("USER %d %s" % (pid, json.dumps(cases)))
    print("CASES " + json.dumps(own))
    print("waiting", flush=True)
    answers.get()


if __name__ == "__main__":
    gc.disable()
    main()
