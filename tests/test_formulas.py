"""The 15 formulas of the contract: values, units, domains and errors."""

import inspect
import itertools
import json
import math
import pathlib

import mpmath
import numpy as np
import pint
import pytest

import serving_lib
from serving_lib import ureg

GOLDEN = json.loads((pathlib.Path(__file__).parent / "golden" / "formulas.json").read_text())
FUNCTIONS = GOLDEN["functions"]
MMC_CASES = FUNCTIONS["calc_queue_latency_mmc"]["cases"]
SCALAR_CASES = [
    (name, case)
    for name, function in FUNCTIONS.items()
    if name != "calc_queue_latency_mmc"
    for case in function["cases"]
]
ERRORS = [(name, case) for name, function in FUNCTIONS.items() for case in function["errors"]]

NUMBER = {"int": int, "float": float, "str": str, "bool": lambda text: str(text) == "True"}
ERROR = {
    "ValueError": ValueError,
    "TypeError": TypeError,
    "OverflowError": OverflowError,
    "DimensionalityError": pint.DimensionalityError,
}

a_time, a_rate = 2.0 * ureg.ms, 3.0 / ureg.s
VALID = {
    "calc_batch_formation_wait": (8, a_rate),
    "calc_batch_knee": (a_time, a_time),
    "calc_batch_throughput_share": (4, a_time, a_time),
    "calc_exponential_quantile_factor": (0.9,),
    "calc_kingman_wait_ratio": (0.8, 1.0, 0.5),
    "calc_littles_law_occupancy": (a_rate, a_time),
    "calc_littles_law_rate": (6.0, a_time),
    "calc_mg1_wait_ratio": (0.8, 2.0),
    "calc_mm1_max_utilization": (a_time, 5 * a_time, 2.0),
    "calc_mm1_time_in_system": (a_time, 0.8),
    "calc_queue_latency_mmc": (3.0, 1.0, 4),
    "calc_residency_factor": (a_time, a_time),
    "calc_speculative_expected_tokens": (0.8, 4),
    "calc_speculative_round_speedup": (2.0, 4, 0.1),
}
BROADCASTING = [name for name in VALID if name != "calc_queue_latency_mmc"]


def case_id(value):
    return value["id"] if isinstance(value, dict) else ""


def argument(spec, registry=ureg):
    if spec["type"] == "list":
        return [
            float(text) if "." in text or text in ("nan", "inf") or "e" in text else int(text) for text in spec["value"]
        ]
    value = NUMBER[spec["type"]](spec["value"])
    return value if spec["unit"] is None else registry.Quantity(value, spec["unit"])


def call(name, case, registry=ureg):
    return getattr(serving_lib, name)(*(argument(spec, registry) for spec in case["args"]))


def magnitude(result, unit):
    """The result as a plain number; where the table names no unit, the result must read as one."""
    if isinstance(result, pint.Quantity):
        return result.m_as(unit or "")
    assert unit is None
    return result


def within(value, case, tolerance, key="value", absolute="abs_tol"):
    with mpmath.workdps(60):
        exact = mpmath.mpf(case["expect"][key])
        if mpmath.isinf(exact) or math.isinf(value):
            return float(exact) == value
        return abs(mpmath.mpf(value) - exact) <= max(tolerance * abs(exact), mpmath.mpf(case.get(absolute, 0.0)))


@pytest.mark.parametrize(("name", "case"), SCALAR_CASES, ids=case_id)
def test_a_formula_meets_the_reference_to_the_last_digits(name, case):
    result = magnitude(call(name, case), case["expect"]["unit"])
    assert type(result) is float
    assert within(result, case, case["tol_backward"])


@pytest.mark.parametrize("case", MMC_CASES, ids=case_id)
def test_mmc_meets_the_reference_to_the_last_digits(case):
    rho, median, p99 = call("calc_queue_latency_mmc", case)
    expect = case["expect"]
    assert rho == pytest.approx(float(expect["rho"]), rel=4e-16, abs=1e-320)
    backward = case.get("tol_backward") or [None, None]
    for wait, key, tolerance in ((median, "p50_s", backward[0]), (p99, "p99_s", backward[1])):
        assert wait.units == ureg.second
        assert within(wait.magnitude, case, tolerance or 0.0, key, "abs_tol_s")


