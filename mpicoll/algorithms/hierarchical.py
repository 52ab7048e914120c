"""Whole vectors over nodes: inner algorithms within the nodes and an outer one between them.

`leader`: one rank of each node speaks for it. `two_level`: some of its ranks, *owners*, speak for a shard
of the vector each. Both work for any order of ranks and any number of ranks per node.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import algorithm
from ..schedule import Round, Schedule, Send, Side, Window, recv
from .compose import mirror, only_new
from .nodes import Nodes, common_cut, composition, fewest, made_of, nested, view


def _one(nodes: Nodes) -> int:
    return 1


def _vector(part: int) -> tuple[int]:
    """The outer part that an inner vector stands for: the whole vector."""
    return (0,)


def _shard(part: int) -> tuple[int]:
    """The outer part that an owner's part stands for."""
    return (part,)


_ALLREDUCE = made_of("reduce", "bcast", inter="allreduce")


@algorithm("allreduce", name="leader", **composition(_ALLREDUCE, _one))
def allreduce_leader(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "binomial",
    inter: str = "recursive_doubling",
) -> Schedule:
    """Reduce to the leader of every node, all-reduce among the leaders, broadcast within every node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; one rank per node sends to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    seen = view(rank, nodes)
    cut = common_cut(_ALLREDUCE, seen.nodes, {"intra": intra, "inter": inter})
    yield from nested(rank, ("reduce", intra), seen.own, _vector, cut)
    yield from nested(rank, ("allreduce", inter), seen.leaders(), _vector, cut)
    yield from nested(rank, ("bcast", intra), seen.own, _vector, cut)


def _owners(ranks: Sequence[int], shards: int, root: int = -1) -> list[int]:
    """The ranks of a node that own a shard: the first ones, and the root among them."""
    first = list(ranks[:shards])
    return [*first[:-1], root] if root in ranks and root not in first else first


def _hand_in(rank: int, ranks: Sequence[int], owners: Sequence[int], cut: int) -> Schedule:
    """The other ranks of a node give every owner its shard, one after the other."""
    shards = [Window(i * cut, cut) for i in range(len(owners))]
    if rank not in owners:
        yield Round(sends=tuple(Send(owner, (s,)) for owner, s in zip(owners, shards, strict=True)))
        return
    for other in ranks:
        if other not in owners:
            yield recv(other, shards[owners.index(rank)], side=Side.RIGHT)


def _hand_out(rank: int, ranks: Sequence[int], owners: Sequence[int], cut: int) -> Schedule:
    """Every owner gives its shard to the ranks that own none."""
    return mirror(_hand_in(rank, ranks, owners, cut), side=None)


_SHARDS = made_of("reduce_scatter", "allgather", inter="allreduce", owners_only=True)


@algorithm("allreduce", name="two_level", **composition(_SHARDS, fewest))
def allreduce_two_level(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "circulant",
    inter: str = "circulant",
) -> Schedule:
    """Reduce-scatter within every node, all-reduce each shard between nodes, all-gather within every node.

    Works for any P and any node map. There are as many shards as the smallest node has ranks; further ranks
    of a node hand every shard to its owner and get it back.
    Rounds and bytes per rank: those of its parts; every owner sends its shard to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Cho, Finkler, Serrano, Kung, Hunter, SysML, 2019.
    """
    seen = view(rank, nodes)
    owners = _owners(seen.own, fewest(seen.nodes))
    cut = common_cut(_SHARDS, seen.nodes, {"intra": intra, "inter": inter})
    yield from _hand_in(rank, seen.own, owners, cut)
    yield from nested(rank, ("reduce_scatter", intra), owners, _shard, cut)
    if rank in owners:
        column = seen.column(seen.place)
        yield from nested(rank, ("allreduce", inter), column, lambda part: (seen.place,), cut)
    yield from _hand_out(rank, seen.own, owners, cut)
    yield from nested(rank, ("allgather", intra), owners, _shard, cut)


_BCAST = made_of("bcast", inter="bcast")


@algorithm("bcast", name="leader", **composition(_BCAST, _one))
def bcast_leader(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "binomial",
    inter: str = "binomial",
    root: int = 0,
) -> Schedule:
    """Broadcast to the leaders of all nodes, then within every node; the root leads its node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; one rank per node sends to other nodes.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    seen = view(rank, nodes)
    cut = common_cut(_BCAST, seen.nodes, {"intra": intra, "inter": inter})
    leaders = seen.leaders(root)
    head = seen.own.index(leaders[seen.number])
    yield from nested(rank, ("bcast", inter), leaders, _vector, cut, root=seen.number_of(root))
    yield from nested(rank, ("bcast", intra), seen.own, _vector, cut, root=head)


