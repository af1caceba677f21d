"""Calls whose modules are imported when they are first used."""


def init_framework_hooks(framework: str, version: str, component: str, hook_type: str) -> None:
    """Labels (`decompose`) or snapshots (`snapshot`) around the functions of a framework's component, once it is imported, or at once if it
    is already. What is not known is told with what is; nothing is raised.
    """
    from . import _hooks

    _hooks.init_framework_hooks(framework, version, component, hook_type)


def cleanup_framework_hooks() -> None:
    """All functions are as they were before init_framework_hooks()."""
    from . import _hooks

    _hooks.cleanup_framework_hooks()