@pytest.mark.parametrize("case", [case for case in MMC_CASES if "erlang_c" in case.get("extra", {})], ids=case_id)
def test_erlang_c_is_exact_to_1e_12(case):
    arrival, service, servers = (argument(spec) for spec in case["args"])
    # The table's value belongs to the exact ratio of the rates; near saturation the rounding of that ratio to a float
    # alone moves C, by d log C / d log a = a/(c - a) + 1 at most.
    load = (arrival / service).m_as("") if isinstance(arrival, pint.Quantity) else arrival / service
    count = max(1, int(servers))
    if load >= count:
        assert serving_lib.calc_erlang_c(count, load) == 1.0
        return
    tolerance = 1e-12 + 2e-16 * (count / (count - load) + count)
    exact = mpmath.mpf(case["extra"]["erlang_c"])
    assert abs(serving_lib.calc_erlang_c(count, load) - exact) <= max(tolerance * exact, mpmath.mpf("1e-300"))


@pytest.mark.parametrize(
    "claim",
    [
        "calc_batch_formation_wait(1, 2 / ureg.second) == 0 * ureg.second",
        "calc_batch_knee(4 * ureg.ms, 2 * ureg.ms) == 2",
        "calc_batch_throughput_share(2, 4 * ureg.ms, 2 * ureg.ms) == 0.5",
        "calc_exponential_quantile_factor(0) == 0",
        "calc_exponential_quantile_factor(0.99) > calc_exponential_quantile_factor(0.5)",
        "calc_kingman_wait_ratio(0.5, 1, 1) == calc_mg1_wait_ratio(0.5, 1)",
        "calc_littles_law_occupancy(2 / ureg.second, 3 * ureg.second).dimensionless",
        "calc_littles_law_rate(6, 3 * ureg.second) == 2 / ureg.second",
        "calc_mg1_wait_ratio(0.5, 1) == 1",
        "calc_mg1_wait_ratio(0.5, 0) < calc_mg1_wait_ratio(0.5, 1)",
        "calc_mm1_max_utilization(2 * ureg.ms, 2 * ureg.ms, 1) == 0",
        "calc_mm1_time_in_system(2 * ureg.ms, 0) == 2 * ureg.ms",
        "calc_padding_waste_fraction([2, 2]) == 0",
        "calc_padding_waste_fraction([1, 2]) > 0",
        "calc_queue_latency_mmc(1, 2, 1)[0] == 0.5",
        "calc_queue_latency_mmc(1, 2, 1)[1].magnitude == 0 and calc_queue_latency_mmc(1, 2, 1)[2].magnitude > 0",
        "calc_residency_factor(2 * ureg.second, 0 * ureg.second) == 1",
        "calc_speculative_expected_tokens(0, 4) == 1",
        "calc_speculative_expected_tokens(0.5, 4) > calc_speculative_expected_tokens(0.5, 2)",
        "calc_speculative_round_speedup(0, 0, 0) == 1",
        "calc_speculative_round_speedup(1, 4, 1) < 1",
    ],
)
def test_the_contracts_own_examples_hold(claim):
    assert eval(claim, vars(serving_lib))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_have_the_contracts_names_and_order(name):
    assert list(inspect.signature(getattr(serving_lib, name)).parameters) == FUNCTIONS[name]["params"]


@pytest.mark.parametrize(("name", "case"), ERRORS, ids=case_id)
def test_a_value_outside_the_domain_is_refused_by_name(name, case):
    allowed = tuple(ERROR[kind] for kind in case["error"].split("|"))
    with pytest.raises(allowed) as caught:
        call(name, case)
    assert any(parameter in str(caught.value) for parameter in FUNCTIONS[name]["params"])


