"""Framework hooks under msMemScope's names; memscope_bpf has them as a table (hooks.json)."""
from . import hijack_manager, hijack_map, hijack_utility, taggers

__all__ = ["hijack_manager", "hijack_map", "hijack_utility", "taggers"]
