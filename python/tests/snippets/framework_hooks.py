import msmemscope

msmemscope.init_framework_hooks("pytorch", "2.9.0", "fsdp2", "decompose")
msmemscope.init_framework_hooks("vllm_ascend", "11.0", "worker", "snapshot")
msmemscope.start()
train()
msmemscope.stop()
msmemscope.cleanup_framework_hooks()
