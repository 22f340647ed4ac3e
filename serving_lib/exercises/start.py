"""Exercises of lecture 00: one timed request, and what its metrics contain."""

from ..units import ureg
from .answers import show
from .framework import Exercise, Misconception

TTFT = 400 * ureg.ms
E2E = 2.4 * ureg.s
TOKENS = 101


def time_per_output_token():
    """Return the TPOT of the request of start.1, as `vllm bench serve` defines it."""
    return ((E2E - TTFT) / (TOKENS - 1)).to("ms")


EXERCISES = (
    Exercise(
        key="start.1",
        question=(
            "A request arrives. Its first token comes after 400 ms, its last, the 101st, 2.4 s after the arrival. "
            "What is its time per output token (TPOT)?"
        ),
        asks="a time, such as 5 * ureg.ms",
        answer=time_per_output_token,
        hints=(
            "TPOT describes the stream after the first token: the wait for the first one is TTFT.",
            "How many gaps lie between 101 tokens, and how long do they take together?",
        ),
        worked=lambda: (
            f"""
            The stream lasts from the first token to the last: {show(E2E)} - {show(TTFT)} = {show(E2E - TTFT)}.
            {TOKENS} tokens have {TOKENS - 1} gaps between them.
            TPOT = {show(E2E - TTFT)} / {TOKENS - 1} = {show(time_per_output_token())}.
        """
        ),
        misconceptions=(
            Misconception(
                "first token included",
                lambda: (E2E / TOKENS).to("ms"),
                "that is the whole time over all tokens: it charges the wait for the first token to the others",
            ),
            Misconception(
                "tokens instead of gaps, first token included",
                lambda: (E2E / (TOKENS - 1)).to("ms"),
                "the gaps are counted right, but the time still contains the wait for the first token",
            ),
            Misconception(
                "a rate",
                lambda: (TOKENS - 1) / (E2E - TTFT),
                "that is the rate, tokens per second; the question asks for the time of one token",
            ),
        ),
        tolerance=0.005,
    ),
    Exercise(
        key="start.2",
        question=(
            "A server is overloaded and its queue grows. The model runs as fast as ever. "
            'Which of the metrics "ttft", "tpot" and "itl" shows it?'
        ),
        asks='"ttft", "tpot" or "itl"',
        answer=lambda: "ttft",
        hints=(
            "Where does a request stand in the queue: before its first token, or between two tokens?",
            "TPOT and ITL start to count when the first token is there. What starts to count at the arrival?",
        ),
        worked=lambda: (
            """
            A request waits in the queue before its prefill, so the wait lies between its arrival and its first token.
            TTFT contains it. TPOT and ITL count from the first token on and stay as they were.
        """
        ),
        misconceptions=(
            Misconception(
                "queueing slows each token",
                lambda: "tpot",
                "TPOT counts from the first token to the last; the queue is over by then",
            ),
            Misconception(
                "queueing opens gaps",
                lambda: "itl",
                "ITL is the gap between two tokens; a request that still queues has no tokens",
            ),
        ),
        options=("ttft", "tpot", "itl"),
    ),
)
