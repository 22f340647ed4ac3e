"""Workloads: who arrives when, with how many tokens.

A `Workload` is four arrays. It comes from a textbook arrival process (`poisson`, `gamma`, `burst`), from the statistics
of a real trace (`profile`), or from a trace file (`read_trace`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in the order of their arrival.

    Parameters
    ----------
    id : array_like of str, shape (n,)
        Unique names.
    arrival : array_like of float, shape (n,)
        Arrival times in seconds (or in ticks, when the server's clock is ticks): finite, nonnegative, ascending.
    prompt_tokens, new_tokens : array_like of int, shape (n,)
        Positive token counts: what the prompt holds, and what the model generates.

    Raises
    ------
    TypeError
        If a token count is not an integer.
    ValueError
        If the lengths differ, a value is outside its domain, arrivals descend or an id repeats.

    Notes
    -----
    The arrays are copies and read-only, so a workload can be shared between runs.

    Examples
    --------
    >>> workload = Workload(["a", "b"], [0, 1.5], prompt_tokens=[100, 20], new_tokens=[10, 200])
    >>> len(workload), workload.arrival[1].item()
    (2, 1.5)
    """

    id: np.ndarray
    arrival: np.ndarray
    prompt_tokens: np.ndarray
    new_tokens: np.ndarray

    def __post_init__(self):
        columns = {
            "id": np.array(self.id, dtype=object),
            "arrival": np.array(self.arrival, dtype=np.float64),
            "prompt_tokens": _token_counts(self.prompt_tokens, "prompt_tokens"),
            "new_tokens": _token_counts(self.new_tokens, "new_tokens"),
        }
        for name, column in columns.items():
            if column.shape != (len(columns["id"]),):
                raise ValueError(f"{name} must hold one value per id ({len(columns['id'])}), got shape {column.shape}")
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        if not np.all(np.isfinite(self.arrival) & (self.arrival >= 0)):
            raise ValueError("arrival must be finite and nonnegative")
        if np.any(np.diff(self.arrival) < 0):
            raise ValueError("arrival must be in ascending order; Workload.from_requests sorts")
        if len(set(self.id)) < len(self.id):
            raise ValueError("id must be unique")

    def __len__(self):
        return len(self.id)

    @classmethod
    def from_requests(cls, requests):
        """Build a workload from dicts with the keys id, arrival, prompt_tokens and new_tokens, in any order."""
        ordered = sorted(requests, key=lambda request: request["arrival"])
        columns = ("id", "arrival", "prompt_tokens", "new_tokens")
        return cls(*([request[column] for request in ordered] for column in columns))

    def requests(self):
        """Return the list of dicts that `paged_continuous_batching` takes; whole arrival times come back as int."""
        return [
            {"id": id, "prompt_tokens": prompt, "new_tokens": new, "arrival": int(t) if t.is_integer() else t}
            for id, prompt, new, t in zip(
                self.id.tolist(),
                self.prompt_tokens.tolist(),
                self.new_tokens.tolist(),
                self.arrival.tolist(),
                strict=True,
            )
        ]


def _token_counts(values, name):
    counts = np.array(values) if len(values) else np.array([], dtype=np.int64)
    if counts.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {counts.dtype}")
    if np.any(counts < 1):
        raise ValueError(f"{name} must be positive, got {counts.min()}")
    return counts.astype(np.int64)
