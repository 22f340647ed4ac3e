"""Exercises of lecture 04: bytes per token, slots, pages, waste, a deadlock and what mends it, the pool of a tail."""

from itertools import count
from math import ceil, floor

from serving_lib.exercises.framework import Exercise, Misconception
from serving_lib.kvcache import calc_kv_bytes_per_token, calc_kv_pages, calc_last_page_waste
from serving_lib.models import MODELS
from serving_lib.queueing import calc_exponential_quantile_factor
from serving_lib.simulator import paged_continuous_batching
from serving_lib.units import ureg


def four_models():
    """Return the KV cache per token of four models, in the shapes that a reader finds in their configuration."""
    models = [MODELS[name] for name in ("Llama-2-13B", "Llama-2-70B", "Llama-3-8B", "Qwen2.5-7B")]

    def sizes(heads):
        return tuple(calc_kv_bytes_per_token(m.layers, getattr(m, heads), m.head_dim).to("kB/token") for m in models)

    return {
        "layers": [m.layers for m in models],
        "query_heads": [m.query_heads for m in models],
        "kv_heads": [m.kv_heads for m in models],
        "head_dim": models[0].head_dim,
        "sizes": sizes("kv_heads"),
        "query_sizes": sizes("query_heads"),
    }


def slots_of_table_1():
    """Return how many tokens of OPT-13B fit into 12 GB and 12 GiB (Kwon et al. 2023, Table 1)."""
    model = MODELS["OPT-13B"]
    per_token = model.kv_bytes_per_token
    return {
        "layers": model.layers,
        "hidden": model.kv_heads * model.head_dim,
        "per_token": per_token,
        "gb": floor((12 * ureg.GB / per_token).m_as("")),
        "gib": floor((12 * ureg.GiB / per_token).m_as("")),
    }


def a_deadlock():
    """Return the slots and the pool at which requests that all arrive together run through, by the simulator."""
    page_size, pool, number, prompt, new = 4, 10, 5, 8, 4
    together = [{"id": str(i), "prompt_tokens": prompt, "new_tokens": new, "arrival": 0} for i in range(number)]

    def run(total_pages, slots):
        return paged_continuous_batching(together, page_size, total_pages, slots, max_ticks=number * new)

    def finishes(total_pages, slots):
        result = run(total_pages, slots)
        return not result["active"] and not result["waiting"]

    def stalls(slots):
        active, stalled = 0, False
        for step in run(pool, slots)["steps"]:
            active += len(step["admitted"])
            stalled |= len(step["decoded"]) < active
            active -= len(step["completed"])
        return stalled

    final = calc_kv_pages(prompt + new, page_size)
    return {
        "page_size": page_size,
        "pool": pool,
        "number": number,
        "prompt": prompt,
        "new": new,
        "first": calc_kv_pages(prompt, page_size),
        "final": final,
        "safe": max(slots for slots in range(1, number + 1) if not stalls(slots)),
        "slots": max(slots for slots in range(1, number + 1) if finishes(pool, slots)),
        "enough": next(pages for pages in count(pool + 1) if finishes(pages, number)),
    }


def a_growing_request():
    """Return the pages of one request as it decodes."""
    page_size, prompt, generated = 16, 100, (0, 12, 20, 60)
    return {
        "page_size": page_size,
        "prompt": prompt,
        "generated": generated,
        "tokens": [prompt + k for k in generated],
        "pages": tuple(calc_kv_pages(prompt + k, page_size) for k in generated),
    }


def two_page_sizes():
    """Return the last-page waste of two data sets at two page sizes (means of Kwon et al. 2023, Fig. 11)."""
    sharegpt, alpaca = 161.31 + 337.99, 19.31 + 58.45
    small, large = 16, 128
    pairs = [(mean, page) for mean in (sharegpt, alpaca) for page in (small, large)]
    return {
        "sharegpt": sharegpt,
        "alpaca": alpaca,
        "small": small,
        "large": large,
        "pairs": pairs,
        "small_hole": (small - 1) / 2,
        "large_hole": (large - 1) / 2,
        "waste": tuple(calc_last_page_waste(*pair) for pair in pairs),
    }


def a_pool_for_a_tail():
    """Return the pages that hold a number of requests, each as long as the 95th percentile."""
    mean, slots, page_size = 500, 32, 16
    factor = calc_exponential_quantile_factor(0.95)
    longest = ceil(factor * mean)
    return {
        "mean": mean,
        "slots": slots,
        "page_size": page_size,
        "factor": factor,
        "longest": longest,
        "each": calc_kv_pages(longest, page_size),
        "pool": slots * calc_kv_pages(longest, page_size),
    }


