import msmemscope

msmemscope.check_leaks(input_path="memscope_dump.csv", mstx_info="step start", start_index=0)
msmemscope.analyze("leaks", input_path="memscope_dump.csv", mstx_info="step start", start_index=0)
assert msmemscope.list_analyzers() == ["leaks", "inefficient"]
assert msmemscope.get_analyzer_config("leaks")["config_class"] == "LeaksConfig"
