"""Collectives of parts over nodes, and the barrier: inner algorithms within nodes, an outer one between.

`leader`: one rank of each node speaks for it; any order of ranks, any number of ranks per node.
`two_level`: ranks at the same place of their nodes speak with each other, so that nodes must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import algorithm
from ..schedule import Schedule
from .nodes import Nodes, common_cut, composition, made_of, nested, total, view

_ALLGATHER = made_of("gather", "bcast", inter="allgather")


@algorithm("allgather", name="leader", **composition(_ALLGATHER, total))
def allgather_leader(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "binomial",
    inter: str = "circulant",
) -> Schedule:
    """Gather at the leader of every node, all-gather among the leaders, broadcast within every node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; one rank per node sends to other nodes.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    seen = view(rank, nodes)
    cut = common_cut(_ALLGATHER, seen.nodes, {"intra": intra, "inter": inter})
    yield from nested(rank, ("gather", intra), seen.own, lambda i: (seen.own[i],), cut)
    yield from nested(rank, ("allgather", inter), seen.leaders(), lambda i: seen.nodes[i], cut)
    yield from nested(rank, ("bcast", intra), seen.own, lambda i: range(size), cut)


_ALLGATHER_COLUMNS = made_of("allgather", inter="allgather")


@algorithm("allgather", name="two_level", **composition(_ALLGATHER_COLUMNS, total, equal_nodes=True))
def allgather_two_level(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "circulant",
    inter: str = "circulant",
) -> Schedule:
    """All-gather among the ranks at the same place of all nodes, then within every node.

    Works for any P in equal nodes.
    Rounds: those of its two parts.
    Bytes per rank: (P−1)/P·n, of which (N−1)/P·n leave the node (of N).
    Reference: Träff, Hunold, IEEE CLUSTER, 2020.
    """
    seen = view(rank, nodes)
    cut = common_cut(_ALLGATHER_COLUMNS, seen.nodes, {"intra": intra, "inter": inter})
    column = seen.column(seen.place)
    yield from nested(rank, ("allgather", inter), column, lambda i: (column[i],), cut)
    yield from nested(rank, ("allgather", intra), seen.own, seen.column, cut)


_REDUCE_SCATTER = made_of("reduce", "scatter", inter="reduce_scatter")


@algorithm("reduce_scatter", name="leader", **composition(_REDUCE_SCATTER, total))
def reduce_scatter_leader(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "binomial",
    inter: str = "circulant",
) -> Schedule:
    """Reduce to the leader of every node, reduce-scatter among the leaders, scatter within every node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; one rank per node sends to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    seen = view(rank, nodes)
    cut = common_cut(_REDUCE_SCATTER, seen.nodes, {"intra": intra, "inter": inter})
    yield from nested(rank, ("reduce", intra), seen.own, lambda i: range(size), cut)
    yield from nested(rank, ("reduce_scatter", inter), seen.leaders(), lambda i: seen.nodes[i], cut)
    yield from nested(rank, ("scatter", intra), seen.own, lambda i: (seen.own[i],), cut)


_REDUCE_SCATTER_COLUMNS = made_of("reduce_scatter", inter="reduce_scatter")


@algorithm(
    "reduce_scatter", name="two_level", **composition(_REDUCE_SCATTER_COLUMNS, total, equal_nodes=True)
)
def reduce_scatter_two_level(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "circulant",
    inter: str = "circulant",
) -> Schedule:
    """Reduce-scatter within every node, then among the ranks at the same place of all nodes.

    Works for any P in equal nodes.
    Rounds: those of its two parts.
    Bytes per rank: (P−1)/P·n, of which (N−1)/P·n leave the node (of N).
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Träff, Hunold, IEEE CLUSTER, 2020.
    """
    seen = view(rank, nodes)
    cut = common_cut(_REDUCE_SCATTER_COLUMNS, seen.nodes, {"intra": intra, "inter": inter})
    column = seen.column(seen.place)
    yield from nested(rank, ("reduce_scatter", intra), seen.own, seen.column, cut)
    yield from nested(rank, ("reduce_scatter", inter), column, lambda i: (column[i],), cut)


_GATHER = made_of("gather", inter="gather")


@algorithm("gather", name="leader", **composition(_GATHER, total))
def gather_leader(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "binomial",
    inter: str = "binomial",
    root: int = 0,
) -> Schedule:
    """Gather at the leader of every node, then among the leaders; the root leads its node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its two parts; one rank per node sends to other nodes.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    seen = view(rank, nodes)
    cut = common_cut(_GATHER, seen.nodes, {"intra": intra, "inter": inter})
    leaders, top = seen.leaders(root), seen.number_of(root)
    head = seen.own.index(leaders[seen.number])
    yield from nested(rank, ("gather", intra), seen.own, lambda i: (seen.own[i],), cut, root=head)
    yield from nested(rank, ("gather", inter), leaders, lambda i: seen.nodes[i], cut, root=top)


