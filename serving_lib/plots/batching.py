"""Pictures of lecture 02: what a batch costs, what it brings, and who waits for it."""

from functools import lru_cache

import numpy as np

from serving_lib.batching import (
    affine_batch_chain,
    calc_batch_formation_wait,
    calc_batch_knee,
    calc_batch_throughput_share,
    calc_padding_waste_fraction,
)
from serving_lib.engine import Policy, Server, StepTime, simulate
from serving_lib.plots import style
from serving_lib.queue_simulator import mean_interval, simulate_queue, student_t_factor
from serving_lib.queueing import calc_kingman_wait_ratio
from serving_lib.units import ureg
from serving_lib.workload import Workload, poisson, profile

FORMED_REQUESTS = 20_000
BATCH_SIZES = 2 ** np.arange(10)
UNLIMITED = 10**9  # pages: memory is the subject of lecture 04
DOTS = {name: look for name, look in style.SIMULATION.items() if name not in ("capsize", "elinewidth")}


# --- 1: what a step costs, and what it brings ------------------------------------------------------------------------


def batch_knee(batch_size=32, fixed_time=8 * ureg.ms, per_request_time=0.25 * ureg.ms):
    """Draw what a step of a batch costs and what it brings: its time, and the tokens per second, against its size.

    Parameters
    ----------
    batch_size : int
        The batch size to mark.
    fixed_time : Quantity
        Time that a step takes whatever its batch.
    per_request_time : Quantity
        Time that each request of the batch adds.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> batch_knee(batch_size=32).alt_text.split(";")[0]
    'A step with a batch of 32 takes 16 ms and brings 2,000 tokens per second, 50 % of the ceiling'
    """
    fixed, each = fixed_time.m_as("ms"), per_request_time.m_as("ms")
    knee, ceiling = calc_batch_knee(fixed_time, per_request_time), 1e3 / each
    share = calc_batch_throughput_share(batch_size, fixed_time, per_request_time)
    size = np.arange(1, 257)
    step = fixed + size * each

    figure, (cost, gain) = style.new_figure(columns=2)
    cost.fill_between(size, 0, fixed, facecolor=style.TINTS[0], edgecolor="none")
    cost.fill_between(size, fixed, step, facecolor=style.TINTS[3], edgecolor="none")
    cost.plot(size, step, **style.FORMULA)
    if fixed > 0.08 * step[-1]:  # else there is no room for the word
        cost.text(128, fixed / 2, "fixed", ha="center", va="center", color=style.INK)
    gain.plot(size, ceiling * calc_batch_throughput_share(size, fixed_time, per_request_time), **style.FORMULA)
    gain.axhline(ceiling, **style.LIMIT)
    tried = BATCH_SIZES[:9]
    runs = np.array([_simulated_full_batch(int(number), fixed, each) for number in tried])
    cost.plot(tried, runs, **DOTS)
    gain.plot(tried, 1e3 * tried / runs, **DOTS)
    marks = (
        (cost, fixed + batch_size * each, 1.15 * step[-1], "Time of one step (ms)"),
        (gain, share * ceiling, 1.15 * ceiling, "Throughput (tokens/s)"),
    )
    for axes, y, top, label in marks:
        axes.axvline(batch_size, **style.CHOSEN)
        axes.plot(batch_size, y, marker="D", markersize=10, color=style.AMBER, fillstyle="none")
        axes.set(xlim=(0, 262), ylim=(0, top), xlabel="Batch size (requests)", ylabel=label)
        axes.set_xticks([0, 64, 128, 192, 256])
        axes.locator_params(axis="y", nbins=4)
    cost.set_title("What a step costs", **style.TITLE)
    gain.set_title("What it brings", **style.TITLE)
    return style.finish(
        figure,
        f"A step with a batch of {batch_size} takes {style.say(fixed + batch_size * each)} ms and brings "
        f"{style.say(share * ceiling)} tokens per second, {100 * share:.0f} % of the ceiling; the knee, at half of the "
        f"ceiling, is a batch of {style.say(knee)}.",
    )


@lru_cache(maxsize=4096)
def _simulated_full_batch(size, fixed, each):
    """Return the time per token of the engine with all its slots in use."""
    requests = all_at_once(np.full(size, 8))
    return simulate(requests, Server(16, UNLIMITED, size, StepTime(base=fixed, per_request=each))).duration / 8


# --- 2: the wait for a batch to fill ---------------------------------------------------------------------------------


