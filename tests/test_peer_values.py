"""What other packages and textbooks publish, computed by the library: `golden/peer_values.json`."""

import json
import math
import pathlib
import re

import numpy as np
import pytest

from serving_lib.batching import affine_batch_chain, birth_death_chain
from serving_lib.queueing import (
    calc_erlang_c,
    calc_littles_law_occupancy,
    calc_mg1_wait_ratio,
    calc_mm1_time_in_system,
    calc_mmc_mean_wait,
    calc_mmc_min_servers,
    calc_mmc_response_quantile,
)
from serving_lib.units import ureg

VALUES = json.loads((pathlib.Path(__file__).parent / "golden" / "peer_values.json").read_text())["values"]


class Case:
    """One value's inputs, such as ``lambda=5 mu=3 c=4``; the offered load goes by the names A, a, r or rho."""

    def __init__(self, inputs):
        self.given = {}
        for name, top, bottom in re.findall(r"(\w+)=([\d.e]+)(?:/([\d.e]+))?", inputs):
            self.given[name] = float(top) / float(bottom or 1)
        self.servers = int(self.given.get("c", self.given.get("R", 1)))

    def __getitem__(self, name):
        return self.given[name]

    @property
    def rates(self):
        if "lambda" in self.given:
            return self["lambda"], self["mu"]
        load = self["rho"] * self.servers if "rho" in self.given else next(self[n] for n in "Aar" if n in self.given)
        return load, 1.0

    @property
    def load(self):
        arrival, service = self.rates
        return arrival / service

    def chain(self, capacity=None):
        """M/M/c/K; where no capacity is given, 400 places stand for the endless line."""
        arrival, service = self.rates
        number = np.arange(1, int(capacity or self.given.get("K", 400)) + 1)
        return birth_death_chain(arrival, np.minimum(number, self.servers) * service, self.servers)

    def wait(self):
        return self.chain().wait if "K" in self.given else calc_mmc_mean_wait(*self.rates, self.servers)

    def share_waiting_longer(self, services):
        return calc_erlang_c(self.servers, self.load) * math.exp(-(self.servers - self.load) * services)


def erlang_b(servers, load):
    return birth_death_chain(load, np.arange(1.0, servers + 1), servers).blocking


def in_system(case):
    if "K" in case.given:
        return case.chain().in_system
    return calc_littles_law_occupancy(case.rates[0], case.wait()) + case.load


def service_level(case):
    return 1 - case.share_waiting_longer(case["asa"] / case["aht"])


def inferno_chain():
    # One request prefills once and decodes 512 tokens, so 513 steps of 12 ms are fixed. The published README counts a
    # request's own work, 130.496 ms, once more in every batch; the program behind it no longer does.
    per_request = 130.496 * ureg.ms
    return affine_batch_chain(3 / ureg.s, 513 * 12 * ureg.ms + per_request, per_request, max_batch=48, capacity=176)


day, year = ureg.day, 365 * ureg.day
repairs = {"arrival_rate": 300 / year, "service_rate": 1 / (2 * day), "num_servers": 3}

