"""Queueing: how long a request waits, from the load, the variability and the number of servers."""

import bisect
import math
from fractions import Fraction

import numpy as np
import pint

from serving_lib.units import (
    FINITE,
    FRACTION,
    NONNEGATIVE,
    NONNEGATIVE_OR_INFINITE,
    POSITIVE,
    RATE,
    TIME,
    check_count,
    check_number,
    check_quantity,
    in_registry_of,
    label_of,
    magnitude_in_unit_of,
    plain,
    registry_of,
    time_unit_of,
)


def calc_littles_law_occupancy(arrival_rate, time_in_system):
    """Calculate mean occupancy from arrival rate and residence time.

    Parameters
    ----------
    arrival_rate : Quantity or float or ndarray
        Nonnegative average arrival rate lambda. A label is kept: tokens/s times s gives tokens.
    time_in_system : Quantity or float or ndarray
        Nonnegative mean total residence time W, waiting and service. Both arguments carry units, or neither does.

    Returns
    -------
    Quantity or float or ndarray
        Mean number resident: a dimensionless Quantity where the inputs carry units, a plain number otherwise.

    Raises
    ------
    ValueError
        If an argument is negative, infinite or NaN.
    pint.DimensionalityError
        If the rate is not a rate, the time not a time, or only one of them carries a unit.
    TypeError
        If an argument is not a number.

    Notes
    -----
    L = lambda W. It holds for any stable system and any order of service, as long as arrivals, occupancy and
    residence are counted at the same boundary. It says nothing about the tail of the occupancy.

    Taught in lecture 01, section 1. Breaks first when arrivals, occupancy and residence are counted at different
    boundaries.

    References
    ----------
    Little (1961), A Proof for the Queuing Formula: L = lambda W. https://doi.org/10.1287/opre.9.3.383

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_littles_law_occupancy(2 / ureg.s, 3000 * ureg.ms)
    <Quantity(6.0, 'dimensionless')>
    """
    bare = not any(isinstance(value, pint.Quantity) for value in (arrival_rate, time_in_system))
    rate = check_quantity("arrival_rate", arrival_rate, RATE, NONNEGATIVE, bare=bare)
    time = check_quantity("time_in_system", time_in_system, TIME, NONNEGATIVE, bare=bare)
    if bare:
        return plain(rate * time)
    occupancy = (rate * in_registry_of(time, rate)).to(label_of(rate))
    return rate._REGISTRY.Quantity(plain(occupancy.magnitude), occupancy.units)


def calc_littles_law_rate(occupied_slots, residence_time):
    """Calculate average turnover rate from occupied slots and residence time.

    Parameters
    ----------
    occupied_slots : float or ndarray or dimensionless Quantity
        Nonnegative mean number L of occupied slots.
    residence_time : Quantity or float or ndarray
        Positive mean time W for which a turn holds its slot.

    Returns
    -------
    Quantity or float or ndarray
        Turns per unit of the residence time: a Quantity where the time carries a unit.

    Raises
    ------
    ValueError
        If the slots are negative, the time not positive, or either is infinite or NaN.
    pint.DimensionalityError
        If the slots carry a dimension, or the time measures something else.
    TypeError
        If an argument is not a number.

    Notes
    -----
    lambda = L / W: Little's law read backwards. An average, not a peak.

    Taught in lecture 01, section 6. Breaks first when some slots are empty.

    References
    ----------
    Little (1961), A Proof for the Queuing Formula: L = lambda W. https://doi.org/10.1287/opre.9.3.383

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_littles_law_rate(6, 3 * ureg.s)
    <Quantity(2.0, '1 / second')>
    """
    slots = check_number("occupied_slots", occupied_slots, NONNEGATIVE)
    time = check_quantity("residence_time", residence_time, TIME, POSITIVE, bare=True)
    if not isinstance(time, pint.Quantity):
        return plain(slots / time)
    return time._REGISTRY.Quantity(plain(slots / time.magnitude), time.units**-1)


