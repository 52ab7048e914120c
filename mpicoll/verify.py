"""The proof of a schedule, without MPI and without data.

All ranks' schedules run against each other (`network`), and every block that a rank holds is an
*expression*: the contribution of one rank, or a combination of two expressions. Equal expressions have
equal numbers (hash consing), so that one pass proves, for exactly this number of ranks:

- *matching*: every message meets its counterpart, names the same blocks, and nothing deadlocks even if
  no message is ever buffered;
- *no overlap* within a round (`schedule`, rule 2), nothing sent or combined that is not there;
- *no double counting*: the two sides of a combination have no contributor in common;
- *completeness*: at the end every block promised by the collective holds all contributions, or its
  origin's where nothing is reduced; after a barrier every rank knows that every other has begun;
- *bitwise identity*: all holders of a result evaluated the same expression. Equal lists of contributors
  would not be enough, since (a⊕b)⊕c and a⊕(b⊕c) round differently;
- *rank order*, where it is declared: contributors ascend in every combination, so that an operation
  that is only associative may be used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from .collectives import Collective, collective
from .errors import ScheduleError
from .network import Network, Span, spell
from .registry import Algorithm, get
from .schedule import Recv, Round, Send, Side

if TYPE_CHECKING:
    from .verify_large import LargeExpressions

#: With more cells (ranks times blocks) than this, `verify_large` keeps the state.
LARGE = 1 << 19


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proved, and what was seen on the way."""

    name: str
    size: int
    params: Mapping[str, Any] = field(default_factory=dict)
    blocks: int = 1
    rounds: int = 0  # the most that any rank takes
    messages: int = 0  # of all ranks together
    blocks_moved: int = 0  # by all messages together
    expressions: int | None = 0  # different combinations that were formed; None: not counted
    ordered: bool = True  # no combination was out of rank order

    def __str__(self) -> str:
        return f"{self.name} P={self.size}{_spell_params(self.params)}"


def verify(algorithm: Algorithm | str, size: int, params: Mapping[str, Any] | None = None) -> Proof:
    """Prove `algorithm` (or its name, such as ``"allreduce/ring"``) for `size` ranks.

    Raises `ScheduleError` naming rank, round, peer and blocks, and `Unsupported` where the algorithm
    does not serve this case.

    >>> import mpicoll.algorithms
    >>> print(verify("allreduce/ring", 4))
    allreduce/ring P=4
    >>> verify("allreduce/ring", 4).rounds
    6
    """
    if isinstance(algorithm, str):
        kind, _, name = algorithm.partition("/")
        algorithm = get(kind, name)
    resolved = algorithm.resolve(size, params)
    schedules = [algorithm.schedule(rank, size, params) for rank in range(size)]
    return verify_schedules(
        algorithm.collective,
        schedules,
        algorithm.blocks(size, params),
        root=resolved.get("root", 0),
        ordered=algorithm.ordered,
        name=str(algorithm),
        params=resolved,
    )


def verify_schedules(
    kind: Collective | str,
    schedules: Sequence[Iterable[Round]],
    blocks: int,
    *,
    root: int = 0,
    ordered: bool = False,
    name: str | None = None,
    params: Mapping[str, Any] | None = None,
) -> Proof:
    """Prove that `schedules`, one per rank, do what the collective promises; see `verify`.

    `ordered` demands that contributions are combined in rank order only.
    """
    kind = collective(kind) if isinstance(kind, str) else kind
    name = name or kind.name
    title = f"{name} P={len(schedules)}{_spell_params(params or {})}"
    state: _Barrier | _Expressions | LargeExpressions
    if kind.name == "barrier":
        state = _Barrier(title, schedules, blocks)
    elif len(schedules) * blocks <= LARGE:
        state = _Expressions(title, schedules, blocks, kind, root, ordered)
    else:
        from .verify_large import LargeExpressions  # NumPy, which all else here does without

        state = LargeExpressions(title, schedules, blocks, kind, root, ordered)
    state.run()
    state.conclude()
    return Proof(
        name,
        len(schedules),
        dict(params or {}),
        blocks,
        rounds=max(state.rounds) + 1,
        messages=state.messages,
        blocks_moved=state.moved,
        expressions=state.expressions,
        ordered=state.in_order,
    )


