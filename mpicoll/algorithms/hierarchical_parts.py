"""Collectives of parts over nodes, and the barrier.

`leader`: one rank of each node speaks for it. `two_level` and `node_aware`: each node has as many groups of
ranks as the smallest node has ranks, and the first of each group speaks for it, with those of the same group
of other nodes. In nodes of equal size a group is one rank. `by_node`: a flat algorithm, with ranks in the
order of their nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ..registry import Params
from .nodes import Nodes, Parts, Stage, Team, composition, each, groups, leaders, several, total


def _ranks(nodes: Nodes, params: Params) -> int:
    return total(nodes)


def _pairs(nodes: Nodes, params: Params) -> int:
    return total(nodes) ** 2


def _own(nodes: Nodes, heads: Sequence[int]) -> list[Team]:
    """The ranks of each node, each with its part."""
    return [Team(ranks, each(ranks), root=head) for ranks, head in zip(nodes, heads, strict=True)]


def _column_parts(speaking: Sequence[Sequence[Sequence[int]]]) -> list[Team]:
    """Those who speak for the same group of all nodes, each with its group's parts."""
    columns = zip(*speaking, strict=True)
    return [Team([group[0] for group in column], several(column)) for column in columns]


def _groups_everywhere(nodes: Nodes, speaking: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """For each place in a node the parts of that group of all nodes; nothing where nobody speaks."""
    found = [[rank for group in column for rank in group] for column in zip(*speaking, strict=True)]
    return found + [[]] * (max(map(len, nodes)) - len(found))


def _within_groups(speaking: Sequence[Sequence[Sequence[int]]]) -> list[Team]:
    """The ranks of each group, each with its part, and the one who speaks for it."""
    return [Team(group, each(group), root=group[0]) for own in speaking for group in own]


def _in_order(nodes: Nodes) -> list[int]:
    return [rank for ranks in nodes for rank in ranks]


# -- all-gather --


@composition("allgather", name="leader", units=_ranks)
def allgather_leader(nodes: Nodes, *, intra: str = "binomial", inter: str = "circulant") -> Iterator[Stage]:
    """Gather at the leader of every node, all-gather among the leaders, broadcast within every node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; one rank per node sends to other nodes.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    heads, everything = leaders(nodes), range(total(nodes))
    within = [Team(ranks, lambda i: everything, root=head) for ranks, head in zip(nodes, heads, strict=True)]
    yield Stage("intra gather", "gather", intra, _own(nodes, heads))
    yield Stage("inter all-gather", "allgather", inter, [Team(heads, several(nodes))])
    yield Stage("intra broadcast", "bcast", intra, within)


@composition("allgather", name="two_level", units=_ranks)
def allgather_two_level(
    nodes: Nodes, *, intra: str = "circulant", inter: str = "circulant"
) -> Iterator[Stage]:
    """All-gather among the ranks at the same place of all nodes, then within every node.

    Works for any P and any node map; where nodes are unequal, ranks without a counterpart in all of them
    hand their part to one that has.
    Rounds: those of its two parts.
    Bytes per rank: (P−1)/P·n, of which (N−1)/P·n leave the node (of N, all of them equal).
    Reference: Träff, Hunold, IEEE CLUSTER, 2020.
    """
    speaking = groups(nodes)
    gathered = several(_groups_everywhere(nodes, speaking))
    within = [Team(ranks, gathered) for ranks in nodes]
    handed_in = len({len(ranks) for ranks in nodes}) > 1
    for team in within:  # who handed its part in is not sent it again
        team.knows = _is_own if handed_in else None
    yield Stage("hand in", "gather", "linear", _within_groups(speaking))
    yield Stage("inter all-gather", "allgather", inter, _column_parts(speaking))
    yield Stage("intra all-gather", "allgather", intra, within)


def _is_own(rank: int, part: int) -> bool:
    return rank == part


@composition("allgather", name="by_node", units=_ranks)
def allgather_by_node(nodes: Nodes, *, flat: str = "ring") -> Iterator[Stage]:
    """A flat algorithm that meets the ranks node after node: a ring enters and leaves every node once.

    Works for any P and any node map, as far as the flat algorithm does.
    Rounds and bytes per rank: those of its parts, of which there is one.
    Reference: Mirsadeghi, Afsahi, IPDPS Workshops, 2016.
    """
    order = _in_order(nodes)
    yield Stage("all-gather", "allgather", flat, [Team(order, each(order))])


# -- reduce-scatter --


@composition("reduce_scatter", name="leader", units=_ranks)
def reduce_scatter_leader(
    nodes: Nodes, *, intra: str = "binomial", inter: str = "circulant"
) -> Iterator[Stage]:
    """Reduce to the leader of every node, reduce-scatter among the leaders, scatter within every node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; one rank per node sends to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    heads, everything = leaders(nodes), range(total(nodes))
    within = [Team(ranks, lambda i: everything, root=head) for ranks, head in zip(nodes, heads, strict=True)]
    yield Stage("intra reduce", "reduce", intra, within)
    yield Stage("inter reduce-scatter", "reduce_scatter", inter, [Team(heads, several(nodes))])
    yield Stage("intra scatter", "scatter", intra, _own(nodes, heads))


@composition("reduce_scatter", name="two_level", units=_ranks)
def reduce_scatter_two_level(
    nodes: Nodes, *, intra: str = "circulant", inter: str = "circulant"
) -> Iterator[Stage]:
    """Reduce-scatter within every node, then among the ranks at the same place of all nodes.

    Works for any P and any node map; where nodes are unequal, ranks without a counterpart in all of them
    get their part from one that has.
    Rounds: those of its two parts.
    Bytes per rank: (P−1)/P·n, of which (N−1)/P·n leave the node (of N, all of them equal).
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Träff, Hunold, IEEE CLUSTER, 2020.
    """
    speaking = groups(nodes)
    everywhere = several(_groups_everywhere(nodes, speaking))
    within = [Team(ranks, everywhere) for ranks in nodes]
    yield Stage("intra reduce-scatter", "reduce_scatter", intra, within)
    yield Stage("inter reduce-scatter", "reduce_scatter", inter, _column_parts(speaking))
    yield Stage("hand out", "scatter", "linear", _within_groups(speaking))


@composition("reduce_scatter", name="by_node", units=_ranks)
def reduce_scatter_by_node(nodes: Nodes, *, flat: str = "ring") -> Iterator[Stage]:
    """A flat algorithm that meets the ranks node after node: a ring enters and leaves every node once.

    Works for any P and any node map, as far as the flat algorithm does.
    Rounds and bytes per rank: those of its parts, of which there is one.
    Not ordered: nodes need not be runs of ranks.
    Reference: Mirsadeghi, Afsahi, IPDPS Workshops, 2016.
    """
    order = _in_order(nodes)
    yield Stage("reduce-scatter", "reduce_scatter", flat, [Team(order, each(order))])


# -- gather and scatter --


@composition("gather", name="leader", units=_ranks)
def gather_leader(
    nodes: Nodes, *, intra: str = "binomial", inter: str = "binomial", root: int = 0
) -> Iterator[Stage]:
    """Gather at the leader of every node, then among the leaders; the root leads its node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its two parts; one rank per node sends to other nodes.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    heads = leaders(nodes, root)
    yield Stage("intra gather", "gather", intra, _own(nodes, heads))
    yield Stage("inter gather", "gather", inter, [Team(heads, several(nodes), root=root)])


@composition("scatter", name="leader", units=_ranks)
def scatter_leader(
    nodes: Nodes, *, intra: str = "binomial", inter: str = "binomial", root: int = 0
) -> Iterator[Stage]:
    """Scatter to the leaders of all nodes, then within every node; the root leads its node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its two parts; one rank per node sends to other nodes.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    heads = leaders(nodes, root)
    yield Stage("inter scatter", "scatter", inter, [Team(heads, several(nodes), root=root)])
    yield Stage("intra scatter", "scatter", intra, _own(nodes, heads))


# -- all-to-all: part s·P+d goes from rank s to rank d --


def _rows(nodes: Nodes) -> list[Team]:
    """The ranks of each node, each with all that it sends."""
    size = total(nodes)
    rows = (tuple(range(rank * size, (rank + 1) * size) for rank in ranks) for ranks in nodes)
    return [Team(ranks, several(row), root=ranks[0]) for ranks, row in zip(nodes, rows, strict=True)]


def _columns(nodes: Nodes) -> list[Team]:
    """The ranks of each node, each with all that it receives."""
    size = total(nodes)
    columns = (tuple(range(rank, size * size, size) for rank in ranks) for ranks in nodes)
    return [Team(ranks, several(column), root=ranks[0]) for ranks, column in zip(nodes, columns, strict=True)]


def _between(sources: Nodes, targets: Sequence[Sequence[int]]) -> Parts:
    """From all ranks of a node to some of another: inner part a·N+b goes from node a to node b."""
    size, count = total(sources), len(sources)

    def parts(i: int) -> list[int]:
        source, to = divmod(i, count)
        return [s * size + d for s in sources[source] for d in targets[to]]

    return parts


@composition("alltoall", name="leader", units=_pairs)
def alltoall_leader(nodes: Nodes, *, intra: str = "linear", inter: str = "pairwise") -> Iterator[Stage]:
    """Gather at the leader of every node, all-to-all among the leaders, scatter within every node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; N−1 messages leave a node (of N).
    Reference: Bienz et al., arXiv 2601.17606, 2026.
    """
    yield Stage("intra gather", "gather", intra, _rows(nodes))
    yield Stage("inter all-to-all", "alltoall", inter, [Team(leaders(nodes), _between(nodes, nodes))])
    yield Stage("intra scatter", "scatter", intra, _columns(nodes))


@composition("alltoall", name="node_aware", units=_pairs)
def alltoall_node_aware(nodes: Nodes, *, intra: str = "pairwise", inter: str = "pairwise") -> Iterator[Stage]:
    """Bring parts to the right place within every node, then to the right node.

    Works for any P and any node map; where nodes are unequal, ranks without a counterpart in all of them
    get what comes from other nodes from one that has.
    Rounds: (Q−1)+(N−1), with pairwise parts in N nodes of Q ranks.
    Bytes per rank: ((Q−1)N+(N−1)Q)/P·n; N−1 messages leave a node from each rank (nodes being equal).
    Reference: Bienz et al., arXiv 2601.17606, 2026.
    """
    speaking, size = groups(nodes), total(nodes)
    within = [Team(ranks, partial(_to_speakers, ranks, nodes, speaking)) for ranks in nodes]
    columns = [list(column) for column in zip(*speaking, strict=True)]
    between = [Team([group[0] for group in column], _between(nodes, column)) for column in columns]
    handed = [
        Team(group, partial(_from_elsewhere, group, ranks, size), root=group[0])
        for ranks, own in zip(nodes, speaking, strict=True)
        for group in own
    ]
    yield Stage("intra all-to-all", "alltoall", intra, within)
    yield Stage("inter all-to-all", "alltoall", inter, between)
    yield Stage("hand out", "scatter", "linear", handed)


def _to_speakers(
    own: Sequence[int], nodes: Nodes, speaking: Sequence[Sequence[Sequence[int]]], i: int
) -> list[int]:
    """What goes to a rank of my node: what is for it, and what is for groups to whose speakers it speaks."""
    source, place = own[i // len(own)], i % len(own)
    size = total(nodes)
    there = [
        d
        for ranks, groups_there in zip(nodes, speaking, strict=True)
        if ranks is not own and place < len(groups_there)
        for d in groups_there[place]
    ]
    return [source * size + d for d in (own[place], *there)]


def _from_elsewhere(group: Sequence[int], own: Sequence[int], size: int, i: int) -> list[int]:
    """What other nodes have for the i-th rank of a group."""
    return [s * size + group[i] for s in range(size) if s not in own]


# -- barrier --


@composition("barrier", name="leader", units=lambda nodes, params: 1, tokens=True)
def barrier_leader(nodes: Nodes, *, intra: str = "binomial", inter: str = "dissemination") -> Iterator[Stage]:
    """Tell the leader of every node, meet among the leaders, tell everybody in the node.

    Works for any P and any node map.
    Rounds: those of its parts.
    Bytes per rank: none; its messages are tokens, which stand for no parts.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    heads = leaders(nodes)
    within = [Team(ranks, lambda i: (), root=head) for ranks, head in zip(nodes, heads, strict=True)]
    yield Stage("intra gather", "gather", intra, within)
    yield Stage("inter barrier", "barrier", inter, [Team(heads, lambda i: ())])
    yield Stage("intra broadcast", "bcast", intra, within)
