"""The dice of speculative decoding against exact fractions, exact text probabilities and what holds by definition."""

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_lib.queue_simulator import mean_interval
from serving_lib.speculative_simulator import (
    decode,
    decode_speculatively,
    residual_distribution,
    simulate_speculative_rounds,
    simulate_speculative_token,
)

weights = st.lists(st.integers(0, 20), min_size=2, max_size=6).filter(any)
pairs = st.integers(2, 6).flatmap(
    lambda size: st.tuples(*2 * [st.lists(st.integers(0, 20), min_size=size, max_size=size).filter(any)])
)
TARGET = np.array([[0.05, 0.6, 0.35], [0.3, 0.1, 0.6], [0.5, 0.5, 0.0]])
DRAFT = np.array([[0.3, 0.3, 0.4], [0.6, 0.2, 0.2], [0.1, 0.4, 0.5]])


def p_value(counts, probabilities):
    """Pearson's test: the probability of counts at least this far from what is expected."""
    counts, expected = np.ravel(counts), np.ravel(counts).sum() * np.ravel(probabilities)
    assert not counts[expected == 0].any(), "something impossible happened"
    rare = (expected > 0) & (expected < 5)  # too few for the limit theorem: counted together
    counts = np.append(counts[expected >= 5], counts[rare].sum())
    expected = np.append(expected[expected >= 5], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    distance = ((counts - expected) ** 2 / expected).sum()
    return float(mpmath.gammainc((len(expected) - 1) / 2, distance / 2, mpmath.inf, regularized=True))


def capped_geometric(acceptance, draft_length):
    """Probability of 0, 1, ... accepted drafts, in exact fractions."""
    alpha = Fraction(acceptance)
    return [alpha**k * (1 - alpha) for k in range(draft_length)] + [alpha**draft_length]


# --- rounds --------------------------------------------------------------------------------------------------------

GRID = [(alpha, length) for alpha in (0.25, 0.5, 0.75, 0.875) for length in (1, 2, 4, 8)]


@pytest.mark.parametrize(("acceptance", "draft_length"), GRID)
def test_accepted_drafts_follow_the_capped_geometric_law(acceptance, draft_length):
    law = capped_geometric(acceptance, draft_length)
    accepted = simulate_speculative_rounds(acceptance, draft_length, rounds=200_000, seed=5)
    counts = np.bincount(accepted, minlength=draft_length + 1)
    assert p_value(counts, np.array(law, dtype=float)) > 0.01 / len(GRID)


@pytest.mark.parametrize(("acceptance", "draft_length"), GRID)
def test_the_mean_agrees_with_the_geometric_sum_and_not_with_the_common_mistakes(acceptance, draft_length):
    accepted = simulate_speculative_rounds(acceptance, draft_length, rounds=200_000, seed=6)
    interval = mean_interval(accepted + 1, confidence=1 - 0.01 / len(GRID), warmup=0)
    assert float(sum(Fraction(acceptance) ** i for i in range(draft_length + 1))) in interval
    assert 1 + acceptance**draft_length not in interval or draft_length == 1
    assert 1 + acceptance * draft_length not in interval or draft_length == 1
    assert 1 / (1 - acceptance) not in interval or acceptance**draft_length < 0.01


def test_certain_coins_need_no_luck():
    assert set(simulate_speculative_rounds(0.0, 5, rounds=100)) == {0}
    assert set(simulate_speculative_rounds(1.0, 5, rounds=100)) == {5}
    assert set(simulate_speculative_rounds(0.5, 0, rounds=100)) == {0}


def test_an_acceptance_may_belong_to_a_round_or_to_a_token():
    by_round = np.array([[1.0], [0.0], [1.0]])
    assert simulate_speculative_rounds(by_round, 3, rounds=3).tolist() == [3, 0, 3]
    by_token = np.array([[1.0, 1.0, 0.0, 1.0]])
    assert simulate_speculative_rounds(by_token, 4, rounds=2).tolist() == [2, 2]


def test_a_seed_gives_the_same_rounds_again_and_another_seed_others():
    first, again, other = (simulate_speculative_rounds(0.5, 6, rounds=50, seed=seed) for seed in (3, 3, 4))
    assert first.tolist() == again.tolist() != other.tolist()


# --- one token -----------------------------------------------------------------------------------------------------


@given(pairs)
def test_what_is_kept_and_what_is_replaced_add_up_to_the_target(pair):
    target, draft = (np.array(row) / sum(row) for row in pair)
    overlap = np.minimum(target, draft)
    emitted = overlap + (1 - overlap.sum()) * residual_distribution(target, draft)
    np.testing.assert_allclose(emitted, target, rtol=0, atol=1e-12)


@given(weights)
def test_where_nothing_is_rejected_the_residual_is_the_target(row):
    target = np.array(row) / sum(row)
    np.testing.assert_array_equal(residual_distribution(target, target), target)


DISTRIBUTIONS = [
    ([0.5, 0.3, 0.2], [0.2, 0.6, 0.2]),
    ([0.4, 0.1, 0.3, 0.2], [0.2, 0.4, 0.3, 0.1]),
    ([0.9, 0.1], [0.1, 0.9]),
    ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5]),
    ([0.0, 0.25, 0.75], [0.5, 0.25, 0.25]),
]


