"""What users feel of a run: TTFT, TPOT, ITL, E2E latency, goodput, and how sure a percentile is.

The definitions are those of ``vllm bench serve``. Benchmark tools share the names and not the definitions: each
docstring says how the others differ, and `rosetta` puts the four side by side on one run.

A `result` is what `simulate` returns. Times are in the unit of its clock: seconds, or ticks.
"""

import math
from dataclasses import dataclass

import numpy as np
import pint

from serving_lib.units import OPEN_FRACTION, POSITIVE, TIME, Domain, check_count, check_number, check_quantity

PERCENT = Domain("in [0, 100]", lambda x: (x >= 0) & (x <= 100))


def ttft(result):
    """Return the time to first token of each request: from its arrival, so time in the queue counts.

    Parameters
    ----------
    result : Result
        A run of `simulate`.

    Returns
    -------
    ndarray of float, shape (requests,)
        NaN where no token came.

    Notes
    -----
    AIPerf (``time_to_first_token``) and guidellm (``time_to_first_token_ms``) measure the same from the moment the
    request is sent, so a client that holds requests back to cap concurrency hides their wait. vidur calls it
    ``prefill_e2e_time``. Beware of per-request metrics of a server, such as vLLM's ``time_to_first_token_ms``, that
    start when the request is scheduled.

    References
    ----------
    vllm-project/vllm, ``vllm/benchmarks/serve.py`` and ``docs/features/per_request_metrics.md``;
    ai-dynamo/aiperf, ``src/aiperf/metrics/types/ttft_metric.py``;
    vllm-project/guidellm, ``src/guidellm/schemas/request_stats.py``;
    microsoft/vidur, ``docs/metrics.md``.
    """
    return result.first_token - result.workload.arrival


def tpot(result):
    """Return the time per output token of each request: the mean gap between its tokens.

    Parameters
    ----------
    result : Result
        A run of `simulate`.

    Returns
    -------
    ndarray of float, shape (requests,)
        (E2E - TTFT) / (tokens - 1). NaN for a single token, which has no gap, and for a request that did not finish.

    Notes
    -----
    - AIPerf calls exactly this ``inter_token_latency``.
    - guidellm's ``time_per_output_token_ms`` is E2E / tokens: the wait and the prefill are in it. Its statistics weigh
      each request by its tokens. Its own name for what is returned here is ``inter_token_latency_ms``.
    - vidur's ``decode_time_execution_plus_preemption_normalized`` divides by all tokens, the first one too: it is low
      by a factor (tokens - 1) / tokens, and 0 for a single token.

    References
    ----------
    vllm-project/vllm, ``vllm/benchmarks/serve.py``;
    ai-dynamo/aiperf, ``src/aiperf/metrics/types/inter_token_latency_metric.py`` (58dd5de);
    vllm-project/guidellm, ``src/guidellm/schemas/request_stats.py`` and
    ``src/guidellm/benchmark/schemas/generative/metrics.py`` (06cef29);
    microsoft/vidur, ``vidur/metrics/metrics_store.py`` (01f216f) and ``vidur/entities/request.py`` (82f0840).
    """
    gaps = result.workload.new_tokens - 1
    return np.where(gaps > 0, (result.finished - result.first_token) / np.maximum(gaps, 1), np.nan)


def e2e(result):
    """Return the end-to-end latency of each request: from its arrival to its last token.

    Parameters
    ----------
    result : Result
        A run of `simulate`.

    Returns
    -------
    ndarray of float, shape (requests,)
        NaN where a request did not finish.

    Notes
    -----
    All four tools agree, from the moment the request is sent: vLLM's ``e2el``, AIPerf's and guidellm's
    ``request_latency``, vidur's ``request_e2e_time``.

    References
    ----------
    As for `ttft`.
    """
    return result.finished - result.workload.arrival


