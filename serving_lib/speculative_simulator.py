"""Speculative decoding with dice: coins for acceptance, one drafted token, and whole texts of a Markov chain.

Nothing here knows a formula of `speculative.py`: it is what those formulas are compared with.
"""

import numpy as np

from serving_lib.units import NONNEGATIVE, PROBABILITY, check_count, check_number


def simulate_speculative_rounds(acceptance, draft_length, rounds, seed=0):
    """Toss a coin for every drafted token, and count in each round the heads before the first tail.

    Parameters
    ----------
    acceptance : float or ndarray
        Probability in [0, 1] that a drafted token is accepted: one number; or an array that broadcasts to
        (rounds, draft_length), such as (rounds, 1) for an acceptance that belongs to the round.
    draft_length : int
        Nonnegative number of drafted tokens in a round.
    rounds : int
        Number of rounds, at least 1.
    seed : int
        Seed of the random generator.

    Returns
    -------
    ndarray of int, shape (rounds,)
        Accepted tokens of each round; the round emits one more, the target's own.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain.

    Examples
    --------
    >>> simulate_speculative_rounds(0.8, draft_length=4, rounds=6).tolist()
    [4, 0, 1, 0, 0, 4]
    """
    acceptance = check_number("acceptance", acceptance, PROBABILITY)
    draft_length = check_count("draft_length", draft_length, minimum=0)
    rounds = check_count("rounds", rounds, minimum=1)
    heads = np.random.default_rng(seed).random((rounds, draft_length)) < acceptance
    return np.cumprod(heads, axis=1, dtype=np.int64).sum(axis=1)


def residual_distribution(target, draft):
    """Return what a rejected token is replaced from: the part of the target that the draft offers too rarely.

    Parameters
    ----------
    target, draft : array_like, shape (..., tokens)
        Probabilities of the next token, each row with the sum one.

    Returns
    -------
    ndarray, shape (..., tokens)
        ``max(0, target - draft)``, scaled to the sum one. Where the two are equal nothing is ever rejected, and the
        target itself is returned.

    Raises
    ------
    TypeError, ValueError
        If a row is not a distribution, or the shapes differ.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Fast Inference from Transformers via Speculative Decoding, section 2.3.
    https://proceedings.mlr.press/v202/leviathan23a.html

    Examples
    --------
    >>> residual_distribution([0.5, 0.3, 0.2], [0.2, 0.6, 0.2]).tolist()
    [1.0, 0.0, 0.0]
    """
    target, draft = _distributions(target, draft)
    missing = np.maximum(target - draft, 0)
    total = missing.sum(axis=-1, keepdims=True)
    return np.where(total > 0, missing / np.where(total > 0, total, 1), target)


def simulate_speculative_token(target, draft, draws, seed=0, replacement=None):
    """Draft one token, accept or replace it, many times over.

    Parameters
    ----------
    target, draft : array_like, shape (tokens,)
        Probabilities of the next token; each sums to one.
    draws : int
        Number of repetitions, at least 1.
    seed : int
        Seed of the random generator.
    replacement : array_like, optional
        The distribution that replaces a rejected token; by default the residual, which is the right one.

    Returns
    -------
    tuple of ndarray
        The emitted token of each repetition, and whether it is the drafted one.

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain.

    Notes
    -----
    A token x of the draft is accepted with probability min(1, target(x) / draft(x)).

    Examples
    --------
    >>> tokens, accepted = simulate_speculative_token([0.5, 0.3, 0.2], [0.2, 0.6, 0.2], draws=10_000)
    >>> (np.bincount(tokens) / 10_000).round(2).tolist(), float(accepted.mean().round(2))
    ([0.5, 0.3, 0.2], 0.7)
    """
    target, draft = _distributions(target, draft)
    draws = check_count("draws", draws, minimum=1)
    if replacement is None:
        replacement = residual_distribution(target, draft)
    else:
        replacement, _ = _distributions(replacement, target, names=("replacement", "target"))
    rng = np.random.default_rng(seed)
    drafted = _draw(rng, np.broadcast_to(draft, (draws, len(draft))))
    accepted = rng.random(draws) * draft[drafted] < target[drafted]
    replaced = _draw(rng, np.broadcast_to(replacement, (draws, len(draft))))
    return np.where(accepted, drafted, replaced), accepted


def decode(target, length, texts=1, seed=0):
    """Write texts token by token, as a target model does alone.

    Parameters
    ----------
    target : array_like, shape (tokens, tokens)
        Row i holds the probabilities of the token that follows token i. Every text begins after token 0.
    length : int
        Tokens per text, at least 1.
    texts : int
        Number of independent texts.
    seed : int
        Seed of the random generator.

    Returns
    -------
    ndarray of int, shape (texts, length)

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain.

    Examples
    --------
    >>> decode([[0.1, 0.9], [0.5, 0.5]], length=8).tolist()
    [[1, 0, 0, 0, 1, 1, 1, 1]]
    """
    target, _ = _chains(target, target)
    length, texts = check_count("length", length, minimum=1), check_count("texts", texts, minimum=1)
    rng = np.random.default_rng(seed)
    tokens = np.zeros((texts, length + 1), dtype=np.int64)
    for position in range(length):
        tokens[:, position + 1] = _draw(rng, target[tokens[:, position]])
    return tokens[:, 1:]


