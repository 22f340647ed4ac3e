"""Every picture of the lectures: pure functions, parameters in, a `matplotlib.figure.Figure` with ``alt_text`` out.

`style.py` holds the one look; each lecture has its own file. What ``__all__`` names is public:
``python -m serving_lib.plots figures/`` draws each of them at its defaults into an SVG of its name.
"""

__all__ = []