EXERCISES = (
    Exercise(
        key="paged_kv.1",
        question="""
            Llama-2-13B, Llama-2-70B, Llama-3-8B and Qwen2.5-7B have {layers} layers, {query_heads} query heads,
            {kv_heads} key-value heads and a head dimension of {head_dim}. How many bytes does one token take in the
            KV cache of each, in 16 bit?
        """,
        asks="four sizes, such as (1 * ureg.kB, 2 * ureg.kB, 3 * ureg.kB, 4 * ureg.kB)",
        numbers=four_models,
        answer=lambda n: n.sizes,
        hints=(
            "One key and one value, in every layer, for every head that is cached. Which heads are cached?",
            "2 x layers x key-value heads x head dimension x 2 bytes, or calc_kv_bytes_per_token.",
        ),
        worked="""
            2 x layers x key-value heads x head dimension x 2 bytes, with {layers} layers and {kv_heads} heads of
                {head_dim}:
            {sizes}.
            With the query heads it would be {query_sizes}: right for the model without grouped queries, and far off
                for the rest.
        """,
        misconceptions=(
            Misconception(
                "query heads",
                lambda n: n.query_sizes,
                "that counts the query heads; several share one key-value head, and only these are cached",
            ),
            Misconception(
                "keys only",
                lambda n: tuple(size / 2 for size in n.sizes),
                "that is half: a token has a key and a value, and each number has two bytes",
            ),
            Misconception(
                "one layer",
                lambda n: tuple(size / layers for size, layers in zip(n.sizes, n.layers, strict=True)),
                "that is one layer; every layer has keys and values of its own",
            ),
        ),
    ),
    Exercise(
        key="paged_kv.2",
        question="""
            The vLLM paper gives OPT-13B ({per_token}) 12 "GB" for the KV cache on an A100 and counts 15.7K slots
            for tokens. How many whole tokens fit into 12 GB, and how many into 12 GiB?
        """,
        asks="two whole numbers, such as 10000 and 11000",
        numbers=slots_of_table_1,
        answer=lambda n: {"gb": n.gb, "gib": n.gib},
        hints=(
            "A gigabyte is 10^9 bytes, a gibibyte 2^30.",
            "Divide, and drop the fraction: part of a token is no use.",
        ),
        worked="""
            12 GB / ({per_token}) = {gb:6} tokens; 12 GiB / ({per_token}) = {gib:6} tokens.
            Only the second is the paper's 15.7K: what it calls GB is GiB.
        """,
        misconceptions=(
            Misconception(
                "800 KB of 1,000 bytes",
                lambda _: {"gb": 15000},
                "that takes a token for 800,000 bytes; it has {per_token}, which are 800 KiB",
            ),
            Misconception(
                "swapped",
                lambda n: {"gb": n.gib, "gib": n.gb},
                "that is the other unit: a GiB is larger than a GB, so more tokens fit into it",
            ),
            Misconception(
                "keys only",
                lambda n: {"gb": 2 * n.gb, "gib": 2 * n.gib},
                "that stores keys only; a token has values too",
            ),
        ),
    ),
    Exercise(
        key="paged_kv.3",
        question="""
            A pool of {pool} pages of {page_size} tokens admits {number} requests at once, each with a prompt of
            {prompt} and {new} new tokens; nobody is preempted. Play it by hand. With how many slots at most does no
            request ever stall, with how many at most do all finish, and how large must the pool be at least for all
            {number} slots?
        """,
        asks="three whole numbers, such as 1, 2 and 20",
        numbers=a_deadlock,
        answer=lambda n: {"safe": n.safe, "slots": n.slots, "pool": n.enough},
        hints=(
            "How many pages does a request hold when it is admitted, and how many when it writes its first token?",
            "Nobody stalls if everybody's last page is there. All finish if somebody's is: who ends gives pages back.",
            "paged_continuous_batching plays it for you; vary slots and total_pages.",
        ),
        worked="""
            A prompt of {prompt} fills {first} pages; the first new token needs a third. {number} prompts fill the
                pool of {pool}:
            nobody can write, nobody ends, no page comes back.
            Everybody's {final} pages are there for {safe} requests: nobody stalls.
            With {slots} slots some stall, but those who get a third page finish and give {final} back, and so all
                finish.
            For {number} slots, {enough} pages are enough: one spare page goes from hand to hand.
        """,
        misconceptions=(
            Misconception(
                "everybody's last page for all",
                lambda n: {"pool": n.number * n.final},
                "that much and nobody ever stalls; to finish, it is enough that somebody always can",
            ),
            Misconception(
                "safe is needed",
                lambda n: {"slots": n.safe},
                "with that many nobody stalls, but one more still lets all finish: stalling is not yet a deadlock",
            ),
            Misconception(
                "prompts fit",
                lambda n: {"safe": n.pool // n.first, "slots": n.number, "pool": n.number * n.first},
                "that counts the pages of the prompts; each request still grows by one",
            ),
        ),
    ),
    Exercise(
        key="paged_kv.4",
        question="""
            Pages hold {page_size} tokens. How many pages does a request with a prompt of {prompt} hold when it has
            generated {generated} tokens?
        """,
        asks="four whole numbers, such as (1, 2, 3, 4)",
        numbers=a_growing_request,
        answer=lambda n: n.pages,
        hints=(
            "Prompt and generated tokens stand behind one another; only the last page may be partly empty.",
            "Divide the tokens by {page_size} and round up, or call calc_kv_pages.",
        ),
        worked="""
            It holds {tokens} tokens in all; over {page_size} and rounded up: {pages} pages.
            The prompt leaves room in its last page, so the first tokens cost nothing; then every sixteenth costs a
                page.
        """,
        misconceptions=(
            Misconception(
                "rounded down",
                lambda n: tuple(tokens // n.page_size for tokens in n.tokens),
                "that is rounded down: the last tokens would have no page",
            ),
            Misconception(
                "prompt and output apart",
                lambda n: tuple(
                    calc_kv_pages(n.prompt, n.page_size) + calc_kv_pages(k, n.page_size) for k in n.generated
                ),
                "that starts a new page for the output; it goes on in the last page of the prompt",
            ),
            Misconception(
                "a page ahead",
                lambda n: tuple(tokens // n.page_size + 1 for tokens in n.tokens),
                "that opens a page as soon as one is full; it is allocated when its first token is written",
            ),
        ),
    ),
    Exercise(
        key="paged_kv.5",
        question="""
            A request holds {sharegpt} tokens on average at its end in ShareGPT, {alpaca:4} in Alpaca. What share of
            the allocated memory lies empty in the last pages: ShareGPT with pages of {small} and of {large}, then
            Alpaca with the same two?
        """,
        asks="four shares, such as (0.1, 0.2, 0.3, 0.4)",
        numbers=two_page_sizes,
        answer=lambda n: n.waste,
        hints=(
            "The last page lacks between 0 and P - 1 tokens. How many on average?",
            "What is allocated is what is used plus what is empty.",
        ),
        worked="""
            Empty on average: {small_hole} tokens with pages of {small}, {large_hole} with pages of {large}.
            Over used plus empty: {waste:3}. Short requests pay for large pages.
        """,
        tolerance=0.005,
        misconceptions=(
            Misconception(
                "over what is used",
                lambda n: tuple((page - 1) / 2 / mean for mean, page in n.pairs),
                "that is relative to the tokens that are used; the question asks for the share of what is allocated",
            ),
            Misconception(
                "half a page",
                lambda n: tuple(page / 2 / (mean + page / 2) for mean, page in n.pairs),
                "that lets the last page lack up to P tokens; a page with P empty places would not be there",
            ),
            Misconception(
                "a whole page",
                lambda n: tuple((page - 1) / (mean + page - 1) for mean, page in n.pairs),
                "that is the worst case; the last page is half empty on average",
            ),
        ),
    ),
    Exercise(
        key="paged_kv.6",
        question="""
            {slots} requests run at a time. Their final lengths are exponential with a mean of {mean} tokens. How
            many pages of {page_size} tokens does a pool need that has room for {slots} requests of the 95th
            percentile of length?
        """,
        asks="a whole number, such as 1000",
        numbers=a_pool_for_a_tail,
        answer=lambda n: n.pool,
        hints=(
            "calc_exponential_quantile_factor gives the percentile as a multiple of the mean.",
            "Each request has pages of its own: round up before you multiply by {slots}.",
        ),
        worked="""
            The 95th percentile is {factor} x {mean}: {longest} whole tokens, {each} pages.
            {slots} x {each} = {pool} pages.
            That {slots} of them are so long at once is most unlikely: this is the price of a reservation, which
                paging avoids.
        """,
        misconceptions=(
            Misconception(
                "mean length",
                lambda n: n.slots * calc_kv_pages(n.mean, n.page_size),
                "that has room for {slots} requests of the mean length; the question asks for the 95th percentile",
            ),
            Misconception(
                "rounded once",
                lambda n: calc_kv_pages(n.slots * n.longest, n.page_size),
                "that rounds up once for all; pages are not shared, so round up for each request",
            ),
            Misconception(
                "tokens",
                lambda n: n.slots * n.longest,
                "that is the number of tokens; a page holds {page_size} of them",
            ),
        ),
    ),
)
