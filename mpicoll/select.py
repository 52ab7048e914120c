"""Which algorithm `algorithm="auto"` means, and how many channels a plan gets by default.

Chosen from values that are equal on all ranks: collective, number of ranks, message size, order, and the
machine that MPICOLL_CALIBRATION names, whose content all ranks agree on. Only algorithms that serve every
number of ranks are candidates. With a calibration the one whose schedule costs least there is taken (`cost`),
without one what closed forms say of a nominal machine.
"""

from __future__ import annotations

import os
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

from .algorithms.patterns import ceil_log2
from .algorithms.tuning import ALPHA_SECONDS, BETA_SECONDS_PER_BYTE
from .cost import Machine, cost
from .errors import ArgumentError, Unsupported
from .registry import get

# A channel's landing area should stay in a core's second-level cache. On two ranks of one machine, 256 KiB
# was the best of 64 KiB … 4 MiB from 4 MiB messages up, with MPICH and with Open MPI.
STRIPE_BYTES = 256 << 10
# Between nodes, where several ranks send over one link, a message that needs a handshake seems to wait for it
# behind the data of others: with Open MPI over TCP, whose eager limit is 64 KiB, on 4 nodes of 2 ranks,
# 16 MiB took 215 ms in messages of 32 KiB and 253 ms in those of 256 KiB (results/README.md, hierarchical).
STRIPE_BYTES_BETWEEN_NODES = 32 << 10
MOST_CHANNELS = 256  # that are chosen
DEPTH = 2
TAGS_PER_PLAN = 16  # the deepest rotation of channels
#: What may be asked for.
_MOST = {"channels": 1 << 16, "depth": TAGS_PER_PLAN}

# The nominal machine of `algorithms.tuning`, and a reduction that reads and writes at 33 GB/s: [s], [s/B].
ALPHA, BETA, GAMMA = ALPHA_SECONDS, BETA_SECONDS_PER_BYTE, 3e-11

_ORDERED = {
    "allreduce": "recursive_doubling",
    "reduce": "binary_tree",
    "reduce_scatter": "recursive_doubling",
}
_FOR_LATENCY = {
    "bcast": "binomial",
    "reduce": "binomial",
    "allgather": "circulant",
    "reduce_scatter": "circulant",
    "alltoall": "bruck",
    "gather": "binomial",
    "scatter": "binomial",
    "barrier": "dissemination",
}
_FOR_BANDWIDTH = {
    **_FOR_LATENCY,
    "bcast": "scatter_allgather",
    "reduce": "circulant",
    "alltoall": "linear",
}

#: So many times cheaper is clearly so: of 660 times measured the model missed half by more than 15 %, every
#: thirtieth by more than half, one by 88 % (results/model).
CLEARLY = 1.5

#: What is compared on a calibrated machine; of equals the first. Their steps are found quickly for any P.
RANKED = {
    "allreduce": ("recursive_doubling", "ring", "circulant"),
    "bcast": ("binomial", "scatter_allgather", "circulant_pipelined"),
    "reduce": ("binomial", "circulant"),
    "allgather": ("circulant", "ring"),
    "reduce_scatter": ("circulant", "ring"),
    "alltoall": ("bruck", "linear", "pairwise"),
}


def calibration(path: str | os.PathLike[str] | None = None) -> Machine | None:
    """The machine of a file of `mpicoll calibrate`, or of the one that MPICOLL_CALIBRATION names, if it does.

    Raises `ArgumentError` if it cannot be read, or is no such file.
    """
    path = path or os.environ.get("MPICOLL_CALIBRATION")
    if not isinstance(path, str | os.PathLike | None):
        raise ArgumentError(f"calibration names a file of `mpicoll calibrate`, not {path!r}")
    return Machine.read(Path(path)) if path else None


