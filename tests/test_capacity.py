"""Plans: the server that a model and a GPU make, the bill, the formula, the verdict and the front."""

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pint
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib import (
    Workload,
    calc_queue_latency_mmc,
    calc_roofline_step_time,
    metrics,
    models,
    poisson,
    profile,
    read_trace,
    sweep,
    ureg,
)
from serving_lib.capacity import Outcome, Plan, cost_table, evaluate, pareto_front, roofline_step_time
from serving_lib.metrics import Estimate

SMALL = poisson(rate=6, requests=300, seed=0, prompt_tokens=900, new_tokens=40)


@pytest.fixture(scope="module")
def conversation(shared_data):
    """The hour itself, from the file."""
    return read_trace(shared_data / "AzureLLMInferenceTrace_conv.csv")


# --- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", models.GPUS)
@pytest.mark.parametrize("batch", [1, 16, 77, 256])
def test_a_decoding_step_is_never_shorter_than_the_roofline_and_at_most_twice_as_long(gpu, batch):
    model, context, mfu = models.MODELS["Llama-3-8B"], 1000, 0.5
    base, per_request, per_kv_token, _ = roofline_step_time(model, models.GPUS[gpu], mfu).in_clock_units()
    ours = base + batch * (per_request + context * per_kv_token)
    roofline = calc_roofline_step_time(
        batch,
        model.weight_bytes,
        context * model.kv_bytes_per_token,
        model.flops_per_token,
        models.GPUS[gpu].bandwidth,
        mfu * models.GPUS[gpu].flops_per_second,
    ).m_as("s")
    assert roofline * (1 - 1e-12) <= ours <= 2 * roofline


def test_the_pool_is_what_the_weights_leave_of_the_memory():
    weights, per_token = 2 * 8_030_261_248, 2 * 32 * 8 * 128 * 2  # Llama-3-8B at 16 bit
    assert Plan("A100-80").tokens_that_fit == math.floor((0.9 * 80e9 - weights) / per_token)
    assert Plan("A100-80", page_size=64).server.total_pages == Plan("A100-80").tokens_that_fit // 64
    assert Plan("A100-80", pool_tokens=1000, page_size=16).server.total_pages == 62


def test_the_policy_has_the_choices_of_the_plan():
    policy = Plan(prefill_budget=512, allocation="reserve_exact", watermark=0.1).policy
    assert (policy.prefill_budget, policy.allocation, policy.watermark) == (512, "reserve_exact", 0.1)
    assert policy.preemption == "recompute"


@pytest.mark.parametrize(
    ("choices", "error", "words"),
    [
        ({"gpu": "TPU"}, KeyError, "A100-80"),
        ({"model": "GPT-9"}, KeyError, "Llama-3-8B"),
        ({"replicas": 0}, ValueError, "replicas"),
        ({"pool_tokens": 10**9}, ValueError, "pool_tokens must be at most 426,784"),
        ({"model": "Llama-3-70B"}, ValueError, "has none"),
        ({"mfu": 0.0}, ValueError, "mfu"),
        ({"memory_share": 1.5}, ValueError, "memory_share"),
        ({"price": 4.75}, TypeError, "price needs a"),
        ({"price": 4.75 * ureg.USD}, pint.DimensionalityError, "price"),
        ({"dispatch": "random"}, ValueError, "rule"),
        ({"prefill_budget": 100}, ValueError, "prefill_budget must be at least the slots"),
    ],
)
def test_a_bad_choice_is_named(choices, error, words):
    with pytest.raises(error, match=words):
        evaluate(SMALL, **choices)


def test_a_plan_says_what_is_unusual_about_it():
    assert str(Plan("A100-80", 2)) == "2 A100-80, budget 768"
    plan = Plan("H100", 1, 1024, page_size=64, pool_tokens=60_000, allocation="reserve_exact", dispatch="round_robin")
    assert str(plan) == "1 H100, budget 1,024, pages of 64, pool 60,000, reserve exact, round robin"


# --- the bill and the formula ----------------------------------------------------------------------------------------


