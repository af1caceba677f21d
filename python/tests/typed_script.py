"""A script that uses all of the package, for checkers of types: nothing in it may be unknown, untyped, or not exported. It is never run."""
from typing import List, Optional, Tuple

import memscope_bpf
import msmemscope
from msmemscope import RecordFunction, TakeSnapshot, analyzer, describe


class Tensor:
    def data_ptr(self) -> int:
        return 4096


@RecordFunction("double")
def double(number: int) -> int:
    return 2 * number


@describe.describer(owner="half")
def half(number: int) -> float:
    return number / 2


@TakeSnapshot(0, name="text")
def text(number: int) -> str:
    return str(number)


def collect() -> Tuple[int, float, str]:
    msmemscope.config(events="alloc,free", level="op")
    msmemscope.start()
    with describe.describer(owner="train"), RecordFunction("step"), msmemscope.TakeSnapshot():
        msmemscope.step()
    describe.describer(Tensor(), owner="weights")
    describe.describe_label("backward", describe.PROCESS)
    describe.undescribe_label("backward", describe.PROCESS)
    describe.describe_addr(4096, [("weights", describe.DETAIL_1)])
    for mask in (None, 0, [0, 1], (0, 1)):
        msmemscope.take_snapshot(mask, name="snapshot")
    msmemscope.tracer.start()
    msmemscope.tracer.stop()
    msmemscope.watcher.watch(4096, length=16, name="block", dump_nums=2)
    msmemscope.watcher.remove(4096, length=16)
    msmemscope.init_framework_hooks("pytorch", "2.9.0", "fsdp2", "decompose")
    msmemscope.cleanup_framework_hooks()
    msmemscope.stop()
    return double(1), half(2), text(3)


def analyse(path: str) -> List[Optional[int]]:
    msmemscope.check_leaks(path, "step", 0)
    msmemscope.check_inefficient(input_path=path, inefficient_type=["early_allocation"])
    msmemscope.analyze("leaks", input_path=path, mstx_info="step", start_index=0)
    names: List[str] = msmemscope.list_analyzers()
    analyzer.LeaksAnalyzer().analyze(analyzer.LeaksConfig(path, names[0], 0))
    table = memscope_bpf.leaks(path, mark="step", progress=lambda stage, done, total: print(stage, done, total))
    memscope_bpf.compare(path, path, level="op,kernel")
    sizes: List[Optional[int]] = table.to_dict()["size_bytes"]
    return sizes
