"""Networks that are not flat: what a message has to pass, and which link that leaves most loaded.

A `Fabric` names the links on the way between two ranks. `link_loads` charges every step of a schedule the
most loaded link of each kind, and `cost_on` the time that it takes. In a flat model a circulant graph is
never worse than a ring or Swing; distance and contention tell them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from math import inf, prod
from typing import Any

from .cost import Cost, Machine, call_of, slowest_of, summed
from .errors import ArgumentError, Unsupported
from .laws import at_size, grown, linear, unbent
from .loads import MOST_ROUNDS, Load, blocks_per_total, load, play, runs, step_of
from .registry import Algorithm, get
from .schedule import window_count
from .shifts import Most, OfShifts, Shifts, between, by_shifts, on_torus

Link = Hashable
#: Up to so many ranks, all are charged link by link; above, what consists of shifts is charged as such.
FEW_RANKS = 64
#: Links that the messages of all ranks may pass where a fabric is charged with them one by one.
MOST_PASSES = 4_000_000


@dataclass(frozen=True, slots=True)
class Fabric:
    """``route(source, target)`` gives the links of a message, as (kind, which).

    A link carries `rate` bytes per second times the `width` of its kind, without a rate as many as a port in
    messages of that size (1/β); a step over it takes `delay` seconds more.
    """

    name: str
    route: Callable[[int, int], Iterable[tuple[str, Link]]]
    width: Mapping[str, float]
    delay: Mapping[str, float]
    unit: int = 0  # ranks after which it looks the same, if it does for any number of such units
    shifted: OfShifts | None = None  # links' loads where all ranks send equally far; see `shifts`
    rate: float = 0.0


def flat() -> Fabric:
    """Nothing between the ranks."""
    return Fabric("flat", lambda source, target: (), {}, {})


def ring(size: int) -> Fabric:
    """A link in each direction between neighbours; messages take the shorter way."""
    return torus((size,))


def torus(shape: Sequence[int]) -> Fabric:
    """A torus; rank numbers count the last dimension fastest, messages go dimension by dimension."""
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]

    def route(source: int, target: int) -> Iterator[tuple[str, Link]]:
        at = source
        for stride, length in zip(strides, shape, strict=True):
            here, there = at // stride % length, target // stride % length
            ahead = (there - here) % length
            step, hops = (1, ahead) if 2 * ahead <= length else (-1, length - ahead)
            for _ in range(hops):
                yield "link", (at, stride, step)
                at += ((here + step) % length - here) * stride
                here = (here + step) % length

    def shifted(size: int, shifts: Shifts) -> Most | None:
        return on_torus(shape, shifts)

    name = "×".join(map(str, shape)) + " torus"
    return Fabric(name, route, {"link": 1.0}, {"link": 0.0}, shifted=shifted)


def levels(ppn: int, nic: float = 1.0, delay: float = 0.0, group: int = 0, taper: float = 1.0) -> Fabric:
    """Nodes of `ppn` ranks that share an interface, `nic` times as fast as a rank's port.

    With `group`, so many nodes hang on a switch whose uplinks carry 1/`taper` of what all of them
    together can send: a tapered fat tree.
    """
    width = {"out": nic, "in": nic}
    if group:
        width |= dict.fromkeys(("up", "down"), group * nic / taper)

    def route(source: int, target: int) -> Iterator[tuple[str, Link]]:
        a, b = source // ppn, target // ppn
        if a != b:
            yield from (("out", a), ("in", b))
            if group and a // group != b // group:
                yield from (("up", a // group), ("down", b // group))

    def shifted(size: int, shifts: Shifts) -> Most | None:
        if size % (ppn * max(group, 1)):
            return None
        outside = between(ppn, size, shifts)
        above = between(ppn * group, size, shifts) if group else {}
        most = dict.fromkeys(("out", "in"), sum(outside.values())) if outside else {}
        return most | (dict.fromkeys(("up", "down"), sum(above.values())) if above else {})

    return Fabric(f"nodes of {ppn}", route, width, {"out": delay}, ppn * max(group, 1), shifted)


def dragonfly(
    ppn: int, nodes_per_group: int, nic: float = 1.0, delay: float = 0.0, cables: int = 1
) -> Fabric:
    """Groups of nodes, fully connected inside; `cables` links of a node's speed between every two groups."""
    width = {"out": nic, "in": nic, "global": cables * nic}

    def route(source: int, target: int) -> Iterator[tuple[str, Link]]:
        a, b = source // ppn, target // ppn
        if a != b:
            yield from (("out", a), ("in", b))
            if a // nodes_per_group != b // nodes_per_group:
                yield "global", (a // nodes_per_group, b // nodes_per_group)

    def shifted(size: int, shifts: Shifts) -> Most | None:
        if size % (ppn * nodes_per_group):
            return None
        outside, cabled = between(ppn, size, shifts), between(ppn * nodes_per_group, size, shifts)
        most = dict.fromkeys(("out", "in"), sum(outside.values())) if outside else {}
        return most | ({"global": max(cabled.values())} if cabled else {})

    return Fabric("dragonfly", route, width, {"out": delay}, shifted=shifted)


FABRICS = ("flat", "levels", "ring", "torus", "fattree", "dragonfly")

Charge = tuple[set[Load], dict[str, int]]  # of a step: the ranks' loads, and the most loaded links by kind


def link_loads(
    algorithm: Algorithm | str, size: int, fabric: Fabric, params: Mapping[str, Any] | None = None
) -> list[Charge]:
    """For each step the loads of ranks, and the blocks on the most loaded link of each kind.

    Raises `Unsupported` where ranks and rounds are too many to be charged one by one.
    """
    entry = get(*algorithm.split("/", 1)) if isinstance(algorithm, str) else algorithm
    resolved = entry.resolve(size, params)
    name = f"{entry} on {fabric.name}"
    loads: list[set[Load]] = []
    links: list[Counter[tuple[str, Link]]] = []
    # If even ranks that do little have too many rounds, there is no need to begin.
    each = MOST_ROUNDS // size
    some = (entry.schedule(rank, size, resolved) for rank in {1 % size, size // 3, size - 1})
    if all(sum(1 for _ in islice(rounds, each + 1)) > each for rounds in some):
        raise _too_much(name, size)
    passes = 0
    rounds = play(name, {rank: entry.schedule(rank, size, resolved) for rank in range(size)})
    for number, (tick, rank, step) in enumerate(rounds):
        if number == MOST_ROUNDS or passes > MOST_PASSES:
            raise _too_much(name, size)
        while tick >= len(loads):
            loads.append(set())
            links.append(Counter())
        loads[tick].add(load(step))
        for message in step.sends:
            count = window_count(message.windows)
            for link in fabric.route(rank, message.peer):
                links[tick][link] += count
                passes += 1
    return list(zip(loads, map(_most_loaded, links), strict=True))


def _too_much(name: str, size: int) -> Unsupported:
    return Unsupported(
        f"{name}: it does not consist of shifts, no law was found, and {size} ranks have more than "
        f"{MOST_ROUNDS} rounds, or their messages pass more than {MOST_PASSES} links, which is too much to "
        "charge one by one: take fewer ranks or segments (of nodes or switches, a power of two has more "
        "laws), or a flat network"
    )


def _most_loaded(links: Mapping[tuple[str, Link], int]) -> dict[str, int]:
    most: dict[str, int] = {}
    for (kind, _), blocks in links.items():
        most[kind] = max(most.get(kind, 0), blocks)
    return most


def charges(
    algorithm: Algorithm | str, size: int, fabric: Fabric, params: Mapping[str, Any] | None = None
) -> list[tuple[int, Charge]]:
    """`link_loads` as runs of equal steps; of 32 and more units (nodes), if a power of two, by a law.

    The law gives what all ranks of 2, 4, 8 and 16 units do and what their links carry. It is that of `steps`:
    runs whose lengths and loads grow linearly with P, or one run more for every doubling of P.
    """
    entry = get(*algorithm.split("/", 1)) if isinstance(algorithm, str) else algorithm
    units = size // fabric.unit if fabric.unit else 0
    resolved = dict(entry.resolve(size, params))
    if fabric.shifted and size > FEW_RANKS and (shifts := by_shifts(entry, size, resolved, fabric.shifted)):
        return [(sum(1 for _ in same), ({one}, most)) for (one, most), same in groupby(shifts)]
    regular = units >= 32 and units & (units - 1) == 0 and size == units * fabric.unit
    if regular and unbent(resolved, 2 * fabric.unit):
        known = {}
        for small in (2 * fabric.unit, 4 * fabric.unit, 8 * fabric.unit, 16 * fabric.unit):
            told = link_loads(entry, small, fabric, at_size(small, resolved))
            known[small] = runs((*step_of(loads), _as_load(most)) for loads, most in told)
        if found := linear(known, size) or linear(known, size, int.bit_length) or grown(known, size):
            return [(count, (set(step[:-1]), _as_links(step[-1]))) for count, step in found]
    return [(1, charge) for charge in link_loads(entry, size, fabric, params)]


def _as_load(most: Mapping[str, int]) -> Load:
    """What links carry in the place of what ranks do, for a law."""
    out, into, up, down = (most.get(kind, 0) for kind in _KINDS)
    return Load(out, into, up, down, False)


def _as_links(carried: Load) -> dict[str, int]:
    return {kind: int(blocks) for kind, blocks in zip(_KINDS, carried, strict=False) if blocks}


_KINDS = ("out", "in", "up", "down")  # of links between units


def cost_on(
    fabric: Fabric,
    algorithm: Algorithm | str,
    size: int,
    nbytes: float,
    machine: Machine,
    params: Mapping[str, Any] | None = None,
) -> Cost:
    """The time on a fabric: a step takes as long as its busiest rank or its most loaded link.

    All else is as for `cost`, which it is where no link is passed.
    """
    entry = get(*algorithm.split("/", 1)) if isinstance(algorithm, str) else algorithm
    call = call_of(entry, size, nbytes, machine, params)

    def charged(charge: Charge, machine: Machine) -> Cost:
        loads, most = step_of(charge[0]), charge[1]
        slowest = slowest_of(loads, machine, call.block)
        longest = max(one.largest for one in loads) * call.block
        wire = 1 / fabric.rate if fabric.rate else machine.exchange.at(longest)[1]
        links = [blocks * call.block * wire / fabric.width[kind] for kind, blocks in most.items()]
        latency = slowest.latency + sum(fabric.delay.get(kind, 0.0) for kind in most)
        return Cost(latency, max([slowest.bandwidth, *links]), slowest.reduction)

    return summed(call, charges(entry, size, fabric, call.params), charged)


def hop_bytes(
    algorithm: Algorithm | str, size: int, fabric: Fabric, params: Mapping[str, Any] | None = None
) -> float:
    """Links passed times data, of what a rank sends, in nccl-tests' sizes: the most of the first few ranks.

    >>> import mpicoll.algorithms
    >>> [round(hop_bytes(f"reduce_scatter/{name}", 1024, ring(1024)), 2) for name in ("ring", "swing")]
    [1.0, 3.44]
    """
    entry = get(*algorithm.split("/", 1)) if isinstance(algorithm, str) else algorithm
    unit = blocks_per_total(entry, size, params)
    totals = []
    for rank in range(min(size, 4)):
        messages = (m for step in entry.schedule(rank, size, params) for m in step.sends)
        totals.append(sum(window_count(m.windows) * len(list(fabric.route(rank, m.peer))) for m in messages))
    return max(totals) / unit


def make_fabric(
    name: str, size: int, ppn: int = 1, nic: float = 1.0, delay: float = 0.0, **shape: Any
) -> Fabric:
    """A fabric by name, for `size` ranks.

    Raises `ArgumentError` for an unknown name or a shape that does not fit.
    """
    if name == "flat":
        return flat()
    if name == "ring":
        return ring(size)
    if name == "torus":
        dims = tuple(shape.get("dims") or _square(size))
        if prod(dims) != size:
            raise ArgumentError(f"a torus of {'×'.join(map(str, dims))} has {prod(dims)} ranks, not {size}")
        return torus(dims)
    group, taper = int(shape.get("group", 8)), float(shape.get("taper", 2.0))
    if group < 1 or not 0 < taper < inf:
        raise ArgumentError(f"group is 1 or more, not {group}, and taper more than 0, not {taper}")
    if name == "levels":
        return levels(ppn, nic, delay)
    if name == "fattree":
        return levels(ppn, nic, delay, group, taper)
    if name == "dragonfly":
        return dragonfly(ppn, group, nic, delay)
    raise ArgumentError(f"unknown topology {name!r}; known: {', '.join(FABRICS)}")


def _square(size: int) -> tuple[int, int]:
    """The two factors of `size` that are closest."""
    pairs = ((a, size // a) for a in range(1, int(size**0.5) + 1) if size % a == 0)
    return max(pairs)