_SCATTER = made_of("scatter", inter="scatter")


@algorithm("scatter", name="leader", **composition(_SCATTER, total))
def scatter_leader(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "binomial",
    inter: str = "binomial",
    root: int = 0,
) -> Schedule:
    """Scatter to the leaders of all nodes, then within every node; the root leads its node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its two parts; one rank per node sends to other nodes.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    seen = view(rank, nodes)
    cut = common_cut(_SCATTER, seen.nodes, {"intra": intra, "inter": inter})
    leaders, top = seen.leaders(root), seen.number_of(root)
    head = seen.own.index(leaders[seen.number])
    yield from nested(rank, ("scatter", inter), leaders, lambda i: seen.nodes[i], cut, root=top)
    yield from nested(rank, ("scatter", intra), seen.own, lambda i: (seen.own[i],), cut, root=head)


def _pairs(nodes: Nodes) -> int:
    return total(nodes) ** 2


_ALLTOALL = made_of("gather", "scatter", inter="alltoall")


@algorithm("alltoall", name="leader", **composition(_ALLTOALL, _pairs))
def alltoall_leader(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "linear",
    inter: str = "pairwise",
) -> Schedule:
    """Gather at the leader of every node, all-to-all among the leaders, scatter within every node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; N−1 messages leave a node (of N).
    Reference: Bienz et al., arXiv 2601.17606, 2026.
    """
    seen = view(rank, nodes)
    cut = common_cut(_ALLTOALL, seen.nodes, {"intra": intra, "inter": inter})

    def between(i: int) -> list[int]:
        source, to = divmod(i, len(seen.nodes))
        return [s * size + d for s in seen.nodes[source] for d in seen.nodes[to]]

    def row(i: int) -> range:
        return range(seen.own[i] * size, (seen.own[i] + 1) * size)

    def column(i: int) -> range:
        return range(seen.own[i], size * size, size)

    yield from nested(rank, ("gather", intra), seen.own, row, cut)
    yield from nested(rank, ("alltoall", inter), seen.leaders(), between, cut)
    yield from nested(rank, ("scatter", intra), seen.own, column, cut)


_ALLTOALL_COLUMNS = made_of("alltoall", inter="alltoall")


@algorithm("alltoall", name="node_aware", **composition(_ALLTOALL_COLUMNS, _pairs, equal_nodes=True))
def alltoall_node_aware(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "pairwise",
    inter: str = "pairwise",
) -> Schedule:
    """Bring parts to the right place within every node, then to the right node.

    Works for any P in equal nodes, N of Q ranks.
    Rounds: (Q−1)+(N−1) with pairwise parts.
    Bytes per rank: ((Q−1)N+(N−1)Q)/P·n; N−1 messages leave a node from each rank.
    Reference: Bienz et al., arXiv 2601.17606, 2026.
    """
    seen = view(rank, nodes)
    cut = common_cut(_ALLTOALL_COLUMNS, seen.nodes, {"intra": intra, "inter": inter})

    def within(i: int) -> list[int]:
        source, place = divmod(i, len(seen.own))
        return [seen.own[source] * size + to for to in seen.column(place)]

    def between(i: int) -> list[int]:
        source, to = divmod(i, len(seen.nodes))
        return [s * size + seen.nodes[to][seen.place] for s in seen.nodes[source]]

    yield from nested(rank, ("alltoall", intra), seen.own, within, cut)
    yield from nested(rank, ("alltoall", inter), seen.column(seen.place), between, cut)


def _one(nodes: Nodes) -> int:
    return 1


_BARRIER = made_of("gather", "bcast", inter="barrier")


@algorithm("barrier", name="leader", **composition(_BARRIER, _one))
def barrier_leader(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "binomial",
    inter: str = "dissemination",
) -> Schedule:
    """Tell the leader of every node, meet among the leaders, tell everybody in the node.

    Works for any P and any node map.
    Rounds: those of its parts.
    Bytes per rank: none; its messages are tokens, which stand for no parts.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    seen = view(rank, nodes)
    yield from nested(rank, ("gather", intra), seen.own, lambda i: (), 1)
    yield from nested(rank, ("barrier", inter), seen.leaders(), lambda i: (), 1)
    yield from nested(rank, ("bcast", intra), seen.own, lambda i: (), 1)
