"""Graphs are captured, replayed and given up between other requests, as a server does: most in one pool, some in pools of their own.

With ATTACH_AT_CAPTURE blocks go into a pool that the program makes itself, too, where this version has such pools; and before it waits it prints
`SNAPSHOT`, the allocator's own list of its blocks.

usage: graphs.py CAPTURES [ATTACH_AT_CAPTURE]
"""
import json
import random
import sys

import truth
import torch

captures = int(sys.argv[1])
attach_at = int(sys.argv[2]) if len(sys.argv) > 2 else None
truth.start()
chance = random.Random(11)
shared = torch.npu.graph_pool_handle()
weight = torch.randn(256, 256).to("npu")
inputs = [torch.randn(16 * (1 + n), 256).to("npu") for n in range(8)]
graphs, results, live = [], [], []


def eager():
    """Requests outside of graphs."""
    for _ in range(6):
        live.append(torch.empty(int(2 ** chance.uniform(8, 23.5)), dtype=torch.uint8, device="npu"))
    for _ in range(4):
        live.pop(chance.randrange(len(live)))


def capture(number):
    """What the graph needs between its operators is free again behind it, and stays in its pool."""
    graph = torch.npu.NPUGraph()
    given = inputs[number % len(inputs)]
    with torch.npu.graph(graph, pool=None if number % 4 == 3 else shared):
        large = torch.empty(chance.randrange(1 << 20, 12 << 20), dtype=torch.uint8, device="npu")
        result = torch.relu(given @ weight)
        small = result * 2
        results.append(small + 1)
    del large, small, result
    graphs.append(graph)


def own_pool():
    """A pool that the program makes itself."""
    if not hasattr(torch.npu, "MemPool"):
        return None
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        live.append(torch.empty(3 << 20, dtype=torch.uint8, device="npu"))
        live.append(torch.empty(1000, dtype=torch.uint8, device="npu"))
    return pool


def give_up(number):
    """The oldest graph that has a pool of its own, or one of the others."""
    graphs.pop(min(number, len(graphs) - 1)).reset()
    results.pop(0)


pools = []
for number in range(captures):
    if number == attach_at:
        torch.npu.synchronize()
        print("SNAPSHOT " + json.dumps(torch.npu.memory_snapshot(), default=str), flush=True)
        truth.wait_for_tracer()
        truth.mark("attached")
    eager()
    capture(number)
    for graph in graphs[-3:]:
        graph.replay()
    if number % 5 == 4:
        give_up(3)
        torch.npu.empty_cache()
    truth.mark(f"capture {number}")
    if attach_at is not None and number == attach_at // 2:
        pools.append(own_pool())

graphs.clear()
results.clear()
live.clear()
pools.clear()
truth.mark("freed")
torch.npu.empty_cache()
truth.finish()
