"""Workloads that are drawn: textbook arrival processes, and the measured statistics of real traces."""

import json
from functools import cache
from importlib.resources import files

import numpy as np

from serving_lib.units import NONNEGATIVE, OPEN_FRACTION, Domain, check_count, check_number
from serving_lib.workload.core import Workload, generator, in_seconds, per_second, row_names


def poisson(rate, requests, seed, *, prompt_tokens=512, new_tokens=128):
    """Draw Poisson arrivals: independent exponential gaps.

    Parameters
    ----------
    rate : float or Quantity
        Positive mean arrival rate; a plain number is in requests per second.
    requests : int
        How many requests.
    seed : int
        Seed of everything random here. Arrivals and tokens use streams of their own, so other tokens leave the
        arrivals as they are.
    prompt_tokens, new_tokens : int, array_like of int, or callable
        Tokens of every request, or of each, or a function of a `numpy.random.Generator` and a count.

    Returns
    -------
    Workload
        The first request arrives after one gap.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain.

    Examples
    --------
    >>> workload = poisson(rate=2, requests=1000, seed=1, new_tokens=lambda rng, n: rng.geometric(1 / 100, n))
    >>> round(workload.rate, 1), workload.prompt_tokens.max().item()
    (2.0, 512)
    """
    return gamma(rate, requests, seed, cv=1.0, prompt_tokens=prompt_tokens, new_tokens=new_tokens)


def gamma(rate, requests, seed, *, cv, prompt_tokens=512, new_tokens=128):
    """Draw renewal arrivals with gamma-distributed gaps of a given coefficient of variation.

    Parameters
    ----------
    rate, requests, seed, prompt_tokens, new_tokens
        As for `poisson`.
    cv : float
        Nonnegative coefficient of variation of a gap: 0 is a metronome, 1 is Poisson, above 1 is bursty.

    Returns
    -------
    Workload
        The first request arrives after one gap.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain.

    Notes
    -----
    The "burstiness" of load generators such as ``vllm bench serve`` is the shape of this distribution, 1/cv^2. Gaps are
    independent: bursts end with the gap, unlike those of `burst` or of real traffic.

    Examples
    --------
    >>> gamma(rate=4, requests=3, seed=0, cv=0).arrival.tolist()
    [0.25, 0.5, 0.75]
    """
    rate = per_second(rate)
    requests = check_count("requests", requests, minimum=0)
    cv = check_number("cv", cv, NONNEGATIVE)
    arrivals, *token_streams = generator(seed).spawn(3)
    gaps = arrivals.gamma(cv**-2, cv**2, requests) if cv > 0 else np.ones(requests)
    return _numbered(np.cumsum(gaps) / rate, prompt_tokens, new_tokens, token_streams)


def burst(rate, requests, seed, *, ratio=5.0, burst_share=0.2, mean_burst=30.0, prompt_tokens=512, new_tokens=128):
    """Draw arrivals that alternate between calm and burst: a two-state Markov-modulated Poisson process.

    Parameters
    ----------
    rate, requests, seed, prompt_tokens, new_tokens
        As for `poisson`; `rate` is the mean over calm and burst.
    ratio : float
        Arrival rate in a burst over the rate in a calm, at least 1 (1 is Poisson).
    burst_share : float
        Fraction of the time spent in bursts, in (0, 1).
    mean_burst : float or Quantity
        Positive mean length of a burst; a plain number is in seconds. Lengths are exponential.

    Returns
    -------
    Workload
        Starts in the steady state.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain.

    Notes
    -----
    With burst share s, rates b and c in burst and calm, mean rate r, and k = 1/mean_burst + 1/mean_calm, the index of
    dispersion over a window t is ``1 + 2 s (1-s) (b-c)^2 / (r k) * (1 - (1 - exp(-k t)) / (k t))``.

    References
    ----------
    Fischer and Meier-Hellstern, The Markov-modulated Poisson process (MMPP) cookbook, Performance Evaluation 18 (1993).

    Examples
    --------
    >>> from serving_lib.workload import index_of_dispersion
    >>> workload = burst(rate=5, requests=20_000, seed=0)
    >>> index_of_dispersion(workload.arrival, 0.1) < 1.5 < 20 < index_of_dispersion(workload.arrival, 60)
    True
    """
    rate = per_second(rate)
    requests = check_count("requests", requests, minimum=0)
    ratio = check_number("ratio", ratio, Domain("at least 1 and finite", lambda x: (x >= 1) & (x < np.inf)))
    burst_share = check_number("burst_share", burst_share, OPEN_FRACTION)
    mean_burst = in_seconds("mean_burst", mean_burst)
    arrivals, phases, *token_streams = generator(seed).spawn(4)

    calm_rate = rate / (1 - burst_share + ratio * burst_share)
    mean_length = np.array([mean_burst * (1 / burst_share - 1), mean_burst])
    phase_rate = np.array([calm_rate, ratio * calm_rate])
    # A Poisson process of rate 1 run on the clock of expected arrivals is a Poisson process of any varying rate.
    expected = np.cumsum(arrivals.exponential(size=requests))
    in_burst = int(phases.random() < burst_share)
    time, clock = [np.zeros(1)], [np.zeros(1)]
    while requests and clock[-1][-1] < expected[-1]:
        state = (in_burst + np.arange(1024)) % 2
        length = phases.exponential(mean_length[state])
        time.append(time[-1][-1] + np.cumsum(length))
        clock.append(clock[-1][-1] + np.cumsum(length * phase_rate[state]))
    arrival = np.interp(expected, np.concatenate(clock), np.concatenate(time))
    return _numbered(arrival, prompt_tokens, new_tokens, token_streams)


