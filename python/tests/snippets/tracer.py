import msmemscope

msmemscope.start()
msmemscope.tracer.start()
train()
msmemscope.tracer.stop()
msmemscope.stop()

msmemscope.config(events="traceback")
msmemscope.start()
train()
msmemscope.stop()
