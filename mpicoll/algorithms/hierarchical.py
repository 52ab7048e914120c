"""Whole vectors over nodes: all-reduce, broadcast and reduce.

`leader`: one rank of each node, or several, speak for it. `two_level`: as many of its ranks as the smallest
node has, *owners*, speak for a shard of the vector each. Both work for any order of ranks and any number of
ranks per node. `by_node`: a flat algorithm, with ranks in the order of their nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import Unsupported
from ..registry import Params
from .nodes import Nodes, Stage, Team, composition, each, fewest, leaders, only, owners
from .tuning import BYTES_PER_START


def _one(nodes: Nodes, params: Params) -> int:
    return 1


def _shards(nodes: Nodes, params: Params) -> int:
    return fewest(nodes)


def _columns(owning: Sequence[Sequence[int]]) -> list[list[int]]:
    """The owners of each shard, one of every node."""
    return [list(column) for column in zip(*owning, strict=True)]


def _with_others(nodes: Nodes, owning: Sequence[Sequence[int]]) -> list[Team]:
    """Each owner and the ranks of its node that own nothing, for its shard."""
    idle = [[rank for rank in ranks if rank not in own] for ranks, own in zip(nodes, owning, strict=True)]
    return [
        Team([owner, *others], only(place), root=owner)
        for own, others in zip(owning, idle, strict=True)
        for place, owner in enumerate(own if others else ())
    ]


def _in_shards(owning: Sequence[Sequence[int]]) -> list[Team]:
    """The owners of each node, each with its shard."""
    return [Team(own, each(range(len(own)))) for own in owning]


# -- all-reduce --


def _leaders(nodes: Nodes, params: Params) -> int:
    count: int = params["leaders"]
    return count


@composition("allreduce", name="leader", units=_leaders)
def allreduce_leader(
    nodes: Nodes, *, intra: str = "binomial", inter: str = "recursive_doubling", leaders: int = 1
) -> Iterator[Stage]:
    """Reduce to the leader of every node, all-reduce among the leaders, broadcast within every node.

    Works for any P and any node map. Each of several `leaders` of a node does so for a shard of the vector.
    Rounds and bytes per rank: those of its parts; the leaders alone send to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999; several leaders: Bayatpour, Chakraborty,
    Subramoni, Lu, Panda, SC, 2017.
    """
    if leaders not in range(1, fewest(nodes) + 1):
        raise Unsupported(
            f"leaders must be 1 to {fewest(nodes)}, the ranks of the smallest node, not {leaders}"
        )
    leading = owners(nodes, leaders)
    within = [
        Team(ranks, only(shard), root=leader)
        for ranks, own in zip(nodes, leading, strict=True)
        for shard, leader in enumerate(own)
    ]
    between = [Team(column, only(shard)) for shard, column in enumerate(_columns(leading))]
    yield Stage("intra reduce", "reduce", intra, within)
    yield Stage("inter all-reduce", "allreduce", inter, between)
    yield Stage("intra broadcast", "bcast", intra, within)


def _long_messages(size: int, nbytes: int) -> str:
    """The ring once even its messages, 1/P of the vector, are long: they all go to the same neighbour.

    Measured on 4 nodes of 2 ranks with 1 Gbit/s between them: results/README.md, hierarchical.
    """
    return "ring" if nbytes // size >= 2 * BYTES_PER_START else "circulant"


@composition("allreduce", name="two_level", units=_shards, tune={"inter": _long_messages})
def allreduce_two_level(
    nodes: Nodes, *, intra: str = "circulant", inter: str = "circulant"
) -> Iterator[Stage]:
    """Reduce-scatter within every node, all-reduce each shard between nodes, all-gather within every node.

    Works for any P and any node map. There are as many shards as the smallest node has ranks; further ranks
    of a node hand every shard to its owner and get it back.
    Rounds and bytes per rank: those of its parts; every owner sends its shard to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Cho, Finkler, Serrano, Kung, Hunter, SysML, 2019.
    """
    owning = owners(nodes, fewest(nodes))
    others, shards = _with_others(nodes, owning), _in_shards(owning)
    between = [Team(column, only(shard)) for shard, column in enumerate(_columns(owning))]
    yield Stage("hand in", "reduce", "linear", others)
    yield Stage("intra reduce-scatter", "reduce_scatter", intra, shards)
    yield Stage("inter all-reduce", "allreduce", inter, between)
    yield Stage("hand out", "bcast", "linear", others)
    yield Stage("intra all-gather", "allgather", intra, shards)


@composition("allreduce", name="by_node", units=_one)
def allreduce_by_node(nodes: Nodes, *, flat: str = "ring") -> Iterator[Stage]:
    """A flat algorithm that meets the ranks node after node: a ring enters and leaves every node once.

    Works for any P and any node map, as far as the flat algorithm does.
    Rounds and bytes per rank: those of its parts, of which there is one.
    Not ordered: nodes need not be runs of ranks.
    Reference: Mirsadeghi, Afsahi, IPDPS Workshops, 2016.
    """
    yield Stage("all-reduce", "allreduce", flat, [Team([r for ranks in nodes for r in ranks], only(0))])


# -- broadcast --


@composition("bcast", name="leader", units=_one)
def bcast_leader(
    nodes: Nodes, *, intra: str = "binomial", inter: str = "binomial", root: int = 0
) -> Iterator[Stage]:
    """Broadcast to the leaders of all nodes, then within every node; the root leads its node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; one rank per node sends to other nodes.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    heads = leaders(nodes, root)
    within = [Team(ranks, only(0), root=head) for ranks, head in zip(nodes, heads, strict=True)]
    yield Stage("inter broadcast", "bcast", inter, [Team(heads, only(0), root=root)])
    yield Stage("intra broadcast", "bcast", intra, within)


