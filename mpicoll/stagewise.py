"""The steps of a composition over nodes from those of its parts, however many ranks there are.

In nodes of equal size all teams of a stage do the same, so the steps of one team are those of the stage, in
blocks of the composition; and no rank begins a stage while another is so far behind that it would show. That
is the *law of stages*: the steps of its stages, one after the other. Where it does show (in trees of which
some branches are shorter), the rounds of the ranks of some nodes may be all the steps.

Both take nothing from small numbers of ranks, and are used where they give exactly the steps of all ranks on
several small sets of nodes that are like those asked for; see `laws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, groupby

from .algorithms.nodes import Composition, Stage, Team, composition_of, members
from .errors import Unsupported
from .laws import Choice, twins
from .loads import Frozen, Params, Run, exact, frozen, of_ranks
from .registry import Algorithm, get

StepsOf = Callable[[Algorithm, int, Frozen], tuple[Run, ...]]  # of an inner algorithm


def by_stages(algorithm: Algorithm, size: int, params: Params, inner: StepsOf) -> tuple[Run, ...] | None:
    """The steps on nodes of equal size, by the first law that holds; None where none does.

    `inner` gives the steps of the parts.
    """
    per_node = _equal(params["nodes"])
    if per_node is None:
        return None
    known = []
    for count, each in _like(size // per_node, per_node):
        some = {**params, "nodes": tuple(rank // each for rank in range(count * each))}
        some |= {"root": params["root"] % (count * each)} if "root" in params else {}
        if algorithm.refusal(count * each, some):
            return None
        known.append((some, exact(algorithm, count * each, frozen(some))))
    laws: tuple[Callable[[Params], tuple[Run, ...] | None], ...] = (
        partial(_laid_together, algorithm, inner=inner),
        *(partial(_of_nodes, algorithm, nodes) for nodes in (_ends, twins)),
    )
    try:
        holding = (law for law in laws if all(law(some) == right for some, right in known))
        return next((found for law in holding if (found := law(params))), None)
    except Unsupported:  # a part
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


def _equal(nodes: tuple[int, ...]) -> int | None:
    """Ranks per node, in whatever order, if every node has as many."""
    counts = {len(ranks) for ranks in members(nodes)}
    return counts.pop() if len(counts) == 1 else None


def shrunk(number: int, most: int) -> int:
    """A number up to `most` with the leading binary digits of a larger one; a power of two only if it is one.

    >>> shrunk(4096, 8), shrunk(5461, 8), shrunk(1025, 8), shrunk(6, 8)
    (8, 5, 5, 6)
    """
    if number <= most:
        return number
    small = number >> max(0, number.bit_length() - most.bit_length() + (number & (number - 1) != 0))
    return small + 1 if small & (small - 1) == 0 and number & (number - 1) else small


def _like(count: int, each: int) -> Iterator[tuple[int, int]]:
    """Small sets of nodes like `count` of `each` ranks: three numbers of nodes, and two sizes of a node."""
    few, more = shrunk(each, 4), shrunk(each, 8)
    yield shrunk(count, 4), more
    yield shrunk(count, 8), few
    yield shrunk(count, 11), few


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
    scales = {scale for team in _some(teams) for scale in _scales(made, entry, team)}
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


def _some(teams: list[Team]) -> Iterable[Team]:
    """The first and the last; the others have parts of the same number."""
    return [teams[0], teams[-1]] if teams else []


def _scales(made: Composition, entry: Algorithm, team: Team) -> Iterator[int | None]:
    """How many outer blocks the first and the last inner one stand for; None if that is no whole number."""
    parts = entry.collective.parts(len(team.ranks))
    per_part = entry.blocks(len(team.ranks)) // parts
    for part in (0, parts - 1):
        outer = sum(1 for _ in team.parts(part)) * made.cut()
        yield outer // per_part if made.tokens or outer % per_part == 0 else None