def batch_formation(arrival_rate=400 / ureg.s, fixed_time=8 * ureg.ms, per_request_time=0.25 * ureg.ms):
    """Draw the mean time of a request against the batch size of a server that starts full batches only.

    Parameters
    ----------
    arrival_rate : Quantity
        Poisson arrival rate.
    fixed_time : Quantity
        Time that a step takes whatever its batch.
    per_request_time : Quantity
        Time that each request of the batch adds.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    Every B-th arrival completes a batch, so batches come with Erlang-B gaps (squared CV 1/B) to one server of constant
    service time: the queue part is Kingman's for these two. The dots simulate that server, arrival by arrival.

    Examples
    --------
    >>> batch_formation(arrival_rate=10 / ureg.s).alt_text.split(":")[0]
    'At 10 / s the best batch size is 1'
    """
    size = np.arange(1, BATCH_SIZES[-1] + 1)
    parts = _formation_parts(size, arrival_rate, fixed_time, per_request_time)
    total = sum(parts.values())
    steady = np.isfinite(total)

    figure, axes = style.new_figure(right_margin=1.75)
    axes.set_title("Full batches only: the mean time of a request", **style.TITLE)
    axes.set(xlabel="Batch size (requests)", ylabel="Mean time of a request (ms)")
    log2_batch_axis(axes, BATCH_SIZES[-1])
    if not steady.any():
        axes.set_ylim(0, 1)
        axes.text(1.2, 0.5, "no batch size keeps up")
        return style.finish(figure, f"At {style.say(arrival_rate)} no batch size up to {size[-1]} keeps up.")
    best, top = size[np.argmin(total)], 4 * total.min()
    below = np.zeros(steady.sum())
    for index, part in enumerate(parts.values()):
        look = {"facecolor": style.TINTS[index], "edgecolor": style.PALETTE[index], "linewidth": 0.6}
        axes.fill_between(size[steady], below, below + part[steady], **look)
        below = below + part[steady]
    axes.plot(size, total, **style.FORMULA)
    if not steady[0]:
        axes.axvspan(0.9, size[steady][0], facecolor=style.PALE, edgecolor="none")
    tried = BATCH_SIZES[total[BATCH_SIZES - 1] < top]
    rates = arrival_rate.m_as("1/ms"), fixed_time.m_as("ms"), per_request_time.m_as("ms")
    runs = [_simulated_formation(int(number), *rates) for number in tried]
    axes.errorbar(tried, [run.mean for run in runs], [run.half_width for run in runs], **style.SIMULATION)
    axes.axvline(best, **style.CHOSEN)
    axes.plot(best, total.min(), marker="D", markersize=10, color=style.AMBER, fillstyle="none")
    axes.set_ylim(0, top)
    key(
        axes,
        ("━ all three", style.INK),
        *((f"■ {label}", color) for label, color in zip(reversed(parts), style.PALETTE[2::-1], strict=True)),
        ("● simulated, 99 %", style.BLUE),
        ("■ cannot keep up", style.GREY),
    )
    return style.finish(
        figure,
        f"At {style.say(arrival_rate)} the best batch size is {best}: a request takes {style.say(total.min())} ms on "
        f"average, of which {style.say(parts['its batch fills'][best - 1])} ms for its batch to fill.",
    )


def key(axes, *entries):
    """Write what the colors stand for, right of the axes; a legend would cost as much as all else in the picture."""
    for row, (text, color) in enumerate(entries):
        axes.text(1.03, 0.97 - 0.09 * row, text, color=color, va="top", transform=axes.transAxes, fontsize=9)


def log2_batch_axis(axes, largest):
    """Let an axis double from tick to tick, up to a largest batch size."""
    ticks = [size for size in BATCH_SIZES.tolist() if size <= largest]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(0.9, 1.1 * largest)


def _formation_parts(size, arrival_rate, fixed_time, per_request_time):
    """Return the mean times, in ms, that a request spends in each stage; infinite where the server cannot keep up."""
    step = fixed_time.m_as("ms") + size * per_request_time.m_as("ms")
    load = arrival_rate.m_as("1/ms") * step / size
    waits = np.full(len(size), np.inf)  # in steps
    waits[load < 1] = calc_kingman_wait_ratio(load[load < 1], 1 / size[load < 1], 0.0)
    return {
        "its step": step,
        "its batch fills": calc_batch_formation_wait(size, arrival_rate).m_as("ms"),
        "the server is busy": waits * step,
    }


