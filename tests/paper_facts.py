"""The published numbers of `golden/paper_facts.json`, computed by the library, and how well each reproduces.

``python -m tests.paper_facts`` prints the table. A fact sits in the strongest tier that all of its numbers reach:

- `Exact`: to the last digits of a float;
- `Printed`: it rounds to the digits that are printed;
- `Within`: only for some inputs among those that round to the printed ones (interval arithmetic);
- `Differs`: it is known not to reproduce, and we know why, or say that we do not.

A fact that is not computed stands in `NOT_COMPUTED` with its reason.
"""

import itertools
import json
import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np

from serving_lib.batching import birth_death_chain, calc_roofline_step_time
from serving_lib.kvcache import calc_kv_bytes_per_token
from serving_lib.models import GPUS, MODELS
from serving_lib.queue_simulator import simulate_queue
from serving_lib.queueing import (
    calc_erlang_c,
    calc_kingman_wait_ratio,
    calc_littles_law_occupancy,
    calc_mg1_wait_ratio,
    calc_mmc_min_servers,
)
from serving_lib.speculative import (
    calc_acceptance_rate,
    calc_speculative_best_draft_length,
    calc_speculative_expected_tokens,
    calc_speculative_round_speedup,
)
from serving_lib.units import ureg
from serving_lib.workload import index_of_dispersion, read_trace

HERE = Path(__file__).resolve().parent
FACTS = {fact["id"]: fact for fact in json.loads((HERE / "golden" / "paper_facts.json").read_text())}


@dataclass(frozen=True)
class Exact:
    """A number that must agree to the last digits."""

    what: str
    computed: float
    published: float

    def holds(self):
        return math.isclose(self.computed, self.published, rel_tol=1e-12, abs_tol=0.0)


@dataclass(frozen=True)
class Printed:
    """A number that must round to the printed one; negative digits are zeros before the point."""

    what: str
    computed: float
    published: float
    digits: int

    def holds(self):
        return rounds_to(self.computed, self.published, self.digits)


@dataclass(frozen=True)
class Within:
    """A number that rounds to the printed one for some inputs that round to the printed inputs, but not for those."""

    what: str
    computed: float
    low: float
    high: float
    published: float
    digits: int

    def holds(self):
        half = 0.5 * 10.0**-self.digits
        meets = self.low <= self.published + half and self.published - half <= self.high
        return meets and not rounds_to(self.computed, self.published, self.digits)


@dataclass(frozen=True)
class Differs:
    """A number that does not reproduce; the reason is part of the table."""

    what: str
    computed: float
    published: float
    digits: int
    why: str

    def holds(self):
        return not rounds_to(self.computed, self.published, self.digits)


TIERS = (Exact, Printed, Within, Differs)


def rounds_to(value, published, digits):
    """Whether a value rounds to the published one; a tie may go either way."""
    return abs(value - published) <= 0.5 * 10.0**-digits * (1 + 1e-9)


def band(function, **inputs):
    """Return the least and greatest value of a function, monotone in each input, over (value, digits) as printed."""
    ends = [(value - 0.5 * 10.0**-digits, value + 0.5 * 10.0**-digits) for value, digits in inputs.values()]
    values = [function(**dict(zip(inputs, corner, strict=True))) for corner in itertools.product(*ends)]
    return min(values), max(values)


class Traces:
    """The real traces, read once; they are no part of the repository."""

    def __init__(self, folder):
        self.folder = folder

    @cached_property
    def code(self):
        return read_trace(self.folder / "AzureLLMInferenceTrace_code.csv")

    @cached_property
    def conv(self):
        return read_trace(self.folder / "AzureLLMInferenceTrace_conv.csv")

    @cached_property
    def mooncake(self):
        return read_trace(self.folder / "mooncake_conversation_trace.jsonl")


COMPUTED = {}
NEEDS_TRACES = set()


