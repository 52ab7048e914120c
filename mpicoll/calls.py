"""What a collective call asks of its buffers: parsing, checking, and the layout of parts in memory.

One function per collective turns the arguments of mpi4py's method of that name into a `Call`. The rules
are MPI's and mpi4py's: ignored buffers at non-roots, counts per block, displacements, MPI.IN_PLACE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import index
from typing import Any

from mpi4py import MPI

from .buffers import Buffer, parse, parse_parts
from .errors import ArgumentError, Unsupported
from .ops import Operation, resolve
from .program import Layout, vector_layout


@dataclass(slots=True)
class Call:
    """One collective call, as far as a rank knows it.

    `nbytes` is the message size that algorithms are chosen by, equal on all ranks; `shape` is what all
    ranks must agree on besides (counts and type).
    """

    collective: str
    send: Buffer | None
    recv: Buffer | None
    layout: Layout
    nbytes: int
    shape: tuple[Any, ...]
    operation: Operation | None = None
    root: int | None = None
    direct_only: bool = False  # a rank knows only the lengths of what it sends or receives itself
    local: tuple[Any, ...] = ()  # what else a plan depends on, known to this rank only

    @property
    def reusable(self) -> bool:
        """Whether a plan of it may be kept: operations and datatypes made by the user can be freed."""
        some = self.recv if self.recv is not None else self.send
        own = self.operation is not None and self.operation.name == "user"
        return not own and (some is None or some.datatype.is_predefined)

    @property
    def device(self) -> bool:
        """Whether the buffers are in device memory."""
        some = self.recv if self.recv is not None else self.send
        return some is not None and some.device

    @property
    def unfit(self) -> str:
        """Why MPI must not be given this device memory, if so."""
        return next((b.unfit for b in (self.send, self.recv) if b is not None and b.unfit), "")

    @property
    def extent(self) -> int:
        """Bytes of an element."""
        some = self.recv if self.recv is not None else self.send
        return some.extent if some is not None else 1


def _check_root(comm: MPI.Intracomm, root: Any) -> int:
    try:
        number = index(root)
    except TypeError:
        number = -1
    if not 0 <= number < comm.size:
        raise ArgumentError(f"root {root!r} is not a rank in 0..{comm.size - 1}")
    return number


def _same_type(send: Buffer, recv: Buffer) -> None:
    if send.type_key != recv.type_key:
        raise ArgumentError(f"sendbuf holds {send.type_key}, recvbuf {recv.type_key}: they must agree")
    if send.device != recv.device:
        kinds = ["device memory" if buffer.device else "host memory" for buffer in (send, recv)]
        raise ArgumentError(f"sendbuf is in {kinds[0]}, recvbuf in {kinds[1]}: both must be in the same")


def _input(sendbuf: Any, recv: Buffer, count: int) -> Buffer | None:
    """The parsed input of `count` elements, or None where it is the receive buffer itself."""
    if sendbuf is MPI.IN_PLACE:
        return None
    send = parse(sendbuf, "sendbuf", writable=False)
    _same_type(send, recv)
    if send.count != count:
        raise ArgumentError(f"sendbuf has {send.count} elements, recvbuf needs {count}: they must agree")
    if send.address == recv.address and send.count:
        return None
    _apart(send, recv)
    return send


def _apart(send: Buffer, recv: Buffer) -> None:
    if send.overlaps(recv):
        raise ArgumentError("sendbuf and recvbuf overlap without being the same; use MPI.IN_PLACE")


def allreduce(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> Call:
    """All ranks' vectors combined, everywhere."""
    recv = parse(recvbuf, "recvbuf", writable=True)
    send = _input(sendbuf, recv, recv.count)
    layout = vector_layout(recv.count, in_place=send is None)
    shape = (recv.count, recv.type_key)
    return Call("allreduce", send, recv, layout, recv.nbytes, shape, resolve(op, recv))


def bcast(comm: MPI.Intracomm, buf: Any, none: None, root: int) -> Call:
    """The root's vector, everywhere (all makers take two buffers)."""
    root = _check_root(comm, root)
    data = parse(buf, "buf", writable=comm.rank != root)
    layout = vector_layout(data.count, in_place=True)
    return Call("bcast", None, data, layout, data.nbytes, (data.count, data.type_key), root=root)


