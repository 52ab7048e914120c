"""Wrong all-reduces, loaded by a sweep with ``--load`` to see that it catches each of them.

One is an algorithm; the others are right ones whose calls are tampered with, in ways that a schedule cannot
express. Importing MPI here, at the top, must not keep the sweep from choosing the thread level.
"""

from mpi4py import MPI  # noqa: F401

from mpicoll import Recv, Round, Send, Side, Window, algorithm
from mpicoll.bench import measure

ALL = (Window(0),)


@algorithm("allreduce", blocks=lambda size, params: 1)
def drops_and_doubles(rank, size):
    """Rank 0 adds up what it is sent, twice by rank 1 and never by rank 2, and sends the sum to all."""
    for sender in (1, 1, *range(3, size)):
        if rank == sender:
            yield Round(sends=(Send(0, ALL),))
        elif rank == 0:
            yield Round(recvs=(Recv(sender, ALL, Side.LEFT),))
    if rank == 0:
        yield Round(sends=tuple(Send(peer, ALL) for peer in range(1, size)))
    else:
        yield Round(recvs=(Recv(0, ALL),))


def off_by_a_half(work, calls):
    """In one element, on all ranks alike: OSU's validation takes the difference as an integer, which is 0."""
    work.recv.array[5] += 0.5


def another_last_bit(work, calls):
    """On one rank: each rank's result alone is as good as any other, but they are not the same."""
    if work.rank == 2:
        work.recv.array.view("u4")[3] ^= 1


def wrong_later(work, calls):
    """From the third call on: only a check after timing can see it."""
    work.recv.array[7] += calls > 2


def out_of_bounds(work, calls):
    """Three bytes behind the result, on one rank."""
    if work.rank == 1:
        work.recv.after[3] = 99


def input_changed(work, calls):
    """The send buffer is not the collective's to write, on any rank."""
    if work.rank == 3:
        work.send.array[0] += 1


SPOILT = {
    "ring": off_by_a_half,
    "recursive_doubling": another_last_bit,
    "circulant": wrong_later,
    "swing": out_of_bounds,
    "bine": input_changed,
}
honest = measure.build


def build(contender, work, own, plain):
    """The right contender, and then what is done to its result."""
    made = honest(contender, work, own, plain)
    spoil = SPOILT.get(contender.name)
    if spoil is not None:
        call, calls = made.call, []

        def spoilt():
            call()
            calls.append(1)
            spoil(work, len(calls))

        made.call = spoilt
    return made


measure.build = build