def _spell_params(params: Mapping[str, Any]) -> str:
    given = [f" {k}={v}".replace(", ", ",") for k, v in params.items() if v is not None]
    return "".join(given)


class _Barrier(Network):
    """Causal histories: the ranks known to have begun, as bits. Only receiving teaches anything."""

    moved = 0
    expressions = 0
    in_order = True

    def __init__(self, name: str, schedules: Sequence[Iterable[Round]], blocks: int) -> None:
        super().__init__(name, schedules, blocks)
        self.known = [1 << rank for rank in range(self.size)]

    def outgoing(self, rank: int, message: Send, span: Span) -> int:
        if message.windows:
            self.fail(rank, f"it sends data to rank {message.peer}: a barrier has none, only tokens")
        return self.known[rank]

    def complete(self, rank: int, step: Round, spans: list[Span], arrived: list[int]) -> None:
        for history in arrived:
            self.known[rank] |= history

    def conclude(self) -> None:
        everyone = (1 << self.size) - 1
        for rank, history in enumerate(self.known):
            if history != everyone:
                unknown = [r for r in range(self.size) if not history >> r & 1]
                raise ScheduleError(
                    f"{self.name}: rank {rank} leaves the barrier without knowing that "
                    f"{spell(unknown, 'rank')} began"
                )


