"""Requests go to pools that the program makes itself, between others: pools are used again and in each other, given up while blocks of them live, by
two threads, and by a captured graph.

usage: mempools.py ROUNDS SEED
"""
import random
import sys
import threading

import truth
import torch

rounds, seed = int(sys.argv[1]), int(sys.argv[2])
truth.start()
chance = random.Random(seed)
live, pools, graphs = [], [], []


def request(count=4):
    for _ in range(count):
        live.append(torch.empty(int(2 ** chance.uniform(8, 24)), dtype=torch.uint8, device="npu"))


def free(count=3):
    for _ in range(min(count, len(live))):
        live.pop(chance.randrange(len(live)))


def beside(work):
    """Another thread's requests; it is waited for, so that their order is the same each time."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def use(pool):
    with torch.npu.use_mem_pool(pool):
        request()
        beside(lambda: request(2))
        free(1)


def use_and_fail(pool):
    try:
        with torch.npu.use_mem_pool(pool):
            request(2)
            raise RuntimeError("on purpose")
    except RuntimeError:
        pass


def nested(outer, inner):
    with torch.npu.use_mem_pool(outer):
        request(2)
        with torch.npu.use_mem_pool(inner):
            request(2)
        request(1)


def capture(pool):
    """A graph in the program's own pool."""
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, pool=pool.id):
        live.append(torch.empty(chance.randrange(1 << 20, 6 << 20), dtype=torch.uint8, device="npu"))
    graphs.append(graph)


for number in range(rounds):
    request()
    if number % 3 == 0:
        pools.append(torch.npu.MemPool())
    pool = chance.choice(pools)
    use(pool)
    if number % 4 == 1:
        use_and_fail(pool)
    if number % 5 == 2 and len(pools) > 1:
        nested(*chance.sample(pools, 2))
    if number % 6 == 3:
        capture(pool)
    if number % 7 == 6:
        graphs and graphs.pop(0).reset()
        torch.npu.empty_cache()
    free()
    del pool
    if len(pools) > 3:
        pools.pop(0)
    truth.mark(f"round {number}")

graphs.clear()
truth.mark("graphs gone")
pools.clear()
truth.mark("pools gone")
live.clear()
torch.npu.empty_cache()
truth.finish()
