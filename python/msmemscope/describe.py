"""Owner labels, see memscope_bpf.describe."""
from memscope_bpf.describe import *  # noqa: F401,F403
from memscope_bpf.describe import __all__  # noqa: F401
