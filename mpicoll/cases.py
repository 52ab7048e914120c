"""Which cases an algorithm is proved on: the values that its parameters take, for a number of ranks.

At few ranks every combination is tried. At many the defaults and one variation after another in turn,
a few at each size, so that a range of sizes goes through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from .registry import Algorithm, algorithms
from .verify import Proof, verify

#: Up to this number of ranks, every combination of parameter values.
ALL_UP_TO = 8
#: Above it, the defaults and this many variations.
VARIATIONS = 2


def node_maps(size: int) -> list[tuple[int, ...]]:
    """Placements of `size` ranks: in blocks, cyclic, unequal, reversed, mixed, one node, all apart.

    >>> node_maps(2)
    [(0, 0), (0, 1), (1, 0)]
    >>> node_maps(4)[2:6]
    [(0, 0, 0, 1), (1, 1, 0, 0), (0, 1, 1, 0), (0, 0, 0, 0)]
    """
    per = 2 if size < 9 else 4
    nodes = -(-size // per)
    unequal = [0, 0, 0, 1]  # three ranks, then one, again and again
    maps = [
        tuple(r // per for r in range(size)),
        tuple(r % nodes for r in range(size)),
        tuple(r // 4 * 2 + unequal[r % 4] for r in range(size)),
        tuple(nodes - 1 - r // per for r in range(size)),
        tuple((r + 1) // 2 % nodes for r in range(size)),
        (0,) * size,
        tuple(range(size)),
        tuple(reversed(range(size))),
    ]
    return list(dict.fromkeys(maps))


def _roots(size: int) -> list[int]:
    return list(range(size)) if size <= ALL_UP_TO else sorted({0, 1, size // 2, size - 1})


#: Values by the name of a parameter. The first is the one that other variations are tried with.
VALUES: Mapping[str, Callable[[int], Iterable[Any]]] = {
    "root": _roots,
    "nodes": node_maps,
    "segments": lambda size: (1, 2, 3, 5),
    "k": lambda size: (2, 3, 4),
    "radix": lambda size: (2, 3, 4),
}


def _values(name: str, default: Any, size: int) -> list[Any]:
    if name in VALUES:
        return list(VALUES[name](size))
    return [default, not default] if isinstance(default, bool) else [default]


def cases(algorithm: Algorithm, size: int) -> Iterator[dict[str, Any]]:
    """Parameters to prove `algorithm` with at `size` ranks, without those that it refuses.

    >>> from mpicoll.algorithms import allreduce
    >>> from mpicoll.registry import get
    >>> list(cases(get("allreduce", "ring"), 5))
    [{}]
    """
    values = {name: _values(name, default, size) for name, default in algorithm.defaults.items()}
    if size <= ALL_UP_TO:
        chosen: Iterable[dict[str, Any]] = (
            dict(zip(values, combination, strict=True)) for combination in product(*values.values())
        )
    else:
        base = {name: given[0] for name, given in values.items()}
        others = [base | {name: value} for name, given in values.items() for value in given[1:]]
        turns = min(VARIATIONS, len(others))
        chosen = [base, *(others[(size * turns + i) % len(others)] for i in range(turns))]
    return (params for params in chosen if algorithm.refusal(size, params) is None)


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
