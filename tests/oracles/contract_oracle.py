"""The contract simulator once more, written token by token from the contract's sentences, for comparison only.

It shares no code and no data structure with the library: the pool is a set of page numbers, and every active request
holds the list of its own pages, so that a page can be counted twice by no arithmetic mistake.
"""


def contract_oracle(requests, page_size, total_pages, slots, max_ticks):
    queue = sorted(range(len(requests)), key=lambda i: (requests[i]["arrival"], i))
    free = set(range(total_pages))
    running = []  # indices of active requests, in admission order
    table = {}  # index -> the pages it holds
    tokens = {}  # index -> the tokens that lie in those pages
    done = set()
    steps = []
    tick = 0
    while tick < max_ticks and len(done) < len(requests):
        admitted = []
        for index in list(queue):
            fits = len(running) < slots and _pages(requests[index]["prompt_tokens"], page_size) <= len(free)
            if requests[index]["arrival"] > tick or not fits:
                break
            queue.remove(index)
            running.append(index)
            table[index] = [free.pop() for _ in range(_pages(requests[index]["prompt_tokens"], page_size))]
            tokens[index] = requests[index]["prompt_tokens"]
            admitted.append(requests[index]["id"])
        decoded, completed = [], []
        for index in list(running):
            while len(table[index]) * page_size < tokens[index] + 1 and free:
                table[index].append(free.pop())
            if len(table[index]) * page_size < tokens[index] + 1:
                continue
            tokens[index] += 1
            decoded.append(requests[index]["id"])
            if tokens[index] == requests[index]["prompt_tokens"] + requests[index]["new_tokens"]:
                free.update(table.pop(index))
                running.remove(index)
                done.add(index)
                completed.append(requests[index]["id"])
        held = total_pages - len(free)
        steps.append({"tick": tick, "admitted": admitted, "decoded": decoded, "completed": completed, "pages": held})
        tick += 1
    return {
        "steps": steps,
        "waiting": [requests[index]["id"] for index in queue],
        "active": [
            {
                "id": requests[index]["id"],
                "generated": tokens[index] - requests[index]["prompt_tokens"],
                "pages": len(table[index]),
            }
            for index in running
        ],
    }


def _pages(tokens, page_size):
    whole, rest = divmod(tokens, page_size)
    return whole + (rest > 0)
