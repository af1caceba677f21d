import msmemscope

msmemscope.start()
msmemscope.stop()
msmemscope.config(events="alloc,free,access,launch", level="kernel,op", call_stack="c,python", analysis="leaks,inefficient,decompose",
                  format="csv", output_path="./output")
msmemscope.start()
train()
msmemscope.stop()
train()
