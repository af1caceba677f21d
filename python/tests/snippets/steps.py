import msmemscope

msmemscope.start()
for epoch in range(6):
    train()
    msmemscope.step()
msmemscope.stop()
