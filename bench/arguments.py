"""What verbs read from a command line: numbers of ranks, node maps, parameters."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from mpicoll.collectives import collective as find_collective
from mpicoll.errors import ArgumentError
from mpicoll.registry import Algorithm, algorithms, get

MOST_RANKS = 1 << 20  # more are a slip of the finger

Handler = Callable[[argparse.Namespace], int]


def usage(handler: Handler) -> Handler:
    """Turn a wrong argument into a message and status 2."""

    @wraps(handler)
    def guarded(args: argparse.Namespace) -> int:
        try:
            return handler(args)
        except ArgumentError as error:
            print(f"mpicoll: {error}", file=sys.stderr)
            return 2

    return guarded


def parse_ranks(text: str) -> list[int]:
    """Numbers of ranks from ranges and single numbers, increasing.

    >>> parse_ranks("1:4,8")
    [1, 2, 3, 4, 8]
    """
    sizes: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition(":")
        try:
            first, last = int(low), int(high or low)
        except ValueError:
            raise ArgumentError(f"not numbers of ranks: {text!r}; write 1:64, or 2,3,8") from None
        if last > MOST_RANKS:
            raise ArgumentError(f"{last} ranks are more than the {MOST_RANKS} that can be asked for")
        sizes.update(range(first, last + 1))
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"numbers of ranks begin at 1, not {text!r}")
    return sorted(sizes)


def parse_nodes(text: str, size: int) -> tuple[int, ...]:
    """A node map, from ranks per node or from the node of each rank (which has a node 0).

    >>> parse_nodes("3,1", 4), parse_nodes("0,1,0,1", 4), parse_nodes("1,1", 2)
    ((0, 0, 0, 1), (0, 1, 0, 1), (0, 1))
    """
    try:
        given = [int(part) for part in text.split(",")]
    except ValueError:
        given = []
    if any(number < 0 for number in given):
        raise ArgumentError(f"--nodes {text}: ranks per node and numbers of nodes are not negative")
    if given and 0 not in given and sum(given) == size:
        return tuple(node for node, ranks in enumerate(given) for _ in range(ranks))
    if len(given) == size:
        return tuple(given)
    raise ArgumentError(
        f"--nodes {text}: for P={size}, write ranks per node that add up to {size}, or {size} node numbers"
    )


def parse_params(texts: Iterable[str]) -> dict[str, Any]:
    """Parameters from NAME=VALUE texts; values are read as Python literals where they are some.

    >>> parse_params(["k=3", "order=near", "both=True"])
    {'k': 3, 'order': 'near', 'both': True}
    """
    params: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ArgumentError(f"--param {text}: write NAME=VALUE, as k=3")
        try:
            params[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            params[name] = value
    return params


def chosen(collective: str | None, name: str | None = None) -> list[Algorithm]:
    """One algorithm, all of one collective, or all."""
    if collective is not None:
        find_collective(collective)
    if collective is not None and name is not None:
        return [get(collective, name)]
    return algorithms(collective)
