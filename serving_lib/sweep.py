"""One function over a grid of parameters: here, on all cores, or on a cluster."""

import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from tqdm import tqdm


@dataclass(frozen=True)
class SweepRow:
    """What one grid point gave.

    Parameters
    ----------
    point : dict
        The arguments.
    value : object
        What the function returned; None where it failed.
    error : BaseException or None
        What it raised, or why it never ran.
    """

    point: dict
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep, in the order of the grid.

    Parameters
    ----------
    rows : list of SweepRow
        One per grid point, whatever became of it.
    stopped : str or None
        Why the sweep ended early: it was interrupted, or its workers died. The rows that were done by then are kept.
    """

    rows: list
    stopped: str | None = None

    @property
    def values(self):
        """The value of every point; raises the first error, which names its point, if there is one."""
        for row in self.rows:
            if row.error is not None:
                raise row.error
        return [row.value for row in self.rows]

    @property
    def failed(self):
        """The rows that hold an error instead of a value."""
        return [row for row in self.rows if row.error is not None]

    def __str__(self):
        done = len(self.rows) - len(self.failed)
        return f"{done} of {len(self.rows)} points done" + (f"; {self.stopped}" if self.stopped else "")


def sweep(function, grid, executor=None, progress=True):
    """Call a function at every point of a grid.

    Parameters
    ----------
    function : callable
        Called with the point as keyword arguments. Processes and clusters need a function that can be pickled: one
        defined in a module.
    grid : dict of iterables, or iterable of dicts
        ``{"load": [0.5, 0.9], "servers": [1, 4]}`` is their product, the last name running fastest; a list of dicts is
        taken point by point.
    executor : concurrent.futures.Executor, optional
        Where the calls run. By default in this process, one after another; ``ProcessPoolExecutor()`` for the cores of
        this machine; ``dask.distributed.Client(...).get_executor()`` for a cluster. It is left open.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Sweep
        A row per point, in the order of the grid.

    Raises
    ------
    TypeError
        If the grid is neither a dict of iterables nor an iterable of dicts.

    Notes
    -----
    Nothing that is done is ever lost. An exception stays in its row, with a note that names the point, and the others
    go on. Interrupting (the stop button, Ctrl-C) and the death of a worker process end the sweep, return what is
    done, and say so in ``stopped``.

    Examples
    --------
    >>> result = sweep(pow, [{"base": 2, "exp": 3}, {"base": 2, "exp": "x"}], progress=False)
    >>> result.rows[0].value, type(result.rows[1].error).__name__
    (8, 'TypeError')
    >>> sweep(pow, {"base": [2, 3], "exp": [1, 2]}, progress=False).values
    [2, 4, 3, 9]
    """
    points = _points(grid)
    rows, futures, stopped = [None] * len(points), {}, None
    with tqdm(total=len(points), disable=not progress, ncols=80, file=sys.stdout) as bar:

        def record(index, call):
            rows[index] = _row(points[index], call)
            bar.update()

        try:
            if executor is None:
                for index, point in enumerate(points):
                    record(index, partial(function, **point))
            else:
                for index, point in enumerate(points):
                    futures[executor.submit(partial(function, **point))] = index
                for future in as_completed(futures):
                    record(futures[future], future.result)
        except KeyboardInterrupt:
            stopped = "interrupted"
        except BrokenExecutor as error:  # while points were still being handed out
            stopped = _worker_died(error)
        for future, index in futures.items():
            # Ctrl-C reaches worker processes too, and comes back as the "error" of what they were at.
            done = not future.cancel() and future.done() and not isinstance(future.exception(), KeyboardInterrupt)
            if done and rows[index] is None:
                record(index, future.result)
        bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt}"  # without times: a notebook stores the same in every run
    broken = next((row.error for row in rows if row and isinstance(row.error, BrokenExecutor)), None)
    if broken and not stopped:
        stopped = _worker_died(broken)
    unfinished = CancelledError(f"not finished: {stopped}")
    return Sweep([row or SweepRow(point, error=unfinished) for point, row in zip(points, rows, strict=True)], stopped)


def _points(grid):
    """Return the grid's points as a list of dicts."""
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
                raise TypeError(f"grid[{name!r}] must be a list of values, got {values!r}; write [{values!r}]")
        return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    if isinstance(grid, str | bytes) or not isinstance(grid, Iterable):
        raise TypeError(f"grid must be a dict of lists or a list of dicts, got {grid!r}")
    points = list(grid)
    for index, point in enumerate(points):
        if not isinstance(point, Mapping):
            raise TypeError(f"grid[{index}] must be a dict of arguments, got {point!r}")
    return points


def _row(point, call):
    """Return the row of one call; a KeyboardInterrupt passes."""
    try:
        return SweepRow(point, value=call())
    except (Exception, SystemExit) as error:
        error.add_note(f"at the grid point {point}")
        return SweepRow(point, error=error)


def _worker_died(error):
    return f"a worker died ({type(error).__name__}); start a new executor for the rows that are missing"