def itl_percentile(result, percent):
    """Return a percentile of the inter-token latency: of all gaps between successive tokens, pooled.

    Parameters
    ----------
    result : Result
        A run of `simulate`.
    percent : float
        In [0, 100].

    Returns
    -------
    float
        Exact, though no list of tokens is ever made: equal gaps are counted, not stored. NaN if there is no gap.

    Notes
    -----
    A request of 1,000 tokens weighs a hundred times one of 10. The pool shows a stall that `tpot` averages away.

    - AIPerf calls the pooled gaps ``inter_chunk_latency``; its ``inter_token_latency`` is our `tpot`.
    - guidellm's ``inter_token_latency_ms`` is our `tpot` with each request weighed by its gaps: the same mean as the
      pool, but percentiles in which stalls have vanished.
    - vidur's ``decode_token_execution_plus_preemption_time`` pools gaps too, but leaves out the gap across a restart.

    References
    ----------
    vllm-project/vllm, ``vllm/benchmarks/serve.py``;
    ai-dynamo/aiperf, ``src/aiperf/metrics/types/inter_chunk_latency_metric.py`` (58028d5);
    vllm-project/guidellm, ``src/guidellm/benchmark/schemas/generative/metrics.py`` (06cef29);
    microsoft/vidur, ``vidur/metrics/metrics_store.py`` (01f216f).
    """
    gaps, counts = result.itl_runs()
    return percentile(gaps, percent, counts)


def meets_slo(result, max_ttft=None, max_tpot=None, max_e2e=None):
    """Return which requests finished within every limit of a service level objective.

    Parameters
    ----------
    result : Result
        A run of `simulate`.
    max_ttft, max_tpot, max_e2e : float or Quantity, optional
        Positive limits, in the unit of the run's clock (seconds, for a Quantity). None is no limit.

    Returns
    -------
    ndarray of bool, shape (requests,)
        A request that did not finish meets nothing. A single token has a TPOT of 0 here.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If a limit is not a positive time.

    Notes
    -----
    The tools part at the single token under a TPOT limit: vLLM counts it as good, AIPerf as bad, guidellm leaves it
    undetermined, which is not good either.

    References
    ----------
    As for `goodput`.
    """
    return _finished(result) & _within(result, np.nan_to_num(tpot(result), nan=0.0), max_ttft, max_tpot, max_e2e)


def goodput(result, max_ttft=None, max_tpot=None, max_e2e=None):
    """Return the rate of requests that meet a service level objective.

    Parameters
    ----------
    result, max_ttft, max_tpot, max_e2e
        As for `meets_slo`.

    Returns
    -------
    float
        Requests per unit of time, from the first arrival to the last token. Without limits it is the throughput.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If a limit is not a positive time.

    Notes
    -----
    AIPerf and guidellm divide by the same span unless told to leave out a warm-up. vidur has no goodput. All count
    requests, none counts their tokens.

    References
    ----------
    vllm-project/vllm, ``vllm/benchmarks/serve.py``;
    ai-dynamo/aiperf, ``src/aiperf/metrics/types/good_request_count_metric.py`` (cf79369);
    vllm-project/guidellm, ``src/guidellm/schemas/benchmark/goodput.py`` (1a145a4) and
    ``docs/guides/service_level_objectives.md`` (b9ae3df).
    """
    return _rate(meets_slo(result, max_ttft, max_tpot, max_e2e).sum(), result)


def percentile(values, percent, counts=None):
    """Return a percentile, linear between order statistics as in `numpy.percentile`.

    Parameters
    ----------
    values : array_like of float, shape (n,)
        NaN (never happened) is left out.
    percent : float
        In [0, 100].
    counts : array_like of int, shape (n,), optional
        How often each value occurs; 1 if not given.

    Returns
    -------
    float
        NaN if there is no value.

    Examples
    --------
    >>> percentile([10, 20, 30, 40], 50)
    25.0
    >>> percentile([10, 500], 99, counts=[980, 20])  # a thousand gaps, twenty of them stalls
    500.0
    """
    percent = check_number("percent", percent, PERCENT)
    values, counts = _as_runs(values, counts)
    if not counts.sum():
        return math.nan
    order = np.argsort(values)
    values, last_rank = values[order], np.cumsum(counts[order]) - 1
    rank = percent / 100 * last_rank[-1]
    low, high = values[np.searchsorted(last_rank, [math.floor(rank), math.ceil(rank)])]
    return float(np.interp(rank - math.floor(rank), [0, 1], [low, high]))


