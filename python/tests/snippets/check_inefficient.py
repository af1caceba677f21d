import msmemscope

msmemscope.check_inefficient(input_path="memscope_dump.csv", mem_size=0, inefficient_type=["early_allocation"], idle_threshold=3000)
msmemscope.analyze("inefficient", input_path="memscope_dump.csv", mem_size=1, inefficient_type="temporary_idleness", idle_threshold=1)
