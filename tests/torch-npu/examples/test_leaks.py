"""Each step leaves a block behind."""
import torch
import torch.nn as nn
import torch.optim as optim

import msmemscope

msmemscope.config(events="alloc,free,launch", level="kernel,op", call_stack="python", analysis="leaks", format="csv", output_path="./output")

device = torch.device("npu:0")
torch.npu.set_device(device)
model = nn.Linear(64, 10).to(device)
optimizer = optim.SGD(model.parameters(), lr=0.01)
criterion = nn.MSELoss()
kept = []

msmemscope.start()
for epoch in range(6):
    inputs, targets = torch.randn(32, 64).to(device), torch.randn(32, 10).to(device)
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    kept.append(torch.empty(3 << 20, dtype=torch.uint8, device=device))
    msmemscope.step()
torch.npu.synchronize()
print("allocated", torch.npu.memory_allocated(), "at most", torch.npu.max_memory_allocated())
msmemscope.stop()