def _towards(nodes: Nodes, owning: Sequence[Sequence[int]], root: int) -> tuple[Sequence[int], list[Team]]:
    """The owners of the root's node, and those of each shard, led by the one in that node."""
    home = next(own for ranks, own in zip(nodes, owning, strict=True) if root in ranks)
    columns = enumerate(_columns(owning))
    return home, [Team(column, only(shard), root=home[shard]) for shard, column in columns]


@composition("bcast", name="two_level", units=_shards)
def bcast_two_level(
    nodes: Nodes,
    *,
    scatter: str = "binomial",
    intra: str = "circulant",
    inter: str = "scatter_allgather",
    root: int = 0,
) -> Iterator[Stage]:
    """Scatter within the root's node, broadcast each shard between nodes, all-gather within every node.

    Works for any P and any node map; ranks without a shard get each from its owner.
    Rounds and bytes per rank: those of its parts; every owner sends its shard to other nodes.
    Reference: UCC, cl/hier; Barnett, Shuler, van de Geijn, Gupta, Payne, Watts, SHPCC, 1994.
    """
    owning = owners(nodes, fewest(nodes), root)
    home, between = _towards(nodes, owning, root)
    shards = _in_shards(owning)
    for team in shards:  # the root has everything, and passes it on without being sent it again
        team.knows = lambda receiver, part: receiver == root
    yield Stage("intra scatter", "scatter", scatter, [Team(home, each(range(len(home))), root=root)])
    yield Stage("inter broadcast", "bcast", inter, between)
    yield Stage("hand out", "bcast", "linear", _with_others(nodes, owning))
    yield Stage("intra all-gather", "allgather", intra, shards)


# -- reduce --


@composition("reduce", name="leader", units=_one)
def reduce_leader(
    nodes: Nodes, *, intra: str = "binomial", inter: str = "binomial", root: int = 0
) -> Iterator[Stage]:
    """Reduce to the leader of every node, then among the leaders; the root leads its node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; one rank per node sends to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    heads = leaders(nodes, root)
    within = [Team(ranks, only(0), root=head) for ranks, head in zip(nodes, heads, strict=True)]
    yield Stage("intra reduce", "reduce", intra, within)
    yield Stage("inter reduce", "reduce", inter, [Team(heads, only(0), root=root)])


@composition("reduce", name="two_level", units=_shards)
def reduce_two_level(
    nodes: Nodes,
    *,
    intra: str = "circulant",
    inter: str = "circulant",
    gather: str = "binomial",
    root: int = 0,
) -> Iterator[Stage]:
    """Reduce-scatter within every node, reduce each shard to the root's node, gather there.

    Works for any P and any node map; ranks without a shard hand each to its owner.
    Rounds and bytes per rank: those of its parts; every owner sends its shard to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: UCC, cl/hier; Cho, Finkler, Serrano, Kung, Hunter, SysML, 2019.
    """
    owning = owners(nodes, fewest(nodes), root)
    home, between = _towards(nodes, owning, root)
    yield Stage("hand in", "reduce", "linear", _with_others(nodes, owning))
    yield Stage("intra reduce-scatter", "reduce_scatter", intra, _in_shards(owning))
    yield Stage("inter reduce", "reduce", inter, between)
    yield Stage("intra gather", "gather", gather, [Team(home, each(range(len(home))), root=root)])
