"""Speculative decoding: how many tokens a round emits, and how much time it saves."""

import bisect
import math

import numpy as np

from serving_lib.units import FRACTION, NONNEGATIVE, POSITIVE, PROBABILITY, check_count, check_number, plain


def calc_speculative_expected_tokens(acceptance, draft_length):
    """Calculate expected emitted tokens per speculative round.

    Parameters
    ----------
    acceptance : float or ndarray
        Probability alpha in [0, 1) that a drafted token is accepted, each independently.
    draft_length : int or ndarray
        Nonnegative number K of drafted tokens.

    Returns
    -------
    float or ndarray
        Mean tokens per round, the target's own token included.

    Raises
    ------
    ValueError
        If the acceptance is outside [0, 1), or the draft length negative or not whole.
    pint.DimensionalityError
        If an argument carries a dimension.
    TypeError
        If an argument is not a number.

    Notes
    -----
    E = sum of alpha^i for i = 0..K = (1 - alpha^(K+1)) / (1 - alpha): verification stops at the first rejection,
    and the target always adds one token. It excludes acceptance that varies with the context, and every cost.

    Taught in lecture 03, section 1. Breaks first when acceptance varies with the context.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Fast Inference from Transformers via Speculative Decoding, Eq. 1.
    https://proceedings.mlr.press/v202/leviathan23a.html

    Examples
    --------
    >>> round(calc_speculative_expected_tokens(0.8, 4), 4)
    3.3616
    """
    alpha = check_number("acceptance", acceptance, FRACTION)
    drafts = check_count("draft_length", draft_length, minimum=0)
    rejected = 1 - np.asarray(alpha, dtype=float)
    with np.errstate(divide="ignore"):  # alpha = 0: log is -inf, and one token is emitted
        all_accepted = (np.asarray(drafts, dtype=float) + 1) * np.log1p(-rejected)
    return plain(-np.expm1(all_accepted) / rejected)


def calc_speculative_round_speedup(accepted_per_round, draft_length, draft_cost_ratio):
    """Calculate a speculative-round decode speedup under fixed step costs.

    Parameters
    ----------
    accepted_per_round : float or ndarray
        Nonnegative mean number m of accepted drafted tokens per round, without the target's own token.
    draft_length : int or ndarray
        Nonnegative number gamma of draft steps per round.
    draft_cost_ratio : float or ndarray
        Nonnegative time r of a draft step over that of a target step.

    Returns
    -------
    float or ndarray
        Speedup in time per token over decoding with the target alone; below one it is a slowdown.

    Raises
    ------
    ValueError
        If an argument is negative, infinite or NaN, or the draft length not whole.
    pint.DimensionalityError
        If an argument carries a dimension.
    TypeError
        If an argument is not a number.

    Notes
    -----
    (m + 1) / (gamma r + 1): drafts run one after another, and verifying costs one target step whatever gamma is.
    It excludes verification that grows with the batch, KV memory and communication.

    Taught in lecture 03, section 4. Breaks first when the batch grows, and checking is no longer free.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Fast Inference from Transformers via Speculative Decoding, Theorem 3.8.
    https://proceedings.mlr.press/v202/leviathan23a.html

    Examples
    --------
    >>> round(calc_speculative_round_speedup(2.3616, 4, 0.05), 3)
    2.801
    """
    accepted = check_number("accepted_per_round", accepted_per_round, NONNEGATIVE)
    drafts = check_count("draft_length", draft_length, minimum=0)
    ratio = check_number("draft_cost_ratio", draft_cost_ratio, NONNEGATIVE)
    return plain((accepted + 1) / (drafts * ratio + 1))


def calc_acceptance_rate(target, draft):
    """Calculate the probability that a token drafted from one distribution is accepted by another.

    Parameters
    ----------
    target : array_like of float, shape (vocabulary,)
        The target model's probabilities p: nonnegative, adding up to one.
    draft : array_like of float, shape (vocabulary,)
        The draft model's probabilities q: nonnegative, adding up to one, over the same vocabulary.

    Returns
    -------
    float
        Acceptance alpha in [0, 1].

    Raises
    ------
    ValueError
        If a probability is outside [0, 1], the two differ in shape, or one does not add up to one within 1e-6.
    TypeError
        If they are not numbers.

    Notes
    -----
    alpha = sum of min(p, q) = 1 - total variation distance: a draft x is kept with probability min(1, p(x) / q(x)).
    After a rejection the target draws from the residual max(p - q, 0), normalized, which makes the emitted tokens
    distributed exactly as p.

    Taught in lecture 03, section 2. Breaks first when one rate stands for every context.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Fast Inference from Transformers via Speculative Decoding, Corollary 3.6.
    https://proceedings.mlr.press/v202/leviathan23a.html

    Examples
    --------
    >>> calc_acceptance_rate([0.5, 0.3, 0.2], [0.2, 0.6, 0.2])
    0.7
    """
    target, draft = _distribution("target", target), _distribution("draft", draft)
    if target.shape != draft.shape:
        raise ValueError(f"target and draft must be over one vocabulary, got shapes {target.shape} and {draft.shape}")
    return min(1.0, math.fsum(np.minimum(target, draft)))