@lru_cache(maxsize=1024)
def _simulated_formation(size, rate, fixed, each):
    """Return the simulated mean time of a request whose batch starts when it is full and the server is free."""
    batches = FORMED_REQUESTS // size
    arrival = np.cumsum(np.random.default_rng(2).exponential(1 / rate, batches * size)).reshape(batches, size)
    run = simulate_queue(arrival[:, -1], fixed + size * each)
    return mean_interval((run.finish[:, None] - arrival).mean(axis=1))


# --- 3: what a fixed batch wastes ------------------------------------------------------------------------------------

LENGTHS = ("uniform 1 to 128", "geometric, mean 64", "Azure conversation")
WASTE_BATCHES = 60


def padding_waste(batch_size=32, lengths="uniform 1 to 128", seed=1):
    """Draw one batch that runs until its longest member is done, and how busy its slots are, against its size.

    Parameters
    ----------
    batch_size : int
        Requests in the batch.
    lengths : str
        Where the lengths come from: "uniform 1 to 128", "geometric, mean 64" or "Azure conversation".
    seed : int
        Seed of the batch that is drawn.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    The line is E[L] / E[max of B lengths], the long-run share of slot-time that is used; the dots are batches run by
    the engine with ``batching="static"``.

    Examples
    --------
    >>> padding_waste(batch_size=8).alt_text.split(";")[1]
    ' in the long run batches of 8 keep their slots 56.4 % busy.'
    """
    population = _population(lengths)
    batch = np.random.default_rng(seed).choice(population, batch_size)
    waste = calc_padding_waste_fraction(batch.tolist())
    size, busy = np.arange(1, 129), np.array([_share_in_use(lengths, number) for number in range(1, 129)])
    chosen = _share_in_use(lengths, batch_size)

    figure, (one, many) = style.new_figure(columns=2)
    edges = np.arange(batch_size + 1)
    one.fill_betweenx(edges, 0, batch.max(), facecolor=style.PALE, edgecolor="none")
    one.fill_betweenx(edges, 0, np.append(batch, batch[-1]), step="post", facecolor=style.TINTS[0], edgecolor=style.INK)
    one.set(xlim=(0, 1.02 * batch.max()), ylim=(batch_size, 0), xlabel="Time (steps)", ylabel="Slot (number)")
    one.set_title(f"One batch: {100 * waste:.0f} % idle", **style.TITLE)
    many.plot(size, busy, **style.FORMULA)
    dots = [_simulated_static_busy(lengths, int(number)) for number in BATCH_SIZES[:8]]
    many.errorbar(BATCH_SIZES[:8], *np.transpose(dots), **style.SIMULATION)
    many.axvline(batch_size, **style.CHOSEN)
    many.plot(batch_size, chosen, marker="D", markersize=10, color=style.AMBER, fillstyle="none")
    log2_batch_axis(many, 128)
    many.set(ylim=(0, 1.05), xlabel="Batch size (requests)", ylabel="Slots in use (fraction)")
    many.set_title("Many batches", **style.TITLE)
    for axes in (one, many):
        axes.locator_params(axis="y", nbins=5)
    one.locator_params(axis="y", integer=True)
    return style.finish(
        figure,
        f"This batch of {batch_size} runs for {batch.max():,} steps, its average member for "
        f"{style.say(batch.mean())}, so {100 * waste:.1f} % of its slot-time is idle; in the long run batches of "
        f"{batch_size} keep their slots {100 * chosen:.1f} % busy.",
    )


@lru_cache
def _population(lengths):
    """Return equally likely lengths that stand for a distribution."""
    if lengths == "uniform 1 to 128":
        return np.arange(1, 129)
    if lengths == "geometric, mean 64":
        levels = (np.arange(4096) + 0.5) / 4096
        return np.ceil(np.log1p(-levels) / np.log1p(-1 / 64)).astype(int)
    if lengths == "Azure conversation":
        return np.sort(profile("azure-conv-2023", seed=0).new_tokens)
    raise ValueError(f"lengths must be one of {', '.join(map(repr, LENGTHS))}, got {lengths!r}")


@lru_cache(maxsize=1024)
def _share_in_use(lengths, size):
    """Return the mean of a length over the mean of the longest of `size`, drawn with replacement."""
    population = _population(lengths)
    chance_to_be_longest = np.diff((np.arange(len(population) + 1) / len(population)) ** size)
    return population.mean() / (population @ chance_to_be_longest)


