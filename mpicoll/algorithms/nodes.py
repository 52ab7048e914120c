"""Nodes, and what compositions over them need: inner algorithms within nodes, an outer one between.

Nothing is rewritten: `nested` runs any registered algorithm on some of the ranks and some of the data.
A node map may have any order of ranks, and any number of ranks per node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from math import lcm
from typing import Any, NamedTuple

from ..partition import block_length, block_offset
from ..registry import Params, get, needs_nodes
from ..schedule import Schedule, Window, Windows, merged
from .compose import embed, staged

Nodes = tuple[tuple[int, ...], ...]


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


class View(NamedTuple):
    """What one rank sees of the nodes: all of them, the number of its own, and its place in that."""

    nodes: Nodes
    number: int
    place: int

    @property
    def own(self) -> tuple[int, ...]:
        """The ranks of my node."""
        return self.nodes[self.number]

    def number_of(self, rank: int) -> int:
        """The number of another rank's node."""
        return next(i for i, ranks in enumerate(self.nodes) if rank in ranks)

    def leaders(self, root: int = -1) -> list[int]:
        """The rank that speaks for each node: its lowest, but `root` for its own."""
        return [root if root in ranks else ranks[0] for ranks in self.nodes]

    def column(self, place: int) -> list[int]:
        """The rank at this place of every node."""
        return [ranks[place] for ranks in self.nodes]


def view(rank: int, nodes: Sequence[int] | None) -> View:
    """The view of `rank` on a node map.

    >>> seen = view(4, (7, 3, 7, 3, 3))
    >>> seen, seen.own, seen.leaders(root=3), seen.column(1)
    (View(nodes=((0, 2), (1, 3, 4)), number=1, place=2), (1, 3, 4), [0, 3], [2, 3])
    """
    groups = members(tuple(nodes or ()))
    number = next(i for i, ranks in enumerate(groups) if rank in ranks)
    return View(groups, number, groups[number].index(rank))


def nested(
    rank: int,
    stage: tuple[str, str],
    ranks: Sequence[int],
    parts: Callable[[int], Iterable[int]],
    cut: int,
    **params: Any,
) -> Schedule:
    """Run an inner algorithm, given as (collective, name), on `ranks`; nothing on a rank not among them.

    Its part i stands for the outer parts ``parts(i)``, each of which has `cut` blocks.
    """
    if rank not in ranks:
        return
    entry = get(*stage)
    blocks = entry.blocks(len(ranks), params)
    per_part = blocks // entry.collective.parts(len(ranks))

    @cache
    def place(block: int) -> Windows:
        part, piece = divmod(block, per_part)
        start, length = block_offset(cut, per_part, piece), block_length(cut, per_part, piece)
        return merged(Window(outer * cut + start, length) for outer in parts(part))

    inner = embed(entry.schedule(ranks.index(rank), len(ranks), params), ranks, blocks, place)
    yield from staged(str(entry), inner)


# -- what a composition is made of, and what follows from it --

Stages = Callable[[Nodes, Params], Iterator[tuple[str, str, int]]]  # collective, algorithm, its ranks


def made_of(*intra: str, inter: str, owners_only: bool = False, **fixed: str) -> Stages:
    """The inner algorithms of a composition, from the collectives within and between nodes.

    Those in `intra` go by the parameter of that name, on whole nodes or on their owners only; others can
    be given as parameter=collective.
    """

    def stages(nodes: Nodes, params: Params) -> Iterator[tuple[str, str, int]]:
        sizes = {fewest(nodes)} if owners_only else {len(ranks) for ranks in nodes}
        for kind in intra:
            yield from ((kind, params["intra"], size) for size in sizes)
        for parameter, kind in fixed.items():
            yield from ((kind, params[parameter], size) for size in sizes)
        yield inter, params["inter"], len(nodes)

    return stages


def fewest(nodes: Nodes) -> int:
    """Ranks of the smallest node."""
    return min(len(ranks) for ranks in nodes)


def common_cut(stages: Stages, nodes: Nodes, params: Params) -> int:
    """Blocks per outer part that serve all inner algorithms: a common multiple, unless that is large.

    Then inner blocks differ in length, by an eighth at most.
    """
    cuts = set()
    for kind, name, size in stages(nodes, params):
        entry = get(kind, name)
        cuts.add(entry.blocks(size) // entry.collective.parts(size))
    return min(lcm(*cuts), 8 * max(cuts))


def composition(
    stages: Stages, units: Callable[[Nodes], int], *, equal_nodes: bool = False
) -> dict[str, Any]:
    """Arguments of `algorithm` for a composition that cuts all its data in `units` outer parts."""

    def blocks(size: int, params: Params) -> int:
        nodes = members(tuple(params["nodes"]))
        return units(nodes) * common_cut(stages, nodes, params)

    def reason(size: int, params: Params) -> str | None:
        if (missing := needs_nodes(size, params)) is not None:
            return missing
        nodes = members(tuple(params["nodes"]))
        if equal_nodes and len({len(ranks) for ranks in nodes}) > 1:
            return f"nodes must have equally many ranks, not {', '.join(str(len(n)) for n in nodes)}"
        for kind, name, ranks in dict.fromkeys(stages(nodes, params)):
            refusal = get(kind, name).refusal(ranks)
            if refusal is not None:
                return f"{kind}/{name} of {ranks} ranks: {refusal}"
        return None

    return {"blocks": blocks, "requires": reason}


def total(nodes: Nodes) -> int:
    """Ranks of all nodes together."""
    return sum(len(ranks) for ranks in nodes)