def calc_speculative_best_draft_length(acceptance, draft_cost_ratio):
    """Calculate the draft length that speeds decoding up the most.

    Parameters
    ----------
    acceptance : float
        Probability alpha in [0, 1) that a drafted token is accepted, each independently.
    draft_cost_ratio : float
        Positive time c of a draft step over that of a target step. Drafts that cost nothing have no best length.

    Returns
    -------
    int
        Number of drafted tokens per round; 0 where speculation does not pay. Of two equally good lengths, the shorter.

    Raises
    ------
    ValueError
        If the acceptance is outside [0, 1), or the cost not positive and finite.
    pint.DimensionalityError
        If an argument carries a dimension.
    TypeError
        If an argument is not a number, or is an array.

    Notes
    -----
    The gamma with the largest E(gamma) / (gamma c + 1), with E from `calc_speculative_expected_tokens`. One more draft
    pays while alpha^(gamma + 1) (gamma c + 1) > c E(gamma); the left minus the right falls with gamma, so bisection
    finds the end.
    Speculation pays at all exactly where alpha > c.

    Taught in lecture 03, section 4. Breaks first when the batch grows, and checking is no longer free.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Fast Inference from Transformers via Speculative Decoding, section 3.5.
    https://proceedings.mlr.press/v202/leviathan23a.html

    Examples
    --------
    >>> calc_speculative_best_draft_length(0.8, 0.05)
    8
    """
    alpha = check_number("acceptance", acceptance, FRACTION)
    cost = check_number("draft_cost_ratio", draft_cost_ratio, POSITIVE)
    if np.ndim(alpha) or np.ndim(cost):
        raise TypeError("acceptance and draft_cost_ratio must be single numbers, got an array")
    if alpha <= cost:
        return 0

    def is_long_enough(drafts):
        gain = alpha ** (drafts + 1) * (drafts * cost + 1)
        return gain <= cost * calc_speculative_expected_tokens(alpha, drafts)

    longest = 1
    while not is_long_enough(longest):
        longest *= 2
    return bisect.bisect_left(range(longest), True, key=is_long_enough)


def calc_speculative_break_even_batch(acceptance, draft_length, draft_cost_ratio, knee):
    """Calculate the batch size at which speculation stops to speed decoding up.

    Parameters
    ----------
    acceptance : float or ndarray
        Probability alpha in [0, 1) that a drafted token is accepted, each independently.
    draft_length : int or ndarray
        Nonnegative number gamma of drafted tokens per round.
    draft_cost_ratio : float or ndarray
        Nonnegative time c of a draft step over that of a target step.
    knee : float or ndarray
        Positive number of tokens in one forward pass at which arithmetic takes as long as reading the weights: peak
        operations per second over bytes per second for 16-bit weights.

    Returns
    -------
    float or ndarray
        Batch size, not rounded; 0 where speculation does not pay even for a single request.

    Raises
    ------
    ValueError
        If an argument is outside its domain.
    pint.DimensionalityError
        If an argument carries a dimension.
    TypeError
        If an argument is not a number.

    Notes
    -----
    B* = (E - gamma c) knee / (gamma + 1), E from `calc_speculative_expected_tokens`. Below the knee a target step takes
    one unit of time, and a round emits E tokens in gamma c units of drafting and one verification of B (gamma + 1)
    tokens, which takes max(1, B (gamma + 1) / knee). It excludes the KV cache, which is read once per round and
    moves the break-even up for long contexts.

    Taught in lecture 03, section 7. Breaks first when contexts are long, and the KV cache is most of what a step
    reads.

    References
    ----------
    Derivation above.

    Examples
    --------
    >>> round(calc_speculative_break_even_batch(0.7, 4, 0.05, knee=989 / 3.35), 1)
    151.9
    """
    cost = check_number("draft_cost_ratio", draft_cost_ratio, NONNEGATIVE)
    knee = check_number("knee", knee, POSITIVE)
    tokens = calc_speculative_expected_tokens(acceptance, draft_length)
    drafts = check_count("draft_length", draft_length, minimum=0)
    affordable = tokens - drafts * cost  # the longest verification that still pays, in target steps
    return plain(np.where(affordable >= 1, affordable * knee / (drafts + 1), 0.0))


def _distribution(name, probabilities):
    """Return probabilities that add up to one, as an array."""
    values = np.array(probabilities) if isinstance(probabilities, list | tuple) else probabilities
    values = np.asarray(check_number(name, values, PROBABILITY), dtype=float)
    if values.ndim != 1:
        raise ValueError(f"{name} must be a one-dimensional array of probabilities, got shape {values.shape}")
    total = math.fsum(values)
    if abs(total - 1) > 1e-6:
        raise ValueError(f"{name} must add up to 1, got {total}; divide it by its sum")
    return values