@dataclass(frozen=True)
class Estimate:
    """A number measured on one run, and the interval that its true value is likely in.

    Parameters
    ----------
    value, low, high : float
        The number, and the two ends.
    confidence : float
        The share of such intervals that cover the true value.
    """

    value: float
    low: float
    high: float
    confidence: float

    def __str__(self):
        return f"{self.value:.3g} ({100 * self.confidence:g} % interval {self.low:.3g} to {self.high:.3g})"


def percentile_interval(values, percent, *, seed, confidence=0.95, blocks=30, resamples=400):
    """Return a percentile with a confidence interval from the block bootstrap.

    Parameters
    ----------
    values : array_like of float, shape (n,)
        One per request, in order of arrival. NaN is left out.
    percent : float
        In [0, 100].
    seed : int
        Seed of the resampling.
    confidence : float
        In (0, 1).
    blocks : int
        How many blocks of neighbors make one resample. With one block per value it is the plain bootstrap.
    resamples : int
        How many resamples.

    Returns
    -------
    Estimate

    Raises
    ------
    ValueError
        If there is no value, or an argument is outside its domain.

    Notes
    -----
    Requests that queue behind each other are late together. Resampling them one by one would treat a single rush as
    many independent events and give an interval several times too narrow; blocks keep the rush whole. An interval can
    still know nothing of what the run never saw: one that holds a single rush is narrower than the truth.

    References
    ----------
    Politis and Romano, A circular block-resampling procedure for stationary data, in Exploring the Limits of Bootstrap
    (1992).

    Examples
    --------
    >>> latency = np.random.default_rng(0).exponential(size=5000)
    >>> print(percentile_interval(latency, 99, seed=0))  # the true one is 4.605
    4.71 (95 % interval 4.44 to 5.03)
    """
    percent = check_number("percent", percent, PERCENT)
    confidence = check_number("confidence", confidence, OPEN_FRACTION)
    blocks = check_count("blocks", blocks, minimum=1)
    resamples = check_count("resamples", resamples, minimum=1)
    rng = np.random.default_rng(check_count("seed", seed, minimum=0))
    values = np.asarray(values, dtype=np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        raise ValueError("values must hold at least one number that is not NaN")

    ordered = np.sort(values)
    place = np.searchsorted(ordered, values).astype(np.int32)  # whole numbers are put in order twice as fast
    length = math.ceil(len(values) / blocks)
    circle = np.concatenate([place, place[: length - 1]])
    every_block = np.lib.stride_tricks.sliding_window_view(circle, length)
    rank = percent / 100 * (len(values) - 1)
    around = math.floor(rank), math.ceil(rank)
    places = [
        np.partition(every_block[rng.integers(len(values), size=blocks)].ravel()[: len(values)], around)[[*around]]
        for _ in range(resamples)
    ]
    below, above = ordered[np.array(places).T]
    draws = below + (rank - around[0]) * (above - below)
    low, high = np.percentile(draws, [50 - 50 * confidence, 50 + 50 * confidence])
    return Estimate(percentile(values, percent), float(low), float(high), confidence)


def summary(result):
    """Return the figures that ``vllm bench serve`` prints, for the requests that finished.

    Parameters
    ----------
    result : Result
        A run of `simulate`.

    Returns
    -------
    dict
        Counts (requests, completed, preemptions), duration, request and output-token throughput; and for each of ttft,
        tpot, itl and e2e a dict of mean, p50, p90 and p99. NaN where there is nothing to average. Only itl also pools
        the tokens of requests that were cut off at the end of the run.
    """
    finished = _finished(result)
    return {
        "requests": len(result.workload),
        "completed": int(finished.sum()),
        "preemptions": int(np.sum(result.preemptions)),
        "duration": _duration(result),
        "request_throughput": _rate(finished.sum(), result),
        "output_throughput": _rate(result.workload.new_tokens[finished].sum(), result),
        "ttft": _statistics(ttft(result)[finished]),
        "tpot": _statistics(tpot(result)[finished]),
        "itl": _statistics(*result.itl_runs()),
        "e2e": _statistics(e2e(result)[finished]),
    }


def rosetta(result, max_ttft=None, max_tpot=None, max_e2e=None):
    """Return one run as four tools would report it: each row is a name, each column what a tool means by it.

    Parameters
    ----------
    result, max_ttft, max_tpot, max_e2e
        As for `goodput`.

    Returns
    -------
    dict of dict of float
        ``rosetta(result)["itl p99"]["guidellm"]``. NaN where a tool has no such metric, and for vidur's figures per
        token where a request was preempted (it then divides by the tokens that were left at the restart).

    Notes
    -----
    ================  ===================  ===================  ==============================  ====================
    row               vllm                 aiperf               guidellm                        vidur
    ================  ===================  ===================  ==============================  ====================
    ttft              per request          per request          per request                     prefill_e2e_time
    tpot              (E2E - TTFT)/(n-1)   none                 E2E/n, weight n                 (E2E - TTFT)/n
    itl               all gaps             (E2E - TTFT)/(n-1)   (E2E - TTFT)/(n-1), weight n-1  all gaps
    icl               none                 all gaps             none                            none
    e2e               per request          per request          per request                     per request
    normalized_e2e    none                 none                 none                            E2E/n
    goodput, n = 1    meets a TPOT limit   misses it            is left out                     no goodput
    percentile        linear               linear               smallest value that reaches it  linear
    ================  ===================  ===================  ==============================  ====================

    guidellm's objective ``tpot_ms`` is held against its inter-token latency, not against its time per output token.
    Vidur keeps gaps in a sketch that is good to 0.1 %; here they are exact.

    References
    ----------
    The files named at `ttft`, `tpot`, `itl_percentile` and `goodput`; for percentiles ai-dynamo/aiperf,
    ``src/aiperf/metrics/metric_dicts.py`` (0fec57a); vllm-project/guidellm, ``src/guidellm/schemas/base/statistics.py``
    (028046751); microsoft/vidur, ``vidur/metrics/data_series.py`` (5555bb8) and ``cdf_sketch.py`` (2bb7a08).
    """
    finished = _finished(result)
    tokens = result.workload.new_tokens[finished]
    first, mean_gap, total = ttft(result)[finished], tpot(result)[finished], e2e(result)[finished]
    every_gap = result.itl_runs()
    is_single = tokens == 1
    restarted = bool(np.any(result.preemptions))
    none = np.array([])

    def vidur(values, counts=None):
        return _statistics(none) if restarted else _statistics(values, counts)

    rows = {
        "ttft": [_statistics(first), _statistics(first), _weighted_statistics(first), _statistics(first)],
        "tpot": [
            _statistics(mean_gap),
            _statistics(none),
            _weighted_statistics(total / tokens, tokens),
            vidur((total - first) / tokens),
        ],
        "itl": [
            _statistics(*every_gap),
            _statistics(mean_gap),
            _weighted_statistics(mean_gap[~is_single], tokens[~is_single] - 1),
            vidur(*every_gap),
        ],
        "icl": [_statistics(none), _statistics(*every_gap), _statistics(none), _statistics(none)],
        "e2e": [_statistics(total), _statistics(total), _weighted_statistics(total), _statistics(total)],
        "normalized_e2e": [_statistics(none), _statistics(none), _statistics(none), vidur(total / tokens)],
    }
    tools = ("vllm", "aiperf", "guidellm", "vidur")
    table = {
        f"{name} {statistic}": {tool: cell[statistic] for tool, cell in zip(tools, cells, strict=True)}
        for name, cells in rows.items()
        for statistic in ("mean", "p50", "p99")
    }
    # A NaN is within no limit: that is AIPerf's and guidellm's verdict on the single token.
    strict = _finished(result) & _within(result, tpot(result), max_ttft, max_tpot, max_e2e)
    lenient = goodput(result, max_ttft, max_tpot, max_e2e)
    table["goodput"] = dict(
        zip(tools, (lenient, _rate(strict.sum(), result), _rate(strict.sum(), result), math.nan), strict=True)
    )
    return table


def table(rows):
    """Return figures as text, one line for each row, to print.

    Parameters
    ----------
    rows : dict of dict of float
        As from `rosetta`; every row has the same columns.

    Returns
    -------
    str
        Four digits of each figure, "-" for NaN.

    Examples
    --------
    >>> print(table({"ttft p99": {"vllm": 0.81234, "vidur": 0.81234}, "icl p99": {"vllm": math.nan, "vidur": 12.0}}))
                   vllm      vidur
    ttft p99     0.8123     0.8123
    icl p99           -         12
    """
    width = max(map(len, rows), default=0)
    lines = [" " * width + "".join(f"{column:>11}" for column in next(iter(rows.values()), {}))]
    for name, cells in rows.items():
        figures = ("-" if math.isnan(figure) else f"{figure:.4g}" for figure in cells.values())
        lines.append(f"{name:<{width}}" + "".join(f"{figure:>11}" for figure in figures))
    return "\n".join(lines)


def _within(result, gap, max_ttft, max_tpot, max_e2e):
    good = np.ones(len(result.workload), dtype=bool)
    limits = {"max_ttft": (ttft(result), max_ttft), "max_tpot": (gap, max_tpot), "max_e2e": (e2e(result), max_e2e)}
    for name, (values, limit) in limits.items():
        if limit is not None:
            limit = check_quantity(name, limit, TIME, POSITIVE, bare=True)
            limit = limit.m_as("second") if isinstance(limit, pint.Quantity) else limit
            # Times are sums of many steps: a gap of 25 ms comes out as 25.000000000001 and still meets 25 ms.
            good &= values <= limit * (1 + 1e-9)
    return good


def _finished(result):
    return np.isfinite(result.finished)


def _duration(result):
    finished = result.finished[_finished(result)]
    return float(finished.max() - result.workload.arrival[0]) if len(finished) else math.nan


def _rate(count, result):
    duration = _duration(result)
    return float(count / duration) if duration > 0 else math.nan


def _as_runs(values, counts):
    values = np.asarray(values, dtype=np.float64)
    counts = np.ones(len(values), dtype=np.int64) if counts is None else np.asarray(counts, dtype=np.int64)
    known = ~np.isnan(values) & (counts > 0)
    return values[known], counts[known]


def _statistics(values, counts=None):
    values, counts = _as_runs(values, counts)
    total = counts.sum()
    return {
        "mean": float(values @ counts / total) if total else math.nan,
        "p50": percentile(values, 50, counts),
        "p90": percentile(values, 90, counts),
        "p99": percentile(values, 99, counts),
    }


def _weighted_statistics(values, weights=None):
    """Return guidellm's mean and percentiles: the smallest value whose share of the weight reaches the percentile."""
    values, weights = _as_runs(values, weights)
    order = np.argsort(values)
    values, reached = values[order], np.cumsum(weights[order])
    if not len(values):
        return _statistics(values)
    percentiles = {f"p{p}": float(values[np.searchsorted(reached, p * reached[-1] / 100)]) for p in (50, 90, 99)}
    return {"mean": float(values @ weights[order] / reached[-1]), **percentiles}
