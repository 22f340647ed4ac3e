"""Measure the statistics that `serving_lib.profile` draws from: `python tests/tools/measure_profiles.py`.

Reads the real traces of `../shared/data` and writes `serving_lib/data/profiles.json`.
"""

import json
import math
import re
from pathlib import Path

import numpy as np

from serving_lib.workload import read_trace

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY.parent / "shared" / "data"
OUTPUT = REPOSITORY / "serving_lib" / "data" / "profiles.json"

TRACES = {
    "azure-conv-2023": "AzureLLMInferenceTrace_conv.csv",
    "azure-code-2023": "AzureLLMInferenceTrace_code.csv",
}
ATTRIBUTION = (
    "Counts and quantiles measured from the Azure Public Dataset, LLM inference trace 2023 "
    "(conversation and code), by Microsoft, licensed CC-BY 4.0; "
    "described in Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024."
)
WINDOW = 10  # seconds over which arrivals are counted
SEGMENT = 300  # seconds over which token quantiles are taken
# Percentiles, and tenths of them in the last one, where a quantile function bends most.
LEVELS = [round(k / 100, 3) for k in range(100)] + [round(0.99 + k / 1000, 3) for k in range(1, 11)]


def measure(trace):
    """Return the statistics of one trace as plain numbers."""
    segment = (trace.arrival // SEGMENT).astype(int)
    return {
        "requests": len(trace),
        "duration": float(trace.arrival[-1]),
        "window": WINDOW,
        "segment": SEGMENT,
        "levels": LEVELS,
        "spacing_shape": spacing_shape(trace.arrival),
        "arrivals_per_window": np.bincount((trace.arrival // WINDOW).astype(int)).tolist(),
        "prompt_tokens": quantiles_by_segment(trace.prompt_tokens, segment),
        "new_tokens": quantiles_by_segment(trace.new_tokens, segment),
    }


def spacing_shape(arrival):
    """Return the shape k of the gamma whose normalized draws have the spacings' sum of squares, over all whole windows.

    The m spacings of a window, as fractions of it, then have the expected sum of squares (k + 1) / (m k + 1).
    """
    number = np.arange(arrival[-1] // WINDOW)
    inside = [arrival[(arrival >= k * WINDOW) & (arrival < (k + 1) * WINDOW)] for k in number]
    spacings = [np.diff([k * WINDOW, *x, (k + 1) * WINDOW]) / WINDOW for k, x in zip(number, inside, strict=True)]
    squares = np.array([np.sum(x**2) for x in spacings])
    m = np.array([len(x) for x in spacings])

    low, high = 1e-3, 1e3  # the expectation falls as k rises; weights m count every spacing the same
    for _ in range(60):
        k = math.sqrt(low * high)
        too_even = np.sum(m * (k + 1) / (m * k + 1)) < np.sum(m * squares)
        low, high = (low, k) if too_even else (k, high)
    return round(k, 4)


def quantiles_by_segment(tokens, segment):
    """Return one list of quantiles, each a value that occurs, for every segment."""
    chunks = (tokens[segment == k] for k in range(segment[-1] + 1))
    return [np.quantile(chunk, LEVELS, method="inverted_cdf").tolist() for chunk in chunks]


def as_json(traces):
    """Return the text of the data file: one line for each list of numbers."""
    document = {"attribution": ATTRIBUTION, "profiles": {name: measure(trace) for name, trace in traces.items()}}
    text = json.dumps(document, indent=1)
    return re.sub(r"\[[\d.,\s]+\]", lambda numbers: re.sub(r"\s+", "", numbers[0]), text) + "\n"


def read_traces(folder):
    """Return the traces that the profiles are measured from."""
    return {name: read_trace(folder / file) for name, file in TRACES.items()}


if __name__ == "__main__":
    OUTPUT.write_text(as_json(read_traces(DATA)), encoding="utf-8")
