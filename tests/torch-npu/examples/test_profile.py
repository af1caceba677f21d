"""What a training takes, and that it gives it back."""
import torch
import torch.nn as nn
import torch.optim as optim

import msmemscope

msmemscope.config(events="alloc,free,launch", level="kernel,op", format="csv", output_path="./output")

device = torch.device("npu:0")
torch.npu.set_device(device)


def main():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.MSELoss()
    for epoch in range(2):
        inputs, targets = torch.randn(32, 64).to(device), torch.randn(32, 10).to(device)
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    torch.npu.synchronize()
    print("allocated", torch.npu.memory_allocated(), "at most", torch.npu.max_memory_allocated())


msmemscope.start()
main()
torch.npu.synchronize()
torch.npu.empty_cache()
msmemscope.stop()