def reduce(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: int) -> Call:
    """All ranks' vectors combined, at the root. `recvbuf` is ignored elsewhere."""
    root = _check_root(comm, root)
    if comm.rank == root:
        recv = parse(recvbuf, "recvbuf", writable=True)
        send = _input(sendbuf, recv, recv.count)
        layout = vector_layout(recv.count, in_place=send is None)
        shape = (recv.count, recv.type_key)
        return Call("reduce", send, recv, layout, recv.nbytes, shape, resolve(op, recv), root)
    if sendbuf is MPI.IN_PLACE:
        raise ArgumentError("sendbuf: MPI.IN_PLACE is for the root only")
    send = parse(sendbuf, "sendbuf", writable=False)
    layout = vector_layout(send.count, target=False)
    shape = (send.count, send.type_key)
    return Call("reduce", send, None, layout, send.nbytes, shape, resolve(op, send), root)


def _parts(counts: Sequence[int], displacements: Sequence[int]) -> tuple[Callable[[int], int], ...]:
    return counts.__getitem__, displacements.__getitem__


def allgather(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, *, vector: bool = False) -> Call:
    """Every rank's part, everywhere; parts of unequal length if `vector`."""
    recv, counts, displacements = parse_parts(recvbuf, "recvbuf", comm.size, writable=True, vector=vector)
    send = None
    if sendbuf is not MPI.IN_PLACE:
        send = parse(sendbuf, "sendbuf", writable=False)
        _same_type(send, recv)
        if send.count != counts[comm.rank]:
            raise ArgumentError(
                f"sendbuf has {send.count} elements, recvbuf expects {counts[comm.rank]} from this rank"
            )
        if send.address == recv.address + displacements[comm.rank] * recv.extent and send.count:
            send = None
        else:
            _apart(send, recv)
    length, target = _parts(counts, displacements)
    source = target if send is None else (lambda part: 0)
    layout = Layout(length, source, target, in_place=send is None)
    nbytes = max(counts, default=0) * recv.extent
    local = tuple(displacements) if vector else ()
    return Call("allgather", send, recv, layout, nbytes, (tuple(counts), recv.type_key), local=local)


def allgatherv(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any) -> Call:
    """`allgather` with parts of unequal length."""
    return allgather(comm, sendbuf, recvbuf, vector=True)


def reduce_scatter(
    comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: MPI.Op
) -> Call:
    """All ranks' vectors combined, each rank its part. In place, the result is at the buffer's start."""
    recv = parse(recvbuf, "recvbuf", writable=True)
    try:
        counts = [index(count) for count in recvcounts]
    except TypeError as error:
        raise ArgumentError(f"recvcounts: expected {comm.size} integers, got {recvcounts!r}") from error
    if len(counts) != comm.size or min(counts) < 0:
        raise ArgumentError(f"recvcounts: expected {comm.size} counts of at least 0, got {counts}")
    send = _input(sendbuf, recv, sum(counts))
    needed = sum(counts) if send is None else counts[comm.rank]
    if recv.count < needed or (send is not None and recv.count != needed):
        raise ArgumentError(f"recvbuf has {recv.count} elements, the counts need {needed}")
    return _reduce_scatter(comm, send, recv, counts, op)


def reduce_scatter_block(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, op: MPI.Op) -> Call:
    """`reduce_scatter` with equal parts."""
    if sendbuf is MPI.IN_PLACE:
        recv, counts, _ = parse_parts(recvbuf, "recvbuf", comm.size, writable=True, vector=False)
        return _reduce_scatter(comm, None, recv, counts, op)
    recv = parse(recvbuf, "recvbuf", writable=True)
    send, counts, _ = parse_parts(sendbuf, "sendbuf", comm.size, writable=False, vector=False)
    _same_type(send, recv)
    if counts[0] != recv.count:
        raise ArgumentError(
            f"sendbuf has {counts[0]} elements per rank, recvbuf {recv.count}: they must agree"
        )
    if send.address == recv.address and send.count:
        raise ArgumentError("sendbuf and recvbuf are the same memory; use MPI.IN_PLACE")
    _apart(send, recv)
    return _reduce_scatter(comm, send, recv, counts, op)


def _reduce_scatter(
    comm: MPI.Intracomm, send: Buffer | None, recv: Buffer, counts: Sequence[int], op: MPI.Op
) -> Call:
    offsets = list(accumulate(counts, initial=0))
    layout = Layout(
        counts.__getitem__,
        offsets.__getitem__,
        lambda part: 0 if part == comm.rank else None,
        in_place=send is None,
        stash=(0, offsets[-1]) if send is None else None,
    )
    nbytes = offsets[-1] * recv.extent
    shape = (tuple(counts), recv.type_key)
    return Call("reduce_scatter", send, recv, layout, nbytes, shape, resolve(op, recv))