COMPUTED = {
    "M/M/1/K mean number Q": in_system,
    "U=1-p0": lambda case: 1 - case.chain().probabilities[0],
    "p0": lambda case: case.chain().probabilities[0],
    "R (mean response)": lambda case: case.chain().time_in_system,
    "pK (blocking)": lambda case: case.chain().blocking,
    "pK": lambda case: case.chain().blocking,
    "L": in_system,
    "Wq": Case.wait,
    "X": lambda case: case.chain().throughput,
    "M/M/1 lambda->0: R": lambda case: calc_mm1_time_in_system(1 / case["mu"], case["lambda"] / case["mu"]),
    "Erlang C": lambda case: calc_erlang_c(case.servers, case.load),
    "Erlang B": lambda case: erlang_b(case.servers, case.load),
    "B": lambda case: erlang_b(case.servers, case.load),
    "C": lambda case: calc_erlang_c(case.servers, case.load),
    "C (BUG: >1)": lambda case: calc_erlang_c(case.servers, case.load),
    "P(wait)": lambda case: calc_erlang_c(case.servers, case.load),
    "P(wait) at the tabulated load": lambda case: calc_erlang_c(case.servers, case.load),
    "waiting_probability": lambda case: calc_erlang_c(case.servers, case.load),
    "M/G/1 R (E[S]=1,E[S^2]=2)": lambda case: 1 + calc_mg1_wait_ratio(case["lambda"], 1),
    "M/D/1 R": lambda case: 1 + calc_mg1_wait_ratio(case["lambda"], 0),
    "Wq M/M/1": Case.wait,
    "Wq M/M/4": Case.wait,
    "P(Wq<=0.5)": lambda case: 1 - case.share_waiting_longer(0.5 * case["mu"]),
    "service_level P(Wq<=asa)": service_level,
    "service_level": service_level,
    "min servers for B<=0.02": lambda case: next(c for c in range(1, 100) if erlang_b(c, case.load) <= 0.02),
    "mean M/M/1 wait, 25 runs of 40 time units (simulated)": Case.wait,
    "E[T] M/M/1-PS = 1/(mu-lambda), asserted to 1 decimal from 25 runs": lambda case: calc_mm1_time_in_system(
        1 / case["mu"], case["lambda"] / case["mu"]
    ),
    "W [h]": lambda _: calc_mm1_time_in_system(1 / 30 * ureg.hour, 24 / 30).m_as("hour"),
    "Wq [min]": lambda _: calc_mmc_mean_wait(30 / ureg.hour, 1 / (1.5 * ureg.min), 1).m_as("min"),
    "W [min]": lambda _: calc_mm1_time_in_system(45 * ureg.s, 45 / 60).m_as("min"),
    "Wq [d]": lambda _: calc_mmc_mean_wait(**repairs).m_as("day"),
    "W [yr]": lambda _: (calc_mmc_mean_wait(**repairs) + 2 * day).m_as("day") / 365,
    "avgRespTime [ms]": lambda _: inferno_chain().time_in_system.m_as("ms"),
    "avgWaitTime [ms]": lambda _: inferno_chain().wait.m_as("ms"),
    "avgNumInServ": lambda _: inferno_chain().in_service,
    # Their greatest rate keeps a margin of 0.1 % below the rate of the full batch.
    "maxRPS": lambda _: 0.999 * 48 / (513 * 12e-3 + 49 * 130.496e-3),
    "Lq": lambda case: (
        calc_littles_law_occupancy(repairs["arrival_rate"], calc_mmc_mean_wait(**repairs)).m_as("")
        if case.servers == 3
        else calc_littles_law_occupancy(30 / ureg.hour, calc_mmc_mean_wait(30 / ureg.hour, 40 / ureg.hour, 1)).m_as("")
    ),
}
COMPUTED |= {
    f"P(N={n}) capacitated PS = M/M/3": lambda case, n=n: case.chain().probabilities[n] for n in range(9)
}  # processor sharing on three servers has the queue length of M/M/3
COMPUTED |= {
    f"min c with P(wait)<={p}": lambda case, p=p: calc_mmc_min_servers(case.load, 1.0, 0.0, quantile=1 - p)
    for p in (0.5, 0.2, 0.1)
}

NOT_COMPUTED = {
    "U of asymmetric M/M/5": "servers of different speed are not in the library",
    "M/G/1 p0 (BUG: exp(-rho))": "the idle share is 1 - rho by definition; the peer prints exp(-rho)",
    "occupancy": "the offered load over the servers, by definition",
    "M/M/1 preempt-free priority: E[T] class 0 (literature 2.0; Ciw's own run gives 1.84736)": "no priorities here",
    "E[T] class 1 (literature 6.0; Ciw's run 5.71125)": "no priorities here",
}


def test_every_published_value_is_computed_or_has_a_reason_why_not():
    quantities = {value["quantity"] for value in VALUES} - {"P(W<=0.5)"}
    assert quantities == set(COMPUTED) | set(NOT_COMPUTED)


@pytest.mark.parametrize(
    "value",
    [value for value in VALUES if value["quantity"] in COMPUTED],
    ids=lambda v: f"{v['quantity']} {v['inputs']}",
)
def test_the_library_computes_what_a_peer_publishes(value):
    ours = COMPUTED[value["quantity"]](Case(value["inputs"]))
    exact = float(value["exact_40_digits"])
    assert ours == pytest.approx(exact, rel=1e-12)
    if value["published"] is not None and value["agrees"]:
        published = float(value["published"])
        assert abs(ours - published) <= float(value["tolerance"]) + 2e-15 * abs(published)


def test_the_response_quantile_inverts_the_published_response_distribution():
    (value,) = (value for value in VALUES if value["quantity"] == "P(W<=0.5)")
    assert calc_mmc_response_quantile(5.0, 3.0, 4, float(value["exact_40_digits"])) == pytest.approx(0.5, rel=1e-14)
