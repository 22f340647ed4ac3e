"""The KV cache before paging: one contiguous block per request, reserved at admission by a buddy allocator.

The baselines that Kwon et al. (2023) compare pages with keep a request's cache in one piece, so they must know its
size when it is admitted. This module has their allocator, their three ways to choose the size, and a run that measures
where the memory goes.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from serving_lib.units import check_count

RESERVATIONS = ("reserve_max", "reserve_pow2", "reserve_exact")


class BuddyAllocator:
    """A memory that hands out blocks of 2^k slots, each at a multiple of its size.

    A larger block is halved until it fits; a freed block joins its other half, its buddy, as soon as that is free too.

    Parameters
    ----------
    slots : int
        Size of the memory, at least 1. If it is no power of two, it starts as descending powers of two.

    Attributes
    ----------
    used : dict of int to int
        The size of each block that is taken, by its first slot.

    References
    ----------
    Knowlton (1965), A fast storage allocator, Communications of the ACM 8(10); Knuth, The Art of Computer Programming,
    volume 1, section 2.5.

    Examples
    --------
    >>> memory = BuddyAllocator(16)
    >>> memory.allocate(5), memory.allocate(3), memory.allocate(8)
    (0, 8, None)
    >>> memory.free(8)
    >>> memory.allocate(8)
    8
    """

    def __init__(self, slots):
        slots = check_count("slots", slots, minimum=1)
        self.used = {}
        self._free = [set() for _ in range(slots.bit_length())]  # first slots of the free blocks of 2^k slots
        start = 0
        for k in reversed(range(slots.bit_length())):
            if slots >> k & 1:
                self._free[k].add(start)
                start += 1 << k

    def allocate(self, size):
        """Take the lowest of the smallest free blocks that hold `size` slots; return its first slot, or None."""
        if size < 1:
            raise ValueError(f"size must be at least 1 slot, got {size}")
        wanted = (int(size) - 1).bit_length()
        k = next((k for k in range(wanted, len(self._free)) if self._free[k]), None)
        if k is None:
            return None
        start = min(self._free[k])
        self._free[k].remove(start)
        while k > wanted:  # give the upper half back
            k -= 1
            self._free[k].add(start + (1 << k))
        self.used[start] = 1 << wanted
        return start

    def free(self, start):
        """Give a block back by its first slot."""
        if start not in self.used:
            raise ValueError(f"start must be the first slot of a block that is taken, got {start}")
        k = self.used.pop(start).bit_length() - 1
        while k + 1 < len(self._free) and start ^ (1 << k) in self._free[k]:
            self._free[k].remove(start ^ (1 << k))
            start &= ~(1 << k)
            k += 1
        self._free[k].add(start)


def calc_reserved_tokens(prompt_tokens, new_tokens, reservation, max_model_len):
    """Calculate for how many tokens a scheme reserves memory when it admits a request.

    Parameters
    ----------
    prompt_tokens, new_tokens : int or ndarray of int
        Positive tokens of the prompt, and those that will be generated.
    reservation : {"reserve_max", "reserve_pow2", "reserve_exact"}
        The longest sequence that is served; the prompt and the new tokens rounded up to a power of two; or exactly
        what will be needed, which takes an oracle.
    max_model_len : int
        The longest sequence that is served: no scheme reserves more.

    Returns
    -------
    int or ndarray of int

    Raises
    ------
    ValueError
        If there is no such scheme, an argument is outside its domain, or a request is longer than `max_model_len`.

    Examples
    --------
    >>> [calc_reserved_tokens(100, 25, scheme, max_model_len=2048) for scheme in RESERVATIONS]
    [2048, 132, 125]
    """
    if reservation not in RESERVATIONS:
        raise ValueError(f"reservation must be one of {', '.join(map(repr, RESERVATIONS))}, got {reservation!r}")
    prompt = check_count("prompt_tokens", prompt_tokens, minimum=1)
    new = check_count("new_tokens", new_tokens, minimum=1)
    limit = check_count("max_model_len", max_model_len, minimum=1)
    if np.max(prompt + new) > limit:
        raise ValueError(
            f"prompt_tokens + new_tokens must be at most max_model_len = {limit}, got {np.max(prompt + new)}"
        )
    if reservation == "reserve_max":
        return prompt * 0 + limit
    if reservation == "reserve_exact":
        return prompt + new
    power = np.exp2(np.ceil(np.log2(new))).astype(np.int64)
    reserved = np.minimum(prompt + power, limit)
    return reserved if np.ndim(reserved) else int(reserved)


@dataclass(frozen=True)
class MemoryUse:
    """Where the memory of a KV cache is, averaged over the steps of a run, as shares of the whole.

    Parameters
    ----------
    token_states : float
        Keys and values that are there.
    reservation : float
        Slots that the same request will fill later.
    internal : float
        Slots that are reserved for a request and that it will never use.
    rounding : float
        Slots that the allocator adds to a reservation, because its blocks are powers of two.
    free : float
        Slots of no request: too few, or in pieces too small, for the one that waits.
    requests : float
        Mean number of requests that run at a time.
    """

    token_states: float
    reservation: float
    internal: float
    rounding: float
    free: float
    requests: float

    @property
    def external(self):
        """What lies outside every reservation: rounding and free slots, "external fragmentation and others"."""
        return self.rounding + self.free


def simulate_reservations(prompt_tokens, new_tokens, slots, reservation, max_model_len, max_requests=256):
    """Serve requests from contiguous reservations while a queue waits, and return where the memory goes.

    Parameters
    ----------
    prompt_tokens, new_tokens : array_like of int, shape (n,)
        The requests, in the order of the queue. All of them wait from the start.
    slots : int
        Tokens that the memory holds.
    reservation : {"reserve_max", "reserve_pow2", "reserve_exact"}
        See `calc_reserved_tokens`.
    max_model_len : int
        Longest sequence, at most `slots`.
    max_requests : int
        Requests that may run at a time.

    Returns
    -------
    list of MemoryUse
        One for each of ten stretches of equally many steps, from the time when as many requests as first fitted have
        gone, to the time when the last one is admitted: their spread says how sure their mean is.

    Raises
    ------
    ValueError
        If an argument is outside its domain, or there are too few requests to fill the memory more than twice.

    Notes
    -----
    The head of the queue is admitted as soon as its block fits, and nobody passes it. Every running request gains one
    token a step, so the steps between two completions are summed in closed form.

    Examples
    --------
    >>> use = simulate_reservations([100] * 900, [100] * 900, 15_728, "reserve_max", 2048)
    >>> use[0].requests
    7.0
    """
    prompt = check_count("prompt_tokens", np.asarray(prompt_tokens), minimum=1)
    new = check_count("new_tokens", np.asarray(new_tokens), minimum=1)
    slots = check_count("slots", slots, minimum=1)
    reserved = calc_reserved_tokens(prompt, new, reservation, max_model_len)
    memory = BuddyAllocator(slots)
    running = []  # heap of (step of the last token, request, first slot of its block)
    step, head, gone, first_fitted = 0, 0, 0, None
    tokens = final = promised = blocks = 0  # sums over the running requests
    rows = []
    while True:
        while head < len(prompt) and len(running) < max_requests:
            start = memory.allocate(int(reserved[head]))
            if start is None:
                break
            heapq.heappush(running, (step + int(new[head]), head, start))
            tokens += int(prompt[head])
            final += int(prompt[head] + new[head])
            promised += int(reserved[head])
            blocks += memory.used[start]
            head += 1
        if head == len(prompt):
            break
        if not running:
            raise ValueError(f"max_model_len must be at most the largest block of the memory, got {max_model_len}")
        first_fitted = first_fitted or head
        steps = running[0][0] - step
        count = len(running)
        if gone >= first_fitted and steps:
            rows.append((steps, tokens + count * (steps + 1) / 2, final, promised, blocks, count))
        step += steps
        tokens += count * steps
        while running and running[0][0] == step:
            _, i, start = heapq.heappop(running)
            length = int(prompt[i] + new[i])
            tokens, final, promised = tokens - length, final - length, promised - int(reserved[i])
            blocks -= memory.used[start]
            memory.free(start)
            gone += 1
    if not rows:
        raise ValueError(f"new_tokens must hold more requests: {len(prompt)} do not fill the memory twice")
    return _stretches(np.array(rows, dtype=np.float64), slots)


def _stretches(rows, slots, number=10):
    """Return the mean use of the memory in each of some stretches of equally many steps."""
    steps = rows[:, 0]
    ends = np.cumsum(steps)
    # Sums up to any step, between the rows by interpolation: a row is even to within its few steps.
    edges = np.linspace(0, ends[-1], number + 1)
    sums = [np.interp(edges, np.append(0, ends), np.append(0, np.cumsum(steps * column))) for column in rows[:, 1:].T]
    means = np.diff(sums, axis=1) / np.diff(edges)
    return [
        MemoryUse(
            token_states=tokens / slots,
            reservation=(final - tokens) / slots,
            internal=(promised - final) / slots,
            rounding=(blocks - promised) / slots,
            free=1 - blocks / slots,
            requests=count,
        )
        for tokens, final, promised, blocks, count in means.T.tolist()
    ]
