import torch

import msmemscope
import msmemscope.describe as describe

msmemscope.start()


@describe.describer(owner="test1")
def work():
    return train()


assert work() == "trained"
with describe.describer(owner="test2"):
    train()
t = torch.randn(10, 10).to("npu:0")
describe.describer(t, owner="test3")
msmemscope.stop()
