"""A deployment as a plan: a model on some GPUs, how long a trace of requests waits for it, and what it costs."""

import math
from dataclasses import dataclass, fields

import numpy as np
import pint

from serving_lib import metrics
from serving_lib.engine import Policy, Server, StepTime
from serving_lib.metrics import Estimate
from serving_lib.models import GPUS, MODELS
from serving_lib.queueing import calc_allen_cunneen_wait, calc_erlang_c, calc_exponential_quantile_factor
from serving_lib.replicas import simulate_replicas
from serving_lib.units import (
    OPEN_FRACTION,
    POSITIVE,
    TIME,
    Dimension,
    Domain,
    check_count,
    check_number,
    check_quantity,
    ureg,
)

SHARE = Domain("in (0, 1]", lambda x: (x > 0) & (x <= 1))
CONFIDENCE = 0.99  # of every interval in the lectures
PRICE = Dimension("a price per time", "USD/hour", "4.75 * ureg.USD / ureg.hour")


def roofline_step_time(model, gpu, mfu=0.5):
    """Return the time of the engine's steps for a model on a GPU.

    Parameters
    ----------
    model : serving_lib.models.Model
    gpu : serving_lib.models.GPU
    mfu : float
        Model FLOP utilization in (0, 1]: the share of the peak arithmetic that is reached.

    Returns
    -------
    StepTime
        Each step reads the weights (`base`) and the keys and values of all tokens in the cache (`per_kv_token`) at
        full bandwidth. Each token, prefilled or decoded, takes ``model.flops_per_token`` operations.

    Raises
    ------
    TypeError, ValueError
        If `mfu` is not a share.

    Notes
    -----
    The parts add up. `calc_roofline_step_time` lets arithmetic hide behind the reading of the weights, as the best
    kernels do; so a step here is never shorter than the roofline allows, and at most twice as long.

    Examples
    --------
    >>> from serving_lib import models
    >>> step = roofline_step_time(models.MODELS["Llama-3-8B"], models.GPUS["A100-80"])
    >>> step.base.to("ms").round(2), step.per_prefill_token.to("us").round(1)
    (<Quantity(7.88, 'millisecond')>, <Quantity(103.0, 'microsecond')>)
    """
    mfu = check_number("mfu", mfu, SHARE)
    token = (model.flops_per_token * ureg.flop / (mfu * gpu.flops_per_second)).to("s")
    return StepTime(
        base=(model.weight_bytes / gpu.bandwidth).to("s"),
        per_request=token,
        per_kv_token=(model.kv_bytes_per_token / gpu.bandwidth).to("s"),
        per_prefill_token=token,
    )


