"""Every picture of the lectures: pure functions, parameters in, a `matplotlib.figure.Figure` with ``alt_text`` out.

`style.py` holds the one look; each lecture has its own file. What ``__all__`` names is public:
``python -m serving_lib.plots figures/`` draws each of them at its defaults into an SVG of its name.
"""

from serving_lib.plots.queueing import mm1_knee

__all__ = ["mm1_knee"]