@lru_cache
def _simulated_static_busy(lengths, size):
    """Return the simulated share of slot-time in use, and the half width of its 99 % interval (a ratio of means)."""
    drawn = np.random.default_rng(3).choice(_population(lengths), (WASTE_BATCHES, size))
    result = simulate(all_at_once(drawn.ravel()), Server(16, UNLIMITED, size), Policy(batching="static"))
    started = np.unique(result.admitted)
    taken = np.diff(np.append(started, result.finished.max()))
    ratio = drawn.sum() / (size * taken.sum())
    spread = (drawn.sum(axis=1) - ratio * size * taken).std(ddof=1) / (size * taken.mean())
    return ratio, student_t_factor(0.99, WASTE_BATCHES - 1) * spread / np.sqrt(WASTE_BATCHES)


def all_at_once(new_tokens):
    """Return requests that wait from the start, with prompts of one token."""
    count = len(new_tokens)
    return Workload([str(i) for i in range(1, count + 1)], np.zeros(count), np.ones(count, dtype=int), new_tokens)


# --- 4: static against continuous ------------------------------------------------------------------------------------


def slot_by_slot(slots=4, requests=12, longest=20, seed=5):
    """Draw who holds which slot at each step, with batches of fixed members and with slots that are refilled at once.

    Parameters
    ----------
    slots : int
        Requests that run at a time.
    requests : int
        Requests that wait at the start.
    longest : int
        Their lengths are uniform from 1 to this.
    seed : int
        Seed of the lengths.

    Returns
    -------
    matplotlib.figure.Figure

    Examples
    --------
    >>> slot_by_slot().alt_text.split(";")[1]
    ' continuous batching takes 37 steps with its slots 84 % busy.'
    """
    workload = all_at_once(np.random.default_rng(seed).integers(1, longest + 1, requests))
    figure, panels = style.new_figure(rows=2, height=4.0, sharex=True)
    step, said, longest_run = -(-slots // 4), [], 0
    for axes, batching in zip(panels, ("static", "continuous"), strict=True):
        result = simulate(workload, Server(16, UNLIMITED, slots), Policy(batching=batching))
        end = result.finished.max()
        busy = workload.new_tokens.sum() / (slots * end)
        axes.axvspan(0, end, facecolor=style.PALE, edgecolor="none")
        held = list(_slots_of(result))
        for index in range(4):
            slot, start, stop = np.array(held[index::4]).reshape(-1, 3).T
            style.boxes(axes, start, slot + 0.08, stop - start, 0.84, style.fill(index) | {"hatch": ""})
        for number, (slot, start, stop) in enumerate(held):
            if stop - start > 0.025 * len(str(number + 1)) * workload.new_tokens.sum() / slots:
                middle = (start + stop) / 2, slot + 0.5
                axes.text(*middle, str(number + 1), ha="center", va="center", fontsize=8, color=style.INK)
        axes.set(ylim=(slots, 0), ylabel="Slot (number)")
        axes.set_yticks(np.arange(0, slots, step) + 0.5, [str(slot + 1) for slot in range(0, slots, step)])
        axes.set_title(f"{batching.capitalize()}: {end:.0f} steps, slots {100 * busy:.0f} % busy", **style.TITLE)
        said.append(f"{batching} batching takes {end:.0f} steps with its slots {100 * busy:.0f} % busy")
        longest_run = max(longest_run, end)
    panels[1].set(xlim=(0, 1.04 * longest_run), xlabel="Time (steps)")
    return style.finish(figure, f"For the same {requests} requests in {slots} slots, {said[0]}; {said[1]}.")


def _slots_of(result):
    """Yield slot, start and end of each request, where each takes the first slot that is free when it is admitted."""
    free = {}
    for start, stop in zip(result.admitted, result.finished, strict=True):
        slot = next(slot for slot in range(len(free) + 1) if free.get(slot, 0) <= start)
        free[slot] = stop
        yield slot, start, stop


# --- 6: the batch and the queue in front of it -----------------------------------------------------------------------

CHAIN_TOKENS = 200
CHAIN_REQUESTS = 4_000
CHAIN_LOADS = (0.2, 0.4, 0.6, 0.75, 0.9)


def batch_chain(arrival_rate=8 / ureg.s, slots=32, fixed_time=8 * ureg.ms, per_request_time=0.25 * ureg.ms):
    """Draw the mean time of a request against the arrival rate, for a server with slots and an affine step.

    Parameters
    ----------
    arrival_rate : Quantity
        The Poisson arrival rate to mark.
    slots : int
        Requests that run at a time.
    fixed_time : Quantity
        Time that a step takes whatever its batch.
    per_request_time : Quantity
        Time that each request of the batch adds.

    Returns
    -------
    matplotlib.figure.Figure

    Notes
    -----
    Output lengths are geometric with a mean of 200 tokens, so that every request is as likely to end at each step and
    `affine_batch_chain` applies. The dots are the engine.

    Examples
    --------
    >>> batch_chain(arrival_rate=2 / ureg.s).alt_text.split(",")[0]
    'At 2 requests per second'
    """
    fixed, each, rate = fixed_time.m_as("s"), per_request_time.m_as("s"), arrival_rate.m_as("1/s")
    full_step = fixed + slots * each
    capacity = slots / (CHAIN_TOKENS * full_step)
    rates, service, total = _chain_curve(slots, fixed, each)
    top = 2 * CHAIN_TOKENS * full_step

    figure, axes = style.new_figure(right_margin=1.75)
    for index, (below, above) in enumerate(((0 * total, service), (service, total))):
        look = {"facecolor": style.TINTS[index], "edgecolor": style.PALETTE[index], "linewidth": 0.6}
        axes.fill_between(rates, below, above, **look)
    axes.plot(rates, total, **style.FORMULA)
    runs = [_simulated_chain(load * capacity, slots, fixed, each) for load in CHAIN_LOADS]
    dots = [load * capacity for load in CHAIN_LOADS], [run.mean for run in runs], [run.half_width for run in runs]
    axes.errorbar(*dots, **style.SIMULATION)
    axes.axvline(capacity, **style.LIMIT)
    axes.axvline(rate, **style.CHOSEN)
    axes.set(xlim=(0, 1.1 * max(capacity, rate)), ylim=(0, top))
    axes.set(xlabel="Arrival rate (requests/s)", ylabel="Mean time of a request (s)")
    axes.set_title(f"{slots} slots, {CHAIN_TOKENS} tokens per request", **style.TITLE)
    key(
        axes,
        ("━ the chain", style.INK),
        ("■ in the queue", style.RED),
        ("■ in a slot", style.INK),
        ("● simulated, 99 %", style.BLUE),
        ("┊ capacity", style.GREY),
    )
    if rate >= capacity:
        return style.finish(
            figure,
            f"{slots} slots complete at most {style.say(capacity)} requests per second, one token every "
            f"{style.say(1e3 * full_step)} ms; at {style.say(rate)} per second their queue grows without end.",
        )
    chain = _chain(rate, slots, fixed, each)
    axes.plot(rate, chain.time_in_system, marker="D", markersize=10, color=style.AMBER, fillstyle="none")
    return style.finish(
        figure,
        f"At {style.say(rate)} requests per second, {style.say(chain.in_service)} of {slots} slots are busy, so a "
        f"token comes every {style.say(1e3 * (fixed + chain.in_service * each))} ms; a request takes "
        f"{style.say(chain.time_in_system)} s, of which {style.say(round(chain.wait, 3), 2)} s in the queue.",
    )


def _chain(rate, slots, fixed, each):
    return affine_batch_chain(rate, CHAIN_TOKENS * fixed, CHAIN_TOKENS * each, slots, slots + 400)


@lru_cache(maxsize=256)
def _chain_curve(slots, fixed, each):
    """Return rates, and at each the chain's mean time in service and in the system, in seconds."""
    rates = slots / (CHAIN_TOKENS * (fixed + slots * each)) * np.append(np.linspace(0.01, 0.9, 24), [0.93, 0.96, 0.98])
    chains = [_chain(rate, slots, fixed, each) for rate in rates.tolist()]
    total = np.array([chain.time_in_system for chain in chains])
    return rates, total - np.array([chain.wait for chain in chains]), total


@lru_cache(maxsize=256)
def _simulated_chain(rate, slots, fixed, each):
    """Return the mean time in system of geometric requests in the engine, with its interval."""
    requests = poisson(
        rate, CHAIN_REQUESTS, 4, prompt_tokens=1, new_tokens=lambda rng, count: rng.geometric(1 / CHAIN_TOKENS, count)
    )
    result = simulate(requests, Server(16, UNLIMITED, slots, StepTime(base=fixed, per_request=each)))
    # The last requests are left out as the first are: they have the server to themselves once no more arrive.
    return mean_interval((result.finished - requests.arrival)[: -CHAIN_REQUESTS // 10])
