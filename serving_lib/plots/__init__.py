"""Every picture of the lectures: pure functions, parameters in, a `matplotlib.figure.Figure` with ``alt_text`` out.

`style.py` holds the one look; each lecture has its own file. What ``__all__`` names is public:
``python -m serving_lib.plots figures/`` draws each of them at its defaults into an SVG of its name.
"""

from serving_lib.plots.arrivals import dispersion, real_arrivals, resident_tokens, rush_hour
from serving_lib.plots.queueing import (
    littles_law,
    many_runs,
    mm1_knee,
    open_and_closed,
    pool_size,
    pooling,
    residency,
    response_tail,
    run_length,
    short_and_long,
    tail_budget,
    variability,
)

__all__ = [
    "dispersion",
    "littles_law",
    "many_runs",
    "mm1_knee",
    "open_and_closed",
    "pool_size",
    "pooling",
    "real_arrivals",
    "residency",
    "resident_tokens",
    "response_tail",
    "run_length",
    "rush_hour",
    "short_and_long",
    "tail_budget",
    "variability",
]
