"""Memory has the names of what it is for."""
import torch
import torch.nn as nn
import torch.optim as optim

import msmemscope
from msmemscope import describe

msmemscope.config(events="alloc,free,launch", level="kernel,op", analysis="decompose", format="csv", output_path="./output")

device = torch.device("npu:0")
torch.npu.set_device(device)
msmemscope.start()
model = nn.Linear(64, 10).to(device)
optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
criterion = nn.MSELoss()
with describe.describer(owner="train"):
    for epoch in range(3):
        inputs, targets = torch.randn(32, 64).to(device), torch.randn(32, 10).to(device)
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
torch.npu.synchronize()
print("allocated", torch.npu.memory_allocated(), "at most", torch.npu.max_memory_allocated())
msmemscope.stop()
