"""Exercises of lecture 00: one timed request, and what its metrics contain."""

from serving_lib.exercises.framework import Exercise, Misconception
from serving_lib.units import ureg


def one_request():
    """Return the times of one request; TPOT as `vllm bench serve` defines it."""
    ttft, e2e, tokens = 400 * ureg.ms, 2.4 * ureg.s, 101
    stream = e2e - ttft
    return {
        "ttft": ttft,
        "e2e": e2e,
        "tokens": tokens,
        "gaps": tokens - 1,
        "stream": stream,
        "tpot": (stream / (tokens - 1)).to("ms"),
    }


EXERCISES = (
    Exercise(
        key="start.1",
        question="""
            A request arrives. Its first token comes after {ttft}, its last, token number {tokens}, {e2e} after the
            arrival. What is its time per output token (TPOT)?
        """,
        asks="a time, such as 5 * ureg.ms",
        numbers=one_request,
        answer=lambda n: n.tpot,
        hints=(
            "TPOT describes the stream after the first token: the wait for the first one is TTFT.",
            "How many gaps lie between {tokens} tokens, and how long do they take together?",
        ),
        worked="""
            The stream lasts from the first token to the last: {e2e} - {ttft} = {stream}.
            {tokens} tokens have {gaps} gaps between them.
            TPOT = {stream} / {gaps} = {tpot}.
        """,
        misconceptions=(
            Misconception(
                "first token included",
                lambda n: n.e2e / n.tokens,
                "that is the whole time over all tokens: it charges the wait for the first token to the others",
            ),
            Misconception(
                "gaps counted, first token included",
                lambda n: n.e2e / n.gaps,
                "the gaps are counted right, but the time still contains the wait for the first token",
            ),
            Misconception(
                "a rate",
                lambda n: n.gaps / n.stream,
                "that is the rate, tokens per second; the question asks for the time of one token",
            ),
        ),
        tolerance=0.005,
    ),
    Exercise(
        key="start.2",
        question="""
            A server is overloaded and its queue grows. The model runs as fast as ever. Which of the metrics "ttft",
            "tpot" and "itl" shows it?
        """,
        asks='"ttft", "tpot" or "itl"',
        numbers=dict,
        answer=lambda _: "ttft",
        hints=(
            "Where does a request stand in the queue: before its first token, or between two tokens?",
            "TPOT and ITL start to count when the first token is there. What starts to count at the arrival?",
        ),
        worked="""
            A request waits in the queue before its prefill, so the wait lies between its arrival and its first
                token.
            TTFT contains it. TPOT and ITL count from the first token on and stay as they were.
        """,
        misconceptions=(
            Misconception(
                "queueing slows each token",
                lambda _: "tpot",
                "TPOT counts from the first token to the last; the queue is over by then",
            ),
            Misconception(
                "queueing opens gaps",
                lambda _: "itl",
                "ITL is the gap between two tokens; a request that still queues has no tokens",
            ),
        ),
        options=("ttft", "tpot", "itl"),
    ),
)
