"""The verbs `show` and `verify`, which need no MPI (like `list`, in catalogue.py).

Each parser's ``func`` takes the parsed arguments and returns the
exit status: 0 good, 1 the answer is no, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.bench.arguments import chosen, parse_nodes, parse_params, parse_ranks, usage
from mpicoll.bench.loading import add_load, load
from mpicoll.bench.machine import affinity
from mpicoll.bench.records import write_named
from mpicoll.cases import cases
from mpicoll.draw import draw, draw_svg
from mpicoll.errors import ArgumentError, ScheduleError, Unsupported
from mpicoll.mutants import refuse_mutants
from mpicoll.registry import Algorithm, get
from mpicoll.traffic import traffic
from mpicoll.verify import verify

#: Ranks that `show` draws, at most.
MOST_DRAWN = 1024
#: Sizes at which `verify` makes mutants (those of them that were asked for), in the first and last case.
MUTATED = (2, 3, 4, 5, 7, 8, 13)


def add_show(subparsers: Any) -> None:
    """Add the verb `show`."""
    verb = subparsers.add_parser("show")
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
    add_load(verb)
    verb.set_defaults(func=run_show)


def add_verify(subparsers: Any) -> None:
    """Add the verb `verify`."""
    verb = subparsers.add_parser("verify")
    verb.add_argument("collective", nargs="?")
    verb.add_argument("algorithm", nargs="?")
    verb.add_argument("--ranks", default="1:64", metavar="P", help="as 1:64, or 2,3,8, or both (1:64)")
    verb.add_argument("--jobs", type=int, metavar="N", help="processes to prove in (one for each CPU)")
    add_load(verb)
    verb.set_defaults(func=run_verify)


# -- show --------------------------------------------------------------------------------------------------


@usage
def run_show(args: argparse.Namespace) -> int:
    """Draw one algorithm."""
    load(args.load)
    algorithm, size = get(args.collective, args.algorithm), args.ranks
    params = parse_params(args.param)
    if "nodes" in params:
        raise ArgumentError("--param nodes: a node map is given by --nodes 2,2")
    if size > MOST_DRAWN:
        raise ArgumentError(f"--ranks {size}: a picture of more than {MOST_DRAWN} ranks shows nothing")
    own = set(params)
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
        given = {name: value for name, value in params.items() if name not in own}
        return 2 if own and _serves(algorithm, size, given) else 1
    except (TypeError, ValueError) as error:
        if not own:
            raise
        raise ArgumentError(f"{algorithm} cannot be run with {', '.join(args.param)}: {error}") from None
    summary = algorithm.summary
    print(summary.encode("ascii", "replace").decode() if plain else summary)
    print(text)
    print(
        f"\n{counts.rounds} rounds, {counts.messages} messages; a rank sends at most {counts.sent} n "
        f"and reduces at most {counts.reduced} n."
    )
    if args.svg:
        write_named(args.svg, draw_svg(algorithm, size, params))
        print(f"Written to {args.svg}")
    return 0


def _serves(algorithm: Algorithm, size: int, params: dict[str, Any]) -> bool:
    """Whether all was well but for a user's parameters."""
    try:
        traffic(algorithm, size, params)
    except Unsupported:
        return False
    return True


# -- verify ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tally:
    """What was proved of one algorithm."""

    proved: int = 0
    in_order: bool = True
    mutants: int = 0
    seconds: dict[int, float] = field(default_factory=dict)  # by number of ranks
    refused: list[int] = field(default_factory=list)
    wall: float = 0.0
    failure: str | None = None

    def growth(self) -> str:
        """How the time of a case grows, from half the most ranks to the most."""
        most = max(self.seconds, default=0)
        if most < 16 or most // 2 not in self.seconds:
            return ""
        ratio = self.seconds[most] / max(self.seconds[most // 2], 1e-9)
        return f"; P={most} takes {ratio:.1f} times as long as P={most // 2}"


def _prove(algorithm: Algorithm, sizes: Sequence[int]) -> _Tally:
    tally, start = _Tally(), time.perf_counter()
    try:
        for size in sizes:
            _prove_size(algorithm, size, tally)
    except ScheduleError as error:
        tally.failure = str(error)
    tally.wall = time.perf_counter() - start
    return tally


def _prove_size(algorithm: Algorithm, size: int, tally: _Tally) -> None:
    tried = list(cases(algorithm, size))
    if not tried:
        tally.refused.append(size)
        return
    began = time.perf_counter()
    for params in tried:
        tally.in_order &= verify(algorithm, size, params).ordered
    tally.seconds[size] = (time.perf_counter() - began) / len(tried)
    tally.proved += len(tried)
    if size in MUTATED:
        for params in (tried[0], tried[-1])[: len(tried)]:
            tally.mutants += refuse_mutants(algorithm, size, params)


def _prove_named(name: str, sizes: Sequence[int]) -> _Tally:
    return _prove(get(*name.split("/")), sizes)


def _tallies(wanted: Sequence[Algorithm], sizes: Sequence[int], args: argparse.Namespace) -> Iterator[_Tally]:
    """What was found of each algorithm, in order; in several processes unless one is asked for."""
    jobs = min(args.jobs or len(affinity()), len(wanted))
    if jobs == 1:
        yield from (_prove(algorithm, sizes) for algorithm in wanted)
        return
    # Not forked: each begins without what this process has registered, and loads it itself.
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=load, initargs=(args.load,)) as pool:
        # Workers inherit that Ctrl-C, which a terminal sends to them as well, is not for them.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            found = [pool.submit(_prove_named, str(algorithm), sizes) for algorithm in wanted]
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            for future in found:
                yield future.result()
        except BaseException:  # else leaving the pool would wait for what they are at
            for worker in active_children():
                worker.terminate()
            raise


@usage
def run_verify(args: argparse.Namespace) -> int:
    """Prove the chosen algorithms; status 1 if one fails."""
    if args.jobs is not None and args.jobs < 1:
        raise ArgumentError(f"--jobs {args.jobs}: needs a whole number from 1 on")
    load(args.load)
    sizes = parse_ranks(args.ranks)
    wanted = chosen(args.collective, args.algorithm)
    began, failed, proved, mutants, notes = time.perf_counter(), 0, 0, 0, []
    for algorithm, tally in zip(wanted, _tallies(wanted, sizes, args), strict=True):
        if tally.failure is not None:
            failed += 1
            print(f"FAILED  {tally.failure}", flush=True)
            continue
        proved, mutants = proved + tally.proved, mutants + tally.mutants
        print(
            f"proved  {algorithm!s:<38} {tally.proved:5} cases, {tally.mutants:4} mutants refused, "
            f"{tally.wall:6.2f} s{tally.growth()}",
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
        f"{len(wanted) - failed} of {len(wanted)} algorithms proved for P={_runs(sizes)}: {proved} cases, "
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
