"""The loop that one would write without the engine: every step visits every running request.

It is written for speed: flat lists, a counter of free pages, a page taken only when the last one is full. It keeps what
`paged_continuous_batching` keeps, a record of each step, with FIFO admission, the affine step time, and vLLM's
preemption by recompute (the latest goes first), as the docstring of `simulate` has them.
"""

ID, TOKENS, CAPACITY, TARGET, INDEX = range(5)


def literal_loop(workload, server, recompute=False):
    """Return the record of each step, as `Result.window` has it."""
    ids, arrival = workload.id.tolist(), workload.arrival.tolist()
    prompt, new = workload.prompt_tokens.tolist(), workload.new_tokens.tolist()
    page_size, slots = server.page_size, server.slots
    base, per_request, per_kv_token, per_prefill_token = server.step_time.in_clock_units()
    free, now, following, count = server.total_pages, 0.0, 0, len(ids)
    active, returned, steps = [], [], []
    while following < count or active or returned:
        admitted, decoded, completed, preempted = [], [], [], []
        prefilled = cache = 0

        if recompute:  # running requests ask first
            free = give_pages(active, 0, free, page_size, preempted, returned)

        before = len(active)
        while not preempted and len(active) < slots and (returned or (following < count and arrival[following] <= now)):
            index, context = returned[-1] if returned else (following, prompt[following])
            pages = -(-context // page_size)
            if pages > free:
                break
            if returned:
                returned.pop()
            else:
                following += 1
            free -= pages
            prefilled += context
            cache -= context
            active.append([ids[index], context, pages * page_size, prompt[index] + new[index], index])
            admitted.append(ids[index])

        if recompute:
            free = give_pages(active, before, free, page_size, preempted, returned)

        for running in active:
            tokens = running[TOKENS]
            if tokens == running[CAPACITY]:
                if not free:
                    continue
                free -= 1
                running[CAPACITY] += page_size
            cache += tokens
            running[TOKENS] = tokens = tokens + 1
            decoded.append(running[ID])
            if tokens == running[TARGET]:
                free += running[CAPACITY] // page_size
                completed.append(running[ID])
        if completed:
            active = [running for running in active if running[TOKENS] < running[TARGET]]

        steps.append(
            {
                "tick": len(steps),
                "admitted": admitted,
                "decoded": decoded,
                "completed": completed,
                "pages": server.total_pages - free,
            }
        )
        if recompute:
            steps[-1]["preempted"] = preempted
        if active or decoded or following == count:
            now += base + per_request * len(decoded) + per_kv_token * cache + per_prefill_token * prefilled
        else:  # an arrival wakes an idle server
            now = min(now + base, arrival[following]) if arrival[following] > now else now + base
    return steps


def give_pages(active, first, free, page_size, preempted, returned):
    """Give a page to each request, from the first on, whose last page is full, and take it from the latest if need be.

    Return the number of free pages that are left.
    """
    while first < len(active):
        running = active[first]
        if running[TOKENS] == running[CAPACITY]:
            while not free and len(active) > first:
                victim = active.pop()
                free += victim[CAPACITY] // page_size
                preempted.append(victim[ID])
                returned.append((victim[INDEX], victim[TOKENS]))
            if len(active) == first:
                break
            free -= 1
            running[CAPACITY] += page_size
        first += 1
    return free