class _Expressions(Network):
    """The state of all ranks: the number of the expression that each holds for each block, or 0."""

    def __init__(
        self,
        name: str,
        schedules: Sequence[Iterable[Round]],
        blocks: int,
        kind: Collective,
        root: int,
        ordered: bool,
    ) -> None:
        super().__init__(name, schedules, blocks)
        self.kind, self.root, self.ordered = kind, root, ordered
        self.moved = 0
        self.in_order = True
        # Expression 1 + r is the contribution of rank r. Per expression: its contributors as bits, and
        # the lowest and highest of them.
        self.mask = [0] + [1 << rank for rank in range(self.size)]
        self.low = [-1, *range(self.size)]
        self.high = [-1, *range(self.size)]
        self.table: dict[tuple[int, int], int] = {}
        self.state = [[0] * blocks for _ in range(self.size)]
        parts = kind.parts(self.size)
        if blocks < parts or blocks % parts:
            raise ScheduleError(f"{name}: {blocks} blocks cannot cut {parts} parts equally")
        self.per_part = blocks // parts
        for rank, row in enumerate(self.state):
            for block in self._blocks_of_parts(kind.before(rank, self.size, root)):
                row[block] = 1 + rank

    @property
    def expressions(self) -> int:
        return len(self.table)

    def _blocks_of_parts(self, parts: Iterable[int]) -> Iterable[int]:
        cut = self.per_part
        return (b for part in parts for b in range(part * cut, (part + 1) * cut))

    def outgoing(self, rank: int, message: Send, span: Span) -> list[int]:
        row = self.state[rank]
        cargo = row[span.cut] if span.cut else [row[block] for block in span.blocks]
        if 0 in cargo:
            absent = [b for b in span.blocks if not row[b]]
            self.fail(rank, f"it sends {spell(absent)} to rank {message.peer}, which it does not hold")
        self.moved += len(cargo)
        return cargo

    def complete(self, rank: int, step: Round, spans: list[Span], arrived: list[list[int]]) -> None:
        recvs = step.recvs
        if len(recvs) == 1:
            self._land(rank, recvs[0], spans[0], arrived[0])
        elif recvs:
            self._fold(rank, list(zip(recvs, spans, arrived, strict=True)))

    def _land(self, rank: int, into: Recv, span: Span, cargo: list[int]) -> None:
        """Copy `cargo` into my blocks, or combine it with them on the stated side."""
        row, side, table = self.state[rank], into.side, self.table
        if side is None:
            if span.cut:
                row[span.cut] = cargo
            else:
                for block, theirs in zip(span.blocks, cargo, strict=True):
                    row[block] = theirs
            return
        left = side is Side.LEFT
        for block, theirs in zip(span.blocks, cargo, strict=True):
            pair = (theirs, row[block]) if left else (row[block], theirs)
            row[block] = table.get(pair) or self._combine(rank, into.peer, block, pair)

    def _fold(self, rank: int, received: Sequence[tuple[Recv, Span, list[int]]]) -> None:
        """Rule 3: the LEFT operands in the order listed, then mine, then the RIGHT ones."""
        lefts: dict[int, tuple[int, int]] = {}  # block: (expression, last peer)
        for into, span, cargo in received:
            if into.side is not Side.LEFT:
                continue
            for block, theirs in zip(span.blocks, cargo, strict=True):
                if block in lefts:
                    pair = (lefts[block][0], theirs)
                    theirs = self.table.get(pair) or self._combine(rank, into.peer, block, pair)
                lefts[block] = (theirs, into.peer)
        row = self.state[rank]
        for block, (theirs, peer) in lefts.items():
            pair = (theirs, row[block])
            row[block] = self.table.get(pair) or self._combine(rank, peer, block, pair)
        for into, span, cargo in received:
            if into.side is not Side.LEFT:
                self._land(rank, into, span, cargo)

    def _combine(self, rank: int, peer: int, block: int, pair: tuple[int, int]) -> int:
        """The number of a combination not seen before, after checking that it is sound."""
        left, right = pair
        where = f"block {block} from rank {peer}"
        if not self.kind.reduces:
            self.fail(rank, f"it combines {where}, but {self.kind.title} reduces nothing")
        if not (left and right):
            self.fail(rank, f"it combines {where} with its own block, which it does not hold")
        both = self.mask[left] & self.mask[right]
        if both:
            ranks = [r for r in range(self.size) if both >> r & 1]
            self.fail(rank, f"combining {where} counts the contribution of {spell(ranks, 'rank')} twice")
        if self.high[left] > self.low[right]:
            self.in_order = False
            if self.ordered:
                self.fail(
                    rank,
                    f"combining {where} puts rank {self.high[left]} left of rank {self.low[right]}: "
                    f"out of rank order, though declared ordered",
                )
        number = self.table[pair] = len(self.mask)
        self.mask.append(self.mask[left] | self.mask[right])
        self.low.append(min(self.low[left], self.low[right]))
        self.high.append(max(self.high[left], self.high[right]))
        return number

    def conclude(self) -> None:
        """Check every block of every part that the collective promises."""
        everyone = (1 << self.size) - 1
        kind, size, root = self.kind, self.size, self.root
        first: dict[int, tuple[int, int]] = {}  # block: (a holder, its expression)
        for rank, row in enumerate(self.state):
            for part in kind.after(rank, size, root):
                origin = kind.origin(part, size, root)
                for block in range(part * self.per_part, (part + 1) * self.per_part):
                    held = row[block]
                    if kind.reduces:
                        if self.mask[held] != everyone:
                            self._incomplete(rank, block, held)
                        holder, expression = first.setdefault(block, (rank, held))
                        if held != expression:
                            self._differs(holder, rank, block)
                    elif held != 1 + origin:
                        got = f"rank {held - 1}'s data" if held else "nothing"
                        raise ScheduleError(
                            f"{self.name}: at the end rank {rank} holds {got} in block {block}, "
                            f"and not rank {origin}'s"
                        )

    def _incomplete(self, rank: int, block: int, held: int) -> NoReturn:
        absent = [r for r in range(self.size) if not self.mask[held] >> r & 1]
        raise ScheduleError(
            f"{self.name}: at the end block {block} of rank {rank} lacks the contribution of "
            f"{spell(absent, 'rank')}"
        )

    def _differs(self, holder: int, rank: int, block: int) -> NoReturn:
        theirs, mine = (self._spell_expression(self.state[r][block]) for r in (holder, rank))
        raise ScheduleError(
            f"{self.name}: ranks {holder} and {rank} evaluate different expressions for block {block}, so "
            f"their results may differ in the last bit: {theirs} and {mine}"
        )

    def _spell_expression(self, number: int, most: int = 60) -> str:
        """An expression in words: rank numbers, and brackets for combinations; cut after `most`."""
        pairs = {n: pair for pair, n in self.table.items()}
        text, rest = "", [str(number)]
        while rest and len(text) < most:
            word = rest.pop()
            if not word.isdigit():
                text += word
            elif (n := int(word)) in pairs:
                left, right = pairs[n]
                rest += [")", str(right), "⊕", str(left), "("]
            else:
                text += str(n - 1)
        return text + "…" if rest else text
