"""Modules are called while their calls are traced; on another thread, too."""
import threading

import torch
from torch import nn

import msmemscope

torch.npu.set_device(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        return self.second(self.first(x))


model, x = Block().to("npu"), torch.randn(2, 8).to("npu")
msmemscope.config(events="alloc,free,traceback")
model(x)
msmemscope.start()
model(x)
thread = threading.Thread(target=lambda: model.first(x))
thread.start()
thread.join()
msmemscope.stop()
model(x)