def test_the_bill_divides_the_price_of_an_hour_by_the_tokens_of_an_hour():
    tokens_per_hour = SMALL.new_tokens.sum() / (SMALL.arrival[-1] - SMALL.arrival[0]) * 3600
    cost = Plan("A100-80", replicas=3, price=2 * ureg.USD / ureg.hour).cost(SMALL)
    assert cost.m_as("USD") == pytest.approx(3 * 2 / tokens_per_hour * 1e6)


def test_a_price_in_other_units_is_the_same_bill():
    hourly, daily = 2.4 * ureg.USD / ureg.hour, 57.6 * ureg.USD / ureg.day
    assert Plan(price=hourly).cost(SMALL).m_as("USD") == pytest.approx(Plan(price=daily).cost(SMALL).m_as("USD"))


def test_a_workload_without_a_rate_has_no_bill():
    with pytest.raises(ValueError, match="at least two requests"):
        Plan().cost(Workload(["a"], [0], [1], [1]))


def test_the_formula_is_the_wait_of_an_m_m_c_queue_where_gaps_and_work_are_exponential():
    rng, count = np.random.default_rng(1), 200_000
    tokens = np.ceil(rng.exponential(4000, count)).astype(int)
    plan = Plan("A100-80", replicas=2)
    service = plan._work(Workload(["a", "b"], [0, 1], [1, 1], [3999, 3999])).mean()
    workload = poisson(2 * 0.7 / service, count, seed=2, prompt_tokens=1, new_tokens=tokens)
    _, _, wait = calc_queue_latency_mmc(workload.rate, 1 / plan._work(workload).mean(), 2)
    assert plan.formula_ttft(workload) == pytest.approx(wait.m_as("s"), rel=0.02)


def test_the_formula_is_infinite_at_capacity_and_a_mean_prompt_when_nobody_waits():
    assert Plan("A100-80").formula_ttft(SMALL.at_rate(1000)) == math.inf
    idle, plan = SMALL.at_rate(0.01), Plan("A100-80", replicas=8)
    base, _, _, token = plan.server.step_time.in_clock_units()
    assert plan.formula_ttft(idle) == pytest.approx(900 * (token + base / 768))


# --- the outcome -----------------------------------------------------------------------------------------------------


def test_an_outcome_has_the_percentiles_of_its_run():
    plan = Plan("A100-80", replicas=2)
    run, outcome = plan.simulate(SMALL), evaluate(SMALL, gpu="A100-80", replicas=2)
    assert outcome.ttft.value == pytest.approx(np.percentile(metrics.ttft(run), 99))
    assert outcome.ttft.low <= outcome.ttft.value <= outcome.ttft.high
    gaps, counts = run.itl_runs()
    assert outcome.tbt == pytest.approx(np.percentile(np.repeat(gaps, counts), 99))
    assert outcome.plan == plan


def test_a_plan_that_never_finishes_has_an_infinite_tail():
    stuck = evaluate(Workload(["a", "b"], [0, 1], [5000, 8], [10, 10]), pool_tokens=1600)
    assert stuck.ttft.value == math.inf
    assert stuck.meets(1, 1) == "no"


def outcome_of(cost, ttft, tbt=0.05, width=0.1):
    return Outcome(Plan(), Estimate(ttft, ttft - width, ttft + width, 0.99), tbt, cost * ureg.USD, 0)


@pytest.mark.parametrize(
    ("ttft", "tbt", "verdict"),
    [
        (0.8, 0.05, "yes"),
        (0.9, 0.05, "yes"),
        (0.95, 0.05, "unsure"),
        (1.05, 0.05, "no"),
        (1.2, 0.05, "no"),
        (0.5, 0.11, "no"),
        (0.5, 0.1, "yes"),
    ],
)
def test_a_limit_that_is_kept_but_inside_the_interval_leaves_the_verdict_open(ttft, tbt, verdict):
    assert outcome_of(1, ttft, tbt).meets(1 * ureg.s, 100 * ureg.ms) == verdict
    assert outcome_of(1, ttft, tbt).meets(1, 0.1) == verdict


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=12))
@settings(deadline=None)
def test_the_front_is_what_no_other_plan_beats(points):
    outcomes = [outcome_of(cost, ttft) for cost, ttft in points]
    beaten = {(c, t) for c, t in points for cost, ttft in points if cost <= c and ttft <= t and (cost, ttft) != (c, t)}
    front = [(one.cost.m_as("USD"), one.ttft.value) for one in pareto_front(outcomes)]
    assert front == sorted(set(points) - beaten)