def calc_mm1_time_in_system(service_time, utilization):
    """Calculate mean M/M/1 residence time including service.

    Parameters
    ----------
    service_time : Quantity or float or ndarray
        Positive mean service time S.
    utilization : float or ndarray
        Busy fraction rho in [0, 1).

    Returns
    -------
    Quantity or float or ndarray
        Mean time in the system, in the unit of the service time.

    Raises
    ------
    ValueError
        If the service time is not positive and finite, or the utilization outside [0, 1).
    pint.DimensionalityError
        If the service time is not a time, or the utilization carries a dimension.
    TypeError
        If an argument is not a number.

    Notes
    -----
    W = S / (1 - rho): one first-come server, Poisson arrivals, independent exponential service, steady state.
    It excludes loss from a finite buffer, other service distributions, and percentiles.

    Taught in lecture 01, section 2. Breaks first when arrivals come in rushes.

    References
    ----------
    Harchol-Balter (2013), Performance Modeling and Design of Computer Systems: Queueing Theory in Action.
    https://www.cs.cmu.edu/~harchol/PerformanceModeling/book.html

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_mm1_time_in_system(200 * ureg.ms, 0.75)
    <Quantity(800.0, 'millisecond')>
    """
    service = check_quantity("service_time", service_time, TIME, POSITIVE, bare=True)
    rho = check_number("utilization", utilization, FRACTION)
    if not isinstance(service, pint.Quantity):
        return plain(service / (1 - rho))
    return service._REGISTRY.Quantity(plain(service.magnitude / (1 - rho)), service.units)


def calc_mm1_max_utilization(service_time, tail_budget, tail_factor):
    """Calculate the utilization ceiling implied by an M/M/1 tail budget.

    Parameters
    ----------
    service_time : Quantity
        Positive mean service time S.
    tail_budget : Quantity
        Positive time T within which the tail must be.
    tail_factor : float or ndarray
        Positive ratio k of the tail to the mean, normally `calc_exponential_quantile_factor`.

    Returns
    -------
    float or ndarray
        The ceiling, not clamped: a negative one means that even an idle server misses the budget.

    Raises
    ------
    ValueError
        If an argument is not positive and finite.
    pint.DimensionalityError
        If a time is not a time.
    TypeError
        If a time carries no unit, or an argument is not a number.

    Notes
    -----
    rho_max = 1 - k S / T: from k S / (1 - rho) <= T. The time in an M/M/1 system is exponential, so one factor
    serves every load. It excludes finite buffers and other distributions.

    Taught in lecture 01, section 2. Breaks first when arrivals come in rushes.

    References
    ----------
    Derivation above; the mean is that of `calc_mm1_time_in_system`.

    Examples
    --------
    >>> from serving_lib import ureg
    >>> round(calc_mm1_max_utilization(200 * ureg.ms, 2 * ureg.s, calc_exponential_quantile_factor(0.99)), 3)
    0.539
    """
    service = check_quantity("service_time", service_time, TIME, POSITIVE)
    budget = check_quantity("tail_budget", tail_budget, TIME, POSITIVE)
    factor = check_number("tail_factor", tail_factor, POSITIVE)
    return plain(1 - factor * (service.magnitude / magnitude_in_unit_of(budget, service)))


def calc_exponential_quantile_factor(quantile):
    """Calculate an exponential quantile relative to its mean.

    Parameters
    ----------
    quantile : float or ndarray
        Cumulative probability q in [0, 1).

    Returns
    -------
    float or ndarray
        The quantile divided by the mean.

    Raises
    ------
    ValueError
        If the quantile is outside [0, 1).
    pint.DimensionalityError
        If it carries a dimension.
    TypeError
        If it is not a number.

    Notes
    -----
    k = -log(1 - q): the inverse of F(t) = 1 - exp(-t / mean). For exponential distributions only.

    Taught in lecture 01, section 2. Breaks first when the distribution is not exponential.

    References
    ----------
    Derivation above.

    Examples
    --------
    >>> round(calc_exponential_quantile_factor(0.99), 3)
    4.605
    """
    return plain(0.0 - np.log1p(-check_number("quantile", quantile, FRACTION)))