def gather(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Every rank's part, at the root. `recvbuf` is ignored elsewhere."""
    root = _check_root(comm, root)
    rank = comm.rank
    recv: Buffer | None = None
    send = None if sendbuf is MPI.IN_PLACE else parse(sendbuf, "sendbuf", writable=False)
    if rank == root:
        recv, counts, displacements = parse_parts(recvbuf, "recvbuf", comm.size, writable=True, vector=False)
        count = counts[0]
        if send is not None:
            _same_type(send, recv)
            if send.count != count:
                raise ArgumentError(
                    f"sendbuf has {send.count} elements, recvbuf expects {count} from each rank"
                )
            if send.address == recv.address + displacements[rank] * recv.extent and send.count:
                send = None
            else:
                _apart(send, recv)
    elif send is None:
        raise ArgumentError("sendbuf: MPI.IN_PLACE is for the root only")
    else:
        count = send.count
    some = recv or send
    assert some is not None, "a root has recvbuf, other ranks sendbuf"
    layout = Layout(
        lambda part: count,
        (lambda part: part * count) if send is None else (lambda part: 0),
        (lambda part: part * count) if rank == root else (lambda part: None),
        in_place=send is None,
    )
    return Call("gather", send, recv, layout, count * some.extent, (count, some.type_key), root=root)


def scatter(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """The root's parts, one to each rank. `sendbuf` is ignored elsewhere."""
    root = _check_root(comm, root)
    rank = comm.rank
    send: Buffer | None = None
    recv = None if recvbuf is MPI.IN_PLACE else parse(recvbuf, "recvbuf", writable=True)
    if rank == root:
        send, counts, _ = parse_parts(sendbuf, "sendbuf", comm.size, writable=False, vector=False)
        count = counts[0]
        if recv is not None:
            _same_type(send, recv)
            if recv.count != count:
                raise ArgumentError(
                    f"sendbuf has {count} elements per rank, recvbuf {recv.count}: they must agree"
                )
            _apart(send, recv)
    elif recv is None:
        raise ArgumentError("recvbuf: MPI.IN_PLACE is for the root only")
    else:
        count = recv.count
    some = recv or send
    assert some is not None, "a root has sendbuf, other ranks recvbuf"
    layout = Layout(
        lambda part: count,
        (lambda part: part * count) if rank == root else (lambda part: None),
        (lambda part: 0 if part == rank else None) if recv is not None else (lambda part: None),
    )
    return Call("scatter", send, recv, layout, count * some.extent, (count, some.type_key), root=root)


def alltoall(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, *, vector: bool = False) -> Call:
    """Part d of every rank to rank d; parts of unequal length if `vector`."""
    rank, size = comm.rank, comm.size
    recv, recv_counts, recv_at = parse_parts(recvbuf, "recvbuf", size, writable=True, vector=vector)
    send: Buffer | None = None
    send_counts, send_at = recv_counts, recv_at
    if sendbuf is not MPI.IN_PLACE:
        send, send_counts, send_at = parse_parts(sendbuf, "sendbuf", size, writable=False, vector=vector)
        _same_type(send, recv)
        _apart(send, recv)
        if send_counts[rank] != recv_counts[rank]:
            raise ArgumentError(
                f"this rank sends itself {send_counts[rank]} elements and expects {recv_counts[rank]}"
            )

    def length(part: int) -> int:
        source, target = divmod(part, size)
        if not vector:
            return recv_counts[0]
        if source == rank:
            return send_counts[target]
        if target == rank:
            return recv_counts[source]
        raise Unsupported("it forwards parts whose lengths this rank does not know (v variant)")

    layout = Layout(
        length,
        lambda part: send_at[part % size] if part // size == rank else None,
        lambda part: recv_at[part // size] if part % size == rank else None,
        in_place=send is None,
        stash=(0, recv.count) if send is None else None,
    )
    # With unequal parts a rank does not know the others' counts: nothing may be chosen by size.
    nbytes = 0 if vector else recv_counts[0] * recv.extent
    shape = ("v", recv.type_key) if vector else (recv_counts[0], recv.type_key)
    call = Call("alltoall", send, recv, layout, nbytes, shape, direct_only=vector)
    if vector:
        call.local = tuple(tuple(numbers) for numbers in (send_counts, send_at, recv_counts, recv_at))
    return call


def alltoallv(comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any) -> Call:
    """`alltoall` with parts of unequal length."""
    return alltoall(comm, sendbuf, recvbuf, vector=True)


def barrier(comm: MPI.Intracomm, none: None, also_none: None) -> Call:
    """Nobody leaves before everybody has come."""
    layout = Layout(lambda part: 0, lambda part: None, lambda part: None)
    return Call("barrier", None, None, layout, 0, ())
