"""The contract simulator: the reference cases, an independent oracle, invariants, and bad input."""

import copy
import json
import math
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib import paged_continuous_batching
from tests.oracles.contract_oracle import contract_oracle

CASES = json.loads((pathlib.Path(__file__).parent / "golden" / "paged_continuous_batching.json").read_text())


def request(name="a", prompt_tokens=1, new_tokens=1, arrival=0):
    return {"id": name, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "arrival": arrival}


@st.composite
def runs(draw, largest=32):
    """Arguments of a run in a pool so small that stalls, deadlocks and refusals are common."""
    names = draw(st.lists(st.text(min_size=1, max_size=2), max_size=16, unique=True))
    tokens = st.integers(1, largest)
    requests = [request(name, draw(tokens), draw(tokens), draw(st.integers(0, 16))) for name in names]
    small = st.integers(1, 16)
    return requests, draw(small), draw(small), draw(small), draw(st.integers(0, 64))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_case_of_the_reference_holds(case):
    assert paged_continuous_batching(*case["args"]) == case["expect"]


@settings(max_examples=2000, deadline=None)
@given(runs())
def test_the_simulator_equals_the_oracle(run):
    assert paged_continuous_batching(*run) == contract_oracle(*run)


@settings(max_examples=500, deadline=None)
@given(runs())
def test_a_run_never_breaks_an_invariant(run):
    requests, _, total_pages, slots, max_ticks = run
    before = copy.deepcopy(run)
    result = paged_continuous_batching(*run)

    assert run == before, "the arguments were changed"
    assert json.loads(json.dumps(result)) == result
    assert len(result["steps"]) <= max_ticks
    active, tokens = set(), {}
    for step in result["steps"]:
        active |= set(step["admitted"])
        assert len(active) <= slots
        assert set(step["completed"]) <= set(step["decoded"]) <= active
        assert 0 <= step["pages"] <= total_pages
        for name in step["decoded"]:
            tokens[name] = tokens.get(name, 0) + 1
        active -= set(step["completed"])
    left = {entry["id"]: entry["generated"] for entry in result["active"]}
    assert set(left) == active
    for one in requests:
        emitted = tokens.get(one["id"], 0)
        assert emitted == left.get(one["id"], 0 if one["id"] in result["waiting"] else one["new_tokens"])


def test_a_freed_page_serves_a_later_request_in_the_same_tick():
    requests = [request("first", 1, 1), request("second", 1, 2)]
    steps = paged_continuous_batching(requests, page_size=1, total_pages=3, slots=2, max_ticks=1)["steps"]
    assert steps[0]["decoded"] == ["first", "second"]


def test_a_freed_slot_admits_only_at_the_next_tick():
    steps = paged_continuous_batching([request("a"), request("b")], 2, 9, slots=1, max_ticks=9)["steps"]
    assert [step["admitted"] for step in steps] == [["a"], ["b"]]


def test_a_head_that_does_not_fit_holds_back_those_behind_it():
    requests = [request("large", prompt_tokens=9), request("small")]
    result = paged_continuous_batching(requests, page_size=1, total_pages=8, slots=4, max_ticks=3)
    assert result["waiting"] == ["large", "small"]


def test_waiting_is_sorted_by_arrival_then_by_input_order():
    requests = [request("late", arrival=3), request("b", arrival=1), request("c", arrival=1)]
    assert paged_continuous_batching(requests, 1, 1, 1, max_ticks=0)["waiting"] == ["b", "c", "late"]


def test_five_requests_in_ten_pages_deadlock_and_stay_visible():
    requests = [request(name, prompt_tokens=8, new_tokens=4) for name in "abcde"]
    result = paged_continuous_batching(requests, page_size=4, total_pages=10, slots=5, max_ticks=6)
    assert [step["decoded"] for step in result["steps"]] == [[]] * 6
    assert [entry["pages"] for entry in result["active"]] == [2] * 5


def test_sizes_beyond_the_contracts_bounds_are_accepted():
    requests = [request(str(i), prompt_tokens=1000, new_tokens=50, arrival=i) for i in range(40)]
    result = paged_continuous_batching(requests, page_size=16, total_pages=10_000, slots=64, max_ticks=1000)
    assert sum(len(step["completed"]) for step in result["steps"]) == 40


def test_numpy_numbers_come_back_as_plain_ints():
    requests = [{"id": "a", **{field: np.int64(2) for field in ("prompt_tokens", "new_tokens", "arrival")}}]
    json.dumps(paged_continuous_batching(requests, *np.array([2, 2, 2, 9])))


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.nan, math.inf, "3", None, True, [1], 1j])
@pytest.mark.parametrize("field", ["prompt_tokens", "new_tokens", "arrival"])
def test_a_bad_number_names_the_request_and_the_field(field, bad):
    if field == "arrival" and bad == 0:
        bad = -0.5
    with pytest.raises((ValueError, TypeError), match=f"'guilty': {field} must be a whole number"):
        paged_continuous_batching([request("fine"), request("guilty") | {field: bad}], 1, 1, 1, 1)


@pytest.mark.parametrize("field", ["id", "prompt_tokens", "new_tokens", "arrival"])
def test_a_missing_field_is_named_with_its_request(field):
    incomplete = {key: value for key, value in request("b").items() if key != field}
    with pytest.raises(ValueError, match=rf"requests\[1\] .*{field} is missing"):
        paged_continuous_batching([request("a"), incomplete], 1, 1, 1, 1)


def test_a_repeated_id_is_refused():
    with pytest.raises(ValueError, match=r"requests\[1\]: id must be unique, but 'a' stands twice"):
        paged_continuous_batching([request("a"), request("a")], 1, 1, 1, 1)


def test_an_unhashable_id_is_refused():
    for name in (["a"], (["a"],)):
        with pytest.raises(TypeError, match=r"requests\[0\]: id must be hashable"):
            paged_continuous_batching([request(name)], 1, 1, 1, 1)


@pytest.mark.parametrize("bad", [{"id": "a"}, "abc", 5, None, [1], ["ab"], [None]])
def test_what_is_not_a_list_of_dicts_is_refused(bad):
    with pytest.raises(TypeError, match="dict"):
        paged_continuous_batching(bad, 1, 1, 1, 1)


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.nan, "3", None, True])
@pytest.mark.parametrize("position", range(4))
def test_a_bad_size_is_refused_by_name(position, bad):
    sizes = [4, 4, 4, 4]
    name = ("page_size", "total_pages", "slots", "max_ticks")[position]
    sizes[position] = -2 if name == "max_ticks" and bad == 0 else bad
    with pytest.raises((ValueError, TypeError), match=f"{name} must be a whole number"):
        paged_continuous_batching([request()], *sizes)