@dataclass(frozen=True)
class Plan:
    """A deployment: which GPU, how many, and how each of them is run.

    Parameters
    ----------
    gpu : str
        A name in `serving_lib.models.GPUS`.
    replicas : int
        How many GPUs, each with the whole model, at least 1.
    prefill_budget : int
        Token budget of a step, at least `slots`.
    page_size : int
        Tokens of a page.
    pool_tokens : int, optional
        Tokens that the KV cache holds. By default as many as fit beside the weights.
    allocation, watermark
        Admission, as in `Policy`. Who runs short of pages evicts (``preemption="recompute"``).
    dispatch : {"least_loaded", "round_robin"}
        As in `serving_lib.replicas.dispatch`.
    slots : int
        Requests that run at a time on one GPU.
    model : str
        A name in `serving_lib.models.MODELS`.
    mfu : float
        Share of the peak arithmetic that is reached, in (0, 1].
    memory_share : float
        Share of the memory for weights and KV cache, in (0, 1].
    price : Quantity, optional
        Price of one GPU, such as ``4.75 * ureg.USD / ureg.hour``. By default the example in `GPUS`.

    Raises
    ------
    KeyError
        If the model or the GPU is unknown.
    TypeError, ValueError, pint.DimensionalityError
        If a number is outside its domain, or nothing of the memory is left for the cache.

    Examples
    --------
    >>> plan = Plan("A100-80", replicas=2)
    >>> print(plan, plan.server.total_pages, plan.price_per_hour)
    2 A100-80, budget 768 26674 4.4 USD / hour
    """

    gpu: str = "H100"
    replicas: int = 1
    prefill_budget: int = 768
    page_size: int = 16
    pool_tokens: int | None = None
    allocation: str = "paged"
    watermark: float = 0.01
    dispatch: str = "least_loaded"
    slots: int = 256
    model: str = "Llama-3-8B"
    mfu: float = 0.5
    memory_share: float = 0.9
    price: pint.Quantity | None = None

    def __post_init__(self):
        check_count("replicas", self.replicas, minimum=1)
        check_number("memory_share", self.memory_share, SHARE)
        if self.price is not None:
            check_quantity("price", self.price, PRICE, POSITIVE)
        if self.pool_tokens is not None and check_count("pool_tokens", self.pool_tokens, 1) > self.tokens_that_fit:
            raise ValueError(f"pool_tokens must be at most {self.tokens_that_fit:,}, which fit, got {self.pool_tokens}")
        if self.tokens_that_fit < self.page_size:
            raise ValueError(f"gpu must have room for {self.model} and a cache beside it; {self.gpu} has none")

    def __str__(self):
        unusual = (name for name, default in _DEFAULTS.items() if getattr(self, name) != default)
        others = [f"{_WORDS.get(name, name)} {_say(getattr(self, name))}".strip() for name in unusual]
        return ", ".join([f"{self.replicas} {self.gpu}", f"budget {self.prefill_budget:,}", *others])

    @property
    def tokens_that_fit(self):
        """Tokens of KV cache that fit beside the weights on one GPU."""
        model = MODELS[self.model]
        left = self.memory_share * GPUS[self.gpu].memory - model.weight_bytes
        return math.floor((left / model.kv_bytes_per_token).m_as(""))

    @property
    def server(self):
        """One replica, as the engine takes it."""
        tokens = self.tokens_that_fit if self.pool_tokens is None else self.pool_tokens
        step_time = roofline_step_time(MODELS[self.model], GPUS[self.gpu], self.mfu)
        return Server(self.page_size, max(tokens // self.page_size, 1), self.slots, step_time)

    @property
    def policy(self):
        """The rules of a replica's scheduler, as the engine takes them."""
        return Policy(
            allocation=self.allocation,
            preemption="recompute",
            watermark=self.watermark,
            prefill_budget=self.prefill_budget,
        )

    @property
    def price_per_hour(self):
        """Price of all GPUs together."""
        return self.replicas * (GPUS[self.gpu].price if self.price is None else self.price)

    def cost(self, workload):
        """Return the price of a million output tokens, if the GPUs are rented for as long as the workload arrives."""
        return (self.price_per_hour / _per_second(workload.new_tokens, workload) * 1e6).to("USD")

    def utilization(self, workload):
        """Return the busy share of a GPU by the mean load, if every step is full and no keys and values are read."""
        return _per_second(self._work(workload), workload).m_as("1/s") / self.replicas

    def formula_ttft(self, workload, quantile=0.99):
        """Estimate a quantile of the time to first token from the mean load, as a G/G/c queue would have it.

        Parameters
        ----------
        workload : Workload
            Its rate, the squared CV of its gaps and of its work are all that is used.
        quantile : float
            In (0, 1).

        Returns
        -------
        float
            Seconds; infinite at or above capacity.

        Notes
        -----
        The Allen-Cunneen mean wait; an exponential tail for those who wait at all (a share C by Erlang's formula),
        so that the wait is exceeded by a share C exp(-C t / W); and the prefill of a mean prompt. It excludes the order
        of arrivals, the reading of keys and values, steps that are not full, and the tail of the prompts.
        """
        quantile = check_number("quantile", quantile, OPEN_FRACTION)
        work, gaps = self._work(workload), np.diff(workload.arrival)
        service, rate = work.mean(), 1 / gaps.mean()
        if rate * service >= self.replicas:
            return math.inf
        waits = calc_erlang_c(self.replicas, rate * service)
        scvs = (values.var() / values.mean() ** 2 for values in (gaps, work))
        mean_wait = calc_allen_cunneen_wait(rate, 1 / service, self.replicas, *scvs)
        own = service * workload.prompt_tokens.sum() / (workload.prompt_tokens + workload.new_tokens).sum()
        if waits <= 1 - quantile:
            return own
        return own + mean_wait / waits * calc_exponential_quantile_factor(1 - (1 - quantile) / waits)

    def simulate(self, workload):
        """Return the run of all replicas on a workload, a `serving_lib.replicas.Fleet`."""
        return simulate_replicas(workload, self.server, self.replicas, self.policy, self.dispatch)

    def _work(self, workload):
        """Return seconds of one GPU for each request, if every step is full."""
        base, _, _, token = self.server.step_time.in_clock_units()
        return (workload.prompt_tokens + workload.new_tokens) * (token + base / self.prefill_budget)


# What a plan says of itself beyond GPU, count and budget: fields that are not at their default, in these words.
_DEFAULTS = {one.name: one.default for one in fields(Plan)[3:] if one.name != "price"}
_WORDS = {"page_size": "pages of", "pool_tokens": "pool", "allocation": "", "dispatch": "", "model": "", "mfu": "MFU"}


@dataclass(frozen=True)
class Outcome:
    """What a plan gives its users, and what it costs.

    Parameters
    ----------
    plan : Plan
    ttft : serving_lib.metrics.Estimate
        99th percentile of the time to first token, in seconds, with its interval. Infinite if requests never finish.
    tbt : float
        99th percentile of the time between tokens, in seconds, pooled over all gaps.
    cost : Quantity
        Price of a million output tokens.
    preemptions : int
        Evictions.
    """

    plan: Plan
    ttft: Estimate
    tbt: float
    cost: pint.Quantity
    preemptions: int

    def meets(self, max_ttft, max_tbt):
        """Return whether the 99th percentiles keep their limits.

        Parameters
        ----------
        max_ttft, max_tbt : float or Quantity
            Positive limits, in seconds if plain.

        Returns
        -------
        str
            "no" if they do not; "yes" if they do, with the whole interval; "unsure" if they do, but the interval
            crosses the limit: another hour of the same kind may not keep it.
        """
        max_ttft, max_tbt = (_seconds(name, limit) for name, limit in (("max_ttft", max_ttft), ("max_tbt", max_tbt)))
        if self.tbt > max_tbt or self.ttft.value > max_ttft:
            return "no"
        return "yes" if self.ttft.high <= max_ttft else "unsure"


def evaluate(workload, seed=0, **choices):
    """Simulate a plan on a workload and say what it gives and costs: the function to `sweep`.

    Parameters
    ----------
    workload : Workload
    seed : int
        Seed of the interval's resampling.
    **choices
        The fields of a `Plan`.

    Returns
    -------
    Outcome

    Raises
    ------
    TypeError, ValueError, KeyError
        As for `Plan` and `simulate`.

    Examples
    --------
    >>> from serving_lib import poisson
    >>> outcome = evaluate(poisson(rate=5, requests=500, seed=0), gpu="A100-80")
    >>> outcome.meets(1 * ureg.s, 100 * ureg.ms), outcome.cost.round(2)
    ('yes', <Quantity(0.9, 'USD')>)
    """
    plan = Plan(**choices)
    return judge(plan, plan.simulate(workload), seed)


def judge(plan, run, seed=0):
    """Say what a run of a plan gives its users, and what it costs.

    Parameters
    ----------
    plan : Plan
    run : serving_lib.replicas.Fleet
        What `plan.simulate` returned.
    seed : int
        Seed of the interval's resampling.

    Returns
    -------
    Outcome
    """
    cost, preemptions = plan.cost(run.workload), int(run.preemptions.sum())
    return Outcome(plan, p99_ttft(run, seed), metrics.itl_percentile(run, 99), cost, preemptions)


def p99_ttft(run, seed=0):
    """Return the 99th percentile of the time to first token with its interval.

    Parameters
    ----------
    run : serving_lib.replicas.Fleet
    seed : int
        Seed of the interval's resampling.

    Returns
    -------
    serving_lib.metrics.Estimate
        In seconds; infinite if requests never finish.

    Examples
    --------
    >>> from serving_lib import poisson
    >>> run = Plan("A100-80").simulate(poisson(rate=5, requests=500, prompt_tokens=1000, new_tokens=100, seed=0))
    >>> print(p99_ttft(run))
    0.71 (99 % interval 0.499 to 0.782)
    """
    if np.isnan(run.finished).any():
        return Estimate(math.inf, math.inf, math.inf, CONFIDENCE)
    return metrics.percentile_interval(metrics.ttft(run), 99, seed=seed, confidence=CONFIDENCE)


def pareto_front(outcomes):
    """Return the outcomes that no other one beats in both cost and p99 time to first token, cheapest first.

    Parameters
    ----------
    outcomes : iterable of Outcome

    Returns
    -------
    list of Outcome
        Each is dearer than the one before, and faster. Of equals, the first.
    """
    front = []
    for outcome in sorted(outcomes, key=lambda one: (one.cost.m_as("USD"), one.ttft.value)):
        if not front or outcome.ttft.value < front[-1].ttft.value:
            front.append(outcome)
    return front


def cost_table(outcomes, max_ttft, max_tbt):
    """Return outcomes as text, one line each, to print.

    Parameters
    ----------
    outcomes : iterable of Outcome
    max_ttft, max_tbt : float or Quantity
        The limits, as for `Outcome.meets`.

    Returns
    -------
    str
        Plan, 99th percentile of the time to first token with its interval, of the time between tokens, price of a
        million output tokens, and whether the plan meets the limits.
    """
    rows = [("plan", "TTFT (s)", f"{100 * CONFIDENCE:.0f} % interval", "TBT (ms)", "USD/Mtok", "meets")]
    for one in outcomes:
        interval = f"{one.ttft.low:.3g} to {one.ttft.high:.3g}"
        figures = f"{one.ttft.value:.3g}", interval, f"{1e3 * one.tbt:.0f}", f"{one.cost.m_as('USD'):.2f}"
        rows.append((str(one.plan), *figures, one.meets(max_ttft, max_tbt)))
    plans, *others = ([cell.rjust(max(map(len, column))) for cell in column] for column in zip(*rows, strict=True))
    plans = [plan.strip().ljust(len(plan)) for plan in plans]
    return "\n".join("  ".join(cells) for cells in zip(plans, *others, strict=True))


def _say(value):
    return f"{value:,}" if isinstance(value, int) else str(value).replace("_", " ")


def _per_second(amount, workload):
    """Return the sum of an amount over the requests, over the time in which they arrive."""
    if len(workload) < 2:
        raise ValueError(f"workload must hold at least two requests to have a rate, got {len(workload)}")
    return amount.sum() / ureg.Quantity(workload.arrival[-1] - workload.arrival[0], "second")


def _seconds(name, limit):
    limit = check_quantity(name, limit, TIME, POSITIVE, bare=True)
    return limit.m_as("second") if isinstance(limit, pint.Quantity) else limit
