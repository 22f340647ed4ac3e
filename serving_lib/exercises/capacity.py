"""Exercises of lecture 05: from an hour of requests to tokens per second, busy GPUs, memory, a bill, and a plan."""

from math import ceil

from serving_lib.exercises.framework import Exercise, Misconception
from serving_lib.models import GPUS, MODELS
from serving_lib.queueing import calc_littles_law_occupancy
from serving_lib.units import ureg

MODEL = MODELS["Llama-3-8B"]
MFU = 0.5  # share of the peak that is reached


def an_hour_of_conversations():
    """Return the demand of the Azure conversation trace of 2023 (counted in the file) in tokens per second."""
    requests, time, prompts, outputs = 19366, 3501.7 * ureg.s, 22361870, 4088665
    return {
        "requests": requests,
        "time": time,
        "prompts": prompts,
        "outputs": outputs,
        "prompt": prompts / requests,
        "output": outputs / requests,
        "rate": requests / time,
        "prefill": prompts * ureg.token / time,
        "decode": outputs * ureg.token / time,
    }


def busy_gpus():
    """Return how busy the hour keeps one GPU of two kinds, on average, if it reaches half of its peak."""
    hour = an_hour_of_conversations()
    demand = (hour["prefill"] + hour["decode"]) * MODEL.flops_per_token * ureg.flop / ureg.token
    peaks = {name: GPUS[name].flops_per_second for name in ("A100-80", "H100")}
    return {
        "prefill": hour["prefill"],
        "decode": hour["decode"],
        "tokens": hour["prefill"] + hour["decode"],
        "parameters": MODEL.parameters,
        "mfu": 100 * MFU * ureg.percent,
        "demand": demand.to("Tflop/s"),
        "a100_peak": peaks["A100-80"].to("Tflop/s"),
        "h100_peak": peaks["H100"].to("Tflop/s"),
        "a100": (demand / (MFU * peaks["A100-80"])).m_as(""),
        "h100": (demand / (MFU * peaks["H100"])).m_as(""),
    }


def memory_of_one_gpu():
    """Return how many tokens fit beside the weights, and how many are resident on average."""
    hour, gpu, share, step = an_hour_of_conversations(), GPUS["A100-80"], 0.9, 25 * ureg.ms
    usable = share * gpu.memory
    time = (hour["output"] * step).to("s")
    resident = calc_littles_law_occupancy(hour["rate"], time).m_as("") * (hour["prompt"] + hour["output"] / 2)
    return {
        "rate": hour["rate"],
        "prompt": hour["prompt"],
        "output": hour["output"],
        "memory": gpu.memory,
        "share": 100 * share * ureg.percent,
        "usable": usable,
        "weights": MODEL.weight_bytes.to("GB"),
        "per_token": MODEL.kv_bytes_per_token,
        "step": step,
        "time": time,
        "fit": ((usable - MODEL.weight_bytes) / MODEL.kv_bytes_per_token).m_as(""),
        "resident": resident,
        "held": hour["prompt"] + hour["output"] / 2,
        "final": hour["prompt"] + hour["output"],
    }


def a_bill():
    """Return how many GPUs keep the average load low enough, and what a million output tokens then cost."""
    ceiling, busy, decode = 0.6, busy_gpus(), an_hour_of_conversations()["decode"]
    numbers = {
        "ceiling": 100 * ceiling * ureg.percent,
        "a100_busy": busy["a100"],
        "h100_busy": busy["h100"],
        "decode": decode,
        "tokens_per_hour": decode.to("token/hour"),
    }
    for name, gpu in (("a100", GPUS["A100-80"]), ("h100", GPUS["H100"])):
        needed = ceil(busy[name] / ceiling)
        numbers |= {
            f"{name}_price": gpu.price,
            f"{name}_needed": needed,
            f"{name}_cost": (needed * gpu.price / decode * 1e6 * ureg.token).to("USD"),
        }
    return numbers