def profile(name, seed):
    """Draw a workload from the measured statistics of a real trace.

    Parameters
    ----------
    name : str
        ``"azure-conv-2023"`` (19,366 requests in 58 minutes) or ``"azure-code-2023"`` (8,819 in 57 minutes).
    seed : int
        Seed of the draw.

    Returns
    -------
    Workload
        As many requests in each 10 s window as the trace has, so the rush hour and the lulls are the real ones.

    Raises
    ------
    ValueError
        If there is no such profile.

    Notes
    -----
    What is real: the number of arrivals in each 10 s window; how evenly arrivals are spaced within windows, as one
    number (the shape of a gamma, 1 for uniform); the quantiles of prompt and of output tokens in each 5 minutes. What
    is drawn: the spacings and the tokens.

    Prompt and output of one request are drawn independently: their rank correlation in the traces is 0.07
    (conversation) and -0.02 (code). Across minutes they are not independent: in the rush of the conversation trace
    prompts are longer and outputs shorter, which is why the quantiles go by 5 minutes.

    References
    ----------
    Azure Public Dataset, LLM inference trace 2023, Microsoft, CC-BY 4.0; Patel et al., Splitwise, ISCA 2024.

    Examples
    --------
    >>> workload = profile("azure-conv-2023", seed=0)
    >>> len(workload), round(workload.rate, 2)
    (19366, 5.53)
    """
    profiles = _profiles()
    if name not in profiles:
        raise ValueError(f"name must be one of {', '.join(map(repr, profiles))}, got {name!r}")
    measured = profiles[name]
    arrivals, prompts, news = generator(seed).spawn(3)
    arrival = _spaced_arrivals(measured, arrivals)
    prompt_tokens = _tokens_by_segment(measured, "prompt_tokens", prompts)
    new_tokens = _tokens_by_segment(measured, "new_tokens", news)
    return Workload(row_names(len(arrival)), arrival, prompt_tokens, new_tokens)


def _spaced_arrivals(measured, rng):
    counts = np.array(measured["arrivals_per_window"])
    edges = np.minimum(np.arange(len(counts) + 1) * measured["window"], measured["duration"])
    # A window with n arrivals has n + 1 spacings, which add up to its length: gammas over their sum.
    last = np.cumsum(counts + 1) - 1
    clock = np.cumsum(rng.gamma(measured["spacing_shape"], size=last[-1] + 1))
    clock_at_edges = np.concatenate([[0.0], clock[last]])
    arrival = np.interp(np.delete(clock, last), clock_at_edges, edges)
    arrival[[0, -1]] = 0.0, measured["duration"]
    return arrival


def _tokens_by_segment(measured, column, rng):
    counts = np.array(measured["arrivals_per_window"])
    windows_per_segment = measured["segment"] // measured["window"]
    sizes = np.add.reduceat(counts, np.arange(0, len(counts), windows_per_segment))
    segments = []
    for size, quantiles in zip(sizes, measured[column], strict=True):
        # One level in each nth of [0, 1), in random order: every draw carries the measured load.
        levels = (rng.permutation(size) + rng.random(size)) / size
        segments.append(np.interp(levels, measured["levels"], quantiles))
    return np.rint(np.concatenate(segments)).astype(np.int64)


@cache
def _profiles():
    return json.loads(files("serving_lib").joinpath("data/profiles.json").read_text(encoding="utf-8"))["profiles"]


def _numbered(arrival, prompt_tokens, new_tokens, streams):
    """Return a workload whose requests are named by their number, with tokens drawn from two random streams."""
    columns = []
    for name, tokens, stream in zip(("prompt_tokens", "new_tokens"), (prompt_tokens, new_tokens), streams, strict=True):
        if callable(tokens):
            tokens = tokens(stream, len(arrival))
        elif np.ndim(tokens) == 0:
            tokens = np.full(len(arrival), check_count(name, tokens, minimum=1))
        columns.append(tokens)
    return Workload(row_names(len(arrival)), arrival, *columns)