_BCAST_SHARDS = made_of("allgather", inter="bcast", owners_only=True, scatter="scatter")


@algorithm("bcast", name="two_level", **composition(_BCAST_SHARDS, fewest))
def bcast_two_level(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    scatter: str = "binomial",
    intra: str = "circulant",
    inter: str = "scatter_allgather",
    root: int = 0,
) -> Schedule:
    """Scatter within the root's node, broadcast each shard between nodes, all-gather within every node.

    Works for any P and any node map; ranks without a shard get each from its owner.
    Rounds and bytes per rank: those of its parts; every owner sends its shard to other nodes.
    Reference: UCC, cl/hier; Barnett, Shuler, van de Geijn, Gupta, Payne, Watts, SHPCC, 1994.
    """
    seen = view(rank, nodes)
    params = {"scatter": scatter, "intra": intra, "inter": inter}
    cut = common_cut(_BCAST_SHARDS, seen.nodes, params)
    everywhere = [_owners(ranks, fewest(seen.nodes), root) for ranks in seen.nodes]
    owners, source = everywhere[seen.number], seen.number_of(root)
    if seen.number == source:
        yield from nested(rank, ("scatter", scatter), owners, _shard, cut, root=owners.index(root))
    if rank in owners:
        place = owners.index(rank)
        column = [ranks[place] for ranks in everywhere]
        yield from nested(rank, ("bcast", inter), column, lambda part: (place,), cut, root=source)
    yield from _hand_out(rank, seen.own, owners, cut)
    gathering = nested(rank, ("allgather", intra), owners, _shard, cut)
    # The root has everything, and passes it on without being sent it again.
    yield from only_new(gathering, rank, len(owners) * cut, lambda receiver, block: receiver == root)


_REDUCE = made_of("reduce", inter="reduce")


@algorithm("reduce", name="leader", **composition(_REDUCE, _one))
def reduce_leader(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "binomial",
    inter: str = "binomial",
    root: int = 0,
) -> Schedule:
    """Reduce to the leader of every node, then among the leaders; the root leads its node.

    Works for any P and any node map.
    Rounds and bytes per rank: those of its parts; one rank per node sends to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: Kielmann, Hofman, Bal, Plaat, Bhoedjang, PPoPP, 1999.
    """
    seen = view(rank, nodes)
    cut = common_cut(_REDUCE, seen.nodes, {"intra": intra, "inter": inter})
    leaders = seen.leaders(root)
    head = seen.own.index(leaders[seen.number])
    yield from nested(rank, ("reduce", intra), seen.own, _vector, cut, root=head)
    yield from nested(rank, ("reduce", inter), leaders, _vector, cut, root=seen.number_of(root))


_REDUCE_SHARDS = made_of("reduce_scatter", inter="reduce", owners_only=True, gather="gather")


@algorithm("reduce", name="two_level", **composition(_REDUCE_SHARDS, fewest))
def reduce_two_level(
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] | None = None,
    intra: str = "circulant",
    inter: str = "circulant",
    gather: str = "binomial",
    root: int = 0,
) -> Schedule:
    """Reduce-scatter within every node, reduce each shard to the root's node, gather there.

    Works for any P and any node map; ranks without a shard hand each to its owner.
    Rounds and bytes per rank: those of its parts; every owner sends its shard to other nodes.
    Not ordered: a node's ranks need not be a run of ranks.
    Reference: UCC, cl/hier; Cho, Finkler, Serrano, Kung, Hunter, SysML, 2019.
    """
    seen = view(rank, nodes)
    params = {"intra": intra, "inter": inter, "gather": gather}
    cut = common_cut(_REDUCE_SHARDS, seen.nodes, params)
    everywhere = [_owners(ranks, fewest(seen.nodes), root) for ranks in seen.nodes]
    owners, target = everywhere[seen.number], seen.number_of(root)
    yield from _hand_in(rank, seen.own, owners, cut)
    yield from nested(rank, ("reduce_scatter", intra), owners, _shard, cut)
    if rank in owners:
        place = owners.index(rank)
        column = [ranks[place] for ranks in everywhere]
        yield from nested(rank, ("reduce", inter), column, lambda part: (place,), cut, root=target)
    if seen.number == target:
        yield from nested(rank, ("gather", gather), owners, _shard, cut, root=owners.index(root))