def decode_speculatively(target, draft, length, draft_length, texts=1, seed=0):
    """Write texts in rounds: draft some tokens, keep those that the target accepts, add one of the target's own.

    Parameters
    ----------
    target, draft : array_like, shape (tokens, tokens)
        Row i holds the probabilities of the token that follows token i. Every text begins after token 0.
    length : int
        Tokens per text, at least 1; what the last round writes beyond is cut off.
    draft_length : int
        Nonnegative number of drafted tokens in a round.
    texts : int
        Number of independent texts.
    seed : int
        Seed of the random generator.

    Returns
    -------
    tuple of ndarray of int
        The texts, shape (texts, length), and how many rounds each took, shape (texts,).

    Raises
    ------
    TypeError, ValueError, pint.DimensionalityError
        If an argument is outside its domain.

    References
    ----------
    Leviathan, Kalman and Matias (2023), Fast Inference from Transformers via Speculative Decoding, Algorithm 1.
    https://proceedings.mlr.press/v202/leviathan23a.html

    Examples
    --------
    >>> target, draft = [[0.1, 0.9], [0.5, 0.5]], [[0.3, 0.7], [0.5, 0.5]]
    >>> tokens, rounds = decode_speculatively(target, draft, length=8, draft_length=3)
    >>> tokens.tolist(), rounds.tolist()
    ([[1, 0, 1, 1, 1, 1, 0, 1]], [3])
    """
    target, draft = _chains(target, draft)
    length, texts = check_count("length", length, minimum=1), check_count("texts", texts, minimum=1)
    draft_length = check_count("draft_length", draft_length, minimum=0)
    residual = residual_distribution(target, draft)
    rng = np.random.default_rng(seed)
    tokens = np.zeros((texts, length + 1), dtype=np.int64)
    written, rounds = np.zeros(texts, dtype=np.int64), np.zeros(texts, dtype=np.int64)
    while len(unfinished := np.flatnonzero(written < length)):
        drafted = [tokens[unfinished, written[unfinished]]]
        for _ in range(draft_length):
            drafted.append(_draw(rng, draft[drafted[-1]]))
        drafted = np.array(drafted)  # shape (1 + draft_length, unfinished); row 0 is the last token that is written
        before, proposed = drafted[:-1], drafted[1:]
        heads = rng.random(proposed.shape) * draft[before, proposed] < target[before, proposed]
        accepted = np.cumprod(heads, axis=0, dtype=np.int64).sum(axis=0)
        last = drafted[accepted, np.arange(len(unfinished))]
        rejected = accepted < draft_length
        drafted = np.vstack([proposed, last])
        own = _draw(rng, np.where(rejected[:, None], residual[last], target[last]))
        drafted[accepted, np.arange(len(unfinished))] = own
        for offset, token in enumerate(drafted):
            fits = (offset <= accepted) & (written[unfinished] + offset < length)
            tokens[unfinished[fits], written[unfinished[fits]] + offset + 1] = token[fits]
        written[unfinished] += accepted + 1
        rounds[unfinished] += 1
    return tokens[:, 1:], rounds


def _draw(rng, probabilities):
    """Draw one token from each row of probabilities."""
    below = np.cumsum(probabilities, axis=-1)
    # Scaled by the sum, which rounding leaves a little off one: a token of probability zero is never drawn.
    return (rng.random((len(below), 1)) * below[:, -1:] >= below).sum(axis=-1)


def _distributions(target, draft, names=("target", "draft")):
    """Return two arrays of distributions of one shape."""
    arrays = []
    for name, values in zip(names, (target, draft), strict=True):
        values = np.asarray(check_number(name, np.asarray(values, dtype=float), NONNEGATIVE))
        if values.ndim == 0 or values.shape[-1] == 0:
            raise ValueError(f"{name} must be a list of probabilities, got {values}")
        if not np.allclose(values.sum(axis=-1), 1, rtol=0, atol=1e-9):
            raise ValueError(f"{name} must sum to one, got {values.sum(axis=-1).tolist()}; divide it by its sum")
        arrays.append(values)
    if arrays[0].shape != arrays[1].shape:
        raise ValueError(f"{names[0]} and {names[1]} must have one shape, got {arrays[0].shape} and {arrays[1].shape}")
    return arrays


def _chains(target, draft):
    """Return two square matrices of probabilities of the next token."""
    target, draft = _distributions(target, draft)
    if target.ndim != 2 or target.shape[0] != target.shape[1]:
        raise ValueError(f"target must have one row of probabilities for each token, got shape {target.shape}")
    return target, draft