def calc_mg1_wait_ratio(utilization, service_cv):
    """Calculate mean M/G/1 queue wait relative to mean service time.

    Parameters
    ----------
    utilization : float or ndarray
        Nonnegative busy fraction rho; at or above one the wait is infinite.
    service_cv : float or ndarray
        Nonnegative coefficient of variation Cs of the service time: its standard deviation over its mean.

    Returns
    -------
    float or ndarray
        Mean wait divided by mean service time.

    Raises
    ------
    ValueError
        If an argument is negative or NaN, or the coefficient of variation infinite.
    pint.DimensionalityError
        If an argument carries a dimension.
    TypeError
        If an argument is not a number.

    Notes
    -----
    Wq / E[S] = rho (1 + Cs^2) / (2 (1 - rho)): Pollaczek and Khinchine. One first-come server, Poisson arrivals,
    independent service times with a finite second moment. It excludes percentiles, correlated service and finite
    buffers.

    Taught in lecture 01, section 3. Breaks first when arrivals come in rushes.

    References
    ----------
    Harchol-Balter (2013), Performance Modeling and Design of Computer Systems: Queueing Theory in Action.
    https://www.cs.cmu.edu/~harchol/PerformanceModeling/book.html

    Examples
    --------
    >>> calc_mg1_wait_ratio(0.5, 1)
    1.0
    """
    rho = np.asarray(check_number("utilization", utilization, NONNEGATIVE_OR_INFINITE), dtype=float)
    cv = check_number("service_cv", service_cv, NONNEGATIVE)
    below = np.where(rho < 1, rho, 0.0)
    backlog = below / (1 - below)
    wait = backlog + backlog * (cv - 1) * ((cv + 1) / 2)  # backlog (1 + cv^2) / 2, without an overflow of cv^2
    return plain(np.where(rho < 1, wait, np.inf))


def calc_kingman_wait_ratio(utilization, arrival_scv, service_scv):
    """Approximate mean G/G/1 wait relative to mean service time.

    Parameters
    ----------
    utilization : float or ndarray
        Busy fraction rho in [0, 1).
    arrival_scv : float or ndarray
        Nonnegative squared coefficient of variation Ca^2 of the gaps between arrivals.
    service_scv : float or ndarray
        Nonnegative squared coefficient of variation Cs^2 of the service times.

    Returns
    -------
    float or ndarray
        Mean wait divided by mean service time, approximately.

    Raises
    ------
    ValueError
        If the utilization is outside [0, 1), or a coefficient is negative, infinite or NaN.
    pint.DimensionalityError
        If an argument carries a dimension.
    TypeError
        If an argument is not a number.

    Notes
    -----
    Wq / E[S] ~ (Ca^2 + Cs^2) / 2 * rho / (1 - rho). One first-come server, *independent* gaps and service times,
    heavy traffic. Correlated arrivals are excluded, and real traffic is correlated.

    Taught in lecture 01, section 3. Breaks first when gaps are correlated.

    References
    ----------
    Kingman (1961), The Single Server Queue in Heavy Traffic. https://doi.org/10.1017/S0305004100036094

    Examples
    --------
    >>> calc_kingman_wait_ratio(0.5, 1, 1)
    1.0
    """
    rho = check_number("utilization", utilization, FRACTION)
    arrival = check_number("arrival_scv", arrival_scv, NONNEGATIVE)
    service = check_number("service_scv", service_scv, NONNEGATIVE)
    mean_scv = arrival + (service - arrival) / 2  # the sum of the two might overflow
    return plain(mean_scv * (rho / (1 - rho)))


def calc_residency_factor(generation_time, wait_time):
    """Calculate how retaining state during a wait expands residence time.

    Parameters
    ----------
    generation_time : Quantity
        Positive time Tgen spent generating.
    wait_time : Quantity
        Nonnegative further time Twait for which the state keeps its slot, such as the wait for a tool.

    Returns
    -------
    float or ndarray
        Residence multiplier; the turnover of a fixed number of slots is divided by it.

    Raises
    ------
    ValueError
        If the generation time is not positive, the wait negative, or either infinite or NaN.
    pint.DimensionalityError
        If an argument is not a time.
    TypeError
        If an argument carries no unit, or is not a number.

    Notes
    -----
    (Tgen + Twait) / Tgen. The two are sequential and hold the same slot. It excludes state that is released or
    swapped during the wait, and overlapping work.

    Taught in lecture 01, section 6. Breaks first when the state is swapped out while it waits.

    References
    ----------
    Derivation above; Little's law turns it into the inverse ratio of turnovers.

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_residency_factor(1 * ureg.s, 3 * ureg.s)
    4.0
    """
    generation = check_quantity("generation_time", generation_time, TIME, POSITIVE)
    wait = check_quantity("wait_time", wait_time, TIME, NONNEGATIVE)
    return plain(1 + magnitude_in_unit_of(wait, generation) / generation.magnitude)


