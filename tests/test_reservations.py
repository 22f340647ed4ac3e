"""The buddy allocator loses no slot, and the reservations of the paging paper's baselines are what it says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib.reservations import RESERVATIONS, BuddyAllocator, calc_reserved_tokens, simulate_reservations

# ---------------------------------------------------------------------------------------------------------------------
# The allocator
# ---------------------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(slots=st.integers(1, 200), data=st.data())
def test_blocks_never_overlap_and_lie_at_multiples_of_their_size(slots, data):
    memory, taken = BuddyAllocator(slots), {}
    for size in data.draw(st.lists(st.integers(-5, 40), max_size=40)):
        if size > 0:
            start = memory.allocate(size)
            if start is not None:
                assert size <= memory.used[start] < 2 * size
                assert start % memory.used[start] == 0
                taken[start] = memory.used[start]
        elif taken:
            start = sorted(taken)[size % len(taken)]
            memory.free(start)
            del taken[start]
        covered = [slot for start, block in taken.items() for slot in range(start, start + block)]
        assert len(covered) == len(set(covered))
        assert not covered or max(covered) < slots


@settings(max_examples=200, deadline=None)
@given(slots=st.integers(1, 200), sizes=st.lists(st.integers(1, 40), max_size=30), seed=st.integers(0, 99))
def test_when_all_is_freed_the_largest_blocks_are_back(slots, sizes, seed):
    memory = BuddyAllocator(slots)
    taken = [start for start in map(memory.allocate, sizes) if start is not None]
    for i in np.random.default_rng(seed).permutation(len(taken)):
        memory.free(taken[i])
    powers = [1 << k for k in reversed(range(slots.bit_length())) if slots >> k & 1]
    assert all(memory.allocate(power) is not None for power in powers)
    assert memory.allocate(1) is None


def test_a_block_is_refused_only_if_no_aligned_gap_holds_it():
    memory = BuddyAllocator(16)
    first, second = memory.allocate(4), memory.allocate(4)
    third = memory.allocate(4)
    memory.free(first)
    memory.free(third)
    assert memory.allocate(8) == 8  # the third joined the last quarter
    assert memory.allocate(5) is None  # a quarter is free, and five slots take a half
    memory.free(second)
    assert memory.allocate(5) == 0


def test_seven_of_the_longest_sequences_fit_into_the_memory_of_the_paper():
    memory = BuddyAllocator(15_728)
    assert [memory.allocate(2048) is not None for _ in range(8)] == [True] * 7 + [False]


def test_a_block_is_freed_once():
    memory = BuddyAllocator(8)
    memory.free(memory.allocate(3))
    with pytest.raises(ValueError, match="start must be the first slot of a block that is taken, got 0"):
        memory.free(0)


def test_of_free_blocks_that_fit_alike_the_lowest_is_taken():
    memory = BuddyAllocator(16)
    quarters = [memory.allocate(4) for _ in range(4)]
    memory.free(quarters[2])
    memory.free(quarters[0])
    assert memory.allocate(4) == 0


@pytest.mark.parametrize("size", [0, -3])
def test_a_block_has_at_least_one_slot(size):
    with pytest.raises(ValueError, match=f"size must be at least 1 slot, got {size}"):
        BuddyAllocator(8).allocate(size)


# ---------------------------------------------------------------------------------------------------------------------
# The sizes of reservations
# ---------------------------------------------------------------------------------------------------------------------


def test_a_true_output_of_25_reserves_32_as_the_paper_has_it():
    assert calc_reserved_tokens(1, 25, "reserve_pow2", 2048) - 1 == 32


@pytest.mark.parametrize(("new", "power"), [(1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048 - 10)])
def test_powers_of_two_stay_and_no_reservation_is_longer_than_a_sequence(new, power):
    assert calc_reserved_tokens(10, new, "reserve_pow2", 2048) == 10 + power


def test_reservations_of_arrays_are_those_of_their_elements():
    prompt, new = np.array([1, 70, 300]), np.array([9, 64, 1700])
    for scheme in RESERVATIONS:
        each = [calc_reserved_tokens(int(p), int(n), scheme, 2048) for p, n in zip(prompt, new, strict=True)]
        assert calc_reserved_tokens(prompt, new, scheme, 2048).tolist() == each


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 1, "paged", 9), "reservation must be one of 'reserve_max', 'reserve_pow2', 'reserve_exact', got 'paged'"),
        ((8, 2, "reserve_exact", 9), "must be at most max_model_len = 9, got 10"),
        ((0, 2, "reserve_exact", 9), "prompt_tokens"),
    ],
)
def test_a_wrong_request_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        calc_reserved_tokens(*arguments)


# ---------------------------------------------------------------------------------------------------------------------
# Where the memory goes
# ---------------------------------------------------------------------------------------------------------------------


def step_by_step(prompt, new, slots, reservation, max_model_len):
    """The same run, one step and one token at a time; the sums of each step until the last admission."""
    memory, waiting, running, gone, first_fitted, rows = (
        BuddyAllocator(slots),
        list(range(len(prompt))),
        {},
        0,
        None,
        [],
    )
    reserved = [int(calc_reserved_tokens(p, n, reservation, max_model_len)) for p, n in zip(prompt, new, strict=True)]
    while True:
        while waiting and (start := memory.allocate(reserved[waiting[0]])) is not None:
            running[waiting.pop(0)] = [start, 0]
        if not waiting:
            return np.mean(rows, axis=0) / slots
        first_fitted = first_fitted or len(running)
        for i in running:
            running[i][1] += 1
        if gone >= first_fitted:
            rows.append(
                (
                    sum(prompt[i] + done for i, (_, done) in running.items()),
                    sum(new[i] - done for i, (_, done) in running.items()),
                    sum(reserved[i] - prompt[i] - new[i] for i in running),
                    sum(memory.used[start] - reserved[i] for i, (start, _) in running.items()),
                    slots - sum(memory.used.values()),
                    len(running) * slots,
                )
            )
        for i in [i for i, (_, done) in running.items() if done == new[i]]:
            memory.free(running.pop(i)[0])
            gone += 1


@pytest.mark.parametrize("reservation", RESERVATIONS)
def test_the_shares_are_those_of_a_run_that_is_counted_step_by_step(reservation):
    rng = np.random.default_rng(3)
    prompt, new = rng.integers(1, 30, 200).tolist(), rng.integers(1, 33, 200).tolist()
    uses = simulate_reservations(prompt, new, 500, reservation, 64)
    found = np.mean([(u.token_states, u.reservation, u.internal, u.rounding, u.free, u.requests) for u in uses], axis=0)
    np.testing.assert_allclose(found, step_by_step(prompt, new, 500, reservation, 64), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("reservation", RESERVATIONS)
def test_the_shares_add_up_to_the_memory(reservation):
    for use in simulate_reservations([20] * 300, [30] * 300, 1000, reservation, 128):
        assert use.token_states + use.reservation + use.internal + use.external == pytest.approx(1)


def test_too_few_requests_are_refused():
    with pytest.raises(ValueError, match="3 do not fill the memory twice"):
        simulate_reservations([1, 1, 1], [1, 1, 1], 1000, "reserve_exact", 10)


def test_a_sequence_that_fits_into_no_block_is_refused():
    with pytest.raises(ValueError, match="largest block"):
        simulate_reservations([100, 100], [100, 100], 300, "reserve_max", 290)