@pytest.mark.parametrize("name", VALID)
def test_nan_is_outside_every_domain(name):
    for position, value in enumerate(VALID[name]):
        bad = value.units * math.nan if isinstance(value, pint.Quantity) else math.nan
        with pytest.raises(ValueError, match=FUNCTIONS[name]["params"][position]):
            getattr(serving_lib, name)(*VALID[name][:position], bad, *VALID[name][position + 1 :])


@pytest.mark.parametrize("bad", ["0.5", None, [0.5], 1j, True, object()], ids=repr)
@pytest.mark.parametrize("name", VALID)
def test_what_is_not_a_number_is_a_type_error(name, bad):
    for position, parameter in enumerate(FUNCTIONS[name]["params"]):
        with pytest.raises(TypeError, match=parameter):
            getattr(serving_lib, name)(*VALID[name][:position], bad, *VALID[name][position + 1 :])


@pytest.mark.parametrize("name", VALID)
def test_a_wrong_dimension_names_the_argument(name):
    for position, parameter in enumerate(FUNCTIONS[name]["params"]):
        with pytest.raises(pint.DimensionalityError, match=parameter):
            getattr(serving_lib, name)(*VALID[name][:position], 2.0 * ureg.meter, *VALID[name][position + 1 :])


@pytest.mark.parametrize("name", VALID)
def test_quantities_of_another_registry_come_back_in_that_registry(name):
    mine = pint.UnitRegistry()
    arguments = [mine.Quantity(v.magnitude, str(v.units)) if isinstance(v, pint.Quantity) else v for v in VALID[name]]
    results, ours = getattr(serving_lib, name)(*arguments), getattr(serving_lib, name)(*VALID[name])
    if not isinstance(results, tuple):
        results, ours = (results,), (ours,)
    with_units = any(isinstance(argument, pint.Quantity) for argument in arguments)
    for result, our in zip(results, ours, strict=True):
        if isinstance(result, pint.Quantity):
            assert result._REGISTRY is mine or not with_units
            assert (result.magnitude, str(result.units)) == (our.magnitude, str(our.units))
        else:
            assert result == our


@pytest.mark.parametrize("name", VALID)
def test_two_registries_in_one_call_are_understood(name):
    mine, theirs = itertools.cycle([pint.UnitRegistry(), pint.UnitRegistry()]), VALID[name]
    arguments = [next(mine).Quantity(v.magnitude, str(v.units)) if isinstance(v, pint.Quantity) else v for v in theirs]
    assert str(getattr(serving_lib, name)(*arguments)) == str(getattr(serving_lib, name)(*theirs))


@pytest.mark.parametrize("name", VALID)
def test_numpy_scalars_count_as_numbers(name):
    def as_numpy(value):
        kind = np.int64 if isinstance(value, int) else np.float64
        return ureg.Quantity(kind(value.magnitude), value.units) if isinstance(value, pint.Quantity) else kind(value)

    assert str(getattr(serving_lib, name)(*map(as_numpy, VALID[name]))) == str(getattr(serving_lib, name)(*VALID[name]))


@pytest.mark.parametrize("name", BROADCASTING)
def test_an_array_gives_what_its_elements_give(name):
    function = getattr(serving_lib, name)
    for position, value in enumerate(VALID[name]):
        plain = value.magnitude if isinstance(value, pint.Quantity) else value
        elements = np.array([plain, plain / 2 if isinstance(plain, float) else plain + 1])
        unit = value.units if isinstance(value, pint.Quantity) else 1
        curve = function(*VALID[name][:position], elements * unit, *VALID[name][position + 1 :])
        for index, element in enumerate(elements):
            point = function(*VALID[name][:position], element * unit, *VALID[name][position + 1 :])
            assert curve[index] == point


def test_an_array_with_one_bad_element_says_which():
    with pytest.raises(ValueError, match=r"utilization must be in \[0, 1\), got 1.5 at index 2"):
        serving_lib.calc_mm1_time_in_system(1.0, np.array([0.1, 0.5, 1.5]))


