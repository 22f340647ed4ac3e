"""Exercises of lecture 02: the knee, formation wait, what binds a step, slot utilization, chunks, the token budget."""

from math import floor

import numpy as np

from serving_lib.batching import calc_batch_formation_wait, calc_batch_knee, calc_batch_throughput_share
from serving_lib.exercises.framework import Exercise, Misconception
from serving_lib.models import GPUS, MODELS
from serving_lib.units import ureg


def an_affine_step():
    """Return the knee of an affine step, and the throughput share beyond it."""
    fixed, per_request, batch = 20 * ureg.ms, 0.5 * ureg.ms, 64
    return {
        "fixed": fixed,
        "per_request": per_request,
        "batch": batch,
        "knee": calc_batch_knee(fixed, per_request),
        "work": batch * per_request,
        "step": fixed + batch * per_request,
        "share": calc_batch_throughput_share(batch, fixed, per_request),
    }


def a_batch_that_fills():
    """Return the formation wait at three loads."""
    batch, rates = 32, np.array([10, 40, 160]) / ureg.s
    return {
        "batch": batch,
        "rates": rates,
        "gaps": batch - 1,
        "waits": calc_batch_formation_wait(batch, rates).to("s"),
    }


def keys_and_values_against_weights():
    """Return how many resident tokens take as many bytes to read as the weights."""
    model = MODELS["Llama-3-8B"]
    weights, per_token = model.weight_bytes.to("GB"), model.kv_bytes_per_token
    return {
        "query_heads": model.query_heads,
        "kv_heads": model.kv_heads,
        "weights": weights,
        "per_token": per_token,
        "tokens": (weights / per_token).m_as(""),
        "parameters": model.parameters,
    }


def uniform_lengths():
    """Return the share of useful slot-steps of a batch that runs until its longest member ends."""
    longest, batch = 128, 32
    mean = (longest + 1) / 2
    mean_longest = longest - sum((length / longest) ** batch for length in range(1, longest))
    return {
        "longest": longest,
        "batch": batch,
        "mean": mean,
        "mean_longest": mean_longest,
        "utilization": mean / mean_longest,
    }


def a_chunked_prefill():
    """Return how often chunks read the keys and values of the prompt, against a prefill in one piece."""
    prompt, chunk = 8192, 512
    chunks = prompt // chunk
    return {
        "prompt": prompt,
        "chunk": chunk,
        "chunks": chunks,
        "reads": chunks * (chunks + 1) // 2,
        "factor": (chunks + 1) / 2,
    }


def a_token_budget():
    """Return the tokens that a compute-bound step of a given length can take, rounded down to whole tiles."""
    model, gpu, share, step, tile = MODELS["Mistral-7B"], GPUS["A100-80"], 0.5, 80 * ureg.ms, 256
    tokens = (step * share * gpu.flops_per_second).m_as("flop") / model.flops_per_token
    return {
        "parameters": model.parameters,
        "peak": gpu.flops_per_second.to("Tflop/s"),
        "share": 100 * share * ureg.percent,
        "step": step,
        "tile": tile,
        "tokens": tokens,
        "budget": floor(tokens / tile) * tile,
    }


