"""Exercises of lecture 01: occupancy, the load a promise allows, variability, pooling, held state, real arrivals."""

from math import ceil, floor, sqrt

from serving_lib.exercises.framework import Exercise, Misconception
from serving_lib.queueing import (
    calc_exponential_quantile_factor,
    calc_kingman_wait_ratio,
    calc_littles_law_occupancy,
    calc_littles_law_rate,
    calc_mg1_wait_ratio,
    calc_mm1_max_utilization,
    calc_mm1_time_in_system,
    calc_mmc_min_servers,
    calc_queue_latency_mmc,
    calc_residency_factor,
)
from serving_lib.units import ureg


def batched_requests_of_figure_13():
    """Return vLLM's mean batched requests in Kwon et al. (2023), Fig. 13, the rates, and W by Little's law."""
    sharegpt, sharegpt_rate = 30.42, 2 / ureg.s
    alpaca, alpaca_rate = 132.44, 30 / ureg.s
    return {
        "sharegpt": sharegpt,
        "sharegpt_rate": sharegpt_rate,
        "sharegpt_time": (sharegpt / sharegpt_rate).to("s"),
        "alpaca": alpaca,
        "alpaca_rate": alpaca_rate,
        "alpaca_time": (alpaca / alpaca_rate).to("s"),
    }


def a_p99_promise():
    """Return the load at which the p99 response of an M/M/1 queue is the promise."""
    service, promise = 200 * ureg.ms, 2 * ureg.s
    factor = calc_exponential_quantile_factor(0.99)
    ceiling = calc_mm1_max_utilization(service, promise, factor)
    return {
        "service": service,
        "promise": promise,
        "factor": factor,
        "mean": (promise / factor).to("ms"),
        "ceiling": ceiling,
        "rate": (ceiling / service).to("1/s"),
        "capacity": (1 / service).to("1/s"),
    }


def short_and_long_jobs():
    """Return the wait for a mix of short and long jobs, and for an exponential time of the same mean."""
    short, long, load = 0.2 * ureg.s, 5 * ureg.s, 0.7
    mean = 0.9 * short + 0.1 * long
    square = 0.9 * short**2 + 0.1 * long**2
    scv = (square / mean**2 - 1).m_as("")
    ratio, exponential_ratio = calc_mg1_wait_ratio(load, sqrt(scv)), calc_mg1_wait_ratio(load, 1)
    return {
        "short": short,
        "long": long,
        "load": load,
        "busy": 100 * load * ureg.percent,
        "mean": mean,
        "square": square,
        "scv": scv,
        "ratio": ratio,
        "wait": ratio * mean,
        "exponential_ratio": exponential_ratio,
        "exponential": exponential_ratio * mean,
        "too_low": ratio / exponential_ratio,
    }


def a_pool_with_a_p99_wait():
    """Return the smallest M/M/c pool whose p99 wait is within a budget, and its neighbor."""
    rate, service, budget = 100 / ureg.s, 200 * ureg.ms, 100 * ureg.ms

    def p99_wait(servers, share=1):
        return calc_queue_latency_mmc(rate * share, 1 / service, servers)[2].to("ms")

    servers = calc_mmc_min_servers(rate, 1 / service, budget, quantile=0.99)
    load = calc_littles_law_occupancy(rate, service).m_as("")
    return {
        "rate": rate,
        "service": service,
        "budget": budget,
        "load": load,
        "servers": servers,
        "wait": p99_wait(servers),
        "fewer": servers - 1,
        "fewer_wait": p99_wait(servers - 1),
        "busy": 100 * load / servers * ureg.percent,
        "split_wait": p99_wait(1, share=1 / servers).to("s"),
    }


def an_agent_with_a_tool():
    """Return how a tool call that keeps its slot slows the turnover of the slots."""
    generation, tool, slots = 1 * ureg.s, 3 * ureg.s, 64
    factor = calc_residency_factor(generation, tool)
    return {
        "generation": generation,
        "tool": tool,
        "slots": slots,
        "held": generation + tool,
        "factor": factor,
        "rate": calc_littles_law_rate(slots, generation) / factor,
        "rate_without": calc_littles_law_rate(slots, generation),
    }