def test_an_array_of_objects_or_truth_values_is_a_type_error():
    for bad in (np.array([True, False]), np.array(["a"]), np.array([None])):
        with pytest.raises(TypeError, match="utilization"):
            serving_lib.calc_mm1_time_in_system(1.0, bad)


def test_mmc_refuses_an_array():
    with pytest.raises(TypeError, match="arrival_rate_hz must be a single number"):
        serving_lib.calc_queue_latency_mmc(np.array([1.0, 2.0]), 3.0, 1)


def test_occupancy_reads_as_a_count():
    assert str(serving_lib.calc_littles_law_occupancy(2 / ureg.s, 3000 * ureg.ms)) == "6.0 dimensionless"


def test_occupancy_keeps_the_label_of_what_is_counted():
    tokens = serving_lib.calc_littles_law_occupancy(2 * ureg.token / ureg.minute, 30 * ureg.s)
    assert str(tokens) == "1.0 token"


def test_the_time_in_system_keeps_the_unit_of_the_service_time():
    assert str(serving_lib.calc_mm1_time_in_system(200 * ureg.ms, 0.75)) == "800.0 millisecond"


@pytest.mark.parametrize(("rate", "wait"), [("2 request / minute", "0.25 minute"), ("2 Hz", "0.25 second")])
def test_a_formation_wait_is_a_time_whatever_the_rate_counts(rate, wait):
    assert str(serving_lib.calc_batch_formation_wait(2, ureg(rate))) == wait


def test_a_bare_number_where_a_unit_is_needed_shows_the_mend():
    with pytest.raises(TypeError, match=r"fixed_time needs a time unit, such as 4 \* ureg.ms"):
        serving_lib.calc_batch_knee(4, 2 * ureg.ms)


def test_the_zero_quantile_is_a_positive_zero():
    assert str(serving_lib.calc_exponential_quantile_factor(0)) == "0.0"


def test_equal_lengths_waste_exactly_nothing():
    assert serving_lib.calc_padding_waste_fraction([0.1] * 7) == 0


@pytest.mark.parametrize(
    "lengths",
    [(1, 2), np.array([1, 2]), iter([1, 2]), np.array([1, 2]) * ureg.token, [1000 * ureg.ms, 2 * ureg.s]],
    ids=["tuple", "array", "iterator", "array with a unit", "list of quantities"],
)
def test_padding_waste_takes_any_iterable_of_lengths(lengths):
    assert serving_lib.calc_padding_waste_fraction(lengths) == 0.25


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([], ValueError, "at least one length"),
        ([0, 0], ValueError, "only zeros"),
        ([1, -2], ValueError, r"lengths\[1\] must be nonnegative"),
        ("12", TypeError, "iterable of numbers"),
        (["1"], TypeError, r"lengths\[0\]"),
        ([1, 2 * ureg.token], TypeError, "all carry a unit"),
        ([1 * ureg.m, 2 * ureg.s], pint.DimensionalityError, "length"),
    ],
)  # fmt: skip
def test_bad_lengths_are_refused_by_name(lengths, error, message):
    with pytest.raises(error, match=message):
        serving_lib.calc_padding_waste_fraction(lengths)


@pytest.mark.parametrize("servers", [1, 2, 7, 50, 1000])
@pytest.mark.parametrize("load", [0.01, 0.5, 0.9, 0.999])
def test_erlang_c_equals_the_textbook_sum_in_high_precision(servers, load):
    with mpmath.workdps(60):
        a = mpmath.mpf(servers * load)
        last = a**servers / mpmath.factorial(servers) * servers / (servers - a)
        exact = last / (mpmath.fsum(a**k / mpmath.factorial(k) for k in range(servers)) + last)
        assert abs(serving_lib.calc_erlang_c(servers, servers * load) - exact) <= max(
            1e-12 * exact, mpmath.mpf("1e-300")
        )


def test_erlang_c_is_certain_at_capacity_and_never_without_load():
    assert serving_lib.calc_erlang_c(4, 4.0) == serving_lib.calc_erlang_c(4, 5.0) == 1.0
    assert serving_lib.calc_erlang_c(4, 0.0) == 0.0
