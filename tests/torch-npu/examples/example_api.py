"""The whole interface around a training."""
import torch
import torch.nn as nn
import torch.optim as optim

import msmemscope

msmemscope.config(events="alloc,free,access,launch", level="kernel,op", call_stack="c,python", analysis="leaks,inefficient,decompose",
                  format="csv", output_path="./output")

device = torch.device("npu:0")
torch.npu.set_device(device)

msmemscope.start()
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = optim.SGD(model.parameters(), lr=0.01)
criterion = nn.MSELoss()
for epoch in range(3):
    inputs, targets = torch.randn(32, 64).to(device), torch.randn(32, 10).to(device)
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
torch.npu.synchronize()
print("allocated", torch.npu.memory_allocated(), "at most", torch.npu.max_memory_allocated())
msmemscope.stop()
