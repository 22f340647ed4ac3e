"""One line of the table that ``make bench`` prints."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure, beside the figure that it must not exceed (or must reach).

    Parameters
    ----------
    name : str
        What was measured, such as ``"queue: 10^5 customers, ours / SimPy"``.
    measured : float
    required : float or None
        The bound; None for a figure that is only shown.
    unit : str
        Such as ``"ms"``, ``"x faster"`` or ``"ratio"``.
    note : str
        How it was measured, in a few words.
    at_least : bool
        True if `measured` must reach `required`; otherwise it must not exceed it.
    """

    name: str
    measured: float
    required: float | None
    unit: str
    note: str = ""
    at_least: bool = False

    @property
    def verdict(self):
        """``"ok"`` or ``"MISSED"``; ``"-"`` where nothing is required."""
        if self.required is None:
            return "-"
        met = self.measured >= self.required if self.at_least else self.measured <= self.required
        return "ok" if met else "MISSED"
