"""Which cases an algorithm is proved on: the values that its parameters take, for a number of ranks.

At few ranks every combination is tried, as long as that is not too many. Else a plain case and a sample
of the combinations, another one at every size, so that a range of sizes goes through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from math import gcd, prod
from typing import Any

from .errors import ArgumentError
from .registry import Algorithm, algorithms, get
from .verify import Proof, verify

#: Most cases up to so many ranks, increasing; then for any number of ranks.
MOST = ((8, 48), (16, 8), (32, 3))
MOST_AT_LARGE = 2


def node_maps(size: int) -> list[tuple[int, ...]]:
    """Placements of `size` ranks: in blocks, cyclic, unequal, reversed, mixed, one node, all apart.

    >>> node_maps(2)
    [(0, 0), (0, 1), (1, 0)]
    >>> node_maps(4)[2:6]
    [(0, 0, 0, 1), (1, 1, 0, 0), (0, 1, 1, 0), (0, 0, 0, 0)]
    >>> node_maps(9)[-1:]  # and nodes of equally many ranks, wherever there can be any
    [(0, 0, 0, 1, 1, 1, 2, 2, 2)]
    """
    per = 2 if size < 9 else 4
    nodes = -(-size // per)
    unequal = [0, 0, 0, 1]  # three ranks, then one, again and again
    factor = next(f for f in range(2, size + 2) if size % f == 0 or f > size)
    maps = [
        tuple(r // per for r in range(size)),
        tuple(r % nodes for r in range(size)),
        tuple(r // 4 * 2 + unequal[r % 4] for r in range(size)),
        tuple(nodes - 1 - r // per for r in range(size)),
        tuple((r + 1) // 2 % nodes for r in range(size)),
        (0,) * size,
        tuple(range(size)),
        tuple(reversed(range(size))),
        tuple(r // factor for r in range(size)),
        tuple(r % factor for r in range(size)),
    ]
    return list(dict.fromkeys(maps))


#: Values by the name of a parameter. The first is that of the plain case.
VALUES: Mapping[str, Callable[[int], Iterable[Any]]] = {
    "root": lambda size: range(size) if size <= 8 else sorted({0, 1, size // 2, size - 1}),
    "nodes": node_maps,
    "segments": lambda size: (1, 2, 3, 5),
    "k": lambda size: (2, 3, 4),
    "throttle": lambda size: (32, 1, 3),
    "leaders": lambda size: (1, 2, 3),
}


@cache
def _names(collective: str, algorithm: str, parameter: str, names: frozenset[str]) -> list[str]:
    """The values of a parameter that names another algorithm; where it names something else, its default."""
    entry = get(collective, algorithm)
    default = entry.defaults[parameter]
    if default not in names:
        return [default]

    def known(name: str) -> bool:
        try:
            entry.refusal(4, {parameter: name, "nodes": (0, 0, 1, 1)})
        except ArgumentError:
            return False
        return True

    return [default, *sorted(name for name in names - {default} if known(name))]


def _values(algorithm: Algorithm, parameter: str, size: int) -> list[Any]:
    default = algorithm.defaults[parameter]
    if parameter in VALUES:
        values = list(VALUES[parameter](size))
        # Of node maps those that it takes: samples would else hardly find one for nodes of equal size.
        return [v for v in values if algorithm.refusal(size, {parameter: v}) is None] or values
    if isinstance(default, bool):
        return [default, not default]
    if isinstance(default, str):
        registered = frozenset(a.name for a in algorithms() if not a.hierarchical)
        return _names(algorithm.collective.name, algorithm.name, parameter, registered)
    return [default]


def _sample(total: int, most: int, turn: int) -> list[int]:
    """At most `most` of ``range(total)``, spread over it, 0 first; others for another `turn`.

    >>> _sample(4, 8, 0), _sample(100, 4, 0), _sample(100, 4, 1)
    ([0, 1, 2, 3], [0, 22, 61, 83], [0, 5, 44, 66])
    """
    if total <= most:
        return list(range(total))
    # Steps of about the golden section spread evenly, and being prime to the total they repeat nothing.
    stride = next(s for s in range(total * 618 // 1000, 0, -1) if gcd(s, total) == 1)
    others = (stride * (turn * (most - 1) + i) % total for i in range(1, most))
    return sorted({0, *others})


def cases(algorithm: Algorithm, size: int) -> Iterator[dict[str, Any]]:
    """Parameters to prove `algorithm` with at `size` ranks, without those that it refuses.

    >>> import mpicoll.algorithms
    >>> from mpicoll.registry import get
    >>> list(cases(get("allreduce", "ring"), 5))
    [{}]
    """
    values = {name: _values(algorithm, name, size) for name in algorithm.defaults}
    most = next((most for ranks, most in MOST if size <= ranks), MOST_AT_LARGE)
    for number in _sample(prod(map(len, values.values())), most, size):
        params = {}
        for name, given in values.items():
            number, index = divmod(number, len(given))
            params[name] = given[index]
        if algorithm.refusal(size, params) is None:
            yield params


def verify_all(
    sizes: Iterable[int], collective: str | None = None, name: str | None = None
) -> Iterator[Proof]:
    """Prove every registered algorithm (or those named) for all of `sizes`, in all its `cases`.

    Raises `ScheduleError` at the first that fails.
    """
    wanted = list(sizes)
    for algorithm in algorithms(collective):
        if name in (None, algorithm.name):
            for size in wanted:
                for params in cases(algorithm, size):
                    yield verify(algorithm, size, params)