def computes(*ids, traces=False):
    """Register a function of a fact (and of the traces) that yields its checks."""

    def register(function):
        for id in ids:
            assert id not in COMPUTED, id
            COMPUTED[id] = function
            if traces:
                NEEDS_TRACES.add(id)
        return function

    return register


def ids(first, last):
    return [f"F{number:03d}" for number in range(first, last + 1)]


def checks(id, traces=None):
    """Return the checks of a fact as a list."""
    arguments = (FACTS[id], traces) if id in NEEDS_TRACES else (FACTS[id],)
    return list(COMPUTED[id](*arguments))


def tier(found):
    """Return the tier of a fact from its checks: the weakest of theirs."""
    return max((type(check) for check in found), key=TIERS.index)


# --- speculative decoding --------------------------------------------------------------------------------------------


def speedup(alpha, c, gamma):
    return calc_speculative_round_speedup(calc_speculative_expected_tokens(alpha, gamma) - 1, gamma, c)


def operations(alpha, gamma, c_hat):
    """The factor by which operations grow: drafts, and gamma + 1 tokens verified, per token emitted."""
    return (gamma * c_hat + gamma + 1) / calc_speculative_expected_tokens(alpha, gamma)


SPECULATION_GRID = list(itertools.product((0.0, 0.25, 0.5, 0.875), (0, 1, 4, 9)))  # floats that fractions represent


@computes("F001")
def leviathan_equation_1(_):
    for alpha, gamma in SPECULATION_GRID:
        geometric_sum = sum(Fraction(alpha) ** i for i in range(gamma + 1))
        yield Exact(
            f"alpha {alpha}, gamma {gamma}", calc_speculative_expected_tokens(alpha, gamma), float(geometric_sum)
        )


@computes("F002")
def leviathan_theorem_3_8(_):
    for alpha, gamma in SPECULATION_GRID:
        exact = sum(Fraction(alpha) ** i for i in range(gamma + 1)) / (gamma * Fraction(1, 8) + 1)
        yield Exact(f"alpha {alpha}, gamma {gamma}", speedup(alpha, 0.125, gamma), float(exact))


@computes("F003")
def leviathan_theorem_3_11(_):
    for alpha, gamma in SPECULATION_GRID:
        exact = (gamma * Fraction(1, 8) + gamma + 1) / sum(Fraction(alpha) ** i for i in range(gamma + 1))
        yield Exact(f"alpha {alpha}, gamma {gamma}", operations(alpha, gamma, 0.125), float(exact))


@computes("F004")
def leviathan_corollary_3_6(_):
    rng = np.random.default_rng(0)
    for size in (2, 50, 5000):
        p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
        divergence = np.abs(p - (p + q) / 2).sum()
        yield Exact(f"{size} words", calc_acceptance_rate(p, q), 1 - divergence)


@computes("F005")
def leviathan_corollary_3_9(_):
    for alpha, c in ((0.3, 0.1), (0.8, 0.05), (0.6, 0.59)):
        yield Exact(f"alpha {alpha}, c {c}, gamma 1", speedup(alpha, c, 1), (1 + alpha) / (1 + c))
        best = speedup(alpha, c, calc_speculative_best_draft_length(alpha, c))
        yield Exact("the best length is at least as good", max(best, speedup(alpha, c, 1)), best)


@computes(*ids(6, 11))
def leviathan_table_1(fact):
    given, printed = fact["inputs"], fact["output"]
    factor = operations(given["alpha"], given["gamma"], given["c_hat"])
    yield Printed("operations", factor, printed["operations"], 2)
    yield Printed("speed", speedup(given["alpha"], given["c"], given["gamma"]), printed["speed"], 2)


