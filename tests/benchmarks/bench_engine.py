"""How much faster the engine is than a loop over every token, on the Azure conversation hour.

The trace is read from ``../shared/data``; without it, the shipped profile of it is drawn. The engine and the loop take
turns, and it is their processor time that counts, so that other work on the machine does not. The loop keeps a record
of each step, which the engine can re-expand.
"""

import statistics
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from time import process_time
from typing import NamedTuple

import numpy as np

from serving_lib.engine import Policy, Server, StepTime, simulate
from serving_lib.simulator import paged_continuous_batching
from serving_lib.workload import profile, read_trace
from tests.benchmarks.literal_loop import literal_loop
from tests.benchmarks.row import Row
from tests.conftest import SHARED_DATA

TRACE = SHARED_DATA / "AzureLLMInferenceTrace_conv.csv"
TICK = 0.025
SERVER = Server(page_size=16, total_pages=30_000, slots=256)
AFFINE = replace(SERVER, step_time=StepTime(20e-3, per_request=1e-4, per_kv_token=1e-8, per_prefill_token=1e-5))
RECOMPUTE = Policy(preemption="recompute")


class Pair(NamedTuple):
    """Two programs that do the same, with the median of the seconds that each takes."""

    engine: float
    loop: float

    @property
    def ratio(self):
        return self.loop / self.engine


def time_in_turns(engine: Callable, loop: Callable, repeats, engine_runs=5):
    """Return the median times of two functions that take turns; the fast one runs some times in each turn."""
    engine()  # warm up
    fast, slow = [], []
    for _ in range(repeats):
        for _ in range(engine_runs):
            started = process_time()
            engine()
            fast.append(process_time() - started)
        started = process_time()
        loop()
        slow.append(process_time() - started)
    return Pair(statistics.median(fast), statistics.median(slow))


def in_ticks(workload):
    """The workload on a clock that ticks every 25 ms: a request arrives with the first tick that is not before it."""
    return replace(workload, arrival=np.ceil(workload.arrival / TICK))


def under_pressure(workload, share=0.05):
    """The largest pool, to within a percent, in which at least a share of the requests is preempted."""
    low, high = 0, SERVER.total_pages
    while high - low > high // 100:
        pages = (low + high) // 2
        result = simulate(workload, replace(SERVER, total_pages=pages), RECOMPUTE)
        enough = result.deadlock is not None or np.mean(result.preemptions > 0) >= share
        low, high = (pages, high) if enough else (low, pages)
    return replace(SERVER, total_pages=low)


def peak_bytes_per_request(workload, server):
    """The peak memory of a run beyond the workload, the log of step times (the time line) excluded."""
    tracemalloc.start()
    result = simulate(workload, server)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (peak - result.clock.nbytes) / len(workload)


def rows(repeats=3):
    """Yield the speed of the engine against the loop, its growth with the output length, and its memory."""
    real_time = read_trace(TRACE) if TRACE.exists() else profile("azure-conv-2023", seed=0)
    source = "Azure conv. trace" if TRACE.exists() else "profile of the Azure conv. trace"
    ticks = in_ticks(real_time)
    tokens = int(ticks.new_tokens.sum())

    def against_the_loop(name, workload, server, policy, required):
        pair = time_in_turns(
            lambda: simulate(workload, server, policy),
            lambda: literal_loop(workload, server, recompute=policy.preemption == "recompute"),
            repeats,
        )
        note = f"{source}: loop {pair.loop:.2f} s, engine {1e3 * pair.engine:.1f} ms"
        return pair, Row(f"engine: {name}, loop / engine", pair.ratio, required, "x", note, at_least=True)

    pair, row = against_the_loop("25 ms ticks", ticks, SERVER, Policy(), 25)
    yield row
    rate = tokens / pair.engine / 1e6
    yield Row("engine: 25 ms ticks, decoded tokens per second", rate, 40, "M/s", f"{tokens:,} tokens", at_least=True)
    started = process_time()
    paged_continuous_batching(ticks.requests(), SERVER.page_size, SERVER.total_pages, SERVER.slots, 10**9)
    lesson = process_time() - started
    note = f"the loop of the lectures, {lesson:.2f} s"
    yield Row("engine: 25 ms ticks, paged_continuous_batching / engine", lesson / pair.engine, None, "x", note, True)
    yield against_the_loop("affine step time", real_time, AFFINE, Policy(), 12)[1]
    tight = under_pressure(ticks)
    yield against_the_loop(f"recompute, {tight.total_pages:,} pages", ticks, tight, RECOMPUTE, 5)[1]

    roomy = replace(SERVER, total_pages=10**8, slots=10**6)
    longer = replace(ticks, new_tokens=10 * ticks.new_tokens)
    pair = time_in_turns(lambda: simulate(ticks, roomy), lambda: simulate(longer, roomy), repeats=51, engine_runs=1)
    note = f"{1e3 * pair.engine:.1f} ms and {1e3 * pair.loop:.1f} ms, nothing scarce"
    yield Row("engine: ten times the output length, time", pair.ratio, 1.2, "x", note, at_least=False)

    for name, workload, server in (("25 ms ticks", ticks, SERVER), ("affine step time", real_time, AFFINE)):
        bytes_each = peak_bytes_per_request(workload, server)
        note = "peak beyond the workload, time line excluded"
        yield Row(f"engine: {name}, memory per request", bytes_each, 200, "B", note, at_least=False)