EXERCISES = (
    Exercise(
        key="batching.1",
        question="""
            A step takes {fixed} plus {per_request} for each request in the batch. At which batch size do the two
            parts take equally long, and what share of the highest throughput does a batch of {batch} reach?
        """,
        asks="two numbers, such as 10.0 and 0.5",
        numbers=an_affine_step,
        answer=lambda n: {"knee": n.knee, "share": n.share},
        hints=(
            "The highest throughput is that of an endless batch: one request every {per_request}.",
            "Share: the part of the step that is spent on requests.",
        ),
        worked="""
            Knee: {fixed} / {per_request} = {knee}.
            A batch of {batch} takes {step}, of which {work} are spent on requests: {share} of the highest
                throughput.
        """,
        misconceptions=(
            Misconception(
                "upside down",
                lambda n: {"knee": 1 / n.knee},
                "that is the per-request time over the fixed time; how many requests make up for the fixed time?",
            ),
            Misconception(
                "fixed share",
                lambda n: {"share": 1 - n.share},
                "that is the share of the step that goes into the fixed part",
            ),
            Misconception(
                "batch over knee",
                lambda n: {"share": n.batch / n.knee},
                "that is the batch in knees; throughput does not grow in proportion, and never beyond its ceiling",
            ),
            Misconception(
                "full speed past the knee",
                lambda _: {"share": 1.0},
                "the knee is where half of the ceiling is reached; the ceiling itself is never reached",
            ),
        ),
    ),
    Exercise(
        key="batching.2",
        question="""
            A server waits until {batch} requests are there and starts them together. How long does a request wait
            on average for its batch to fill, at arrival rates of {rates}?
        """,
        asks="three times, such as (3 * ureg.s, 2 * ureg.s, 1 * ureg.s)",
        numbers=a_batch_that_fills,
        answer=lambda n: tuple(n.waits),
        hints=(
            "The first request of a batch waits for all others, the last for none.",
            "{batch} requests have {gaps} gaps between them; the mean request waits for half of these.",
        ),
        worked="""
            On average a request waits for {gaps} / 2 more arrivals, each taking 1 / rate: (B - 1) / (2 lambda).
            At {rates}: {waits}. The same batch size that is cheap under load is expensive at night.
        """,
        misconceptions=(
            Misconception(
                "the first request",
                lambda n: tuple(2 * n.waits),
                "that is how long the first request waits; on average a request waits half as long",
            ),
            Misconception(
                "one gap too many",
                lambda n: tuple((n.batch / (2 * n.rates)).to("s")),
                "a batch of {batch} has {gaps} gaps: the last request waits for nobody",
            ),
            Misconception(
                "one gap",
                lambda n: tuple((1 / n.rates).to("s")),
                "that is one gap between arrivals; the batch needs {gaps} of them",
            ),
        ),
    ),
    Exercise(
        key="batching.3",
        question="""
            Each decoding step of Llama-3-8B reads its weights ({weights} in 16 bit) and the keys and values of
            every resident token ({per_token}). At how many resident tokens do the two take equally long?
        """,
        asks="a number of tokens, such as 10000",
        numbers=keys_and_values_against_weights,
        answer=lambda n: n.tokens,
        hints=(
            "Both come from the same memory at the same speed, so the bandwidth cancels.",
            "How many tokens of {per_token} make {weights}?",
        ),
        worked="""
            {weights} / ({per_token}) = {tokens:6} tokens.
            With fewer, a larger batch is nearly free; with more, each further request takes its own time again.
        """,
        misconceptions=(
            Misconception(
                "query heads",
                lambda n: n.tokens * n.kv_heads / n.query_heads,
                "that counts {query_heads} query heads; the cache holds the {kv_heads} key-value heads only",
            ),
            Misconception(
                "parameters for bytes",
                lambda n: n.tokens / 2,
                "that takes one byte for each weight; in 16 bit it has two",
            ),
            Misconception(
                "keys only",
                lambda n: n.tokens * 2,
                "that counts the keys; each token has values too",
            ),
        ),
    ),
    Exercise(
        key="batching.4",
        question="""
            Output lengths are uniform from 1 to {longest}. Batches of {batch} start together and end when their
            longest member ends. Over many batches, what share of the slot-steps produces a token?
        """,
        asks="a share, such as 0.8",
        numbers=uniform_lengths,
        answer=lambda n: n.utilization,
        hints=(
            "Useful: the sum of the lengths. Reserved: {batch} times the longest.",
            "The longest of {batch} is nearly {longest}. How far below is it on average?",
            "Or draw many batches and average 1 - calc_padding_waste_fraction(lengths).",
        ),
        worked="""
            The mean length is {mean}. The mean of the longest of {batch} is {longest} minus the sum of (k /
                {longest})^{batch} over k below {longest}: {mean_longest}.
            Useful share: {mean} / {mean_longest} = {utilization:3}. Nearly half of the slots idle at any time.
        """,
        misconceptions=(
            Misconception(
                "waste",
                lambda n: 1 - n.utilization,
                "that is the share that is wasted",
            ),
            Misconception(
                "longest possible",
                lambda n: n.mean / n.longest,
                "that lets every batch run for {longest} steps; the longest of {batch} is a little shorter on average",
            ),
            Misconception(
                "average batch",
                lambda _: 1.0,
                "that lets every batch run for its mean length; it ends with its longest member",
            ),
        ),
    ),
    Exercise(
        key="batching.5",
        question="""
            A prompt of {prompt} tokens is prefilled in chunks of {chunk}. Each chunk reads the keys and values of
            everything up to its own end. How many times as many does that read as a prefill in one piece, which
            reads them once?
        """,
        asks="a number, such as 2.0",
        numbers=a_chunked_prefill,
        answer=lambda n: n.factor,
        hints=(
            "How many chunks are there? How many chunks' worth does the first read, the second, the last?",
            "1 + 2 + ... + N = N (N + 1) / 2, against N in one piece.",
        ),
        worked="""
            {prompt} / {chunk} = {chunks} chunks read 1 + 2 + ... + {chunks} = {reads} chunks' worth, against
                {chunks} in one piece.
            {reads} / {chunks} = {factor}. Decoding between the chunks goes on; this is what it costs.
        """,
        misconceptions=(
            Misconception(
                "everything every time",
                lambda n: n.chunks,
                "that lets each chunk read the whole prompt; the first reads only itself",
            ),
            Misconception(
                "earlier chunks only",
                lambda n: (n.chunks - 1) / 2,
                "that leaves out what each chunk reads of itself",
            ),
            Misconception(
                "total reads",
                lambda n: n.reads,
                "that is the reads in chunks; how many does one piece read, in chunks?",
            ),
        ),
    ),
    Exercise(
        key="batching.6",
        question="""
            A step of Mistral-7B ({parameters} parameters) may take {step} on an A100 (peak {peak}), which reaches
            {share} of its peak. How many tokens, prefill and decode together, may a step hold, if the number is a
            multiple of {tile}?
        """,
        asks="a whole number, such as 512",
        numbers=a_token_budget,
        answer=lambda n: n.budget,
        hints=(
            "How many operations does the GPU do in {step}? It reaches {share} of its peak.",
            "Each token takes about two operations for each parameter: one product, one sum.",
            "A multiple of {tile} that keeps the promise is rounded down.",
        ),
        worked="""
            {step} x {share} x {peak} are enough for {tokens} tokens of 2 x {parameters} operations.
            Rounded down to a multiple of {tile}, so that no tile of the matrix products runs half empty: {budget}.
        """,
        misconceptions=(
            Misconception(
                "not rounded",
                lambda n: floor(n.tokens),
                "that keeps the time; round it down to a multiple of {tile}",
            ),
            Misconception(
                "rounded up",
                lambda n: n.budget + n.tile,
                "that is rounded up: the step would take longer than {step}",
            ),
            Misconception(
                "a factor of two",
                lambda n: floor(2 * n.tokens / n.tile) * n.tile,
                "that is twice too many: the GPU reaches {share} of its peak, and each parameter takes two operations",
            ),
        ),
    ),
)