def test_the_table_has_a_line_for_each_plan_and_its_verdict():
    head, first, second = cost_table([outcome_of(1.1, 0.5), outcome_of(2, 3, 0.2)], 1, 0.1).splitlines()
    assert head.split()[:1] == ["plan"]
    assert first.split()[-7:] == ["0.5", "0.4", "to", "0.6", "50", "1.10", "yes"]
    assert second.split()[-7:] == ["3", "2.9", "to", "3.1", "200", "2.00", "no"]
    assert len(head) == len(first) == len(second)


def test_plans_are_swept_on_other_processes_with_the_same_result():
    grid = {"workload": [SMALL], "gpu": ["A100-80", "H100"], "replicas": [1, 2]}
    with ProcessPoolExecutor(2) as executor:
        there = sweep(evaluate, grid, executor, progress=False).values
    here = sweep(evaluate, grid, progress=False).values
    assert [(one.ttft, one.tbt, one.cost.m_as("USD")) for one in there] == [
        (one.ttft, one.tbt, one.cost.m_as("USD")) for one in here
    ]


# --- what the lecture says, on the file itself ------------------------------------------------------------------------


def test_the_file_asks_for_6386_prefill_and_1168_decode_tokens_per_second(conversation):
    seconds = conversation.arrival[-1] - conversation.arrival[0]
    assert round(conversation.prompt_tokens.sum() / seconds) == 6386
    assert round(conversation.new_tokens.sum() / seconds) == 1168


def test_one_a100_is_78_percent_busy_on_average_and_misses_a_second_by_minutes(conversation):
    plan = Plan("A100-80")
    base, _, _, token = plan.server.step_time.in_clock_units()
    arithmetic = plan.utilization(conversation) * token / (token + base / plan.prefill_budget)
    assert round(arithmetic, 2) == 0.78
    assert evaluate(conversation, gpu="A100-80").ttft.low > 120


def test_one_fast_server_has_a_shorter_tail_than_three_slow_ones_and_costs_less(conversation):
    fast, slow = evaluate(conversation, gpu="H100"), evaluate(conversation, gpu="A100-80", replicas=3)
    assert fast.ttft.high < slow.ttft.low
    assert fast.cost < slow.cost


def test_the_profile_leads_to_the_verdicts_of_the_file(conversation):
    drawn = profile("azure-conv-2023", seed=0)
    for choices in ({"gpu": "A100-80"}, {"gpu": "A100-80", "replicas": 3}, {"gpu": "H100"}):
        on_file, on_profile = evaluate(conversation, **choices), evaluate(drawn, **choices)
        assert on_file.meets(1, 0.1) == on_profile.meets(1, 0.1)
        assert on_file.tbt == pytest.approx(on_profile.tbt, rel=0.05)


def test_evictions_cost_more_than_room_that_is_kept_back():
    drawn = profile("azure-conv-2023", seed=0)
    tight, careful = (evaluate(drawn, pool_tokens=40_000, watermark=share) for share in (0.01, 0.2))
    assert tight.preemptions > 1000 > careful.preemptions
    assert careful.ttft.value < tight.ttft.value / 5


def test_a_plan_at_another_price_is_another_bill_and_the_same_tail():
    outcome = evaluate(SMALL, gpu="H100")
    dear = replace(outcome.plan, price=2 * models.GPUS["H100"].price)
    assert dear.cost(SMALL).m_as("USD") == pytest.approx(2 * outcome.cost.m_as("USD"))
