"""The page pool of a paged KV cache, step by step: who owns which page, and what is wasted in the last ones."""

import heapq
import textwrap
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from serving_lib.plots import style


@dataclass(frozen=True)
class Frame:
    """The pool at the end of one step, and what happened in it.

    Parameters
    ----------
    tick : int
    page_size : int
    owners : tuple
        For each page of the pool, the id of the request that owns it, or None.
    tokens : tuple of int
        For each page of the pool, how many of its slots hold a token.
    decoded, stalled : tuple
        Ids of the active requests that got a token in this step, and of those that found no free page.
    queue : tuple
        Ids of the requests that have arrived and wait.
    tables : dict
        For each id that is active, its block table: the numbers of its pages, in the order of its tokens.
    colors : dict
        For each id, the index of its tint.
    words : str
        What happened, as a sentence.
    """

    tick: int
    page_size: int
    owners: tuple
    tokens: tuple
    decoded: tuple
    stalled: tuple
    queue: tuple
    tables: dict
    colors: dict
    words: str


def replay(result, requests, page_size, total_pages):
    """Return one `Frame` per step of a simulation, with the pages of each request.

    Parameters
    ----------
    result : dict or list of dict
        What `serving_lib.paged_continuous_batching` returned, of which only ``steps`` is read; or the steps alone, as
        the ``window`` of an engine run that starts at step 0.
    requests : iterable of dict
        The requests that it was given.
    page_size, total_pages : int
        The pool that it was given.

    Returns
    -------
    list of Frame

    Raises
    ------
    ValueError
        If there is no step, or a step does not follow from the requests and the pool.

    Notes
    -----
    The result says how many pages are in use; which ones is the allocator's business. Here the free page with the
    lowest number goes first, as a reader would do it by hand.
    """
    steps = result["steps"] if isinstance(result, Mapping) else result
    if not steps:
        raise ValueError("result must have at least one step to show; raise max_ticks")
    if steps[0]["tick"] != 0:
        raise ValueError(f"result must start at step 0, got step {steps[0]['tick']}; what came before owns pages too")
    by_id = {request["id"]: request for request in requests}
    order = sorted(by_id.values(), key=lambda request: request["arrival"])
    colors = {request["id"]: index % len(style.TINTS) for index, request in enumerate(order)}
    waiting = deque(request["id"] for request in order)
    free = list(range(total_pages))  # a heap
    pages, tokens = {}, {}  # of the active requests, in the order of admission
    generated = dict.fromkeys(by_id, 0)  # a preempted request keeps its tokens: they are prefilled with its prompt
    frames = []

    def hold(name, count):
        """Give a request `count` tokens in the cache, and the pages that they need."""
        missing = -(-count // page_size) - len(pages[name])
        if missing > len(free):
            raise ValueError(f"step {step['tick']}: {name!r} needs {missing} pages, {len(free)} are free; {_MISMATCH}")
        pages[name] += [heapq.heappop(free) for _ in range(missing)]
        tokens[name] = count

    def release(name):
        del tokens[name]
        for page in pages.pop(name):
            heapq.heappush(free, page)

    for step in steps:
        for name in step["admitted"]:
            if name not in by_id:
                raise ValueError(f"step {step['tick']}: {name!r} is none of the requests; {_MISMATCH}")
            waiting.remove(name)
            pages[name] = []
            hold(name, by_id[name]["prompt_tokens"] + generated[name])
        # After the admissions, for a step may evict whom it has just admitted; one that evicts first admits nobody.
        for name in step.get("preempted", ()):
            release(name)
            waiting.appendleft(name)
        stalled = tuple(name for name in pages if name not in step["decoded"])
        for name in step["decoded"]:
            if name not in tokens:
                raise ValueError(f"step {step['tick']}: {name!r} decodes, but was not admitted; {_MISMATCH}")
            hold(name, tokens[name] + 1)
            generated[name] += 1
            if name in step["completed"]:
                release(name)
        in_use = total_pages - len(free)
        if in_use != step["pages"]:
            raise ValueError(
                f"step {step['tick']}: {in_use} pages are in use, the result says {step['pages']}; {_MISMATCH}"
            )
        queue = tuple(name for name in waiting if by_id[name]["arrival"] <= step["tick"])
        owners, fill = [None] * total_pages, [0] * total_pages
        for name, owned in pages.items():
            for index, page in enumerate(owned):
                owners[page] = name
                fill[page] = min(page_size, tokens[name] - index * page_size)
        words = _in_words(step, stalled, queue, in_use, total_pages)
        frames.append(
            Frame(
                step["tick"],
                page_size,
                tuple(owners),
                tuple(fill),
                tuple(step["decoded"]),
                stalled,
                queue,
                {name: tuple(owned) for name, owned in pages.items()},
                colors,
                words,
            )
        )
    return frames


_MISMATCH = "are these the requests and the pool that the result was computed from?"


def _in_words(step, stalled, queue, in_use, total):
    events = [
        _clause(step["admitted"], "is admitted", "are admitted"),
        _clause(step.get("preempted", ()), "is preempted", "are preempted"),
        _clause(step["decoded"], "decodes", "decode"),
        _clause(step["completed"], "completes and frees its pages", "complete and free their pages"),
        _clause(stalled, "stalls for want of a page", "stall for want of a page"),
        _clause(queue, "waits in the queue", "wait in the queue"),
    ]
    happened = "; ".join(event for event in events if event) or "nothing happens"
    return f"Step {step['tick']}: {happened}. {in_use} of {total} pages are in use."


def _clause(names, one, several):
    if not names:
        return ""
    shown = ", ".join(str(name) for name in names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"{shown} {one if len(names) == 1 else several}"


def draw_frame(frame):
    """Draw the pool as a grid of pages, with the active requests and the queue beside it.

    Parameters
    ----------
    frame : Frame

    Returns
    -------
    matplotlib.figure.Figure
    """
    total = len(frame.owners)
    columns = min(total, 8 if total <= 64 else 16 if total <= 256 else 32)
    rows = -(-total // columns)
    cell, left, top = 4.5 / columns, 0.2, 0.45  # inches
    cell_height = min(cell, 0.6, 4.5 / rows)
    height = max(top + rows * cell_height + 0.2, 1.8)
    figure, axes = style.new_figure(height=height)
    axes.set_position((0, 0, 1, 1))
    axes.axis("off")
    axes.set(xlim=(0, style.WIDTH), ylim=(height, 0))

    used = [[] for _ in style.TINTS]
    wasted, free, height_of_page = [], [], cell_height - 0.04
    for page, (owner, tokens) in enumerate(zip(frame.owners, frame.tokens, strict=True)):
        x, y = left + page % columns * cell, top + page // columns * cell_height
        width = (cell - 0.04) * tokens / frame.page_size
        if owner is None:
            free.append((x, y, cell - 0.04, height_of_page))
            continue
        used[frame.colors[owner]].append((x, y, width, height_of_page))
        if tokens < frame.page_size:
            wasted.append((x + width, y, cell - 0.04 - width, height_of_page))
        first = page == 0 or frame.owners[page - 1] != owner
        if total <= 32 or (first and total <= 256):
            paper = {"facecolor": style.TINTS[frame.colors[owner]], "edgecolor": "none", "pad": 1}  # over the hatches
            middle = {"ha": "center", "va": "center", "fontsize": 9, "color": style.INK, "bbox": paper}
            axes.text(x + cell / 2 - 0.02, y + cell_height / 2 - 0.02, str(owner)[:6], **middle)
    looks = [style.fill(index) | {"hatch": ""} for index in range(len(used))]
    looks += [
        {"facecolor": "white", "edgecolor": style.PALE},
        {"facecolor": "white", "edgecolor": style.GREY, "hatch": "/////", "linewidth": 0.6},
    ]
    for pages, look in zip([*used, free, wasted], looks, strict=True):
        style.boxes(axes, *np.reshape(pages, (-1, 4)).T, look)
    in_use = sum(owner is not None for owner in frame.owners)
    title = f"Step {frame.tick}: {in_use} of {total} pages of {frame.page_size} tokens"
    axes.text(left, 0.28, title, weight="bold", color=style.INK)
    axes.text(4.95, 0.15, _beside(frame), va="top", linespacing=1.5, fontsize=9.5, color=style.INK)
    axes.text(4.95, height - 0.15, "hatched: reserved, but empty", color=style.GREY, fontsize=8.5, va="bottom")
    return style.finish(figure, frame.words)


def _beside(frame):
    def listed(names):
        shown = [str(name) for name in names[:8]] + (["..."] if len(names) > 8 else [])
        return ", ".join(shown) or "none"

    lines = (f"decoded: {listed(frame.decoded)}", f"stalled: {listed(frame.stalled)}", f"queue: {listed(frame.queue)}")
    return "\n".join(textwrap.fill(line, 27) for line in lines)
