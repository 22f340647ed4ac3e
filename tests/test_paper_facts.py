"""Every number of `golden/paper_facts.json` that the library can compute reproduces as well as the table claims."""

import pytest

from tests.paper_facts import (
    COMPUTED,
    FACTS,
    NEEDS_TRACES,
    NOT_COMPUTED,
    Traces,
    Within,
    checks,
    rounds_to,
    summary,
    tier,
)


@pytest.fixture(scope="session")
def traces(shared_data):
    return Traces(shared_data)


def describe(id):
    return f"{id} {FACTS[id]['paper'][:30]}"


def assert_holds(found):
    assert found, "a fact without a check proves nothing"
    for check in found:
        assert check.holds(), check


@pytest.mark.parametrize("id", [id for id in COMPUTED if id not in NEEDS_TRACES], ids=describe)
def test_a_fact_reproduces_in_its_tier(id):
    assert_holds(checks(id))


@pytest.mark.parametrize("id", sorted(NEEDS_TRACES), ids=describe)
def test_a_fact_about_the_real_traces_reproduces_in_its_tier(id, traces):
    assert_holds(checks(id, traces))


def test_every_fact_is_computed_or_has_a_reason_why_not():
    skipped = [id for missing in NOT_COMPUTED.values() for id in missing]
    assert len(skipped) == len(set(skipped))
    assert not set(skipped) & set(COMPUTED)
    assert set(skipped) | set(COMPUTED) == set(FACTS)


def test_of_the_twelve_predicted_speedups_nine_reproduce_to_the_digit_and_three_within_their_rounding():
    found = [tier(checks(f"F{number:03d}")).__name__ for number in range(12, 24)]
    assert (found.count("Printed"), found.count("Within")) == (9, 3)


def test_the_scaling_book_table_gives_24_numbers_and_what_a_batch_of_240_buys():
    full, grouped = checks("F170"), checks("F171")
    assert len(full) + len(grouped) == 24
    gain = [cells[-1].computed / cells[1].computed for cells in (full, grouped)]
    assert [round(value, 1) for value in gain] == [4.8, 18.9]


def test_what_merely_rounds_differently_would_be_noticed():
    assert rounds_to(1.964, 1.96, 2)
    assert not rounds_to(1.966, 1.96, 2)
    assert rounds_to(1469, 1500, -2)
    assert not Within("x", 1.0, 0.9, 1.1, 1.0, 1).holds(), "a number that rounds to the print is in the tier above"
    assert not Within("x", 1.0, 0.9, 1.1, 2.0, 1).holds()


def test_the_summary_counts_every_fact_once():
    lines = summary()
    counts = [int(line.split()[0]) for line in lines[1 : lines.index("Numbers that do not reproduce:")]]
    assert sum(counts) == len(FACTS)
