"""The library of the Serving Workbook: exact formulas with units, and an exact simulator of LLM inference serving."""

from serving_lib.batching import (
    calc_batch_formation_wait,
    calc_batch_knee,
    calc_batch_throughput_share,
    calc_padding_waste_fraction,
)
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
from serving_lib.speculative import calc_speculative_expected_tokens, calc_speculative_round_speedup
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
    "TraceError",
    "Workload",
    "burst",
    "calc_allen_cunneen_wait",
    "calc_batch_formation_wait",
    "calc_batch_knee",
    "calc_batch_throughput_share",
    "calc_erlang_c",
    "calc_exponential_quantile_factor",
    "calc_kingman_wait_ratio",
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
    "calc_speculative_expected_tokens",
    "calc_speculative_round_speedup",
    "gamma",
    "index_of_dispersion",
    "mean_interval",
    "paged_continuous_batching",
    "poisson",
    "profile",
    "read_trace",
    "simulate_queue",
    "ureg",
    "write_trace",
]