def tokens_in_the_cache():
    """Return the resident tokens of requests that grow while they decode."""
    rate, prompt, output, step = 4 / ureg.s, 1000, 200, 25 * ureg.ms
    time = (output * step).to("s")
    requests = calc_littles_law_occupancy(rate, time).m_as("")
    return {
        "rate": rate,
        "prompt": prompt,
        "output": output,
        "step": step,
        "time": time,
        "requests": requests,
        "final": prompt + output,
        "held": prompt + output / 2,
        "resident": requests * (prompt + output / 2),
    }


def the_azure_conversation_trace():
    """Return Kingman's wait for the gaps of the trace (measured from it), with a constant service time."""
    gap, scv, load = 180.8 * ureg.ms, 1.197, 0.8
    ratio = calc_kingman_wait_ratio(load, scv, 0)
    return {
        "gap": gap,
        "scv": scv,
        "load": load,
        "busy": 100 * load * ureg.percent,
        "service": load * gap,
        "ratio": ratio,
        "wait": ratio * load * gap,
    }


EXERCISES = (
    Exercise(
        key="queueing.1",
        question="""
            Figure 13 of the vLLM paper prints the mean number of batched requests: {sharegpt} for ShareGPT at
            {sharegpt_rate}, {alpaca:5} for Alpaca at {alpaca_rate}. It does not print how long a request stays. How
            long, for each?
        """,
        asks="two times, such as 3 * ureg.s and 4 * ureg.s",
        numbers=batched_requests_of_figure_13,
        answer=lambda n: {"sharegpt": n.sharegpt_time, "alpaca": n.alpaca_time},
        hints=(
            "One law ties three means together: how many are inside, how many arrive per second, how long each stays.",
            "L = lambda W. You have L and lambda.",
        ),
        worked="""
            Little's law holds for any stable system: L = lambda W, so W = L / lambda.
            ShareGPT: {sharegpt} / ({sharegpt_rate}) = {sharegpt_time}.
            Alpaca: {alpaca:5} / ({alpaca_rate}) = {alpaca_time}.
            More requests of Alpaca are inside, and yet each stays for a shorter time: they arrive so much faster.
        """,
        misconceptions=(
            Misconception(
                "multiplied",
                lambda n: {"sharegpt": n.sharegpt * n.sharegpt_rate, "alpaca": n.alpaca * n.alpaca_rate},
                "that is L times lambda, a rate; W is what lambda must be multiplied by to give L",
            ),
            Misconception(
                "upside down",
                lambda n: {"sharegpt": n.sharegpt_rate / n.sharegpt, "alpaca": n.alpaca_rate / n.alpaca},
                "that is lambda / L, the rate at which one resident request leaves; its inverse is the time it stays",
            ),
            Misconception(
                "count read as seconds",
                lambda n: {"sharegpt": n.sharegpt * ureg.s, "alpaca": n.alpaca * ureg.s},
                "that is the number inside with a unit put on: the time only if one request arrives per second",
            ),
        ),
    ),
    Exercise(
        key="queueing.2",
        question="""
            Service takes {service} on average, exponentially distributed, and arrivals are Poisson. The promise: 99
            % of requests are done within {promise}. What is the highest arrival rate that keeps it?
        """,
        asks="a rate, such as 1 / ureg.s",
        numbers=a_p99_promise,
        answer=lambda n: n.rate,
        hints=(
            "The response time of an M/M/1 queue is exponential, so its p99 is a fixed multiple of its mean.",
            "Which mean time in the system is allowed, if its multiple may be {promise}? Which load gives that mean?",
            "calc_mm1_max_utilization gives the utilization; the arrival rate is utilization over service time.",
        ),
        worked="""
            The p99 of an exponential time is {factor} times its mean, so the mean may be {promise} / {factor} =
                {mean}.
            The mean is S / (1 - rho), so rho may be 1 - {factor} x {service} / {promise} = {ceiling}.
            The rate is rho / S = {rate}, little more than half of the capacity of {capacity}.
        """,
        misconceptions=(
            Misconception(
                "capacity",
                lambda n: 1 / n.service,
                "that is the capacity, 1/S: at that rate the queue never ends",
            ),
            Misconception(
                "mean instead of p99",
                lambda n: calc_mm1_max_utilization(n.service, n.promise, 1) / n.service,
                "that keeps the mean within {promise}; the promise is about the 99th percentile",
            ),
            Misconception(
                "the 80 % rule",
                lambda n: 0.8 / n.service,
                "that is 80 % of the capacity; the load that a promise allows depends on the promise, not on a rule",
            ),
            Misconception(
                "utilization as the answer",
                lambda n: n.ceiling,
                "that is the highest utilization; the question asks for the arrival rate",
            ),
        ),
    ),
    Exercise(
        key="queueing.3",
        question="""
            90 % of the requests take {short} of service, 10 % take {long}. Arrivals are Poisson and one server is
            {busy:2} busy. What is the squared coefficient of variation of the service time, what is the mean wait,
            and what would an exponential model of the same mean say?
        """,
        asks="a number and two times, such as 2.0, 3 * ureg.s and 4 * ureg.s",
        numbers=short_and_long_jobs,
        answer=lambda n: {"scv": n.scv, "wait": n.wait, "exponential": n.exponential},
        hints=(
            "The squared coefficient of variation is the mean square over the squared mean, minus 1.",
            "calc_mg1_wait_ratio takes the coefficient of variation, not its square, and returns a ratio to the mean.",
            "An exponential time has a coefficient of variation of 1.",
        ),
        worked="""
            Mean: 0.9 x {short} + 0.1 x {long} = {mean}. Mean square: {square}.
            Squared coefficient of variation: {square} / ({mean})^2 - 1 = {scv}.
            Wait: {ratio} mean service times = {wait}.
            With a coefficient of variation of 1: {exponential_ratio} mean service times = {exponential}.
            The exponential model is {too_low:2} times too low: it does not know how long the long jobs are.
        """,
        misconceptions=(
            Misconception(
                "not squared",
                lambda n: {"scv": sqrt(n.scv)},
                "that is the coefficient of variation; the question asks for its square",
            ),
            Misconception(
                "one too many",
                lambda n: {"scv": n.scv + 1},
                "that is the mean square over the squared mean; the variance is one squared mean less",
            ),
            Misconception(
                "square passed as the coefficient",
                lambda n: {"wait": calc_mg1_wait_ratio(n.load, n.scv) * n.mean},
                "calc_mg1_wait_ratio squares its second argument: pass the coefficient of variation, not its square",
            ),
            Misconception(
                "time in system",
                lambda n: {"wait": n.wait + n.mean, "exponential": calc_mm1_time_in_system(n.mean, n.load)},
                "that is the time in the system; the wait ends where the service starts",
            ),
            Misconception(
                "ratio as a time",
                lambda n: {"wait": n.ratio, "exponential": n.exponential_ratio},
                "that is the wait in mean service times; multiply by the mean service time",
            ),
        ),
    ),
    Exercise(
        key="queueing.4",
        question="""
            Requests arrive at {rate} and take {service} of service on average, both at random (M/M/c). How many
            servers that share one queue keep 99 % of the waits within {budget}?
        """,
        asks="a whole number, such as 30",
        numbers=a_pool_with_a_p99_wait,
        answer=lambda n: n.servers,
        hints=(
            "How many servers are busy on average? With that many or fewer, the queue never ends.",
            "calc_queue_latency_mmc returns utilization, median wait and p99 wait. Add servers, one at a time, or let "
            "calc_mmc_min_servers do it.",
        ),
        worked="""
            {rate} x {service} = {load} servers are busy on average.
            {fewer} servers have a p99 wait of {fewer_wait}, too long; {servers} have {wait}, and are {busy:2} busy.
            Split into {servers} queues of one server each, the p99 wait would be {split_wait}: sharing makes the
                difference.
        """,
        misconceptions=(
            Misconception(
                "just enough capacity",
                lambda n: floor(n.load) + 1,
                "that is the smallest pool whose queue ends at all (it even keeps the median wait); the p99 needs more",
            ),
            Misconception(
                "the 80 % rule",
                lambda n: ceil(n.load / 0.8),
                "that keeps the servers 80 % busy; what load a promise allows depends on the size of the pool",
            ),
            Misconception(
                "offered load",
                lambda n: round(n.load),
                "that many are busy on average, so they would have to be busy always, and the queue would never end",
            ),
        ),
    ),
    Exercise(
        key="queueing.5",
        question="""
            An agent generates for {generation}, then waits {tool} for a tool and keeps its slot. By what factor
            does the waiting multiply its residence, and how many such turns per second do {slots} slots complete?
        """,
        asks="a number and a rate, such as 2.0 and 10 / ureg.s",
        numbers=an_agent_with_a_tool,
        answer=lambda n: {"factor": n.factor, "rate": n.rate},
        hints=(
            "How long is the slot held in all, and how long would it be without the tool?",
            "Little's law for the slots: rate = slots / time held.",
        ),
        worked="""
            The slot is held for {held} instead of {generation}: a factor of {factor}.
            {slots} slots turn over {slots} / ({held}) = {rate}, not {rate_without}.
            Each turn computes as much as before; it is the memory that waits for the tool.
        """,
        misconceptions=(
            Misconception(
                "generation left out",
                lambda n: {"factor": (n.tool / n.generation).m_as(""), "rate": calc_littles_law_rate(n.slots, n.tool)},
                "that leaves the generation out: the slot is held for both",
            ),
            Misconception(
                "the wait is free",
                lambda n: {"factor": 1.0, "rate": n.rate_without},
                "that counts the generation alone; the slot is held during the tool call too",
            ),
            Misconception(
                "share of the time",
                lambda n: {"factor": (n.tool / n.held).m_as("")},
                "that is the share of the time spent waiting, not the factor by which the residence grows",
            ),
        ),
    ),
    Exercise(
        key="queueing.6",
        question="""
            Requests arrive at {rate}, each with a prompt of {prompt} tokens. Each decodes {output} tokens, one
            every {step}; take the prefill as instantaneous. How many tokens are resident in the KV cache on
            average?
        """,
        asks="a number of tokens, such as 5000",
        numbers=tokens_in_the_cache,
        answer=lambda n: n.resident,
        hints=(
            "How long does a request stay, and how many requests are there on average?",
            "A request starts with its prompt and ends with its output added. How much does it hold on average?",
        ),
        worked="""
            A request stays {output} x {step} = {time}, so {rate} x {time} = {requests} are inside.
            Each grows evenly from {prompt} to {final} tokens: {held} on average.
            Resident: {requests} x {held} = {resident} tokens.
        """,
        misconceptions=(
            Misconception(
                "final length throughout",
                lambda n: n.requests * n.final,
                "that gives every request its final length from the start; the output grows while the request is there",
            ),
            Misconception(
                "prompt alone",
                lambda n: n.requests * n.prompt,
                "that counts the prompts; generated tokens have keys and values too",
            ),
            Misconception(
                "tokens per second",
                lambda n: n.rate.m_as("1/s") * n.held,
                "that is what arrives per second; how long does each token stay?",
            ),
        ),
    ),
    Exercise(
        key="queueing.7",
        question="""
            The gaps between requests of the Azure conversation trace have a mean of {gap} and a squared coefficient
            of variation of {scv}. Let service be constant and the server {busy:2} busy. What mean wait does
            Kingman's formula give? The same gaps in random order wait about as long; in their real order they wait
            some thirty times longer. What does the random order destroy: the "rate", the "variance" or the
            "correlation"?
        """,
        asks='a time and a word, such as 1 * ureg.s and "rate"',
        numbers=the_azure_conversation_trace,
        answer=lambda n: {"wait": n.wait, "cause": "correlation"},
        hints=(
            "The load gives the service time: {busy} of the mean gap. A constant has no variation.",
            "Put the gaps in another order. What happens to their mean, what to their variance?",
            "A busy minute is a run of short gaps, one after another.",
        ),
        worked="""
            Service: {load} x {gap} = {service}. Kingman: {ratio} service times = {wait}.
            Order changes neither the mean nor the variance of the gaps, so neither rate nor variance was destroyed.
            What is gone is the correlation: short gaps follow short gaps for minutes, and the queue of one busy
                minute has not drained when the next one comes. Kingman assumes independent gaps and cannot see it.
        """,
        misconceptions=(
            Misconception(
                "variance explains bursts",
                lambda _: {"cause": "variance"},
                "the variance of the gaps is the same in any order; only what follows what has changed",
            ),
            Misconception(
                "rate explains bursts",
                lambda _: {"cause": "rate"},
                "the gaps add up to the same hour in any order, so the mean rate is the same",
            ),
            Misconception(
                "exponential service",
                lambda n: {"wait": calc_kingman_wait_ratio(n.load, n.scv, 1) * n.service},
                "that is for exponential service; here the service is constant, its variation zero",
            ),
            Misconception(
                "gap taken for service",
                lambda n: {"wait": n.ratio * n.gap},
                "the wait is in units of the service time, which is {busy} of the gap",
            ),
        ),
        options=("rate", "variance", "correlation"),
    ),
)
