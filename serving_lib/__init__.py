"""The library of the Serving Workbook: exact formulas with units, and an exact simulator of LLM inference serving."""

from serving_lib import capacity, metrics, models
from serving_lib.batching import (
    affine_batch_chain,
    calc_batch_formation_wait,
    calc_batch_knee,
    calc_batch_throughput_share,
    calc_padding_waste_fraction,
    calc_roofline_step_time,
)
from serving_lib.engine import Policy, Server, StepTime, simulate
from serving_lib.kvcache import calc_kv_bytes_per_token, calc_kv_pages, calc_last_page_waste
from serving_lib.queue_simulator import mean_interval, simulate_queue
from serving_lib.queueing import (
    calc_allen_cunneen_wait,
    calc_erlang_c,
    calc_exponential_quantile_factor,
    calc_kingman_wait_ratio,
    calc_littles_law_occupancy,
    calc_littles_law_rate,
    calc_mg1_wait_ratio,
    calc_mm1_max_utilization,
    calc_mm1_time_in_system,
    calc_mmc_mean_wait,
    calc_mmc_min_servers,
    calc_mmc_response_quantile,
    calc_queue_latency_mmc,
    calc_residency_factor,
)
from serving_lib.simulator import paged_continuous_batching
from serving_lib.speculative import (
    calc_acceptance_rate,
    calc_speculative_best_draft_length,
    calc_speculative_break_even_batch,
    calc_speculative_expected_tokens,
    calc_speculative_round_speedup,
)
from serving_lib.sweep import sweep
from serving_lib.units import ureg
from serving_lib.workload import (
    TraceError,
    Workload,
    burst,
    gamma,
    index_of_dispersion,
    poisson,
    profile,
    read_trace,
    write_trace,
)

__all__ = [
    "Policy",
    "Server",
    "StepTime",
    "TraceError",
    "Workload",
    "affine_batch_chain",
    "burst",
    "calc_acceptance_rate",
    "calc_allen_cunneen_wait",
    "calc_batch_formation_wait",
    "calc_batch_knee",
    "calc_batch_throughput_share",
    "calc_erlang_c",
    "calc_exponential_quantile_factor",
    "calc_kingman_wait_ratio",
    "calc_kv_bytes_per_token",
    "calc_kv_pages",
    "calc_last_page_waste",
    "calc_littles_law_occupancy",
    "calc_littles_law_rate",
    "calc_mg1_wait_ratio",
    "calc_mm1_max_utilization",
    "calc_mm1_time_in_system",
    "calc_mmc_mean_wait",
    "calc_mmc_min_servers",
    "calc_mmc_response_quantile",
    "calc_padding_waste_fraction",
    "calc_queue_latency_mmc",
    "calc_residency_factor",
    "calc_roofline_step_time",
    "calc_speculative_best_draft_length",
    "calc_speculative_break_even_batch",
    "calc_speculative_expected_tokens",
    "calc_speculative_round_speedup",
    "capacity",
    "gamma",
    "index_of_dispersion",
    "mean_interval",
    "metrics",
    "models",
    "paged_continuous_batching",
    "poisson",
    "profile",
    "read_trace",
    "simulate",
    "simulate_queue",
    "sweep",
    "ureg",
    "write_trace",
]
