"""The verbs that need no MPI: `list`, `show` and `verify`.

`add_parsers` puts them on a command line; each parser's ``func`` takes the parsed arguments and returns the
exit status: 0 good, 1 the answer is no, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.cases import cases, node_maps
from mpicoll.collectives import COLLECTIVES
from mpicoll.collectives import collective as find_collective
from mpicoll.draw import draw, draw_svg
from mpicoll.errors import ArgumentError, ScheduleError, Unsupported
from mpicoll.mutants import refuse_mutants
from mpicoll.registry import Algorithm, algorithms, get
from mpicoll.traffic import traffic
from mpicoll.verify import verify

Handler = Callable[[argparse.Namespace], int]

#: Sizes at which `list` asks an algorithm whether it serves them, to say "any P".
ASKED = range(1, 34)
#: Sizes at which `verify` makes mutants (those of them that were asked for), in the first and last case.
MUTATED = (2, 3, 4, 5, 7, 8, 13)


def add_parsers(subparsers: Any) -> None:
    """Add the verbs `list`, `show` and `verify` to ``parser.add_subparsers()``."""
    verb = subparsers.add_parser("list", help="what algorithms there are, and what they cost")
    verb.add_argument("collective", nargs="?", help=f"one of {', '.join(COLLECTIVES)}")
    verb.add_argument("--ranks", type=int, default=8, metavar="P", help="count costs for P ranks (8)")
    verb.add_argument("--nodes", help="ranks per node, as 4,4, or the node of each rank, as 0,0,1,1")
    verb.set_defaults(func=run_list)

    verb = subparsers.add_parser("show", help="draw what every rank holds after every round")
    verb.add_argument("collective")
    verb.add_argument("algorithm")
    verb.add_argument("--ranks", type=int, default=4, metavar="P", help="number of ranks (4)")
    verb.add_argument("--nodes", help="ranks per node, as 4,4, or the node of each rank, as 0,0,1,1")
    verb.add_argument("--root", type=int, metavar="R", help="root of a rooted collective (0)")
    verb.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="a parameter, as k=3"
    )
    verb.add_argument("--ascii", action="store_true", help="no characters outside ASCII")
    verb.add_argument("--svg", type=Path, metavar="FILE", help="also write the picture as SVG")
    verb.set_defaults(func=run_show)

    verb = subparsers.add_parser("verify", help="prove algorithms, and refuse mutants of them")
    verb.add_argument("collective", nargs="?")
    verb.add_argument("algorithm", nargs="?")
    verb.add_argument("--ranks", default="1:64", metavar="P", help="as 1:64, or 2,3,8, or both (1:64)")
    verb.set_defaults(func=run_verify)


def _usage(handler: Handler) -> Handler:
    """Turn a wrong argument into a message and status 2."""

    @wraps(handler)
    def guarded(args: argparse.Namespace) -> int:
        try:
            return handler(args)
        except ArgumentError as error:
            print(f"mpicoll: {error}", file=sys.stderr)
            return 2

    return guarded


# -- reading arguments -----------------------------------------------------------------------------------


def parse_ranks(text: str) -> list[int]:
    """Numbers of ranks from ranges and single numbers, increasing.

    >>> parse_ranks("1:4,8")
    [1, 2, 3, 4, 8]
    """
    sizes: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition(":")
        try:
            sizes.update(range(int(low), int(high or low) + 1))
        except ValueError:
            raise ArgumentError(f"not numbers of ranks: {text!r}; write 1:64, or 2,3,8") from None
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


def _chosen(collective: str | None, name: str | None) -> list[Algorithm]:
    if collective is not None:
        find_collective(collective)
    if collective is not None and name is not None:
        return [get(collective, name)]
    return algorithms(collective)


# -- list --------------------------------------------------------------------------------------------------


def _served(algorithm: Algorithm) -> str:
    """For which sizes an algorithm serves at least one case."""
    refused = [size for size in ASKED if next(iter(cases(algorithm, size)), None) is None]
    if not refused:
        return "any"
    served = [size for size in ASKED if size not in refused]
    if served == [size for size in ASKED if size & (size - 1) == 0]:
        return "2^i"
    if served in ([s for s in ASKED if s % 2 == 0], [1] + [s for s in ASKED if s % 2 == 0]):
        return "even"
    return "some"


def _reference(algorithm: Algorithm) -> str:
    text = " ".join((inspect.getdoc(algorithm.generate) or "").split())
    return text.partition("Reference:")[2].strip().rstrip(".")


def _row(algorithm: Algorithm, size: int, nodes: tuple[int, ...]) -> list[str]:
    params: dict[str, Any] = {"nodes": nodes} if algorithm.hierarchical else {}
    parameters = ", ".join(f"{k}={v}" for k, v in algorithm.defaults.items() if v is not None)
    if algorithm.hierarchical:
        parameters = ", ".join(filter(None, ["nodes", parameters]))
    ordered = ("yes" if algorithm.ordered else "no") if algorithm.collective.reduces else "-"
    try:
        counts = traffic(algorithm, size, params)
        costs = [counts.rounds, counts.critical_rounds, f"{counts.sent} n", f"{counts.reduced} n"]
    except Unsupported:
        costs = ["-"] * 4
    name, reference = str(algorithm), _reference(algorithm)
    return [name, _served(algorithm), ordered, *map(str, costs), parameters or "-", reference]


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


@_usage
def run_list(args: argparse.Namespace) -> int:
    """Print a table of the algorithms and their costs for ``--ranks``."""
    size = args.ranks
    if size < 1:
        raise ArgumentError(f"--ranks {size}: there is at least one rank")
    nodes = parse_nodes(args.nodes, size) if args.nodes else node_maps(size)[0]
    header = ["algorithm", "P", "ordered", "rounds", "chain", "sent", "reduced", "parameters", "reference"]
    chosen = _chosen(args.collective, None)
    print(_table([header, *(_row(algorithm, size, nodes) for algorithm in chosen)]))
    print(
        f"\nCounted for P={size}: most rounds of any rank, longest chain of dependent rounds, most data sent"
        "\nand reduced by any rank. n is the vector of a reduction or broadcast, P parts of the others."
    )
    if any(algorithm.hierarchical for algorithm in chosen):
        print(f"Node of each rank: {','.join(map(str, nodes))}")
    return 0


# -- show --------------------------------------------------------------------------------------------------


@_usage
def run_show(args: argparse.Namespace) -> int:
    """Draw one algorithm."""
    algorithm, size = get(args.collective, args.algorithm), args.ranks
    params = parse_params(args.param)
    if args.root is not None:
        params["root"] = args.root
    if args.nodes:
        params["nodes"] = parse_nodes(args.nodes, size)
    encoding = sys.stdout.encoding or "ascii"
    plain = args.ascii or "■".encode(encoding, "replace").decode(encoding) != "■"
    try:
        counts = traffic(algorithm, size, params)
        text = draw(algorithm, size, params, ascii_only=plain)
    except Unsupported as refusal:
        print(f"mpicoll: {refusal}", file=sys.stderr)
        return 1
    summary = algorithm.summary
    print(summary.encode("ascii", "replace").decode() if plain else summary)
    print(text)
    print(
        f"\n{counts.rounds} rounds, {counts.messages} messages; a rank sends at most {counts.sent} n "
        f"and reduces at most {counts.reduced} n."
    )
    if args.svg:
        args.svg.write_text(draw_svg(algorithm, size, params), encoding="utf-8")
        print(f"Written to {args.svg}")
    return 0


# -- verify ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tally:
    """What was proved of one algorithm."""

    proved: int = 0
    in_order: bool = True
    mutants: int = 0
    seconds: dict[int, float] = field(default_factory=dict)  # by number of ranks
    refused: list[int] = field(default_factory=list)

    def growth(self) -> str:
        """How the time of a case grows, from half the most ranks to the most."""
        most = max(self.seconds, default=0)
        if most < 16 or most // 2 not in self.seconds:
            return ""
        ratio = self.seconds[most] / max(self.seconds[most // 2], 1e-9)
        return f"; P={most} takes {ratio:.1f} times as long as P={most // 2}"


def _prove(algorithm: Algorithm, sizes: Sequence[int]) -> _Tally:
    tally = _Tally()
    for size in sizes:
        chosen = list(cases(algorithm, size))
        if not chosen:
            tally.refused.append(size)
            continue
        began = time.perf_counter()
        for params in chosen:
            proof = verify(algorithm, size, params)
            tally.in_order &= proof.ordered
        tally.seconds[size] = (time.perf_counter() - began) / len(chosen)
        tally.proved += len(chosen)
        if size in MUTATED:
            for params in (chosen[0], chosen[-1])[: len(chosen)]:
                tally.mutants += refuse_mutants(algorithm, size, params)
    return tally


@_usage
def run_verify(args: argparse.Namespace) -> int:
    """Prove the chosen algorithms; status 1 if one fails."""
    sizes = parse_ranks(args.ranks)
    chosen = _chosen(args.collective, args.algorithm)
    began, failed, proved, mutants, notes = time.perf_counter(), 0, 0, 0, []
    for algorithm in chosen:
        start = time.perf_counter()
        try:
            tally = _prove(algorithm, sizes)
        except ScheduleError as error:
            failed += 1
            print(f"FAILED  {error}", flush=True)
            continue
        proved, mutants = proved + tally.proved, mutants + tally.mutants
        print(
            f"proved  {algorithm!s:<38} {tally.proved:5} cases, {tally.mutants:4} mutants refused, "
            f"{time.perf_counter() - start:6.2f} s{tally.growth()}",
            flush=True,
        )
        if tally.refused:
            served = f"{len(sizes) - len(tally.refused)} of these {len(sizes)} sizes"
            notes.append(f"{algorithm} serves {served}, and not P={_runs(tally.refused)}")
        if algorithm.collective.reduces and tally.in_order and not algorithm.ordered and sizes[-1] > 2:
            notes.append(f"{algorithm} combined in rank order in every case, but is not declared ordered")
    for note in notes:
        print(f"note    {note}")
    print(
        f"{len(chosen) - failed} of {len(chosen)} algorithms proved for P={_runs(sizes)}: {proved} cases, "
        f"{mutants} mutants refused, in {time.perf_counter() - began:.1f} s"
    )
    return 1 if failed else 0


def _runs(numbers: Sequence[int]) -> str:
    """Increasing numbers in short: 1..4, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = [str(a) if a == b else f"{a}..{b}" for a, b in runs]
    return ", ".join(text if len(text) <= 8 else [*text[:6], "…", text[-1]])