def choose(
    collective: str,
    size: int,
    nbytes: int,
    *,
    nodes: int = 1,
    ordered: bool = False,
    direct: bool = False,
    background: bool = False,
    machine: Machine | None = None,
) -> str:
    """The algorithm for a message of `nbytes` on `size` ranks in so many `nodes`.

    `ordered`: operands must be combined in rank order; `direct`: parts must not be forwarded; `background`: a
    thread that looks for messages now and then is to complete it; `machine`: what was calibrated, between
    nodes where there are several.

    >>> import mpicoll.algorithms
    >>> from mpicoll.cost import uniform
    >>> fast, slow = (uniform(alpha, 1e-10, 3e-11) for alpha in (1e-6, 1e-3))
    >>> choose("allreduce", 8, 1 << 20, machine=fast), choose("allreduce", 8, 1 << 20, machine=slow)
    ('circulant', 'recursive_doubling')
    """
    if ordered:
        return _ORDERED[collective]
    if direct:
        return "linear"
    if collective == "allreduce" and size == 2 and background:
        # As many bytes as the ring's in half the rounds, for each of which the thread comes late, at the
        # cost of adding up the whole vector on both ranks instead of half of it on each.
        return "recursive_doubling"
    if 1 < nodes < size and collective in _OVER_NODES:
        rates = _rates(machine, nbytes) if machine else _Rates(ALPHA, BETA, GAMMA, 0.0)
        return _over_nodes(collective, size, nbytes, nodes, rates)
    nominal = _nominal(collective, size, nbytes)
    if machine is not None and size > 1 and nbytes and collective in RANKED:
        return cheapest(collective, size, nbytes, machine, nominal)
    return nominal


def _nominal(collective: str, size: int, nbytes: int) -> str:
    """What is chosen where nothing is known of the machine."""
    if collective == "allreduce":
        return _allreduce(size, nbytes)
    if collective not in _FOR_LATENCY:
        raise ArgumentError(f"no automatic choice for {collective!r}")
    small = size == 2 or nbytes < _latency_limit(collective, size)
    return (_FOR_LATENCY if small else _FOR_BANDWIDTH)[collective]


class _Rates(NamedTuple):
    """Of a message [s], and of a byte sent, combined and copied [s/B]."""

    alpha: float
    beta: float
    gamma: float
    copy: float


def _rates(machine: Machine, nbytes: int) -> _Rates:
    """α and β of the line from the smallest message to this one, and what its bytes cost otherwise.

    The intercept of a piece of the curve will not do: where a curve bends down, it is the larger for it, and
    where it bends up, it may be 0.
    """
    alpha, n = machine.exchange(1), max(nbytes, 1)
    return _Rates(
        alpha, max(0.0, machine.exchange(nbytes) - alpha) / n, machine.combine(n) / n, machine.copy(n) / n
    )


@lru_cache(4096)
def cheapest(collective: str, size: int, nbytes: int, machine: Machine, nominal: str) -> str:
    """The algorithm of `RANKED` whose schedule costs least on a machine, with the channels it would get.

    It is `nominal` unless another is clearly cheaper: the model does not know smaller differences. Of what
    has no model nothing is known to be cheaper.
    """
    total = nbytes * get(collective, RANKED[collective][0]).collective.parts_in_total(size)
    channels = default_channels(collective, nbytes, size)[0]
    seconds = {}
    for name in RANKED[collective]:
        try:
            seconds[name] = cost(f"{collective}/{name}", size, total, machine, channels=channels).seconds
        except Unsupported:  # its ranks follow no law, and are too many to run them all
            continue
    if nominal not in seconds:
        return nominal
    best = min(seconds, key=lambda name: seconds[name])
    return nominal if seconds[nominal] < CLEARLY * seconds[best] else best


