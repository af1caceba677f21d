import msmemscope

msmemscope.take_snapshot(device_mask=0, name="one")
msmemscope.take_snapshot(0)
msmemscope.take_snapshot([0, 1], name="a list")
msmemscope.take_snapshot((0, 1), name="a tuple")
msmemscope.take_snapshot((1, 2), name="of others")
msmemscope.take_snapshot()
with msmemscope.TakeSnapshot(device_mask=0, name="block"):
    train()


@msmemscope.TakeSnapshot(name="function")
def work():
    return train()


assert work() == "trained"