def calc_queue_latency_mmc(arrival_rate_hz, service_rate_hz, num_servers):
    """Calculate M/M/c utilization and queue-wait percentiles.

    Parameters
    ----------
    arrival_rate_hz : Quantity or float
        Nonnegative arrival rate lambda; a plain number means Hz.
    service_rate_hz : Quantity or float
        Positive completion rate mu of one server; a plain number means Hz. Zero counts as saturated.
    num_servers : int
        Number of servers c; a fraction is cut off, and anything below one counts as one.

    Returns
    -------
    tuple of (float, Quantity, Quantity)
        Utilization, median wait and 99th percentile of the wait, in seconds. At or above capacity
        ``(1.0, inf s, inf s)``.

    Raises
    ------
    ValueError
        If a rate is negative, infinite or NaN, or the number of servers infinite or NaN.
    pint.DimensionalityError
        If a rate is not a rate, or the number of servers carries a dimension.
    TypeError
        If an argument is not a number, or is an array.

    Notes
    -----
    rho = lambda / (c mu) and P(W > t) = C exp(-(c mu - lambda) t), C from `calc_erlang_c`; the waits invert this
    at tail probabilities 0.5 and 0.01, and are zero where fewer requests than that wait at all. Poisson arrivals,
    exponential service, identical servers, one first-come queue. The waits exclude the service itself: for a
    promise on the response use `calc_mmc_response_quantile`.

    Taught in lecture 01, section 4. Breaks first when it is taken for the response: service is not in it.

    References
    ----------
    Harchol-Balter (2013), Performance Modeling and Design of Computer Systems: Queueing Theory in Action.
    https://www.cs.cmu.edu/~harchol/PerformanceModeling/book.html

    Examples
    --------
    >>> rho, median, p99 = calc_queue_latency_mmc(3.2, 1.0, 4)
    >>> round(rho, 3), round(median, 3), round(p99, 3)
    (0.8, <Quantity(0.22, 'second')>, <Quantity(5.11, 'second')>)
    """
    arrival = _rate_in_hz("arrival_rate_hz", arrival_rate_hz)
    service = _rate_in_hz("service_rate_hz", service_rate_hz)
    servers = max(1, int(_scalar("num_servers", check_number("num_servers", num_servers, FINITE))))
    registry = registry_of(arrival_rate_hz, service_rate_hz)
    if arrival >= servers * Fraction(service):
        return 1.0, registry.Quantity(math.inf, "second"), registry.Quantity(math.inf, "second")
    queue = _StableQueue(arrival, service, servers)
    return queue.utilization, *(registry.Quantity(queue.wait_quantile(tail), "second") for tail in (0.5, 0.01))


def calc_erlang_c(num_servers, offered_load):
    """Calculate the probability that a request has to wait in an M/M/c queue.

    Parameters
    ----------
    num_servers : int
        Positive number of servers c.
    offered_load : float
        Nonnegative offered load a = lambda / mu: the mean number of busy servers.

    Returns
    -------
    float
        Share of the requests that wait; 1.0 at or above capacity.

    Raises
    ------
    ValueError
        If the number of servers is not a positive whole number, or the load negative, infinite or NaN.
    pint.DimensionalityError
        If an argument carries a dimension.
    TypeError
        If an argument is not a number, or is an array.

    Notes
    -----
    C = 1 / (1 + (1 - rho) R) with R = sum over k = 1..c of prod over j < k of (c - j) / a. Every term is positive, so
    nothing cancels, and the sum stops when the rest no longer counts: a million servers take a millisecond or two.

    Taught in lecture 05, section 3. Breaks first when arrivals are correlated.

    References
    ----------
    Erlang (1917), Solution of some problems in the theory of probabilities of significance in automatic telephone
    exchanges.

    Examples
    --------
    >>> round(calc_erlang_c(10, 8.0), 4)
    0.4092
    """
    servers = _scalar("num_servers", check_count("num_servers", num_servers, minimum=1))
    load = _scalar("offered_load", check_number("offered_load", offered_load, NONNEGATIVE))
    return 1.0 if load >= servers else _StableQueue(load, 1, servers).erlang_c


