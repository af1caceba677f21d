import msmemscope
from msmemscope import RecordFunction


@RecordFunction("forward_pass")
def forward(x):
    return x + 1


msmemscope.start()
assert forward(1) == 2
with RecordFunction("backward"):
    train()
with msmemscope.RecordFunction("again"):
    train()
msmemscope.stop()
