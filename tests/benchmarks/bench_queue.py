"""How many times faster `simulate_queue` is than SimPy and Ciw: M/M/4 at 80 % load, 100,000 customers.

The three simulators take turns, so that a busy machine slows them alike. SimPy is given its samples ready-made; the
times of ours and of Ciw include the drawing.
"""

import statistics
from time import perf_counter

import ciw
import numpy as np
import simpy

from serving_lib.queue_simulator import simulate_queue
from tests.benchmarks.row import Row

CUSTOMERS, SERVERS, ARRIVAL_RATE, SERVICE_RATE = 100_000, 4, 3.2, 1.0
TARGET = 20


def ours():
    """Draw and simulate."""
    gaps = np.random.default_rng(0).exponential(1 / ARRIVAL_RATE, CUSTOMERS)
    simulate_queue(np.cumsum(gaps), lambda rng, size: rng.exponential(1 / SERVICE_RATE, size), SERVERS)


def simpy_model():
    """SimPy's usual model: a source, one process per customer, one resource."""
    rng = np.random.default_rng(0)
    gaps = rng.exponential(1 / ARRIVAL_RATE, CUSTOMERS).tolist()
    services = rng.exponential(1 / SERVICE_RATE, CUSTOMERS).tolist()
    environment = simpy.Environment()
    pool = simpy.Resource(environment, capacity=SERVERS)
    waits = []

    def customer(service):
        arrival = environment.now
        with pool.request() as turn:
            yield turn
            waits.append(environment.now - arrival)
            yield environment.timeout(service)

    def source():
        for gap, service in zip(gaps, services, strict=True):
            yield environment.timeout(gap)
            environment.process(customer(service))

    environment.process(source())
    started = perf_counter()
    environment.run()
    assert len(waits) == CUSTOMERS
    return perf_counter() - started


def ciw_model():
    """Ciw's usual model of one node."""
    ciw.seed(0)
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(ARRIVAL_RATE)],
        service_distributions=[ciw.dists.Exponential(SERVICE_RATE)],
        number_of_servers=[SERVERS],
    )
    ciw.Simulation(network).simulate_until_max_customers(CUSTOMERS)


def rows(repeats=3):
    """Yield the ratio of median times, once per peer."""
    ours()  # warm up
    seconds = {ours: [], simpy_model: [], ciw_model: []}
    for _ in range(repeats):
        for model, taken in seconds.items():
            started = perf_counter()
            simulated = model()  # SimPy's model says itself how long the run took without its set-up
            taken.append(simulated or perf_counter() - started)
    median = {model: statistics.median(taken) for model, taken in seconds.items()}
    for peer, model in ((simpy, simpy_model), (ciw, ciw_model)):
        yield Row(
            name=f"queue: M/M/{SERVERS}, {CUSTOMERS:,} customers, {peer.__name__} / ours",
            measured=median[model] / median[ours],
            required=TARGET,
            unit="x",
            at_least=True,
            note=f"{peer.__name__} {peer.__version__} {median[model]:.2f} s, ours {median[ours]:.3f} s",
        )
