"""msMemScope's way of replacing functions of any module. This package wraps the functions of its table alone, so it is refused by name."""
from memscope_bpf._refuse import refused

__all__ = [
    "HiJackerManager", "HijackHandler", "HijackerUnit", "POST_HOOK", "PRE_HOOK", "REPLACE", "hijacker", "release",
]

REPLACE, PRE_HOOK, POST_HOOK = range(3)
_WHY = "functions are wrapped by init_framework_hooks() alone, those of memscope_bpf/hooks.json"
HijackHandler = refused("HijackHandler", _WHY)
HijackerUnit = refused("HijackerUnit", _WHY)
HiJackerManager = refused("HiJackerManager", _WHY)
hijacker = refused("hijacker", _WHY)
release = refused("release", _WHY)
