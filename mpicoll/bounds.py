"""What no algorithm for a collective can beat, on a machine without links shared.

A bound is one of the collective and of its buffers: what must be sent, received, combined and copied by some
rank, at what these cost where there is that much data, however it is cut.
"""

from __future__ import annotations

from math import ceil, pow

from .cost import NOMINAL, Cost, Machine, of_call

_BOTH_WAYS = ("allreduce", "reduce_scatter", "allgather", "alltoall")
_TO_OR_FROM_ROOT = ("gather", "scatter")


def least_latency(size: int, alpha: float, gap: float, ports: float = 1.0) -> float:
    """No algorithm can let all ranks depend on all others in less.

    In r rounds with up to k_i messages a rank hears of ∏(k_i + 1) − 1 others at most, so that Σ(k_i + 1) is
    at least r·P^(1/r), by the inequality of the means. Of a round's messages as many as there are ports are
    sent at once.

    >>> least_latency(5, 1.0, 0.25), least_latency(5, 1.0, 0.25, ports=2.0), least_latency(5, 1.0, 0.25, 4.0)
    (1.75, 1.25, 1.0)
    """
    if size == 1:
        return 0.0
    most = (size - 1).bit_length()
    messages = {r: ceil(r * pow(size, 1 / r) - 1e-9) - r for r in range(1, most + 1)}
    # What goes beyond the first messages of every round.
    more = {r: max(0, ceil(count / ports - r - 1e-9)) for r, count in messages.items()}
    return min(r * alpha + gap * extra for r, extra in more.items())


def bound(collective: str, size: int, nbytes: float, machine: Machine = NOMINAL) -> Cost:
    """What no algorithm for the collective can beat, term by term [s].

    Latency: see `least_latency`. Data: in a reduce-scatter, all-gather or all-to-all ranks get (P−1)/P·n each
    and so send as much on average, in an all-reduce twice that (Patarasuk, Yuan, 2009): some rank needs
    for it what an exchange takes, or two messages one way. From or to a root one way will do; in a
    broadcast or reduce some rank gets n. Combining: P−1 operations per element, shared by P ranks; a
    reduce has `reduce_terms`. Copies: of a rank's own part. (Where messages travel by themselves, `overlap`,
    neither need take any time.)

    >>> from mpicoll.cost import uniform
    >>> round(1e3 * bound("allreduce", 64, 1e9, uniform(5e-6, 1 / 25e9)).bandwidth, 2)
    78.75
    """
    if size == 1:
        return Cost(0.0, 0.0, 0.0)
    machine, own = of_call(collective, size, nbytes, machine)
    share = (size - 1) / size
    # Whether ranks pass on what they have just written is the algorithm's affair: the cheaper counts. From or
    # to a root, one other rank has nothing to pass on.
    at_once = size == 2 and collective in ("bcast", *_TO_OR_FROM_ROOT)
    relaying = machine if at_once else machine.relaying
    ways, swaps = (machine.one_way, relaying.one_way), (machine.exchange, relaying.exchange)
    whole = min(curve.least_latency for curve in (*ways, *swaps))
    most = max(1.0, (size - 1) / machine.ports)
    gamma = 0.0 if machine.overlap else machine.combine.least_per_byte(0.0)
    copy = 0.0 if machine.overlap else own * machine.copy.least_per_byte(0.0)
    bounds = []
    # A round takes latency and so much per byte; or, as truly, less latency and more per byte.
    for alpha in (whole, whole / 2, 0.0):
        gap = min(machine.gap, alpha)
        out, both = (
            min(curve.least_per_byte(alpha, machine.gap - gap, most) for curve in some)
            for some in (ways, swaps)
        )
        one_way, two_ways = min(out, both), min(2 * out, both)
        beta = combined = 0.0
        if collective in _BOTH_WAYS:
            beta = share * two_ways * (2 if collective == "allreduce" else 1)
            combined = share * gamma if collective in ("allreduce", "reduce_scatter") else 0.0
        elif collective in _TO_OR_FROM_ROOT:
            beta = share * one_way
        elif collective == "bcast":
            beta = one_way
        elif collective == "reduce":
            beta, combined = one_way, reduce_terms(size, max(0.0, two_ways - one_way), gamma)
        latency = least_latency(size, alpha, gap, machine.ports)
        bounds.append(Cost(latency, nbytes * beta / machine.ports, nbytes * combined, machine.call, copy))
    return max(bounds, key=sum)


def reduce_terms(size: int, extra: float, gamma: float) -> float:
    """What a reduce takes per byte besides one way of n, which every rank needs to send or the root to get.

    The other ranks have to send n each. Let the root combine c·n: it must send what it does not combine
    at all, (1 − c)·n if that is anything, at `extra` seconds per byte, as it receives n meanwhile. The others
    combine (1 − c/(P−1))·n on average and must receive as much while they send. The best c leaves:

    >>> reduce_terms(2, 0.0, 4.0), reduce_terms(2, 2.0, 4.0), reduce_terms(2, 9.0, 4.0)
    (2.0, 3.0, 4.0)
    """

    def busier(c: float) -> float:
        others = 1 - c / (size - 1)
        return max(c * gamma + max(0.0, 1 - c) * extra, others * gamma + min(1.0, others) * extra)

    tries = [0.0, 1.0]
    slope = gamma - extra + (gamma + extra) / (size - 1)
    if slope > 0 and gamma <= slope:
        tries.append(gamma / slope)
    if gamma + extra > 0:
        tries.append((gamma + extra) / (gamma + (gamma + extra) / (size - 1)))
    return min(busier(c) for c in tries if 0 <= c <= size - 1)
