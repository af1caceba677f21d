"""The native half, or what stands in for it where that cannot be loaded."""
try:
    from . import _memscope_bpf as native
except ImportError:  # no build for this interpreter: free-threaded ones cannot load the stable ABI's
    from . import _pure as native  # type: ignore[no-redef]

__all__ = ["native"]
