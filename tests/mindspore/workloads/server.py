"""server.py: a server that keeps each answer in `engine.history`, until the file `go` is there. Before, it prints `waiting`."""
import os
import time

import mindspore as ms
import numpy as np
from mindspore import Parameter, mint, nn

import truth

ms.set_device("Ascend", 1)
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.runtime.set_memory(max_size="1GB")


class Layer(nn.Cell):
    def __init__(self, number):
        super().__init__()
        self.weight = Parameter(ms.Tensor(np.ones((200, 300), np.float32)), name=f"weight {number}")

    def construct(self, x):
        # Products of matrices take the stand-ins so long that what waits for them grows, too.
        return mint.add(x, self.weight)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer(number) for number in range(4)])

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Engine:
    def __init__(self):
        self.net = Net()
        self.history = {}

    def serve(self, number):
        answer = self.net(ms.Tensor(np.ones((200, 300), np.float32)))
        self.history[number] = answer
        return answer + answer


engine = Engine()
number = 0
while not os.path.exists(os.path.join(truth.FOLDER, "go")):
    engine.serve(number)
    number += 1
    if number == 20:
        print("waiting", flush=True)
    time.sleep(0.05)
