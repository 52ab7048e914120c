"""The register of algorithms: what exists, what it can do, and its schedule for one rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .collectives import Collective, collective
from .errors import ArgumentError, Unsupported
from .schedule import Round, Schedule

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm for one collective.

    `generate(rank, size, **params)` yields the rounds of one rank; `count_blocks(size, params)` is
    the number of blocks that all parts together are cut in; `requires(size, params)` gives the
    reason why a case cannot be served, or None; `tune[p](size, nbytes)` gives the default of
    parameter p for a message of `nbytes`.
    """

    collective: Collective
    name: str
    generate: Callable[..., Schedule]
    count_blocks: Callable[[int, Params], int]
    ordered: bool
    requires: Callable[[int, Params], str | None]
    tune: Mapping[str, Callable[[int, int], Any]] = field(default_factory=dict)
    defaults: Params = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.collective.name}/{self.name}"

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.generate) or "").partition("\n")[0]

    @property
    def hierarchical(self) -> bool:
        """Whether it needs to know which ranks share a node (parameter `nodes`)."""
        return "nodes" in self.defaults

    def resolve(self, size: int, params: Params | None = None, nbytes: int | None = None) -> Params:
        """The given parameters, completed by tuned and declared defaults.

        Raises `ArgumentError` for a parameter that the algorithm does not have.
        """
        given = {k: _plain(v) for k, v in (params or {}).items() if v is not None}
        unknown = given.keys() - self.defaults.keys()
        if unknown:
            known = ", ".join(self.defaults) or "none"
            raise ArgumentError(f"{self} has no parameter {', '.join(sorted(unknown))}; it has: {known}")
        if not isinstance(given.get("nodes", ()), tuple):
            raise ArgumentError(
                f"nodes names the node of each rank, as in (0, 0, 1, 1), not {given['nodes']!r}"
            )
        tuned: dict[str, Any] = {}
        if nbytes is not None:
            tuned = {k: f(size, nbytes) for k, f in self.tune.items()}
        return {**self.defaults, **tuned, **given}

    def refusal(self, size: int, params: Params | None = None) -> str | None:
        """Why this case cannot be served, or None if it can."""
        return self.requires(size, self.resolve(size, params))

    def impossible(self, params: Params) -> str | None:
        """Why no number of ranks at all is served with these parameters, or None: what is wrong is a value.

        What may need many ranks is asked of that many: ``group=48`` divides 48, ``leaders=48`` lead two
        nodes of 48.

        Raises `ArgumentError` for a parameter, or the name of an inner algorithm, that there is not.
        """
        numbers = [value for value in params.values() if isinstance(value, int) and 8 < value <= 1 << 15]
        reasons = []
        for size in (4, *range(1, 17), *numbers, *(2 * number for number in numbers)):
            at_size = {"nodes": tuple(2 * rank // size for rank in range(size))} if self.hierarchical else {}
            if self.refusal(size, at_size) is not None:
                continue  # whatever the values
            reasons.append(self.refusal(size, {**params, **at_size}))
            if reasons[-1] is None:
                return None
        return reasons[0] if reasons else None

    def blocks(self, size: int, params: Params | None = None) -> int:
        """Number of blocks of all parts together."""
        resolved = self._checked(size, params)
        return self.count_blocks(size, resolved)

    def schedule(self, rank: int, size: int, params: Params | None = None) -> Iterator[Round]:
        """The rounds of `rank`.

        Raises `Unsupported` at once, not on the first round, for a case that cannot be served.
        """
        if not 0 <= rank < size:
            raise ArgumentError(f"rank {rank} is not in 0..{size - 1}")
        return self.generate(rank, size, **self._checked(size, params))

    def _checked(self, size: int, params: Params | None) -> Params:
        if size < 1:
            raise ArgumentError(f"size must be at least 1, not {size}")
        resolved = self.resolve(size, params)
        root = resolved.get("root", 0)
        if not 0 <= root < size:
            raise ArgumentError(f"root {root} is not in 0..{size - 1}")
        reason = self.requires(size, resolved)
        if reason is not None:
            raise Unsupported(f"{self} with P={size}: {reason}")
        return resolved


def _plain(value: Any) -> Any:
    """A parameter as it can be compared between ranks: NumPy's numbers as Python's, sequences as tuples."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(value) if isinstance(value, list) else value


_REGISTER: dict[tuple[str, str], Algorithm] = {}


def _no_restriction(size: int, params: Params) -> str | None:
    return None


def needs_nodes(size: int, params: Params) -> str | None:
    """Restriction of hierarchical algorithms: a node map with one entry per rank."""
    nodes = params["nodes"]
    if nodes is None:
        return "it needs a node map, such as nodes=(0, 0, 1, 1): the node of each rank"
    if len(nodes) != size:
        return f"its node map has {len(nodes)} entries for {size} ranks"
    return None


def algorithm(
    collective_name: str,
    *,
    blocks: Callable[[int, Params], int],
    ordered: bool = False,
    requires: Callable[[int, Params], str | None] = _no_restriction,
    tune: Mapping[str, Callable[[int, int], Any]] | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Schedule]], Callable[..., Schedule]]:
    """Register a generator ``f(rank, size, *, ...)`` of rounds as an algorithm.

    `ordered` declares that operands are always combined in rank order, so that a non-commutative
    operation may use it. Declarations are proved by `verify`, not trusted.
    """

    def register(function: Callable[..., Schedule]) -> Callable[..., Schedule]:
        entry = Algorithm(
            collective=collective(collective_name),
            name=name or function.__name__,
            generate=function,
            count_blocks=blocks,
            ordered=ordered,
            requires=requires,
            tune=dict(tune or {}),
            defaults={
                p.name: p.default
                for p in inspect.signature(function).parameters.values()
                if p.kind is p.KEYWORD_ONLY
            },
        )
        key = (collective_name, entry.name)
        if key in _REGISTER:
            raise ArgumentError(f"algorithm {entry} is registered twice")
        _REGISTER[key] = entry
        return function

    return register


def unregister(collective_name: str, name: str) -> None:
    """Forget an algorithm (for tests and notebooks that define one twice)."""
    _REGISTER.pop((collective_name, name), None)


def get(collective_name: str, name: str) -> Algorithm:
    """Look an algorithm up.

    Raises `ArgumentError` naming the algorithms of that collective.
    """
    try:
        found = _REGISTER.get((collective_name, name))
    except TypeError:  # a list, perhaps
        found = None
    if found is None:
        collective(collective_name)
        known = ", ".join(a.name for a in algorithms(collective_name)) or "none"
        raise ArgumentError(f"{collective_name} has no algorithm {name!r}; it has: {known}")
    return found


def algorithms(collective_name: str | None = None) -> list[Algorithm]:
    """All registered algorithms, or those of one collective, in the order of registration."""
    return [a for (c, _), a in _REGISTER.items() if collective_name in (None, c)]