def _allreduce(size: int, nbytes: int) -> str:
    """Least α·rounds + β·bytes + γ·bytes reduced on a flat machine, of doubling and halving vectors.

    At two and three ranks the ring has the rounds of the circulant algorithm and simpler messages.
    """
    rounds, share = ceil_log2(size), (size - 1) / size
    fold = size & (size - 1) != 0
    doubling = (rounds + fold) * (ALPHA + nbytes * (BETA + GAMMA))
    halving = 2 * rounds * ALPHA + 2 * share * nbytes * BETA + share * nbytes * GAMMA
    if doubling <= halving:
        return "recursive_doubling"
    return "ring" if size <= 3 else "circulant"


#: Between nodes, for latency and for bandwidth. All serve any numbers of ranks per node.
_OVER_NODES = {
    "allreduce": ("leader", "two_level"),
    "bcast": ("leader", "two_level"),
    "reduce": ("leader", "two_level"),
    "allgather": ("two_level", "two_level"),
    "reduce_scatter": ("two_level", "two_level"),
    "alltoall": ("node_aware", "linear"),
    "gather": ("leader", "leader"),
    "scatter": ("leader", "leader"),
    "barrier": ("leader", "leader"),
}


def _over_nodes(collective: str, size: int, nbytes: int, nodes: int, rates: _Rates) -> str:
    """One leader per node as long as the rounds that this saves cost more than the bytes that it adds.

    Splitting the vector between the q ranks of a node saves each of them bytes, but a round trip of its parts
    costs up to log2 N rounds more; and a leader combines the whole vector in every round, instead of one and
    a q-th. What all-to-all over nodes saves is messages; it sends every byte twice, packed and unpacked.
    """
    latency, bandwidth = _OVER_NODES[collective]
    alpha, beta, gamma, copy = rates
    if collective == "alltoall":
        return latency if nbytes * size * (beta + 2 * copy) < alpha * (size - nodes) else bandwidth
    per_node = -(-size // nodes)
    inner, outer = ceil_log2(per_node), ceil_log2(nodes)
    extra = (2 * inner + outer - 2) * nbytes * beta
    if collective in ("allreduce", "reduce"):
        extra += (inner + outer - 1 - 1 / per_node) * nbytes * gamma
    return latency if extra < alpha * outer else bandwidth


def _latency_limit(collective: str, size: int) -> float:
    """Message size [B] up to which the algorithm with the fewest rounds is the cheaper one.

    All-to-all (bytes per pair): Bruck sends log2(P)/2 times as much in log2 P instead of P-1 messages.
    Trees send the vector log2 P times in log2 P rounds; their rivals twice, in 2 log2 P rounds.
    """
    rounds = ceil_log2(size)
    if collective == "alltoall":
        saved, more = size - 1 - rounds, size * rounds / 2 - (size - 1)
        return ALPHA * saved / (BETA * more) if more > 0 else float("inf")
    return ALPHA * rounds / (BETA * (rounds - 2)) if rounds > 2 else 512 << 10


def check_channels(**given: Any) -> None:
    """Raise `ArgumentError` for a number of `channels`, or a `depth` of their rotation, that cannot be."""
    for what, value in given.items():
        if not isinstance(value, Integral) or not 1 <= int(value) <= _MOST[what]:
            raise ArgumentError(f"{what} must be an integer in 1..{_MOST[what]}, not {value!r}")


def default_channels(
    collective: str, nbytes: int, size: int, *, between_nodes: bool = False
) -> tuple[int, int]:
    """(channels, depth): for large reductions stripes of some KiB of a rank's share.

    `between_nodes`: for a composition over several nodes. There, while one stripe is between nodes, the
    next is combined or copied within them.
    """
    if collective not in ("allreduce", "reduce_scatter", "reduce"):
        return 1, 1
    stripe = STRIPE_BYTES_BETWEEN_NODES if between_nodes else STRIPE_BYTES
    channels = max(1, min(MOST_CHANNELS, nbytes // max(size, 1) // stripe))
    # Every channel repeats the schedule: no more than some ten thousand messages in one program.
    channels = max(1, min(channels, 5_000 // max(size, 1)))
    return channels, min(DEPTH, channels)
