"""Speed-ups that a paper prints, for the lecture that computes them again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FactorsRow:
    """One row of Leviathan et al. (2023), Table 1: what a round costs and gains when the draft is free.

    https://proceedings.mlr.press/v202/leviathan23a.html

    Parameters
    ----------
    acceptance : float
        Probability that a drafted token is accepted.
    draft_length : int
        Drafted tokens per round.
    operations : float
        Printed factor by which the operations grow.
    speed : float
        Printed speed-up.
    """

    acceptance: float
    draft_length: int
    operations: float
    speed: float


@dataclass(frozen=True)
class SpeedupRow:
    """One row of Leviathan et al. (2023), Table 4: predicted and measured speed-ups of T5-XXL, batch size 1, TPU-v4.

    Parameters
    ----------
    task : str
        "EnDe" is translation from English to German, "CNNDM" is summarizing news.
    draft_model : str
    temperature : int
        0 takes the most probable token, 1 samples.
    draft_length : int
        Drafted tokens per round.
    acceptance : float
        Printed with two decimals.
    draft_cost_ratio : float
        Time of a draft step over that of a target step, printed with two decimals.
    expected : float
        Printed prediction, with one decimal.
    measured : float
        Printed measurement, with one decimal.
    """

    task: str
    draft_model: str
    temperature: int
    draft_length: int
    acceptance: float
    draft_cost_ratio: float
    expected: float
    measured: float


LEVIATHAN_TABLE_1 = (
    FactorsRow(0.6, 2, 1.53, 1.96),
    FactorsRow(0.7, 3, 1.58, 2.53),
    FactorsRow(0.8, 2, 1.23, 2.44),
    FactorsRow(0.8, 5, 1.63, 3.69),
    FactorsRow(0.9, 2, 1.11, 2.71),
    FactorsRow(0.9, 10, 1.60, 6.86),
)

LEVIATHAN_TABLE_4 = (
    SpeedupRow("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
    SpeedupRow("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
    SpeedupRow("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
    SpeedupRow("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
    SpeedupRow("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
    SpeedupRow("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    SpeedupRow("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
    SpeedupRow("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
    SpeedupRow("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
    SpeedupRow("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
    SpeedupRow("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
    SpeedupRow("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)


@dataclass(frozen=True)
class DecodeRow:
    """One row of a table of decoding steps of Llama-2-13B on eight TPU v5e, Austin et al. (2025), part 7.

    Parameters
    ----------
    batch : int
        Sequences decoded together, each of 8,192 tokens.
    step_ms : float
        Printed time of a step, in milliseconds.
    tokens_per_second : float
        Printed throughput.
    """

    batch: int
    step_ms: float
    tokens_per_second: float


AUSTIN_2025 = "Austin et al. (2025), How to Scale Your Model, https://jax-ml.github.io/scaling-book/inference/"

# By the gigabytes of one sequence's keys and values: with all heads, and with five query heads to a key-value head.
SCALING_BOOK_DECODE = {
    6.7: (
        DecodeRow(1, 4.98, 200.61),
        DecodeRow(8, 12.13, 659.30),
        DecodeRow(16, 20.30, 787.99),
        DecodeRow(32, 36.65, 873.21),
        DecodeRow(64, 69.33, 923.13),
        DecodeRow(240, 249.09, 963.53),
    ),
    1.34: (
        DecodeRow(1, 4.17, 239.94),
        DecodeRow(8, 5.60, 1429.19),
        DecodeRow(16, 7.23, 2212.48),
        DecodeRow(32, 10.50, 3047.62),
        DecodeRow(64, 17.04, 3756.62),
        DecodeRow(240, 52.99, 4529.34),
    ),
}

KWON_2023 = "Kwon et al. (2023), PagedAttention, https://arxiv.org/abs/2309.06180"


@dataclass(frozen=True)
class Lengths:
    """Mean lengths of the requests of a data set, Kwon et al. (2023), Fig. 11.

    Parameters
    ----------
    prompt_tokens, new_tokens : float
        Printed means, with two decimals.
    """

    prompt_tokens: float
    new_tokens: float


KWON_FIGURE_11 = {"ShareGPT": Lengths(161.31, 337.99), "Alpaca": Lengths(19.31, 58.45)}


@dataclass(frozen=True)
class MemoryRow:
    """One bar of Kwon et al. (2023), Fig. 2: where the KV cache of OPT-13B is on average, in percent.

    Parameters
    ----------
    system : str
    token_states, reservation, internal, external : float or None
        Printed with one decimal; None where nothing is printed. The last is "external fragmentation and others".
    """

    system: str
    token_states: float
    reservation: float | None
    internal: float | None
    external: float | None


KWON_FIGURE_2 = {
    "reserve_max": MemoryRow("Orca (Max)", 20.4, 13.3, 57.3, 8.9),
    "reserve_pow2": MemoryRow("Orca (Pow2)", 26.8, 17.9, 13.6, 41.6),
    "reserve_exact": MemoryRow("Orca (Oracle)", 38.2, 25.2, None, 36.6),
    "paged": MemoryRow("vLLM", 96.3, None, None, None),
}

# Kwon et al. (2023), Fig. 13: mean number of requests of OPT-13B that run at a time; ShareGPT comes at 2 requests per
# second, Alpaca at 30.
KWON_FIGURE_13 = {
    "ShareGPT": {"reserve_max": 7.00, "reserve_pow2": 9.81, "reserve_exact": 13.62, "paged": 30.42},
    "Alpaca": {"reserve_max": 7.00, "reserve_pow2": 43.24, "reserve_exact": 72.75, "paged": 132.44},
}
