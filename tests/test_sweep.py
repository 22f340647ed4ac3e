"""Sweeps in this process, in threads, in processes and on a dask cluster."""

import _thread
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
from concurrent.futures import BrokenExecutor, CancelledError, ProcessPoolExecutor, ThreadPoolExecutor

import dask.distributed
import pytest

from serving_lib.sweep import Sweep, sweep


def ratio(top, bottom):
    return top / bottom


def ratio_or_death(top, bottom):
    if bottom == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return top / bottom


def processes(workers):
    # Fresh interpreters: forking would copy the threads' locks of other tests.
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module")
def dask_client():
    cluster = dask.distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, dask.distributed.Client(cluster) as client:
        yield client


@pytest.fixture(params=["this process", "threads", "processes", "dask"])
def executor(request):
    if request.param == "this process":
        yield None
    elif request.param == "dask":
        yield request.getfixturevalue("dask_client").get_executor()
    else:
        with ThreadPoolExecutor(4) if request.param == "threads" else processes(2) as pool:
            yield pool


def test_a_dict_of_lists_is_swept_as_a_product_in_order(executor):
    result = sweep(ratio, {"top": [1, 2, 3], "bottom": [1, 2]}, executor, progress=False)
    assert [row.point for row in result.rows] == [{"top": t, "bottom": b} for t in (1, 2, 3) for b in (1, 2)]
    assert result.values == [1.0, 0.5, 2.0, 1.0, 3.0, 1.5]
    assert result.stopped is None
    assert str(result) == "6 of 6 points done"


def test_an_exception_names_its_point_and_the_other_results_survive(executor):
    result = sweep(ratio, {"top": [1], "bottom": [4, 0, 2, "x"]}, executor, progress=False)
    assert [row.value for row in result.rows] == [0.25, None, 0.5, None]
    assert [type(row.error) for row in result.failed] == [ZeroDivisionError, TypeError]
    with pytest.raises(ZeroDivisionError) as caught:
        _ = result.values
    assert "at the grid point {'top': 1, 'bottom': 0}" in "".join(traceback.format_exception(caught.value))
    assert result.stopped is None, "a failed point does not end the sweep"


def test_a_list_of_dicts_is_swept_point_by_point():
    points = [{"top": 1, "bottom": 2}, {"top": 9, "bottom": 3}]
    assert sweep(ratio, iter(points), progress=False).values == [0.5, 3.0]


def test_a_grid_with_an_empty_list_has_no_points():
    assert sweep(ratio, {"top": [1], "bottom": []}, progress=False) == Sweep([])


def test_results_keep_the_order_of_the_grid_when_the_first_point_is_done_last():
    last_is_done = threading.Event()

    def wait_for_the_last(index):
        if index == 3:
            last_is_done.set()
        assert last_is_done.wait(timeout=30)
        return index

    with ThreadPoolExecutor(4) as pool:
        assert sweep(wait_for_the_last, {"index": [0, 1, 2, 3]}, pool, progress=False).values == [0, 1, 2, 3]


def test_an_interrupt_keeps_what_is_done():
    def interrupted_at_2(index):
        if index == 2:
            raise KeyboardInterrupt
        return index

    result = sweep(interrupted_at_2, {"index": [0, 1, 2, 3]}, progress=False)
    assert [row.value for row in result.rows] == [0, 1, None, None]
    assert result.stopped == "interrupted"
    assert str(result) == "2 of 4 points done; interrupted"
    assert [type(row.error) for row in result.failed] == [CancelledError] * 2
    with pytest.raises(CancelledError, match="not finished: interrupted"):
        _ = result.values


@pytest.fixture
def ctrl_c_raises():
    """A shell starts its background jobs with Ctrl-C ignored, and tests may run in one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_raises")
def test_ctrl_c_while_waiting_for_an_executor_keeps_what_is_done_and_cancels_the_rest():
    release, started = threading.Event(), []

    def interrupt_the_waiting_sweep(index):
        started.append(index)
        if index == 2:
            _thread.interrupt_main()
            assert release.wait(timeout=30)
        return index

    with ThreadPoolExecutor(1) as pool:
        result = sweep(interrupt_the_waiting_sweep, {"index": range(50)}, pool, progress=False)
        release.set()
    assert [row.value for row in result.rows[:3]] == [0, 1, None]
    assert result.stopped == "interrupted"
    assert started == [0, 1, 2], "what had not started was cancelled"


def test_an_interrupt_that_reaches_the_workers_too_loses_nothing():
    both_started = threading.Barrier(2)

    def interrupted_together(index):
        if index > 1:
            both_started.wait(timeout=30)
            raise KeyboardInterrupt
        return index

    with ThreadPoolExecutor(2) as pool:
        result = sweep(interrupted_together, {"index": [0, 1, 2, 3]}, pool, progress=False)
    assert [row.value for row in result.rows] == [0, 1, None, None]
    assert result.stopped == "interrupted"


def test_a_killed_worker_process_keeps_what_is_done_and_says_so():
    with processes(1) as pool:
        result = sweep(ratio_or_death, {"top": [6], "bottom": [1, 2, 0, 3, 4, 5]}, pool, progress=False)
    assert [row.value for row in result.rows[:2]] == [6.0, 3.0]
    assert all(isinstance(row.error, BrokenExecutor) for row in result.rows[2:])
    assert "a worker died (BrokenProcessPool); start a new executor" in result.stopped


def test_an_executor_that_is_already_broken_says_so_for_every_point():
    with processes(1) as pool:
        sweep(ratio_or_death, {"top": [1], "bottom": [0]}, pool, progress=False)
        result = sweep(ratio, {"top": [1], "bottom": [1, 2]}, pool, progress=False)
    assert len(result.failed) == 2
    assert "a worker died" in result.stopped


def test_a_function_that_exits_fails_its_own_point_only():
    result = sweep(lambda code: sys.exit(code) if code else code, {"code": [0, 3, 0]}, progress=False)
    assert [row.value for row in result.rows] == [0, None, 0]
    assert isinstance(result.rows[1].error, SystemExit)


def test_a_value_may_be_nan_or_none():
    nan, none = sweep(lambda x: x, {"x": [math.nan, None]}, progress=False).values
    assert math.isnan(nan)
    assert none is None


def test_the_progress_bar_counts_every_point(capsys):
    sweep(ratio, {"top": [1, 2], "bottom": [0, 1]})
    assert "4/4" in capsys.readouterr().out
    sweep(ratio, {"top": [1, 2], "bottom": [0, 1]}, progress=False)
    assert capsys.readouterr().out == ""


def test_the_finished_bar_is_the_same_in_every_run_so_that_a_notebook_can_store_it(capsys):
    sweep(ratio, {"top": [1, 2], "bottom": [1]})
    assert re.fullmatch(r"100%\|█+\| 2/2\n", capsys.readouterr().out.rpartition("\r")[2])


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"top": 3, "bottom": [1]}, r"grid\['top'\] must be a list of values, got 3; write \[3\]"),
        ({"top": "abc", "bottom": [1]}, r"grid\['top'\] must be a list of values, got 'abc'"),
        ([{"top": 1}, 2], r"grid\[1\] must be a dict of arguments, got 2"),
        ("top", "grid must be a dict of lists or a list of dicts, got 'top'"),
        (None, "grid must be a dict of lists or a list of dicts, got None"),
    ],
)
def test_what_is_not_a_grid_is_refused(grid, message):
    with pytest.raises(TypeError, match=message):
        sweep(ratio, grid)
