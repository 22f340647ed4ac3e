"""The contract simulator: continuous batching over a paged KV cache, one tick at a time, said plainly."""

from collections import deque
from collections.abc import Iterable, Mapping
from numbers import Real


def paged_continuous_batching(requests, page_size, total_pages, slots, max_ticks):
    """Simulate continuous batching with a KV cache that grows page by page.

    At each tick, arrived requests are admitted first-come while a slot and the pages of their prompt are free; the
    first that does not fit stops admission. Then every active request, in order of admission, decodes one token. A
    request that needs a page when none is free stalls for this tick. A request that has all its tokens completes and
    frees its pages at once, for those after it in the same tick; its slot admits only at the next tick.

    Parameters
    ----------
    requests : iterable of dict
        Each has a unique hashable `id`, `prompt_tokens` and `new_tokens` (positive ints), and `arrival` (a tick).
    page_size : int
        Tokens that a page holds, at least 1.
    total_pages : int
        Pages in the pool, at least 1.
    slots : int
        Requests that may be active at a time, at least 1.
    max_ticks : int
        Ticks after which to stop, at least 0.

    Returns
    -------
    dict
        ``steps``, one dict a tick: ``tick``, the ids ``admitted``, ``decoded`` and ``completed``, and the ``pages``
        allocated at its end; ``waiting``, the ids never admitted; ``active``, the requests left with their
        ``generated`` tokens and ``pages``. Plain lists, dicts, ints and the ids themselves.

    Raises
    ------
    TypeError
        If a number is not a whole number, or a request is not a dict.
    ValueError
        If a number is below its minimum, a field is missing, or an id is repeated or unhashable.

    Notes
    -----
    Prefill is instantaneous, nothing is preempted, and a deadlock stays: the stalled requests remain ``active``.

    References
    ----------
    Yu et al. (2022), Orca, for scheduling at every iteration; Kwon et al. (2023), PagedAttention, for the pages.

    Examples
    --------
    >>> request = {"id": "a", "prompt_tokens": 1, "new_tokens": 2, "arrival": 0}
    >>> result = paged_continuous_batching([request], page_size=2, total_pages=2, slots=2, max_ticks=5)
    >>> [(step["decoded"], step["pages"]) for step in result["steps"]]
    [(['a'], 1), (['a'], 0)]
    """
    page_size = _whole_number(page_size, "page_size", minimum=1)
    total_pages = _whole_number(total_pages, "total_pages", minimum=1)
    slots = _whole_number(slots, "slots", minimum=1)
    max_ticks = _whole_number(max_ticks, "max_ticks", minimum=0)
    waiting = deque(sorted(_checked(requests), key=lambda request: request["arrival"]))
    active = []
    pages_in_use = 0
    steps = []

    def pages_for(tokens):
        return -(-tokens // page_size)

    for tick in range(max_ticks):
        if not waiting and not active:
            break

        admitted = []
        while waiting and waiting[0]["arrival"] <= tick and len(active) < slots:
            pages = pages_for(waiting[0]["prompt_tokens"])
            if pages_in_use + pages > total_pages:
                break
            request = waiting.popleft()
            active.append({"request": request, "generated": 0, "pages": pages})
            pages_in_use += pages
            admitted.append(request["id"])

        decoded, completed, unfinished = [], [], []
        for running in active:
            request = running["request"]
            growth = pages_for(request["prompt_tokens"] + running["generated"] + 1) - running["pages"]
            if pages_in_use + growth > total_pages:
                unfinished.append(running)  # stalled: it keeps its pages and tries again at the next tick
                continue
            running["generated"] += 1
            running["pages"] += growth
            pages_in_use += growth
            decoded.append(request["id"])
            if running["generated"] == request["new_tokens"]:
                pages_in_use -= running["pages"]
                completed.append(request["id"])
            else:
                unfinished.append(running)
        active = unfinished

        steps.append(
            {"tick": tick, "admitted": admitted, "decoded": decoded, "completed": completed, "pages": pages_in_use}
        )

    return {
        "steps": steps,
        "waiting": [request["id"] for request in waiting],
        "active": [
            {"id": running["request"]["id"], "generated": running["generated"], "pages": running["pages"]}
            for running in active
        ],
    }


def _checked(requests):
    """Return plain copies of the requests, in their order, or say which one is wrong, and how."""
    if isinstance(requests, Mapping | str | bytes) or not isinstance(requests, Iterable):
        raise TypeError(f"requests must be a list of dicts, got {type(requests).__name__}")
    checked, seen = [], set()
    for index, request in enumerate(requests):
        if not isinstance(request, Mapping):
            raise TypeError(f"requests[{index}] must be a dict with {', '.join(_FIELDS)}; got {request!r}")
        missing = [field for field in _FIELDS if field not in request]
        if missing:
            raise ValueError(f"requests[{index}] must have {', '.join(_FIELDS)}; {', '.join(missing)} is missing")
        name = request["id"]
        try:
            repeated = name in seen
        except TypeError:
            raise TypeError(f"requests[{index}]: id must be hashable, such as a string; got {name!r}") from None
        if repeated:
            raise ValueError(f"requests[{index}]: id must be unique, but {name!r} stands twice; rename one")
        seen.add(name)
        checked.append(
            {
                "id": name,
                "prompt_tokens": _whole_number(request["prompt_tokens"], f"request {name!r}: prompt_tokens", minimum=1),
                "new_tokens": _whole_number(request["new_tokens"], f"request {name!r}: new_tokens", minimum=1),
                "arrival": _whole_number(request["arrival"], f"request {name!r}: arrival", minimum=0),
            }
        )
    return checked


_FIELDS = ("id", "prompt_tokens", "new_tokens", "arrival")


def _whole_number(value, name, minimum):
    """Return a plain int; 4.0 counts as 4, and 2.5 is refused, never rounded."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a whole number of at least {minimum}, got {value!r} ({type(value).__name__})")
    if not value >= minimum or value % 1 != 0:
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value}")
    return int(value)
