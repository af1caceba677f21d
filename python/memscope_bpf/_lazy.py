"""Calls of modules that are imported at first use."""


def init_framework_hooks(framework: str, version: str, component: str, hook_type: str) -> None:
    """Labels (`decompose`) or snapshots (`snapshot`) around the functions of a framework's component, once it is imported, or at once if it
    is already. Unknown names are printed with the known ones; nothing is raised.
    """
    from . import _hooks

    _hooks.init_framework_hooks(framework, version, component, hook_type)


def enable_npu_sanitizer() -> None:
    """Switches torch_npu's own sanitizer on. Its marks of what operators read and write become ACCESS rows. The sanitizer looks at every
    operator, which takes time, and says what it finds by itself.

    ImportError: torch_npu is not installed, or has no sanitizer.
    """
    try:
        from torch_npu.npu import _sanitizer
    except ImportError as error:
        raise ImportError(f"enable_npu_sanitizer() needs torch_npu with its module npu._sanitizer: {error}") from error
    _sanitizer.enable_npu_sanitizer()


def cleanup_framework_hooks() -> None:
    """All functions are as they were before init_framework_hooks()."""
    from . import _hooks

    _hooks.cleanup_framework_hooks()