@computes(*ids(12, 23))
def leviathan_table_4(fact):
    given, printed = fact["inputs"], fact["output"]["expected"]
    value = speedup(given["alpha"], given["c"], given["gamma"])
    if fact["id"] in ("F016", "F017", "F023"):
        low, high = band(
            lambda alpha, c: speedup(alpha, c, given["gamma"]), alpha=(given["alpha"], 2), c=(given["c"], 2)
        )
        yield Within("predicted speed-up", value, low, high, printed, 1)
    else:
        yield Printed("predicted speed-up", value, printed, 1)


@computes("F024")
def leviathan_bigram(fact):
    yield Printed("speed-up", speedup(0.2, 0.0, 3), fact["output"], 2)


@computes("F030")
def leviathan_lenience(fact):
    why = "above the best that the formula gives for any draft length; read in a secondary source"
    for alpha, printed in zip(fact["output"]["alpha"], fact["output"]["speed(c=.015)"], strict=True):
        best = speedup(alpha, 0.015, calc_speculative_best_draft_length(alpha, 0.015))
        yield Differs(f"alpha {alpha}", best, printed, 1, why)


@computes(*ids(32, 34))
def chen_table_1(fact):
    ratio = fact["inputs"]["ar_ms"] / fact["output"]["ms_per_token"]
    if fact["id"] == "F032":
        why = "the printed times give 1.875, and their rounding allows at most 1.883"
        _, most = band(lambda serial, round: serial / round, serial=(14.1, 1), round=(7.52, 2))
        for what, value in (("speed-up", ratio), ("speed-up, at most", most)):
            yield Differs(what, value, fact["output"]["speedup"], 2, why)
    else:
        yield Printed("speed-up", ratio, fact["output"]["speedup"], 2)


@computes("F196")
def llama_cpp_accounting(_):
    seconds = 119 / 14.68 + 426 / 19.86
    yield Printed("tokens per second, drafted and emitted", (119 + 426) / seconds, 18.44, 2)


# --- paged KV --------------------------------------------------------------------------------------------------------

OPT_66B = {"layers": 64, "kv_heads": 72, "head_dim": 128}
OPT_175B = {"layers": 96, "kv_heads": 96, "head_dim": 128}


def kv_bytes(model):
    return model.kv_bytes_per_token.m_as("byte/token")


@computes("F043")
def opt_13b_bytes_per_token(_):
    yield Exact("bytes", kv_bytes(MODELS["OPT-13B"]), 800 * 1024)


@computes("F044")
def opt_13b_request(fact):
    yield Printed("GiB, printed as GB", 2048 * kv_bytes(MODELS["OPT-13B"]) / 2**30, fact["output"], 1)


@computes("F045")
def opt_13b_weights(_):
    yield Printed("weights in GB", MODELS["OPT-13B"].weight_bytes.m_as("GB"), 26, 0)
    yield Printed("percent of the GPU", 100 * 26 / GPUS["A100-40"].memory.m_as("GB"), 65, 0)


@computes("F051")
def table_1_opt_13b(fact):
    slots = fact["inputs"]["kv_memory_GB"] * 2**30 / kv_bytes(MODELS["OPT-13B"])
    yield Printed("thousand slots, GB read as GiB", slots / 1e3, fact["output"], 1)


@computes("F052")
def table_1_opt_66b(fact):
    def thousand_slots(memory):
        return memory * 2**30 / calc_kv_bytes_per_token(**OPT_66B).magnitude / 1e3

    memory = fact["inputs"]["kv_memory_GB"]
    yield Within("thousand slots", thousand_slots(memory), *band(thousand_slots, memory=(memory, 0)), fact["output"], 1)


@computes("F053")
def table_1_opt_175b(fact):
    slots = fact["inputs"]["kv_memory_GB"] * 2**30 / calc_kv_bytes_per_token(**OPT_175B).magnitude
    yield Printed("thousand slots, GB read as GiB", slots / 1e3, fact["output"], 1)