@pytest.mark.parametrize(("target", "draft"), DISTRIBUTIONS)
def test_the_emitted_token_is_distributed_as_the_target(target, draft):
    tokens, accepted = simulate_speculative_token(target, draft, draws=200_000, seed=8)
    counts = np.bincount(tokens, minlength=len(target))
    if max(target) < 1:
        assert p_value(counts, np.array(target)) > 0.01 / len(DISTRIBUTIONS)
    else:
        assert counts[np.argmax(target)] == len(tokens)
    overlap = sum(map(min, zip(target, draft, strict=True)))
    assert overlap in mean_interval(accepted.astype(float), confidence=1 - 0.01 / len(DISTRIBUTIONS), warmup=0)


def test_the_test_would_notice_a_replacement_from_the_target_itself():
    target, draft = DISTRIBUTIONS[1]
    tokens, _ = simulate_speculative_token(target, draft, draws=200_000, seed=8, replacement=target)
    assert p_value(np.bincount(tokens, minlength=4), np.array(target)) < 1e-12


# --- texts ---------------------------------------------------------------------------------------------------------


def text_probabilities(chain, length):
    """Probability of every text of a length, after token 0."""
    size = len(chain)
    table = np.empty((size,) * length)
    for text in itertools.product(range(size), repeat=length):
        steps = zip((0, *text), text, strict=False)
        table[text] = np.prod([chain[before, token] for before, token in steps])
    return table


def count_texts(texts, size):
    counts = np.zeros((size,) * texts.shape[1], dtype=int)
    np.add.at(counts, tuple(texts.T), 1)
    return counts


LENGTHS = (0, 1, 2, 3, 7)


@pytest.mark.parametrize("draft_length", LENGTHS)
def test_whole_texts_are_distributed_as_the_targets_own(draft_length):
    texts, _ = decode_speculatively(TARGET, DRAFT, 3, draft_length, texts=60_000, seed=draft_length)
    assert p_value(count_texts(texts, 3), text_probabilities(TARGET, 3)) > 0.01 / (len(LENGTHS) + 1)


def test_the_target_alone_writes_texts_of_its_own_distribution():
    texts = decode(TARGET, 3, texts=60_000, seed=9)
    assert p_value(count_texts(texts, 3), text_probabilities(TARGET, 3)) > 0.01 / (len(LENGTHS) + 1)


def test_the_test_would_notice_texts_of_the_draft():
    possible = np.where(TARGET > 0, DRAFT, 0)
    texts = decode(possible / possible.sum(axis=1, keepdims=True), 3, texts=60_000, seed=9)
    assert p_value(count_texts(texts, 3), text_probabilities(TARGET, 3)) < 1e-12


@pytest.mark.parametrize("draft_length", [0, 1, 3, 5])
def test_a_perfect_draft_fills_every_round(draft_length):
    _, rounds = decode_speculatively(TARGET, TARGET, 20, draft_length, texts=50)
    assert set(rounds) == {-(-20 // (draft_length + 1))}


def test_a_draft_that_is_never_right_leaves_one_token_per_round():
    target, draft = np.tile([0.5, 0.5, 0.0], (3, 1)), np.tile([0.0, 0.0, 1.0], (3, 1))
    texts, rounds = decode_speculatively(target, draft, 20, 4, texts=50)
    assert set(rounds) == {20}
    assert set(texts.ravel()) == {0, 1}


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(0, 9), st.integers(1, 30))
def test_without_dice_speculation_writes_the_same_text(seed, draft_length, length):
    rng = np.random.default_rng(seed)
    target, draft = (np.eye(5)[rng.integers(5, size=5)] for _ in range(2))
    texts, _ = decode_speculatively(target, draft, length, draft_length, texts=2, seed=seed)
    assert texts.tolist() == decode(target, length, texts=2, seed=seed + 1).tolist()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(0, 9), st.integers(1, 30))
def test_a_text_takes_no_more_rounds_than_tokens_and_no_fewer_than_full_rounds(seed, draft_length, length):
    _, rounds = decode_speculatively(TARGET, DRAFT, length, draft_length, texts=3, seed=seed)
    assert (rounds <= length).all()
    assert (rounds >= -(-length // (draft_length + 1))).all()


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: simulate_speculative_rounds(1.2, 4, 10), ValueError, "acceptance must be in"),
        (lambda: simulate_speculative_rounds(0.5, -1, 10), ValueError, "draft_length"),
        (lambda: simulate_speculative_rounds(0.5, 4, 0), ValueError, "rounds"),
        (lambda: residual_distribution([0.5, 0.6], [0.5, 0.5]), ValueError, "target must sum to one, got 1.1"),
        (lambda: residual_distribution([1.5, -0.5], [0.5, 0.5]), ValueError, "target must be nonnegative"),
        (lambda: residual_distribution([0.5, 0.5], [1.0]), ValueError, "must have one shape"),
        (lambda: residual_distribution([0.5, 0.5], 1.0), ValueError, "draft must be a list of probabilities"),
        (lambda: simulate_speculative_token([1.0], [1.0], 5, replacement=[0.5]), ValueError, "replacement"),
        (lambda: decode([0.5, 0.5], 5), ValueError, "one row of probabilities for each token"),
        (lambda: decode(np.eye(2), 0), ValueError, "length"),
        (lambda: decode_speculatively(np.eye(2), np.eye(3), 5, 2), ValueError, "must have one shape"),
    ],
)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
