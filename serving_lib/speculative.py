"""Speculative decoding: how many tokens a round emits, and how much time it saves."""

import numpy as np

from serving_lib.units import FRACTION, NONNEGATIVE, check_count, check_number, plain


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
