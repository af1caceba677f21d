"""A model learns. `history` is meant for a plot; each loss in it keeps its whole graph: `loss.item()` is what was meant."""

import time

import torch
import torch_npu
from torch import nn

STEPS = 20
history = []


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, width=64, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def validate(model, batch):
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    history.append(loss)


def train_step(model, optimizer, batch):
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    torch.manual_seed(0)
    model = Model().to("npu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(2048, 64).to("npu"), torch.randint(0, 10, (2048,)).to("npu")
    for _ in range(STEPS):
        train_step(model, optimizer, batch)
        validate(model, batch)
        time.sleep(1.2)
    torch.npu.synchronize()


if __name__ == "__main__":
    main()