@computes("F057")
def length_ratios(_):
    (share_in, share_out), (alpaca_in, alpaca_out) = FACTS["F055"]["output"], FACTS["F056"]["output"]
    yield Printed("input", share_in / alpaca_in, 8.4, 1)
    yield Printed("output", share_out / alpaca_out, 5.8, 1)


@computes("F058", "F059")
def figure_13(fact):
    slots = 12 * 2**30 // kv_bytes(MODELS["OPT-13B"])
    yield Exact("requests that reserve 2048 slots each", slots // 2048, fact["output"]["Orca Max"])
    if fact["id"] == "F058":
        yield Printed("vLLM over Oracle", fact["output"]["vLLM"] / fact["output"]["Oracle"], 2.2, 1)
        yield Printed("vLLM over Max", fact["output"]["vLLM"] / fact["output"]["Orca Max"], 4.3, 1)


@computes("F099")
def opt_66b_request(fact):
    yield Printed("GiB, printed as GB", 512 * calc_kv_bytes_per_token(**OPT_66B).magnitude / 2**30, fact["output"], 2)


@computes("F158")
def mooncake_equation_2(fact):
    constants = FACTS["F157"]["output"]
    prefix = 8192
    flops_per_layer = constants["a"] * prefix**2 * constants["d"] + constants["b"] * prefix * constants["d"] ** 2
    kv_per_layer = prefix * calc_kv_bytes_per_token(1, 8, 128).magnitude
    for tflops, printed in zip((312, 989), fact["output"], strict=True):
        seconds = flops_per_layer / (8 * tflops * 1e12)
        yield Printed(f"GB/s at {tflops} TFLOP/s", kv_per_layer / seconds / 1e9, printed, 0)


@computes("F159")
def llama_3_70b_bytes(_):
    yield Exact("bytes", kv_bytes(MODELS["Llama-3-70B"]), 327_680)


@computes("F160")
def tokens_in_a_terabyte(_):
    yield Printed("million tokens", 1e12 / kv_bytes(MODELS["Llama-3-70B"]) / 1e6, 3, 0)


@computes("F166")
def shared_prefix(fact):
    yield Exact("tokens", 12 * 512, fact["output"])


@computes("F177")
def caches_of_llama_3_70b(fact):
    why = "the printed remaining memory (116 / 68 / 19 GB) and the printed counts do not belong together"
    bits = (16, 8, 4)
    remaining = [chips * 16 - 70 * width / 8 for chips, width in zip((16, 8, 4), bits, strict=True)]
    for width, memory, printed in zip(bits, remaining, fact["output"], strict=True):
        per_sequence = 8192 * calc_kv_bytes_per_token(80, 8, 128, width / 8).m_as("GB/token")
        fits = memory / per_sequence
        if width == 16:
            yield Printed("sequences, bf16", math.floor(fits), printed, 0)
        else:
            yield Differs(f"sequences, int{width}", math.floor(fits), printed, 0, why)


@computes(*ids(203, 210))
def model_kv_bytes(fact):
    yield Exact("bytes per token", kv_bytes(MODELS[fact["paper"].removesuffix(" v0.1")]), fact["output"])


@computes("F211")
def code_llama_kv_bytes(fact):
    shape = fact["inputs"]
    yield Exact(
        "bytes", calc_kv_bytes_per_token(shape["layers"], shape["kv_heads"], shape["head_dim"]).magnitude, 196_608
    )


@computes(*ids(216, 221))
def model_parameters(fact):
    yield Exact("parameters", MODELS[fact["paper"].removesuffix(" v0.1")].parameters, fact["output"])


# --- batching and hardware -------------------------------------------------------------------------------------------


@computes("F071")
def orca_speedup(_):
    low, high = band(lambda orca, faster: orca / faster, orca=(6.81, 2), faster=(0.185, 3))
    yield Within("Orca over FasterTransformer", 6.81 / 0.185, low, high, 36.9, 1)


@computes("F079")
def pipeline_bubble(fact):
    yield Exact("ms", 1150 - 200, fact["output"])


@computes("F084", "F100")
def chunked_prefill_reads(_):
    for chunks in (1, 2, 16):
        reads = sum(range(1, chunks + 1))  # the first chunk is read by all, the last by itself
        yield Exact(f"{chunks} chunks", reads / chunks, (chunks + 1) / 2)


@computes(*ids(87, 90))
def sarathi_objectives(fact):
    yield Exact("decode step in s", fact["output"]["strict"] / 5, fact["output"]["relaxed"] / 25)


@computes("F110")
def bandwidths(fact):
    a100, h100 = (GPUS[name].bandwidth.m_as("GB/s") for name in ("A100-80", "H100"))
    yield Exact("A100, GB/s", a100, fact["output"][0])
    yield Printed("ratio", h100 / a100, 1.64, 2)
    yield Differs("H100, GB/s", h100, fact["output"][1], 0, "the datasheet prints 3.35 TB/s")


@computes("F112")
def machine_prices(fact):
    for name, machine in zip(("A100-80", "H100"), fact["output"], strict=True):
        yield Exact(name, 8 * GPUS[name].price.m_as("USD/hour"), machine)
    yield Printed("ratio", GPUS["H100"].price / GPUS["A100-80"].price, 2.16, 2)


@computes("F113")
def splitwise_table_4(fact):
    ratio = {name: h100 / a100 for name, (a100, h100) in fact["output"].items()}
    yield Printed("TTFT", ratio["TTFT"], 0.51, 2)
    yield Printed("E2E", ratio["E2E"], 0.58, 2)
    yield Differs("TBT", ratio["TBT"], 0.70, 2, "31 ms over 52 ms is 0.60: the table contradicts itself")


def scaling_book_step(batch, kv_gigabytes, weights_gigabytes=26, flops=0.0, chips=8, terabytes=0.82):
    hardware = {
        "bandwidth": chips * terabytes * ureg.TB / ureg.s,
        "peak_flops_per_second": chips * 197e12 * ureg.flop / ureg.s,
    }
    weights, kv = weights_gigabytes * ureg.GB, kv_gigabytes * ureg.GB
    return calc_roofline_step_time(batch, weights, kv, flops, **hardware).m_as("ms")


@computes("F170", "F171")
def scaling_book_table(fact):
    for batch, ms, rate in zip(fact["inputs"]["batch"], *fact["output"].values(), strict=True):
        step = scaling_book_step(batch, fact["inputs"]["kv_per_seq"] / 1e9)
        yield Printed(f"step at batch {batch}, ms", step, ms, 2)
        yield Printed(f"tokens/s at batch {batch}", 1e3 * batch / step, rate, 2)


@computes("F172")
def tpu_knee(fact):
    yield Printed("FLOP/B", 1.97e14 / 8.2e11, fact["output"], 0)


@computes("F174")
def scaling_book_pop_quiz(fact):
    for batch, printed, digits in zip((4, 256), fact["output"], (1, 0), strict=True):
        step = scaling_book_step(batch, 8192 * 100e3 / 1e9, weights_gigabytes=30, flops=2 * 30e9, chips=16)
        yield Printed(f"ms at batch {batch}", step, printed, digits)


@computes("F175")
def h100_knee(fact):
    low, high = band(lambda flops, bandwidth: flops / bandwidth, flops=(990, -1), bandwidth=(3.35, 2))
    yield Within("FLOP/B", 990 / 3.35, low, high, fact["output"], 0)


@computes("F176")
def hardware_table(fact):
    for name, (flops, bandwidth) in zip(("A100-80", "H100", "H200"), fact["output"], strict=False):
        yield Printed(f"{name}, TFLOP/s", GPUS[name].flops_per_second.m_as("Tflop/s"), flops / 1e12, -1)
        yield Printed(f"{name}, TB/s", GPUS[name].bandwidth.m_as("TB/s"), bandwidth / 1e12, 1)


@computes(*ids(178, 180))
def cs336_table(fact):
    given = fact["inputs"]
    kv = (MODELS["Llama-2-13B"].kv_bytes_per_token * (1024 * ureg.token)).to("byte")
    step = calc_roofline_step_time(
        given["B"], 2 * given["params"] * ureg.byte, kv, 0.0, given["bandwidth"] * ureg.byte / ureg.s, 989e12 / ureg.s
    ).m_as("ms")
    yield Printed("ms", step, fact["output"]["latency_ms"], 1 if given["B"] == 64 else 2)
    yield Printed("tokens/s", 1e3 * given["B"] / step, fact["output"]["tok_s"], 1)


@computes("F222")
def tensor_core_peaks(fact):
    for name, tflops in zip(("A100-80", "H100"), fact["output"], strict=True):
        yield Exact(name, GPUS[name].flops_per_second.m_as("Tflop/s"), tflops)


# --- queueing --------------------------------------------------------------------------------------------------------


def md1_response(rate, service):
    return service * (1 + calc_mg1_wait_ratio(rate * service, 0))


@computes("F094")
def distserve_equation_1(_):
    for rate, service in ((0.4, 2.0), (5.0, 0.125), (0.1, 1.0)):
        printed = service + rate * service**2 / (2 * (1 - rate * service))
        yield Exact(f"R {rate}, D {service}", md1_response(rate, service), printed)
    yield Exact("RD = 0.8", md1_response(0.8, 1.0), 3.0)


@computes("F095")
def distserve_equation_2(_):
    for rate, service in ((0.4, 2.0), (5.0, 0.25)):
        wait = md1_response(rate, service / 2) - service / 2  # the slower of two equal stages paces the line
        yield Exact(f"R {rate}, D {service}", service + wait, service + rate * service**2 / (4 * (2 - rate * service)))


@computes("F096")
def distserve_equation_3(_):
    for rate, service, k in ((0.4, 2.0, 1.5), (5.0, 0.25, 1.7)):
        printed = service / k + rate * service**2 / (2 * k * (k - rate * service))
        yield Exact(f"R {rate}, D {service}, K {k}", md1_response(rate, service / k), printed)


@computes("F097")
def distserve_goodput(_):
    yield Printed("goodput per GPU over colocated", min(2 * 5.6, 10) / 3 / 1.6, 2.1, 1)


def statistics(workload):
    gaps = np.diff(workload.arrival)
    prompt, output = workload.prompt_tokens, workload.new_tokens
    return {
        "rows": len(workload),
        "seconds": float(workload.arrival[-1]),
        "rate": len(workload) / float(workload.arrival[-1]),
        "prompt_mean": prompt.mean(),
        "prompt_median": np.median(prompt),
        "prompt_p99": np.percentile(prompt, 99),
        "prompt_max": prompt.max(),
        "prompt_cv2": (prompt.std() / prompt.mean()) ** 2,
        "out_mean": output.mean(),
        "out_median": np.median(output),
        "out_p99": np.percentile(output, 99),
        "out_max": output.max(),
        "out_cv2": (output.std() / output.mean()) ** 2,
        "gap_cv2": (gaps.std() / gaps.mean()) ** 2,
        "max_gap_s": gaps.max(),
        "sum_prompt": prompt.sum(),
        "sum_out": output.sum(),
    }


def digits_of(number):
    """How many digits after the point a number is written with."""
    return len(repr(number).partition(".")[2]) if isinstance(number, float) else 0


@computes(*ids(115, 150), traces=True)
def azure_statistics(fact, traces):
    workload, name = getattr(traces, fact["inputs"]["trace"]), fact["inputs"]["stat"]
    if name == "IDC_1s_10s_60s":
        why = "the published index counts the last, incomplete window, which ours leaves out"
        for window, printed in zip((1, 10, 60), fact["output"], strict=True):
            digits = digits_of(printed)
            counts = np.bincount((workload.arrival // window).astype(int))
            yield Printed(f"{window} s, incomplete window included", counts.var() / counts.mean(), printed, digits)
            yield Differs(f"{window} s", index_of_dispersion(workload.arrival, window), printed, digits, why)
    elif isinstance(fact["output"], int):
        yield Exact(name, float(statistics(workload)[name]), fact["output"])
    else:
        yield Printed(name, float(statistics(workload)[name]), fact["output"], digits_of(fact["output"]))


@computes("F103", traces=True)
def splitwise_prompt_medians(_, traces):
    yield Printed("code", np.median(traces.code.prompt_tokens), 1500, -2)
    yield Exact("conversation", float(np.median(traces.conv.prompt_tokens)), 1020)


@computes("F104", traces=True)
def splitwise_output_medians(_, traces):
    yield Exact("code", float(np.median(traces.code.new_tokens)), 13)
    yield Exact("conversation", float(np.median(traces.conv.new_tokens)), 129)


@computes("F152", traces=True)
def resident_tokens(_, traces):
    prompt, output = traces.conv.prompt_tokens.astype(float), traces.conv.new_tokens.astype(float)
    rate = len(traces.conv) / traces.conv.arrival[-1]
    token_seconds = 0.025 * np.mean(prompt * output + output**2 / 2)
    yield Printed("tokens", calc_littles_law_occupancy(rate, token_seconds), 35_816, 0)


@computes("F161", traces=True)
def mooncake_conversation(fact, traces):
    printed = fact["output"]
    yield Exact("requests", len(traces.mooncake), printed["requests"])
    yield Printed("mean prompt", traces.mooncake.prompt_tokens.mean(), printed["avg_in"], 0)
    yield Printed("mean output", traces.mooncake.new_tokens.mean(), printed["avg_out"], 0)


@computes("F167", traces=True)
def mooncake_ticks(_, traces):
    yield Exact("distinct arrival times", len(np.unique(traces.mooncake.arrival)), 1180)


@computes(*ids(212, 215), traces=True)
def azure_lindley(fact, traces):
    rho, printed = fact["inputs"]["rho"], fact["output"]
    gaps = np.diff(traces.conv.arrival)
    service = rho * gaps.mean()
    kingman = service * calc_kingman_wait_ratio(rho, (gaps.std() / gaps.mean()) ** 2, 0)

    def waits(gaps):  # the first request cannot wait, and the published means leave it out
        return simulate_queue(np.concatenate([[0], np.cumsum(gaps)]), service).wait[1:]

    wait = waits(gaps)
    rng = np.random.default_rng(0)
    shuffled = np.mean([waits(rng.permutation(gaps)).mean() for _ in range(20)])
    yield Printed("Kingman, s", kingman, printed["kingman_s"], 4)
    yield Printed("shuffled gaps, mean s", shuffled, printed["shuffled_gaps_mean_wait_s"], 4)
    yield Printed("real order, mean s", wait.mean(), printed["actual_mean_wait_s"], 4)
    yield Printed("real order, p99 s", np.percentile(wait, 99), printed["actual_p99_wait_s"], 3)


@computes("F153")
def burstgpt_rows(_):
    yield Printed("million rows", (1429.7 + 3858.4) / 1e3, 5.29, 2)


@computes(*ids(154, 156))
def burstgpt_failures(fact):
    failed = 100 * (1 - fact["inputs"]["ok_k"] / fact["inputs"]["all_k"])
    yield Printed("percent", failed, fact["output"], 2)


@computes("F181")
def kingman_formula(_):
    for rho, ca, cs in ((0.5, 1.0, 0.0), (0.9, 2.0, 0.5)):
        yield Exact(f"rho {rho}", calc_kingman_wait_ratio(rho, ca**2, cs**2), rho / (1 - rho) * (ca**2 + cs**2) / 2)


@computes("F182")
def pyworkforce_example(fact):
    printed = fact["output"]
    agents = calc_mmc_min_servers(100 / (30 * ureg.minute), 1 / (3 * ureg.minute), 20 * ureg.s, quantile=0.8)
    delayed = calc_erlang_c(agents, 10.0)
    yield Exact("agents", agents, printed["agents"])
    yield Exact("P(wait)", delayed, printed["wait_probability"])
    yield Exact("P(wait <= 20 s)", 1 - delayed * math.exp(-(agents - 10) * 20 / 180), printed["service_level"])
    yield Exact("occupancy", 10 / agents, printed["occupancy"])


def load_at_blocking(lines, blocking):
    """Return the offered load at which a share of the calls finds all lines busy, by bisection."""
    low, high = 0.0, 2.0 * lines
    for _ in range(60):
        middle = (low + high) / 2
        busy = birth_death_chain(middle, np.arange(1.0, lines + 1), lines).blocking
        low, high = (middle, high) if busy < blocking else (low, middle)
    return high


@computes("F183")
def erlang_b_manual(_):
    yield Printed("Erlangs at 15 lines", load_at_blocking(15, 0.01), 8.108, 3)


@computes("F184")
def erlang_b_table(fact):
    for lines, printed in enumerate(fact["output"], start=1):
        yield Printed(f"Erlangs at {lines} lines", load_at_blocking(lines, 0.01), printed, 1)


@computes("F191")
def tail_at_scale(fact):
    yield Printed("percent", 100 * (1 - 0.99**100), fact["output"], 0)


NOT_COMPUTED = {
    "measured on hardware or a system that is not here": [
        *ids(26, 29),
        "F031",
        *ids(35, 42),
        *ids(46, 50),
        *ids(60, 68),
        "F070",
        "F074",
        *ids(76, 78),
        *ids(80, 82),
        "F091",
        "F092",
        "F098",
        *ids(105, 109),
        "F114",
        *ids(193, 195),
        *ids(197, 201),
    ],
    "a definition, a rule, a setting or a constant: nothing to compute": [
        "F069",
        "F072",
        "F073",
        "F075",
        "F083",
        "F093",
        "F101",
        "F102",
        "F111",
        "F151",
        "F157",
        "F169",
        "F173",
        "F202",
    ],
    "a statistic of data that is not here": ["F055", "F056", "F085", "F086", "F162", "F163", "F168"],
    "needs a prefix cache, which the library leaves out": ["F164", "F165"],
    "read off a figure whose inputs are not printed": ["F025", "F054"],
    "no number is printed to compare with": ["F186", "F187", "F192"],
}


def summary(traces=None):
    """Return the table as lines of text."""
    reached = Counter(tier(checks(id, traces)).__name__ for id in COMPUTED if traces or id not in NEEDS_TRACES)
    lines = [f"{len(FACTS)} facts, {len(COMPUTED)} computed"]
    if not traces:
        lines.append(f"{len(NEEDS_TRACES):4}  need the real traces, which are not here")
    lines += [f"{reached[kind.__name__]:4}  {kind.__name__:8} {kind.__doc__.splitlines()[0]}" for kind in TIERS]
    lines += [f"{len(missing):4}  not computed: {reason}" for reason, missing in NOT_COMPUTED.items()]
    lines.append("Numbers that do not reproduce:")
    for id in COMPUTED:
        for check in checks(id, traces) if traces or id not in NEEDS_TRACES else ():
            if isinstance(check, Differs):
                where = f"{FACTS[id]['paper']}, {FACTS[id].get('where', '')}"
                lines.append(
                    f"  {id} {where}: {check.what}: {check.computed:.4g}, printed {check.published}: {check.why}"
                )
    return lines


if __name__ == "__main__":
    data = HERE.parents[1] / "shared" / "data"
    print("\n".join(summary(Traces(data) if data.is_dir() else None)))
