"""The steps of a composition over nodes from those of its parts, however many ranks there are.

In nodes of equal size all teams of a stage do the same, so the steps of one team are those of the stage, in
blocks of the composition; and no rank begins a stage while another is so far behind that it would show. That
is the *law of stages*: the steps of its stages, one after the other. Where it does show (in trees of which
some branches are shorter), the rounds of the ranks of some nodes may be all the steps.

Both take nothing from small numbers of ranks, and are used where they give exactly the steps of all ranks on
several small sets of nodes that are like those asked for; see `laws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from typing import TypeVar

from .algorithms.nodes import Composition, Nodes, Stage, Team, composition_of, members
from .errors import Unsupported
from .laws import Choice, twins
from .loads import Frozen, Params, Run, exact, frozen, of_ranks
from .registry import Algorithm, get

T = TypeVar("T")
#: Parts of all teams of a stage that are looked at; of more, some.
MOST_LOOKS = 1024
StepsOf = Callable[[Algorithm, int, Frozen], tuple[Run, ...]]  # of an inner algorithm


def by_stages(algorithm: Algorithm, size: int, params: Params, inner: StepsOf) -> tuple[Run, ...] | None:
    """The steps on nodes of equal size, by the first law that holds; None where none does.

    `inner` gives the steps of the parts.
    """
    nodes = members(params["nodes"])
    if len({len(ranks) for ranks in nodes}) > 1:
        return None
    known = []
    for count, each in like(len(nodes), size // len(nodes)):
        node_of, root = fewer(nodes, count, each, params.get("root", 0))
        some = {**params, "nodes": node_of, **({"root": root} if "root" in params else {})}
        if algorithm.refusal(count * each, some):
            return None
        known.append((some, exact(algorithm, count * each, frozen(some))))
    laws: tuple[Callable[[Params], tuple[Run, ...] | None], ...] = (
        partial(_laid_together, algorithm, inner=inner),
        *(partial(_of_nodes, algorithm, nodes) for nodes in (_ends, twins)),
    )
    for law in laws:
        with suppress(Unsupported):  # a part, which is no reason against another law
            if all(law(some) == right for some, right in known) and (found := law(params)):
                return found
    return None


def _ends(count: int, params: Params) -> list[int]:
    return [0, 1 % count, count - 1]


def _of_nodes(algorithm: Algorithm, choose: Choice, params: Params) -> tuple[Run, ...]:
    """The steps of all ranks of some nodes, counted from that of the root."""
    nodes, root = members(params["nodes"]), params.get("root", 0)
    home = next(number for number, ranks in enumerate(nodes) if root in ranks)
    some = {(home + number) % len(nodes) for number in choose(len(nodes), params)}
    ranks = [rank for number in sorted(some) for rank in nodes[number]]
    return of_ranks(algorithm, len(params["nodes"]), params, ranks)


def shrunk(number: int, most: int) -> int:
    """A number up to `most` with the leading binary digits of a larger one; a power of two only if it is one.

    >>> shrunk(4096, 8), shrunk(5461, 8), shrunk(1025, 8), shrunk(6, 8)
    (8, 5, 5, 6)
    """
    if number <= most:
        return number
    small = number >> max(0, number.bit_length() - most.bit_length() + (number & (number - 1) != 0))
    return small + 1 if small & (small - 1) == 0 and number & (number - 1) else small


def like(count: int, each: int) -> Iterator[tuple[int, int]]:
    """Three small numbers of nodes like `count`, and of ranks on each.

    The last has a binary digit more than that before, and ends as `count` does. Where nodes are few, all of
    them are taken more than once.

    >>> list(like(4096, 8)), list(like(401, 6))
    ([(4, 8), (8, 4), (16, 4)], [(3, 6), (6, 3), (13, 3)])
    """
    few, more = shrunk(each, 4), shrunk(each, 8)
    yield shrunk(count, 4), more
    yield shrunk(count, 8), few
    yield min(count, 2 * shrunk(count, 8) + count % 2), few


def fewer(nodes: Nodes, count: int, each: int, root: int) -> tuple[tuple[int, ...], int]:
    """Some neighbouring nodes, and of each some neighbouring ranks, numbered anew in the order they have.

    The root is among them, as far from the first and the last of them as it was. Returns a map and the root.

    >>> fewer(((0, 3, 6), (1, 4, 7), (2, 5, 8)), 2, 2, root=8)
    ((0, 1, 0, 1), 3)
    """
    home = next(number for number, ranks in enumerate(nodes) if root in ranks)
    place, ranks_of_each = nodes[home].index(root), len(nodes[home])
    first, low = home - home * count // len(nodes), place - place * each // ranks_of_each
    kept = [ranks[low : low + each] for ranks in nodes[first : first + count]]
    node_of = {rank: number for number, ranks in enumerate(kept) for rank in ranks}
    order = sorted(node_of)
    return tuple(node_of[rank] for rank in order), order.index(root)


def _laid_together(algorithm: Algorithm, params: Params, *, inner: StepsOf) -> tuple[Run, ...] | None:
    """The steps of the stages, one after the other."""
    made = composition_of(algorithm, params)
    if made is None:
        return None
    told = [_of_stage(made, stage, inner) for stage in made.stages]
    if None in told:
        return None
    steps = chain.from_iterable(runs for runs in told if runs is not None)
    joined = groupby(steps, key=lambda run: run[1])
    return tuple((sum(count for count, _ in same), step) for step, same in joined)


def _of_stage(made: Composition, stage: Stage, inner: StepsOf) -> tuple[Run, ...] | None:
    """The steps of one stage, in blocks of the composition; None if its teams differ."""
    entry = get(stage.collective, stage.algorithm)
    teams = [team for team in stage.teams if len(team.ranks) > 1]
    kinds = {(len(team.ranks), _root(entry, team)) for team in teams}
    scales = set(_scales(made, entry, teams))
    found = set()
    for size, root in kinds:
        params = entry.resolve(size, {"root": root} if entry.collective.rooted else {})
        found.add(inner(entry, size, frozen(params)))
    if not teams:
        return ()
    if len(found) != 1 or len(scales) != 1 or (scale := scales.pop()) is None:
        return None
    return tuple(
        (count, tuple(load._replace(blocks=load.blocks * scale, reduced=load.reduced * scale,
                                    largest=load.largest * scale) for load in step))
        for count, step in found.pop()
    )  # fmt: skip


def _root(entry: Algorithm, team: Team) -> int:
    return team.ranks.index(team.root) if entry.collective.rooted else 0


def _scales(made: Composition, entry: Algorithm, teams: list[Team]) -> Iterator[int | None]:
    """How many outer blocks an inner one of a team stands for; None if that is no whole number.

    Stages make the same of nodes of equal size. That is looked at in all parts of all teams of the small sets
    by which a law is judged, and where there are many in the first ones, the last ones and those between.
    """
    for team in _spread(teams, MOST_LOOKS):
        parts = entry.collective.parts(len(team.ranks))
        per_part = entry.blocks(len(team.ranks)) // parts
        for part in _spread(range(parts), MOST_LOOKS // len(teams)):
            outer = sum(1 for _ in team.parts(part)) * made.cut()
            yield outer // per_part if made.tokens or outer % per_part == 0 else None


def _spread(items: Sequence[T], most: int) -> Sequence[T]:
    """All, or if they are more than so many the first, the middle and the last one."""
    return items if len(items) <= most else [items[0], items[len(items) // 2], items[-1]]