EXERCISES = (
    Exercise(
        key="capacity.1",
        question="""
            The Azure conversation hour has {requests} requests in {time:5}, with {prompts} prompt tokens and
            {outputs} output tokens in all. How many tokens per second must be prefilled, and how many decoded?
        """,
        asks="two rates, such as 1000 / ureg.s and 100 / ureg.s",
        numbers=an_hour_of_conversations,
        answer=lambda n: {"prefill": n.prefill, "decode": n.decode},
        hints=(
            "Every prompt token is prefilled once; every output token is decoded, one after the other.",
            "Tokens over time. The number of requests does not enter.",
        ),
        worked="""
            Prefill: {prompts} / {time:5} = {prefill}. Decode: {outputs} / {time:5} = {decode}.
            Most of the tokens are in the prompts; most of the steps will be in the decoding.
        """,
        misconceptions=(
            Misconception(
                "requests for tokens",
                lambda n: {"prefill": n.rate, "decode": n.rate},
                "that is requests per second; each brings many tokens",
            ),
            Misconception(
                "prompt decoded too",
                lambda n: {"decode": n.prefill + n.decode},
                "that decodes the prompt as well; prompts are prefilled, all tokens at once",
            ),
            Misconception(
                "tokens per request",
                lambda n: {"prefill": n.prompt, "decode": n.output},
                "that is tokens per request; multiply by the requests per second",
            ),
        ),
    ),
    Exercise(
        key="capacity.2",
        question="""
            Llama-3-8B has {parameters} parameters. The hour brings {prefill} to prefill and {decode} to decode. A
            GPU reaches {mfu} of its peak. How busy is one A100 (peak {a100_peak}) on average, and how busy one H100
            ({h100_peak})?
        """,
        asks="two shares, such as 0.9 and 0.3",
        numbers=busy_gpus,
        answer=lambda n: {"a100": n.a100, "h100": n.h100},
        hints=(
            "Each token takes about two operations for each parameter, prefilled or decoded.",
            "Busy share: operations needed per second, over operations reached per second.",
        ),
        worked="""
            {tokens} x 2 x {parameters} = {demand}.
            The A100 reaches {mfu} of {a100_peak} and is busy for {a100}, the H100 for {h100}.
            That is an average over an hour: whole minutes bring far more, and then one A100 falls behind.
        """,
        misconceptions=(
            Misconception(
                "a factor of two",
                lambda n: {"a100": n.a100 / 2, "h100": n.h100 / 2},
                "that is half: each parameter takes a product and a sum, and the GPU reaches {mfu} of its peak",
            ),
            Misconception(
                "prefill only",
                lambda n: {
                    "a100": (n.a100 * n.prefill / n.tokens).m_as(""),
                    "h100": (n.h100 * n.prefill / n.tokens).m_as(""),
                },
                "that counts the prefill; decoding takes as many operations for each token",
            ),
            Misconception(
                "decode only",
                lambda n: {
                    "a100": (n.a100 * n.decode / n.tokens).m_as(""),
                    "h100": (n.h100 * n.decode / n.tokens).m_as(""),
                },
                "that counts the decoding; most of the tokens are in the prompts",
            ),
        ),
    ),
    Exercise(
        key="capacity.3",
        question="""
            An A100 gives {share} of its {memory} to weights ({weights}) and KV cache ({per_token}). How many tokens
            fit? Requests arrive at {rate} with {prompt:5} prompt and {output:4} output tokens, one every {step}:
            how many are resident on average?
        """,
        asks="two numbers of tokens, such as 100000 and 20000",
        numbers=memory_of_one_gpu,
        answer=lambda n: {"fit": n.fit, "resident": n.resident},
        hints=(
            "What is left of {usable} when the weights are in?",
            "Little's law gives the requests inside. Each grows from its prompt to prompt and output.",
        ),
        worked="""
            ({usable} - {weights}) / ({per_token}) = {fit:6} tokens fit.
            A request decodes for {time} and holds {held} tokens on average: {rate} x {time} x {held} = {resident:5}
                resident.
            Memory is not what binds here.
        """,
        misconceptions=(
            Misconception(
                "weights forgotten",
                lambda n: {"fit": (n.usable / n.per_token).m_as("")},
                "that leaves no room for the weights",
            ),
            Misconception(
                "all of the memory",
                lambda n: {"fit": ((n.memory - n.weights) / n.per_token).m_as("")},
                "that uses all of the memory; {share} of it may be used",
            ),
            Misconception(
                "final length throughout",
                lambda n: {"resident": n.resident * n.final / n.held},
                "that gives every request its final length from the start",
            ),
            Misconception(
                "prompt alone",
                lambda n: {"resident": n.resident * n.prompt / n.held},
                "that counts the prompts; generated tokens have keys and values too",
            ),
        ),
    ),
    Exercise(
        key="capacity.4",
        question="""
            To leave room for bursts, no GPU shall be busy for more than {ceiling} on average. One A100 would be
            busy for {a100_busy}, one H100 for {h100_busy}. An A100 costs {a100_price}, an H100 {h100_price}. How
            many of each would be needed, and what would a million output tokens cost with each, at {decode}?
        """,
        asks="two whole numbers and two prices, such as 3, 2, 0.8 * ureg.USD and 0.9 * ureg.USD",
        numbers=a_bill,
        answer=lambda n: {
            "a100": n.a100_needed,
            "h100": n.h100_needed,
            "a100_cost": n.a100_cost,
            "h100_cost": n.h100_cost,
        },
        hints=(
            "Round up: part of a GPU cannot be rented.",
            "Price per hour over output tokens per hour, times a million.",
        ),
        worked="""
            {a100_busy} / {ceiling}, rounded up: {a100_needed} A100; {h100_busy} / {ceiling}: {h100_needed} H100.
            The output is {tokens_per_hour:7}.
            {a100_needed} A100 at {a100_price}: {a100_cost} a million. {h100_needed} H100 at {h100_price}:
                {h100_cost} a million.
            So close that the tail decides: the faster GPU answers each request sooner.
        """,
        misconceptions=(
            Misconception(
                "no room for bursts",
                lambda n: {"a100": ceil(n.a100_busy)},
                "that lets the GPU be as busy as it happens to be; {ceiling} is the limit",
            ),
            Misconception(
                "one GPU's price",
                lambda n: {"a100_cost": n.a100_cost / n.a100_needed},
                "that is the price of one GPU; {a100_needed} are needed",
            ),
            Misconception(
                "per thousand tokens",
                lambda n: {"a100_cost": n.a100_cost / 1000, "h100_cost": n.h100_cost / 1000},
                "that is the price of a thousand tokens",
            ),
            Misconception(
                "busy time only",
                lambda n: {"h100_cost": n.h100_cost * n.h100_busy},
                "that pays for the busy time; a rented GPU costs as much when it idles",
            ),
        ),
    ),
    Exercise(
        key="capacity.5",
        question="""
            Design the deployment. The Azure conversation hour, Llama-3-8B, p99 TTFT within 1 s and p99 time between
            tokens within 100 ms, at the lowest cost of a million output tokens. Choose GPU, count, token budget,
            page size and admission, and defend each choice in a few sentences.
        """,
        asks="your plan, as text",
        numbers=dict,
        answer=None,
        hints=(
            "Start with what cannot be avoided: tokens per second, bytes of weights, resident tokens.",
            "Which limit binds, and what do bursts need on top? Try the real order of arrivals and the shuffled one.",
            "Which of your assumptions would you check first in production?",
        ),
        worked="""
            There is no single right answer. A good one does all of this:
        """,
        rubric=(
            "It states the demand in tokens per second, prefill and decode apart, and what of it is measured.",
            "It names the limit that binds (compute, bandwidth, memory) and shows that the others do not.",
            "The token budget follows from the time between tokens, the number of GPUs from the time to first token.",
            "The p99 comes from the real order of arrivals, with its interval, not from a formula on the mean load.",
            "It shows the same plan with shuffled arrivals and on the code trace, and explains the difference.",
            "Page size and admission are chosen by what they cost: last-page waste, stalls, recomputed tokens.",
            "The cost is per million output tokens, counts idle time, and names the prices it assumes.",
            "It says what would break the plan first, and what to watch in order to see it coming.",
        ),
    ),
)
