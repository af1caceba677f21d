"""Analyses of dumps, see memscope_bpf.analyzer."""
from memscope_bpf.analyzer import *  # noqa: F401,F403
from memscope_bpf.analyzer import __all__  # noqa: F401

from . import base, inefficient, leaks, utility_function  # noqa: F401,E402
