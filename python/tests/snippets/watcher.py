import torch

import msmemscope

t = torch.randn(10, 10).to("npu:0")
msmemscope.start()
msmemscope.watcher.watch(t, name="test", dump_nums=2)
train()
msmemscope.watcher.remove(t)
msmemscope.watcher.watch(t.data_ptr(), length=400, name="test", dump_nums=2)
train()
msmemscope.watcher.remove(t.data_ptr(), length=400)
msmemscope.stop()
