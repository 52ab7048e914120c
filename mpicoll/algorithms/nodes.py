"""Nodes, and compositions over them: inner algorithms within nodes, others between.

A composition is data, too: a list of *stages*, in each of which *teams* of ranks run one registered
algorithm on some parts of the data. Nothing is rewritten for it, and no team sees more than its own ranks and
parts. The schedule of a rank, the number of blocks and what is refused follow from the list.

A node map may have any order of ranks, and any number of ranks per node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, wraps
from math import lcm
from typing import Any, NamedTuple

from ..errors import Unsupported
from ..partition import block_length, block_offset
from ..registry import Algorithm, Params, algorithm, get, needs_nodes
from ..schedule import Schedule, Window, Windows, merged
from .compose import embed, only_new, staged, without_empty

Nodes = tuple[tuple[int, ...], ...]
Parts = Callable[[int], Iterable[int]]  # the outer parts that an inner part stands for


@lru_cache(maxsize=64)
def members(nodes: tuple[int, ...]) -> Nodes:
    """The ranks of each node, in rank order; nodes in the order of their lowest rank.

    >>> members((7, 3, 7, 3, 3))
    ((0, 2), (1, 3, 4))
    """
    found: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        found.setdefault(node, []).append(rank)
    return tuple(tuple(ranks) for ranks in found.values())


def total(nodes: Nodes) -> int:
    """Ranks of all nodes together."""
    return sum(len(ranks) for ranks in nodes)


def fewest(nodes: Nodes) -> int:
    """Ranks of the smallest node."""
    return min(len(ranks) for ranks in nodes)


def leaders(nodes: Nodes, root: int = -1) -> list[int]:
    """The rank that speaks for each node: its lowest, but `root` for its own.

    >>> leaders(((0, 2), (1, 3, 4)), root=3)
    [0, 3]
    """
    return [root if root in ranks else ranks[0] for ranks in nodes]


def owners(nodes: Nodes, count: int, root: int = -1) -> list[list[int]]:
    """The ranks of each node that speak for a shard of the vector: the first ones, and the root among them.

    >>> owners(((0, 2), (1, 3, 4)), 2, root=4)
    [[0, 2], [1, 4]]
    """
    first = [list(ranks[:count]) for ranks in nodes]
    return [
        [*own[:-1], root] if root in ranks and root not in own else own
        for ranks, own in zip(nodes, first, strict=True)
    ]


def groups(nodes: Nodes) -> list[list[Sequence[int]]]:
    """The ranks of each node in as many groups as the smallest has ranks; the first of a group speaks for it.

    >>> groups(((0, 2), (1, 3, 4)))
    [[(0,), (2,)], [(1, 4), (3,)]]
    """
    count = fewest(nodes)
    return [[ranks[place::count] for place in range(count)] for ranks in nodes]


# -- what the parts of a team are --


def only(part: int) -> Parts:
    """One outer part, whatever the inner one."""
    return lambda i: (part,)


def each(parts: Sequence[int]) -> Parts:
    """An outer part for each inner part."""
    return lambda i: (parts[i],)


def several(parts: Sequence[Iterable[int]]) -> Parts:
    """Some outer parts for each inner part."""
    return lambda i: parts[i]


# -- stages --


@dataclass(slots=True)
class Team:
    """Ranks that run an algorithm among themselves.

    Its part i stands for the outer parts ``parts(i)``; `root` is one of the ranks, for rooted collectives.
    Where the receiver of an outer part has it already, ``knows(receiver, part)``, it is not sent.
    """

    ranks: Sequence[int]
    parts: Parts
    root: int = -1
    knows: Callable[[int, int], bool] | None = None
    _places: dict[tuple[int, int, int], Windows] = field(default_factory=dict)

    def place(self, block: int, per_part: int, cut: int) -> Windows:
        """The outer blocks that an inner one stands for, of which each outer part has `cut`."""
        key = block, per_part, cut
        if key not in self._places:
            part, piece = divmod(block, per_part)
            start, length = block_offset(cut, per_part, piece), block_length(cut, per_part, piece)
            self._places[key] = merged(Window(outer * cut + start, length) for outer in self.parts(part))
        return self._places[key]


class Stage(NamedTuple):
    """Teams that run the same algorithm at once; a rank that is in several takes them in this order."""

    name: str
    collective: str
    algorithm: str
    teams: Sequence[Team]


class Composition:
    """The stages on some nodes, and what follows from them. The outer data has `units` parts."""

    def __init__(self, stages: Iterable[Stage], units: int, *, tokens: bool) -> None:
        self.units, self.tokens = units, tokens
        self.stages = list(stages)
        # Each algorithm, and how many ranks it runs on.
        self.inner = dict.fromkeys(
            (s.collective, s.algorithm, len(t.ranks)) for s in self.stages for t in s.teams
        )

    @cached_property
    def seats(self) -> list[dict[int, list[Team]]]:
        """For each stage the teams of every rank that has company in one."""
        found: list[dict[int, list[Team]]] = []
        for stage in self.stages:
            seats: dict[int, list[Team]] = {}
            for team in stage.teams:
                for rank in team.ranks if len(team.ranks) > 1 else ():
                    seats.setdefault(rank, []).append(team)
            found.append(seats)
        return found

    def refusal(self) -> str | None:
        """Why an inner algorithm cannot serve its team, or None if all can."""
        for kind, name, ranks in self.inner:
            refusal = get(kind, name).refusal(ranks)
            if refusal is not None:
                return f"{kind}/{name} of {ranks} ranks: {refusal}"
        return None

    def cut(self) -> int:
        """Blocks per outer part that serve all inner algorithms: a common multiple, unless that is large.

        Then inner blocks differ in length, by an eighth at most.
        """
        cuts = set()
        for kind, name, size in self.inner:
            entry = get(kind, name)
            cuts.add(entry.blocks(size) // entry.collective.parts(size))
        return min(lcm(*cuts), 8 * max(cuts))

    def schedule(self, rank: int) -> Schedule:
        """The rounds of a rank, stage after stage."""
        cut = self.cut()
        for stage, seats in zip(self.stages, self.seats, strict=True):
            for team in seats.get(rank, ()):
                rounds = self._inner(get(stage.collective, stage.algorithm), team, rank, cut)
                yield from staged(stage.name, rounds if self.tokens else without_empty(rounds))

    def _inner(self, entry: Algorithm, team: Team, rank: int, cut: int) -> Schedule:
        size, knows = len(team.ranks), team.knows
        params = {"root": team.ranks.index(team.root)} if entry.collective.rooted else {}
        blocks = entry.blocks(size, params)
        per_part = blocks // entry.collective.parts(size)
        inner = entry.schedule(team.ranks.index(rank), size, params)
        rounds = embed(inner, team.ranks, blocks, lambda block: team.place(block, per_part, cut))
        if knows is None:
            return rounds
        return only_new(rounds, rank, self.units * cut, lambda receiver, block: knows(receiver, block // cut))


Describe = Callable[..., Iterator[Stage]]  # (nodes, *, parameters): the stages
_SETTLED: dict[Callable[..., Schedule], Callable[[Params], Composition]] = {}  # by registered function


def composition_of(entry: Algorithm, params: Params) -> Composition | None:
    """The stages of an algorithm, for resolved parameters; None for one that was not made of stages.

    Raises `Unsupported` where there are none for these nodes.
    """
    settle = _SETTLED.get(entry.generate)
    return None if settle is None else settle(params)


def composition(
    collective: str,
    *,
    units: Callable[[Nodes, Params], int],
    tokens: bool = False,
    tune: dict[str, Callable[[int, int], Any]] | None = None,
    name: str,
) -> Callable[[Describe], Describe]:
    """Register a function that gives the stages for some nodes as an algorithm; its parameters are keywords.

    `units(nodes, params)` is the number of outer parts that the stages speak of. With `tokens` the messages
    carry no data, else those without data are left out. The function may raise `Unsupported`.
    """

    def register(describe: Describe) -> Describe:
        @lru_cache(maxsize=16)
        def composed(node_of: tuple[int, ...], given: tuple[tuple[str, Any], ...]) -> Composition:
            nodes, params = members(node_of), dict(given)
            return Composition(describe(nodes, **params), units(nodes, params), tokens=tokens)

        def settle(params: Params) -> Composition:
            return composed(tuple(params["nodes"]), tuple((k, v) for k, v in params.items() if k != "nodes"))

        def blocks(size: int, params: Params) -> int:
            made = settle(params)
            return made.units * made.cut()

        def requires(size: int, params: Params) -> str | None:
            if (missing := needs_nodes(size, params)) is not None:
                return missing
            try:
                return settle(params).refusal()
            except Unsupported as error:
                return str(error)

        @wraps(describe)
        def generate(rank: int, size: int, **params: Any) -> Schedule:
            return settle(params).schedule(rank)

        _SETTLED[generate] = settle
        generate.__signature__ = _signature(describe)  # type: ignore[attr-defined]  # functions may have one
        algorithm(collective, blocks=blocks, requires=requires, tune=tune, name=name)(generate)
        return describe

    return register


def _signature(describe: Describe) -> inspect.Signature:
    """That of the algorithm: rank and size, and `nodes` for a keyword."""
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    first = [inspect.Parameter(word, positional) for word in ("rank", "size")]
    nodes = inspect.Parameter("nodes", inspect.Parameter.KEYWORD_ONLY, default=None)
    keywords = [p for p in inspect.signature(describe).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return inspect.Signature([*first, nodes, *keywords])
