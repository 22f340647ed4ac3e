"""Every picture of the lectures: pure functions, parameters in, a `matplotlib.figure.Figure` with ``alt_text`` out.

`style.py` holds the one look; each lecture has its own file. What ``__all__`` names is public:
``python -m serving_lib.plots figures/`` draws each of them at its defaults into an SVG of its name.
"""

from serving_lib.plots.arrivals import dispersion, real_arrivals, resident_tokens, rush_hour
from serving_lib.plots.batching import batch_chain, batch_formation, batch_knee, padding_waste, slot_by_slot
from serving_lib.plots.capacity import cost_front, formula_and_plans, hour_on_a_plan, token_demand
from serving_lib.plots.paged_kv import (
    kv_size,
    last_page_waste,
    memory_shares,
    own_rules,
    page_growth,
    pool_and_slots,
    pool_over_time,
    prefill_is_not_free,
    shared_prompt,
    sliding_window,
    slots_and_goodput,
    watermark_tax,
)
from serving_lib.plots.prefill import prefill_stall, token_budget
from serving_lib.plots.queueing import (
    littles_law,
    many_runs,
    mm1_knee,
    open_and_closed,
    pool_size,
    pooling,
    residency,
    response_tail,
    run_length,
    short_and_long,
    tail_budget,
    variability,
)
from serving_lib.plots.speculative import (
    acceptance_overlap,
    leviathan_table_4,
    lossless_text,
    speculative_batch,
    speculative_operations,
    speculative_rounds,
    speculative_speedup,
    speculative_tokens,
    varying_acceptance,
)
from serving_lib.plots.start import life_of_requests, request_metrics
from serving_lib.plots.step_time import roofline, scaling_book

__all__ = [
    "acceptance_overlap",
    "batch_chain",
    "batch_formation",
    "batch_knee",
    "cost_front",
    "dispersion",
    "formula_and_plans",
    "hour_on_a_plan",
    "kv_size",
    "last_page_waste",
    "leviathan_table_4",
    "life_of_requests",
    "littles_law",
    "lossless_text",
    "many_runs",
    "memory_shares",
    "mm1_knee",
    "open_and_closed",
    "own_rules",
    "padding_waste",
    "page_growth",
    "pool_and_slots",
    "pool_over_time",
    "pool_size",
    "pooling",
    "prefill_is_not_free",
    "prefill_stall",
    "real_arrivals",
    "request_metrics",
    "residency",
    "resident_tokens",
    "response_tail",
    "roofline",
    "run_length",
    "rush_hour",
    "scaling_book",
    "shared_prompt",
    "short_and_long",
    "sliding_window",
    "slot_by_slot",
    "slots_and_goodput",
    "speculative_batch",
    "speculative_operations",
    "speculative_rounds",
    "speculative_speedup",
    "speculative_tokens",
    "tail_budget",
    "token_budget",
    "token_demand",
    "variability",
    "varying_acceptance",
    "watermark_tax",
]