def calc_mmc_mean_wait(arrival_rate, service_rate, num_servers):
    """Calculate the mean wait in an M/M/c queue.

    Parameters
    ----------
    arrival_rate : Quantity or float
        Nonnegative arrival rate lambda.
    service_rate : Quantity or float
        Positive completion rate mu of one server. Both rates carry units, or neither does.
    num_servers : int
        Positive number of servers c.

    Returns
    -------
    Quantity or float
        Mean wait, service excluded, in the service rate's unit of time; infinite at or above capacity.

    Raises
    ------
    ValueError
        If an argument is outside its domain.
    pint.DimensionalityError
        If a rate is not a rate, or the number of servers carries a dimension.
    TypeError
        If only one rate carries a unit, or an argument is not a number, or is an array.

    Notes
    -----
    Wq = C / (c mu - lambda), C from `calc_erlang_c`. Poisson arrivals, exponential service, identical servers, one
    first-come queue.

    Taught in lecture 01, section 4. Breaks first when requests are sent to a server before one is free.

    References
    ----------
    Harchol-Balter (2013), Performance Modeling and Design of Computer Systems: Queueing Theory in Action, chapter 14.

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_mmc_mean_wait(5 / ureg.minute, 10 / ureg.minute, 2).to("s").round(3)
    <Quantity(0.4, 'second')>
    """
    queue, in_time_unit = _mmc_queue(arrival_rate, service_rate, num_servers)
    return in_time_unit(queue.mean_wait() if queue else math.inf)


def calc_allen_cunneen_wait(arrival_rate, service_rate, num_servers, arrival_scv, service_scv):
    """Approximate the mean wait in a G/G/c queue.

    Parameters
    ----------
    arrival_rate, service_rate, num_servers : Quantity or float, Quantity or float, int
        As for `calc_mmc_mean_wait`.
    arrival_scv : float
        Nonnegative squared coefficient of variation Ca^2 of the gaps between arrivals.
    service_scv : float
        Nonnegative squared coefficient of variation Cs^2 of the service times.

    Returns
    -------
    Quantity or float
        Mean wait, service excluded, in the service rate's unit of time; infinite at or above capacity.

    Raises
    ------
    ValueError, pint.DimensionalityError, TypeError
        As for `calc_mmc_mean_wait`.

    Notes
    -----
    Wq ~ (Ca^2 + Cs^2) / 2 * C / (c mu - lambda): the M/M/c wait, scaled as Kingman scales M/M/1. Exact for M/M/c and
    for M/G/1. Independent gaps and service times: correlated arrivals wait longer, by any factor.

    Taught in lecture 05, section 3. Breaks first when gaps are correlated.

    References
    ----------
    Allen (1990), Probability, Statistics, and Queueing Theory with Computer Science Applications, section 5.4.

    Examples
    --------
    >>> round(calc_allen_cunneen_wait(3.2, 1.0, 4, arrival_scv=1, service_scv=0), 4)
    0.3728
    """
    arrival = _scalar("arrival_scv", check_number("arrival_scv", arrival_scv, NONNEGATIVE))
    service = _scalar("service_scv", check_number("service_scv", service_scv, NONNEGATIVE))
    return calc_mmc_mean_wait(arrival_rate, service_rate, num_servers) * (arrival + (service - arrival) / 2)


def calc_mmc_response_quantile(arrival_rate, service_rate, num_servers, quantile):
    """Calculate a quantile of the response time, wait plus service, in an M/M/c queue.

    Parameters
    ----------
    arrival_rate, service_rate, num_servers : Quantity or float, Quantity or float, int
        As for `calc_mmc_mean_wait`.
    quantile : float
        Cumulative probability q in [0, 1).

    Returns
    -------
    Quantity or float
        The time within which a share q of the requests is done, in the service rate's unit of time; infinite at or
        above capacity.

    Raises
    ------
    ValueError, pint.DimensionalityError, TypeError
        As for `calc_mmc_mean_wait`.

    Notes
    -----
    P(T > t) = exp(-mu t) + C mu (exp(-mu t) - exp(-theta t)) / (theta - mu), with theta = c mu - lambda; the fraction
    is t exp(-mu t) where theta = mu. Solved by bisection to the last bit. A promise is on the response: the p99 wait
    plus the mean service falls short of the p99 response, three times at 64 servers.

    Taught in lecture 01, section 4. Breaks first when service times are not exponential.

    References
    ----------
    Kleinrock (1975), Queueing Systems, volume 1; derivation: the sum of an exponential service and an independent
    wait that is exponential with probability C, and zero otherwise.

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_mmc_response_quantile(0.9 * 64 / ureg.s, 1 / ureg.s, 64, 0.99).round(2)
    <Quantity(4.66, 'second')>
    """
    share = _scalar("quantile", check_number("quantile", quantile, FRACTION))
    queue, in_time_unit = _mmc_queue(arrival_rate, service_rate, num_servers)
    return in_time_unit(queue.response_quantile(share) if queue else math.inf)


