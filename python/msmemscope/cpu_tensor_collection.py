"""Tensors in host memory. The tracer does not follow them: it has rows of what ACL and the driver pin (device cpu), so this is refused."""
from memscope_bpf._refuse import refused

__all__ = ["disable_cpu_tensor_collect", "enable_cpu_tensor_collect", "on_device_ready"]

_WHY = "tensors in host memory are not followed; config(device=\"cpu\") has rows of the host memory that ACL and the driver give"
enable_cpu_tensor_collect = refused("enable_cpu_tensor_collect", _WHY)


def disable_cpu_tensor_collect() -> None:
    """Nothing is on."""


def on_device_ready() -> None:
    """Nothing waits for it."""
