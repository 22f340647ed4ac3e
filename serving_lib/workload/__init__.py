"""Workloads: who arrives when, with how many tokens.

A `Workload` is four arrays. It comes from a textbook arrival process (`poisson`, `gamma`, `burst`), from the measured
statistics of a real trace (`profile`), or from a trace file (`read_trace`). All times are in seconds.
"""

from serving_lib.workload.arrivals import burst, gamma, poisson, profile
from serving_lib.workload.core import Workload, index_of_dispersion
from serving_lib.workload.traces import TraceError, read_trace, write_trace

__all__ = [
    "TraceError",
    "Workload",
    "burst",
    "gamma",
    "index_of_dispersion",
    "poisson",
    "profile",
    "read_trace",
    "write_trace",
]
