"""The exercises of the lectures: `check` an answer, ask for a `hint`, read the `solution`."""

from serving_lib.exercises.framework import check, hint, solution

__all__ = ["check", "hint", "solution"]
