"""Switches framework hooks on and off."""
from memscope_bpf import cleanup_framework_hooks as _cleanup
from memscope_bpf import init_framework_hooks as _init

__all__ = ["MemScopeHijackManager", "disable_decompose_hooks", "enable_decompose_hooks", "memscope_hijack_manager"]


class MemScopeHijackManager:
    """The one that there is: hooks are state of the process, whichever object is asked."""

    def init_framework_hooks(self, framework: str, version: str, component: str, hook_type: str) -> None:
        """As msmemscope.init_framework_hooks()."""
        _init(framework, version, component, hook_type)

    def cleanup_framework_hooks(self) -> None:
        """As msmemscope.cleanup_framework_hooks()."""
        _cleanup()


memscope_hijack_manager = MemScopeHijackManager()


def enable_decompose_hooks() -> None:
    """Labels for every framework that is installed, as config(analysis="decompose") has them."""
    from memscope_bpf import _hooks

    _hooks.init_all()


def disable_decompose_hooks() -> None:
    """Takes them back; those that init_framework_hooks() has chosen stay."""
    from memscope_bpf import _hooks

    _hooks.end_all()
