"""msMemScope's table of hooks. Here it is data (memscope_bpf/hooks.json), so its classes are refused by name."""
from memscope_bpf._refuse import refused

__all__ = ["MemScopeHijackMap", "MemScopeHooklet", "memscope_hijack_map"]

_WHY = "the table of framework hooks is memscope_bpf/hooks.json; init_framework_hooks() chooses from it"
MemScopeHooklet = refused("MemScopeHooklet", _WHY)
MemScopeHijackMap = refused("MemScopeHijackMap", _WHY)
memscope_hijack_map = refused("memscope_hijack_map", _WHY)
