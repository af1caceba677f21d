"""A block that is there long before it is used, and one that stays long after."""
import torch

import msmemscope

msmemscope.config(events="alloc,free,access,launch", level="kernel,op", analysis="inefficient", format="csv", output_path="./output")

device = torch.device("npu:0")
torch.npu.set_device(device)
msmemscope.start()
early = torch.empty(1 << 20, dtype=torch.uint8, device=device)
late = torch.ones(1 << 20, dtype=torch.uint8, device=device)
work = torch.ones(64, 64, device=device)
for _ in range(20):
    work = work + 1.0
early.fill_(1)
torch.npu.synchronize()
print("allocated", torch.npu.memory_allocated(), "at most", torch.npu.max_memory_allocated())
del early, late, work
msmemscope.stop()
