"""All-to-all: every rank sends every other a part of its own. Part s·P+d goes from rank s to rank d."""

from __future__ import annotations

from ..registry import Params, algorithm
from ..schedule import Recv, Round, Schedule, Send, Window, Windows, exchange
from .common import at_least
from .patterns import powers
from .tuning import radix


def _one_per_pair(size: int, params: Params) -> int:
    return size * size


@algorithm("alltoall", blocks=_one_per_pair, requires=at_least(throttle=1))
def linear(rank: int, size: int, *, throttle: int = 32) -> Schedule:
    """Send to all others and receive from all others, `throttle` of each at a time.

    Works for any P.
    Rounds: ⌈(P−1)/throttle⌉, with up to `throttle` messages each.
    Bytes per rank: (P−1)/P·n.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    for first in range(1, size, throttle):
        # Ranks start with different peers, so that nobody is flooded.
        jumps = range(first, min(first + throttle, size))
        peers = [((rank + jump) % size, (rank - jump) % size) for jump in jumps]
        yield Round(
            tuple(Send(to, (Window(rank * size + to),)) for to, _ in peers),
            tuple(Recv(source, (Window(source * size + rank),)) for _, source in peers),
        )


@algorithm("alltoall", blocks=_one_per_pair)
def pairwise(rank: int, size: int) -> Schedule:
    """Send to one rank and receive from one other in every round, at growing distance.

    Works for any P.
    Rounds: P−1.
    Bytes per rank: (P−1)/P·n.
    Reference: Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl., 2005.
    """
    for t in range(1, size):
        to, source = (rank + t) % size, (rank - t) % size
        mine, theirs = Window(rank * size + to), Window(source * size + rank)
        yield exchange(to, (mine,), (theirs,), source=source)


@algorithm("alltoall", blocks=_one_per_pair)
def in_place(rank: int, size: int) -> Schedule:
    """Exchange with one partner in every round, so that what comes takes the place of what goes.

    Works for any P.
    Rounds: P−1 of each rank's own, in a tournament of P.
    Bytes per rank: (P−1)/P·n; one part of scratch is enough in place.
    Reference: MPICH, alltoall_intra_pairwise_sendrecv_replace; here in rounds of a tournament.
    """
    for t in range(size):
        # In round t the two of every pair whose sum is t meet: each rank has one partner, or itself.
        partner = (t - rank) % size
        if partner != rank:
            yield exchange(partner, (Window(rank * size + partner),), (Window(partner * size + rank),))


@algorithm("alltoall", blocks=_one_per_pair, requires=at_least(k=2), tune={"k": radix})
def bruck(rank: int, size: int, *, k: int = 2) -> Schedule:
    """Move every part by the digits of the distance it has to go, one digit in every round.

    Works for any P.
    Rounds: ⌈log_k P⌉, with up to k−1 messages each.
    Bytes per rank: about (k−1)/k·⌈log_k P⌉·n.
    Reference: Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE Trans. Parallel Distrib. Syst., 1997.
    """

    def parts(holder: int, weight: int, digit: int) -> Windows:
        # A part with distance i has gone i mod weight so far, and its next digit says how far now.
        distances = (
            i
            for start in range(digit * weight, size, weight * k)
            for i in range(start, min(start + weight, size))
        )
        sources = (((holder - i % weight) % size, i) for i in distances)
        return tuple(Window(source * size + (source + i) % size) for source, i in sources)

    for weight in powers(k, size):
        jumps = [(digit, digit * weight) for digit in range(1, k) if digit * weight < size]
        yield Round(
            tuple(Send((rank + jump) % size, parts(rank, weight, digit)) for digit, jump in jumps),
            tuple(
                Recv((rank - jump) % size, parts((rank - jump) % size, weight, digit))
                for digit, jump in jumps
            ),
        )
