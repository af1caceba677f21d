import msmemscope

msmemscope.config(call_stack="c:10,python:5", events="launch,alloc,free", level="0", device="npu:0", analysis="leaks,decompose",
                  watch="op0,op1,full-content", output="./output", data_format="csv")
msmemscope.start()
train()
msmemscope.stop()