def calc_mmc_min_servers(arrival_rate, service_rate, wait_budget, quantile=0.99):
    """Calculate the fewest servers that keep a quantile of the M/M/c wait within a budget.

    Parameters
    ----------
    arrival_rate : Quantity or float
        Nonnegative arrival rate lambda.
    service_rate : Quantity or float
        Positive completion rate mu of one server.
    wait_budget : Quantity or float
        Nonnegative longest wait t that the quantile may reach. The three carry units, or none does.
    quantile : float
        Cumulative probability q in [0, 1).

    Returns
    -------
    int
        Number of servers.

    Raises
    ------
    ValueError, pint.DimensionalityError, TypeError
        As for `calc_mmc_mean_wait`.

    Notes
    -----
    The smallest c with C exp(-(c mu - lambda) t) <= 1 - q: by bisection, since each server shortens every wait.

    Taught in lecture 01, section 4. Breaks first when arrivals are correlated.

    References
    ----------
    Tijms (2003), A First Course in Stochastic Models, section 5.3.

    Examples
    --------
    >>> from serving_lib import ureg
    >>> calc_mmc_min_servers(10 / ureg.s, 1 / ureg.s, wait_budget=200 * ureg.ms)
    17
    """
    tail = 1 - _scalar("quantile", check_number("quantile", quantile, FRACTION))
    arrival, service, unit = _rates_in_one_unit(arrival_rate, service_rate)
    budget = check_quantity("wait_budget", wait_budget, TIME, NONNEGATIVE, bare=unit is None)
    if unit is not None:
        budget = in_registry_of(budget, unit._REGISTRY.Quantity(1, unit)).m_as(unit)
    budget = _scalar("wait_budget", budget)

    def is_enough(servers):
        return _StableQueue(arrival, service, servers).wait_quantile(tail) <= budget

    fewest = math.floor(Fraction(arrival) / Fraction(service)) + 1
    spare = 1
    while not is_enough(fewest + spare - 1):
        spare *= 2
    return fewest + bisect.bisect_left(range(fewest, fewest + spare), True, key=is_enough)


class _StableQueue:
    """An M/M/c queue below capacity; rates are plain numbers per second.

    The spare capacity c mu - lambda is computed exactly, by fractions: close to saturation the rounding of the
    product alone is larger than the difference.
    """

    def __init__(self, arrival_rate, service_rate, servers):
        # Dividing both rates by a power of two is exact, and keeps the products clear of overflow and underflow.
        self._scale = Fraction(2) ** (math.frexp(service_rate)[1] - 1)
        arrival, service = Fraction(arrival_rate) / self._scale, Fraction(service_rate) / self._scale
        self.utilization = float(arrival / (servers * service))
        spare = servers * service - arrival
        self._spare = float(spare)
        self._spare_in_services = float(spare / service)
        self._service_rate = service_rate
        waitless = _sum_of_erlang_terms(servers, float(service), float(arrival))
        self._odds_of_no_wait = float(spare / (servers * service)) * waitless
        self.erlang_c = 1 / (1 + self._odds_of_no_wait)

    def mean_wait(self):
        """Return the mean wait in seconds."""
        return self.erlang_c / self._spare / float(self._scale)

    def wait_quantile(self, tail):
        """Return the wait in seconds that a share `tail` of the requests exceeds."""
        if self.erlang_c <= tail:
            return 0.0
        return math.log(self.erlang_c / tail) / self._spare / float(self._scale)

    def response_quantile(self, quantile):
        """Return the time in seconds within which a share of the requests is done."""
        if quantile == 0:
            return 0.0

        def is_reached(time):  # of the two tests, the one in which nothing near 1 is subtracted from 1
            if quantile < 0.5:
                return self._share_done(time) >= quantile
            return self._share_left(time) <= 1 - quantile

        low = -math.log1p(-quantile)  # the service alone takes that long
        high = 2 * low
        while not is_reached(high):
            low, high = high, 2 * high
        return first_float(is_reached, low, high) / self._service_rate

    def _share_left(self, time):
        """Return P(T > time), time in mean service times, as a sum of positive terms."""
        slower, gap = min(1.0, self._spare_in_services), abs(1.0 - self._spare_in_services)
        return math.exp(-time) + self.erlang_c * math.exp(-slower * time) * time * _mean_of_exp(gap * time)

    def _share_done(self, time):
        """Return P(T <= time), time in mean service times: who did not wait, and who did."""
        no_wait = 1 / (1 + 1 / self._odds_of_no_wait)
        x, y = sorted((time, self._spare_in_services * time))
        return no_wait * -math.expm1(-time) + self.erlang_c * x * y * _second_difference_of_exp(x, y)


