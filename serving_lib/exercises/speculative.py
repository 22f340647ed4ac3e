"""Exercises of lecture 03: tokens per round, acceptance, the best draft length, measured loops, batches, contexts."""

from math import fsum

import numpy as np

from serving_lib.exercises.framework import Exercise, Misconception
from serving_lib.models import GPUS
from serving_lib.queueing import first_float
from serving_lib.speculative import (
    calc_acceptance_rate,
    calc_speculative_best_draft_length,
    calc_speculative_break_even_batch,
    calc_speculative_expected_tokens,
    calc_speculative_round_speedup,
)
from serving_lib.units import ureg


def one_round():
    """Return the expected tokens of a round."""
    acceptance, drafts = 0.8, 4
    return {
        "acceptance": acceptance,
        "drafts": drafts,
        "powers": [acceptance**i for i in range(drafts + 1)],
        "tokens": calc_speculative_expected_tokens(acceptance, drafts),
    }


def two_distributions():
    """Return the acceptance and the residual distribution of a target and a draft over three tokens."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.6, 0.2])
    excess = np.maximum(p - q, 0)
    return {
        "p": p.tolist(),
        "q": q.tolist(),
        "overlap": np.minimum(p, q).tolist(),
        "acceptance": calc_acceptance_rate(p, q),
        "excess": excess.tolist(),
        "residual": (excess / excess.sum()).tolist(),
    }


def three_drafts():
    """Return the best draft length for three pairs of acceptance and cost, and the speed-up there."""
    acceptances, costs = (0.8, 0.8, 0.6), (0.05, 0.2, 0.1)
    pairs = list(zip(acceptances, costs, strict=True))
    lengths = [calc_speculative_best_draft_length(*pair) for pair in pairs]
    speedups = [speedup(*pair, length) for pair, length in zip(pairs, lengths, strict=True)]
    return {
        "acceptances": acceptances,
        "costs": costs,
        "lengths": lengths,
        "speedups": speedups,
        "one_more": [speedup(*pair, length + 1) for pair, length in zip(pairs, lengths, strict=True)],
        "without_bonus": [
            max(range(1, 30), key=lambda k, a=a, c=c: (calc_speculative_expected_tokens(a, k) - 1) / (k * c + 1))
            for a, c in pairs
        ],
        "mean_run": [round(1 / (1 - a)) for a in acceptances],
    }


def speedup(acceptance, cost, drafts):
    """Return the speed-up of rounds with this many drafts."""
    return calc_speculative_round_speedup(calc_speculative_expected_tokens(acceptance, drafts) - 1, drafts, cost)


def the_loops_of_chen():
    """Return tokens per loop and acceptance implied by Chen et al. (2023), Table 1, where a loop is 1 + 4 steps."""
    target, draft, drafts = 14.1 * ureg.ms, 1.8 * ureg.ms, 4
    per_token = [7.52, 7.0, 5.73]  # ms: XSum nucleus, XSum greedy, HumanEval
    loop = target + drafts * draft
    tokens = [loop.m_as("ms") / each for each in per_token]
    return {
        "target": target,
        "draft": draft,
        "drafts": drafts,
        "per_token": per_token * ureg.ms,
        "loop": loop,
        "tokens": tokens,
        "acceptance": [acceptance_of(each, drafts) for each in tokens],
    }


def acceptance_of(tokens, drafts):
    """Return the acceptance at which a round emits this many tokens on average: the inverse of the capped sum."""
    return first_float(lambda alpha: calc_speculative_expected_tokens(alpha, drafts) >= tokens, 0.0, 1 - 1e-12)


def a_log_of_rounds():
    """Return the decoding rate from counts that a server logs."""
    rounds, drafts, accepted = 1000, 4, 2200
    target, draft = 30 * ureg.ms, 1.5 * ureg.ms
    time = (rounds * (target + drafts * draft)).to("s")
    return {
        "rounds": rounds,
        "drafts": drafts,
        "drafted": rounds * drafts,
        "accepted": accepted,
        "target": target,
        "draft": draft,
        "tokens": accepted + rounds,
        "time": time,
        "rate": (accepted + rounds) * ureg.token / time,
    }


def a_batch_that_breaks_even():
    """Return the break-even batch of two GPUs, from their peak and bandwidth."""
    acceptance, drafts, cost = 0.7, 4, 0.05
    h100_knee, a100_knee = GPUS["H100"].flops_per_byte, GPUS["A100-80"].flops_per_byte
    tokens = calc_speculative_expected_tokens(acceptance, drafts)
    return {
        "acceptance": acceptance,
        "drafts": drafts,
        "cost": cost,
        "tokens": tokens,
        "affordable": tokens - drafts * cost,
        "h100_knee": h100_knee,
        "a100_knee": a100_knee,
        "h100": calc_speculative_break_even_batch(acceptance, drafts, cost, h100_knee),
        "a100": calc_speculative_break_even_batch(acceptance, drafts, cost, a100_knee),
    }


def easy_and_hard_contexts():
    """Return the tokens per round where acceptance varies by context, and what the mean acceptance predicts."""
    acceptances, drafts = (0.95, 0.45), 4
    tokens = [calc_speculative_expected_tokens(alpha, drafts) for alpha in acceptances]
    mean = fsum(acceptances) / 2
    return {
        "easy": acceptances[0],
        "hard": acceptances[1],
        "drafts": drafts,
        "mean": mean,
        "predicted": calc_speculative_expected_tokens(mean, drafts),
        "easy_tokens": tokens[0],
        "hard_tokens": tokens[1],
        "actual": fsum(tokens) / 2,
    }


EXERCISES = (
    Exercise(
        key="speculative.1",
        question="""
            A draft model proposes {drafts} tokens a round; each is accepted with probability {acceptance}, whatever
            came before. How many tokens does a round emit on average?
        """,
        asks="a number of tokens, such as 2.5",
        numbers=one_round,
        answer=lambda n: n.tokens,
        hints=(
            "The first rejection ends the round. How likely is it that the second proposal counts at all?",
            "The target always adds one token of its own, after a rejection as well as after {drafts} acceptances.",
            "The round emits at least i + 1 tokens with probability {acceptance}^i. Add these up, or call "
            "calc_speculative_expected_tokens.",
        ),
        worked="""
            At least i + 1 tokens come out with probability {acceptance}^i, for i = 0 to {drafts}: {powers}.
            The mean is their sum: {tokens}.
        """,
        misconceptions=(
            Misconception(
                "rejection does not end the round",
                lambda n: 1 + n.acceptance * n.drafts,
                "that accepts proposals behind a rejected one; the first rejection ends the round",
            ),
            Misconception(
                "bonus token forgotten",
                lambda n: n.tokens - 1,
                "that counts the accepted drafts; the target adds one token of its own in every round",
            ),
            Misconception(
                "all or nothing",
                lambda n: n.acceptance**n.drafts,
                "that is the probability that all {drafts} are accepted; shorter runs count as well",
            ),
            Misconception(
                "no cap",
                lambda n: 1 / (1 - n.acceptance),
                "that is for a draft that never ends; this one stops after {drafts} proposals",
            ),
        ),
    ),
    Exercise(
        key="speculative.2",
        question="""
            Over a vocabulary of three tokens the target has the probabilities {p:1}, the draft {q:1}. With what
            probability is a draft accepted, and from which distribution is the token drawn after a rejection?
        """,
        asks="a number and three numbers, such as 0.5 and (0.2, 0.3, 0.5)",
        numbers=two_distributions,
        answer=lambda n: {"acceptance": n.acceptance, "residual": tuple(n.residual)},
        hints=(
            "A draft x is kept with probability min(1, p(x) / q(x)). How often is x drafted and kept?",
            "After a rejection the target must make up for the tokens that the draft proposes too rarely.",
            "The residual is max(p - q, 0), divided by its sum.",
        ),
        worked="""
            Token by token min(p, q) = {overlap}; the sum is the acceptance, {acceptance}.
            The draft falls short by max(p - q, 0) = {excess}; divided by its sum: {residual}.
            Only the first token is proposed too rarely, so every rejection emits it.
        """,
        misconceptions=(
            Misconception(
                "chance of agreeing",
                lambda n: {"acceptance": float(np.dot(n.p, n.q))},
                "that is the chance that two draws agree; a draft is kept or not by its probabilities",
            ),
            Misconception(
                "distance counted twice",
                lambda n: {"acceptance": 1 - float(np.abs(np.subtract(n.p, n.q)).sum())},
                "that subtracts the sum of the differences; it counts what is moved twice, once where it is missing",
            ),
            Misconception(
                "the target itself",
                lambda n: {"residual": tuple(n.p)},
                "that draws from the target once more, so tokens that the draft likes would come out too often",
            ),
            Misconception(
                "not normalized",
                lambda n: {"residual": tuple(n.excess)},
                "that does not add up to one: divide it by its sum",
            ),
            Misconception(
                "the wrong side",
                lambda n: {"residual": tuple(np.divide(np.maximum(np.subtract(n.q, n.p), 0), 1 - n.acceptance))},
                "that is where the draft exceeds the target: those tokens were proposed too often already",
            ),
        ),
    ),
    Exercise(
        key="speculative.3",
        question="""
            Which draft length is the fastest for each of three drafts, with acceptance {acceptances} and with a
            draft step that costs {costs} of a target step?
        """,
        asks="three whole numbers, such as (2, 2, 2)",
        numbers=three_drafts,
        answer=lambda n: tuple(n.lengths),
        hints=(
            "One more proposal always costs c, and helps less and less: it only counts if all before it were accepted.",
            "Speed-up: expected tokens / (gamma c + 1). Try one length after the other.",
            "calc_speculative_best_draft_length does the search.",
        ),
        worked="""
            The lengths are {lengths}, with speed-ups of {speedups}.
            One more proposal gives {one_more}, a little less each time.
            A draft that costs four times as much should be asked for half as many tokens, and a poor one for fewer
                still.
        """,
        misconceptions=(
            Misconception(
                "as long as the mean run",
                lambda n: tuple(n.mean_run),
                "that is the mean run of an endless draft, 1 / (1 - alpha); it does not know what a proposal costs",
            ),
            Misconception(
                "bonus token forgotten",
                lambda n: tuple(n.without_bonus),
                "that is one too many: it is best for accepted drafts per time, but the token of the target counts too",
            ),
        ),
    ),
    Exercise(
        key="speculative.4",
        question="""
            Chen et al. (2023) measured {per_token} per token on three tasks. A loop is one target step of {target}
            and {drafts} draft steps of {draft}. How many tokens does a loop emit, on each task, and what acceptance
            does that imply?
        """,
        asks="three numbers and three probabilities, such as (2.0, 2.1, 2.2) and (0.5, 0.6, 0.7)",
        numbers=the_loops_of_chen,
        answer=lambda n: {"tokens": tuple(n.tokens), "acceptance": tuple(n.acceptance)},
        hints=(
            "A loop takes the same time on each task. How many tokens of the measured time fit into it?",
            "Look for the alpha at which calc_speculative_expected_tokens(alpha, {drafts}) gives that many.",
            "The sum grows with alpha: halve the interval from 0 to 1 again and again.",
        ),
        worked="""
            A loop takes {target} + {drafts} x {draft} = {loop}.
            Tokens per loop: {loop} over each measured time = {tokens:3}.
            The acceptance that emits so many: {acceptance:3}.
        """,
        misconceptions=(
            Misconception(
                "draft steps are free",
                lambda n: {"tokens": tuple((n.target / n.per_token).m_as("").tolist())},
                "that is the speed-up; a loop is longer than one target step, it holds {drafts} draft steps as well",
            ),
            Misconception(
                "share of the drafts",
                lambda n: {"acceptance": tuple((tokens - 1) / n.drafts for tokens in n.tokens)},
                "that is the share of all drafts that ends up in the text; drafts behind a rejection are never judged",
            ),
            Misconception(
                "no cap",
                lambda n: {"acceptance": tuple(1 - 1 / tokens for tokens in n.tokens)},
                "that inverts 1 / (1 - alpha), the sum without an end; this one stops after {drafts} drafts",
            ),
        ),
    ),
    Exercise(
        key="speculative.5",
        question="""
            A server logs {rounds} rounds: {drafted} tokens drafted, {accepted} accepted. A draft step takes
            {draft}, a target step {target}, one after the other. How many tokens per second did it decode?
        """,
        asks="a rate, such as 50 / ureg.s",
        numbers=a_log_of_rounds,
        answer=lambda n: n.rate,
        hints=(
            "How long is one round of {drafts} drafts?",
            "Which tokens end up in the text: the drafted, the accepted, or some more?",
        ),
        worked="""
            {rounds} rounds of {drafts} x {draft} + {target} take {time}.
            The text holds the {accepted} accepted tokens and one of the target per round: {tokens}.
            {tokens} tokens / {time} = {rate}.
        """,
        misconceptions=(
            Misconception(
                "bonus token forgotten",
                lambda n: n.accepted / n.time,
                "that counts the accepted drafts; each round adds a token of the target",
            ),
            Misconception(
                "drafted tokens counted",
                lambda n: n.drafted / n.time,
                "that counts what was drafted; rejected drafts never reach the reader",
            ),
            Misconception(
                "drafting is free",
                lambda n: n.tokens / (n.rounds * n.target),
                "that leaves the draft steps out of the time; they run before the target can verify",
            ),
        ),
    ),
    Exercise(
        key="speculative.6",
        question="""
            With acceptance {acceptance}, {drafts} drafts per round and a draft step of {cost} target steps: up to
            which batch size does speculation pay on an H100, whose knee lies at {h100_knee} tokens per pass, and on
            an A100 with its knee at {a100_knee}?
        """,
        asks="two numbers, such as 100.0 and 50.0",
        numbers=a_batch_that_breaks_even,
        answer=lambda n: {"h100": n.h100, "a100": n.a100},
        hints=(
            "How many target steps' worth of time may the verification take, if a round is to be worth its tokens?",
            "Beyond the knee a pass takes (tokens / knee) target steps. Each request verifies {drafts} + 1 tokens.",
            "B* = (E - gamma c) x knee / (gamma + 1).",
        ),
        worked="""
            A round emits {tokens} tokens, worth that many target steps; {drafts} x {cost} go into drafting,
                {affordable} are left.
            Beyond the knee, verifying B x ({drafts} + 1) tokens takes B x ({drafts} + 1) / knee steps.
            B* = {affordable} x knee / ({drafts} + 1): {h100} on the H100, {a100} on the A100.
            A larger batch is better off without speculation.
        """,
        misconceptions=(
            Misconception(
                "knee over tokens per request",
                lambda n: {"h100": n.h100_knee / (n.drafts + 1), "a100": n.a100_knee / (n.drafts + 1)},
                "that is where verification stops being free; it still pays for a while after that",
            ),
            Misconception(
                "bonus token forgotten",
                lambda n: {
                    "h100": (n.affordable - 1) * n.h100_knee / (n.drafts + 1),
                    "a100": (n.affordable - 1) * n.a100_knee / (n.drafts + 1),
                },
                "that counts the accepted drafts only; the round emits one token more",
            ),
            Misconception(
                "drafts only",
                lambda n: {
                    "h100": n.affordable * n.h100_knee / n.drafts,
                    "a100": n.affordable * n.a100_knee / n.drafts,
                },
                "each request verifies one position more than it drafted",
            ),
            Misconception(
                "drafting is free",
                lambda n: {
                    "h100": n.tokens * n.h100_knee / (n.drafts + 1),
                    "a100": n.tokens * n.a100_knee / (n.drafts + 1),
                },
                "that leaves out the time of the draft steps, gamma c",
            ),
        ),
    ),
    Exercise(
        key="speculative.7",
        question="""
            Half of the rounds come in easy contexts with acceptance {easy}, half in hard ones with {hard}. A round
            drafts {drafts}. How many tokens does a round emit on average, and how many does the formula predict
            from the mean acceptance?
        """,
        asks="two numbers, such as 2.5 and 2.6",
        numbers=easy_and_hard_contexts,
        answer=lambda n: {"actual": n.actual, "predicted": n.predicted},
        hints=(
            "Compute the tokens of each kind of context first.",
            "One average is over tokens, the other over acceptances. Which comes first in each of the two answers?",
        ),
        worked="""
            Easy: {easy_tokens}. Hard: {hard_tokens}. Half of each: {actual}.
            The mean acceptance is {mean}, and the formula makes {predicted} of it.
            Tokens grow faster than in proportion to acceptance, so averaging the acceptance first predicts too
                little (Jensen).
        """,
        misconceptions=(
            Misconception(
                "averaged first",
                lambda n: {"actual": n.predicted},
                "that averages the acceptance before the formula is applied; average the tokens",
            ),
            Misconception(
                "averaged last",
                lambda n: {"predicted": n.actual},
                "that averages the tokens; the prediction knows nothing but the mean acceptance",
            ),
            Misconception(
                "bonus token forgotten",
                lambda n: {"actual": n.actual - 1, "predicted": n.predicted - 1},
                "that counts the accepted drafts; the target adds one token in every round",
            ),
        ),
    ),
)
