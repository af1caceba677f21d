"""A tensor is looked at around every operator."""
import torch

import msmemscope

msmemscope.config(watch="start,end,full-content", output_path="./output", format="csv")

device = torch.device("npu:0")
torch.npu.set_device(device)
msmemscope.start()
for index in range(3):
    tensor = torch.zeros(16, 16).to(device)
    other = torch.zeros(16, 16).to(device)
    msmemscope.watcher.watch(tensor, name=f"tensor{index}")
    other = other + 1.0
    tensor.add_(2.0)
    torch.npu.synchronize()
    msmemscope.watcher.remove(tensor)
print("allocated", torch.npu.memory_allocated(), "at most", torch.npu.max_memory_allocated())
msmemscope.stop()