def first_float(is_reached, low, high):
    """Return the first float in (low, high] that reaches a monotone condition, by bisection to the last bit.

    Parameters
    ----------
    is_reached : callable
        A function of one float, false and then true; true at `high`.
    low, high : float
        Where to search.

    Returns
    -------
    float

    Examples
    --------
    >>> first_float(lambda x: x * x >= 2, 1.0, 2.0)
    1.4142135623730951
    """
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return high


def _mean_of_exp(x):
    """Return (1 - exp(-x)) / x, the mean of exp(-s) over 0 <= s <= x."""
    return -math.expm1(-x) / x if x else 1.0


def _second_difference_of_exp(x, y):
    """Return the divided difference of exp at 0, -x and -y, for 0 <= x <= y."""
    if y > 1:
        return (_mean_of_exp(x) - math.exp(-x) * _mean_of_exp(y - x)) / y
    # The two means nearly cancel: their series, sum of (-1)^k h_k / (k + 2)! with h_k = sum of x^i y^(k - i).
    total, symmetric, power, factor = 0.0, 1.0, 1.0, 0.5
    for k in range(20):
        total += factor * symmetric
        power *= x
        symmetric = y * symmetric + power
        factor /= -(k + 3)
    return total


def _mmc_queue(arrival_rate, service_rate, num_servers):
    """Return the stable queue (None at or above capacity), and what gives a plain time the reader's unit."""
    servers = _scalar("num_servers", check_count("num_servers", num_servers, minimum=1))
    arrival, service, unit = _rates_in_one_unit(arrival_rate, service_rate)
    queue = None if arrival >= servers * Fraction(service) else _StableQueue(arrival, service, servers)
    return queue, (lambda time: time) if unit is None else (lambda time: unit._REGISTRY.Quantity(time, unit))


def _rates_in_one_unit(arrival_rate, service_rate):
    """Return both rates as plain numbers per one unit of time, and that unit; None for plain rates."""
    bare = not any(isinstance(rate, pint.Quantity) for rate in (arrival_rate, service_rate))
    arrival = check_quantity("arrival_rate", arrival_rate, RATE, NONNEGATIVE, bare=bare)
    service = check_quantity("service_rate", service_rate, RATE, POSITIVE, bare=bare)
    unit = None if bare else time_unit_of(service)
    if not bare:
        arrival, service = in_registry_of(arrival, service).m_as(unit**-1), service.m_as(unit**-1)
    return _scalar("arrival_rate", arrival), _scalar("service_rate", service), unit


def _sum_of_erlang_terms(servers, service_rate, arrival_rate):
    """Return R = sum over k = 1..c of prod over j < k of (c - j) mu / lambda."""
    total, product = 0.0, 1.0
    with np.errstate(over="ignore", divide="ignore"):
        for start in range(0, servers, _CHUNK):
            idle = np.arange(start, min(start + _CHUNK, servers))
            terms = product * np.cumprod((servers - idle) * service_rate / arrival_rate)
            total += float(terms.sum())
            product = float(terms[-1])
            if product == math.inf or product < total * 1e-20:
                break
    return total


_CHUNK = 4096


def _rate_in_hz(name, value):
    """Return a nonnegative rate as a plain number per second; a plain number is taken as it is."""
    rate = check_quantity(name, value, RATE, NONNEGATIVE, bare=True)
    return _scalar(name, rate.m_as("1/second") if isinstance(rate, pint.Quantity) else rate)


def _scalar(name, number):
    """Refuse an array where a formula has no elementwise meaning."""
    if np.ndim(number) > 0:
        raise TypeError(f"{name} must be a single number, got an array of shape {np.shape(number)}")
    return number
