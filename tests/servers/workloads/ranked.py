"""What the programs on several ranks share: an account for each rank, the network, and what it learns."""
import os

import torch
from torch import nn


def own_account():
    """A folder `rank N` of TRUTH's for this rank, before `truth` is imported. Gives the rank, and how many there are."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["TRUTH"] = os.path.join(os.environ["TRUTH"], f"rank {rank}")
    os.makedirs(os.environ["TRUTH"])
    return rank, ranks


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def rows():
    """Inputs and classes of 32 rows."""
    random = torch.Generator().manual_seed(1)
    return torch.randn(32, 64, generator=random), torch.randint(0, 10, (32,), generator=random)
