"""`mpicoll sweep`: measure own algorithms against MPI's, interleaved in one launch, and record it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from mpicoll import registry
from mpicoll.bench import formats, machine
from mpicoll.bench.cases import Case, buffer_bytes, expand
from mpicoll.bench.contenders import own_algorithms
from mpicoll.bench.loading import add_load, digests, load
from mpicoll.bench.session import Session
from mpicoll.bench.sizes import format_bytes
from mpicoll.bench.spec import Contender, Spec, make_spec
from mpicoll.bench.world import StopSignals, World, start
from mpicoll.errors import ArgumentError
from mpicoll.select import check_channels
from mpicoll.staging import STAGINGS

_PLAN_KEYWORDS = ("channels", "depth", "staging")
_OTHERS = {"root": "say --root", "nodes": "the job says which ranks share a node"}


def add_parser(verbs: Any) -> None:
    """Add the verb `sweep`."""
    parser = verbs.add_parser(
        "sweep",
        description="Measure own algorithms and MPI's own, interleaved in one launch, each result checked "
        "exactly. Every long flag is also a key of SPEC.toml; flags win.",
    )
    add = parser.add_argument
    add("spec", nargs="?", metavar="SPEC.toml", help="settings, by the names of the long flags")
    add("--collective", metavar="NAMES", help="comma list (allreduce)")
    add(
        "--algorithms",
        metavar="NAMES",
        help="comma list of name[:key=value…], builtin, builtin_persistent, all (all)",
    )
    add("--engine", metavar="NAMES", help="native, python, both, or auto: the best there is (auto)")
    add("--dtype", metavar="NAMES", help="comma list of NumPy names (float32)")
    add("--op", metavar="NAMES", help="comma list: sum, prod, max, min, band, … (sum)")
    add("--sizes", help="bytes, min:max:factor or comma list (4:64M:4)")
    add(
        "--buffer",
        metavar="NAME",
        help="memory of the buffers: numpy, or cupy: a device's (numpy); see docs/gpu.md",
    )
    add("--root", type=int, help="root of rooted collectives (0)")
    add(
        "--cache",
        metavar="NAMES",
        help="warm: calls use the same buffers again; cold: buffers that are in no cache; or both (warm)",
    )
    add(
        "--sync",
        metavar="NAME",
        help="how ranks begin together: dissemination (our own barrier), or window: "
        "at an agreed moment on synchronised clocks (dissemination)",
    )
    add("--batch", type=int, help="calls timed as one, for calls not much longer than the clock's step (1)")
    add(
        "--precision",
        metavar="PERCENT",
        help="a case is done when the 95 %% intervals of all medians are within ± this (5); 0: never",
    )
    add("--iterations", type=int, help="timed calls of each contender in each case, at most (1000)")
    add("--warmup", type=int, help="untimed calls before those, at most (10); they are recorded too")
    add(
        "--prime-below",
        metavar="SIZE",
        help="in smaller cases each contender runs once untimed right before each timed call (256K)",
    )
    add("--case-time", metavar="TIME", help="a case's time budget; fewer iterations if it is spent (6s)")
    add("--check", action=argparse.BooleanOptionalAction, help="prove results before and after timing (yes)")
    add(
        "--stages",
        action=argparse.BooleanOptionalAction,
        help="after each race, time the stages of own algorithms into stages.csv (no)",
    )
    add(
        "--time-limit",
        metavar="TIME",
        help="for this launch, as 90s, 10m, 2h: all cases coarsely first, then those known least",
    )
    add("--order", metavar="NAME", help="of the cases: shuffled (by the seed), or sequential (shuffled)")
    add("--seed", type=int, help="of the order of cases and calls, and of the data (1)")
    add("--thread-level", help="asked of MPI: single, funneled, serialized, multiple (funneled)")
    add_load(parser)
    add("-o", "--output", type=Path, metavar="DIR", help="result directory (results/sweep-DATE-TIME)")
    add(
        "--format",
        choices=formats.FORMATS,
        help="at the end, print the results as another benchmark does, and all else to stderr",
    )
    add(
        "--resume",
        action="store_true",
        help="continue the result in DIR: what is finished in it is not measured again",
    )
    parser.set_defaults(func=run)


class _Raising(argparse.ArgumentParser):
    """Says what is wrong to its caller instead of to the user."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(message)


def check_arguments(argv: Sequence[str]) -> Spec:
    """What arguments (without the verb) ask for. Raises `ArgumentError` if no sweep would take them."""
    parser = _Raising(prog="mpicoll")
    add_parser(parser.add_subparsers(parser_class=_Raising))
    args = parser.parse_args(["sweep", *argv])
    spec = spec_of(args)
    if not args.load:  # such a file may import MPI, which a process that starts MPI jobs must not
        expand(spec, spec.root + 1)
        _check_contenders(spec, {name: contenders_for(spec, name) for name in spec.collective})
    return spec


def spec_of(args: argparse.Namespace) -> Spec:
    """What a command line asks for. Raises `ArgumentError` for a bad value."""
    flags = {key: getattr(args, key) for key in Spec.__dataclass_fields__}
    if flags["engine"] == "both":
        flags["engine"] = "native,python"
    return make_spec(flags, args.spec)


def run(args: argparse.Namespace) -> int:
    """Carry out a sweep: every rank calls this."""
    spec = spec_of(args)
    if args.resume and args.output is None:
        raise ArgumentError("--resume needs -o DIR: which result is to be continued?")
    # A user's file may import mpi4py.MPI, and whoever imports it first chooses the thread level.
    world = start(spec.thread_level)
    with world.together():
        loaded = load(args.load)
        cases = expand(spec, world.size)
        _require_room(world, spec, cases)
        contenders = {name: contenders_for(spec, name) for name in spec.collective}
        _check_contenders(spec, contenders)
        _same_everywhere(world, (spec, cases, contenders, digests(loaded)))
    if world.first and world.size == 1:
        print(
            "mpicoll: a world of one rank communicates nothing; use mpirun -n P to measure", file=sys.stderr
        )
    with StopSignals() as stop:
        session = Session(world, spec, args.output, stop, resume=args.resume, form=args.format, loaded=loaded)
        return session.run(cases, contenders)


def contenders_for(spec: Spec, collective: str) -> list[Contender]:
    """The competitors for a collective; a name that it does not have is another collective's."""
    own = own_algorithms(collective)
    known = {*own, "auto"}
    return [one for one in spec.contenders(collective, own) if one.builtin or one.name in known]


def _check_contenders(spec: Spec, contenders: dict[str, list[Contender]]) -> None:
    """Refuse misspelt names and parameters before anything is measured."""
    found = {one.name for several in contenders.values() for one in several}
    asked = {text.partition(":")[0] for text in spec.algorithms} - {"all"}
    for name in sorted(asked - found):
        known = sorted({known for collective in spec.collective for known in own_algorithms(collective)})
        raise ArgumentError(
            f"unknown algorithm {name!r}; known: {', '.join(known)}, auto, builtin, builtin_persistent"
        )
    for collective, several in contenders.items():
        if not several:
            raise ArgumentError(f"nothing to measure for {collective}")
        for one in several:
            if not one.builtin:
                try:
                    _check_options(spec, collective, one)
                except ArgumentError as error:
                    raise ArgumentError(f"{one.label}: {error}") from None


def _check_options(spec: Spec, collective: str, one: Contender) -> None:
    """Refuse what no number of ranks would make right; what this number cannot serve is recorded instead."""
    options = dict(one.options)
    for name, why in _OTHERS.items():
        if name in options:
            raise ArgumentError(f"{name} is no parameter here: {why}")
    check_channels(**{name: options[name] for name in ("channels", "depth") if name in options})
    if "staging" in options and spec.buffer == "numpy":
        raise ArgumentError("staging is for device buffers (--buffer cupy)")
    if options.get("staging", "none") not in STAGINGS:
        raise ArgumentError(f"unknown staging {options['staging']!r}; valid: {', '.join(STAGINGS)}")
    params = {name: value for name, value in options.items() if name not in _PLAN_KEYWORDS}
    if one.name == "auto":
        if params:
            raise ArgumentError(f"auto has no {', '.join(params)}: it may become any algorithm")
    elif reason := registry.get(collective, one.name).impossible(params):
        raise ArgumentError(reason)


def _same_everywhere(world: World, values: Any) -> None:
    """Ranks that read different spec files would wait for each other for ever."""
    texts = world.control.allgather(hash_of(repr(values)))
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise ArgumentError(
                f"rank {rank} read another spec than rank 0: are SPEC.toml and what --load names the same "
                "on all nodes?"
            )


def _require_room(world: World, spec: Spec, cases: Sequence[Case]) -> None:
    """Raise `ArgumentError` for a case whose buffers this machine has no memory for."""
    memory = machine.memory_bytes()
    if memory is None or spec.buffer != "numpy":  # a device says itself what it has
        return
    ranks = next(ranks for ranks in world.topology.machines if world.rank in ranks)
    case = max(cases, key=lambda case: case.total_bytes)
    needed = sum(buffer_bytes(case, rank) for rank in ranks)
    if needed > memory:
        raise ArgumentError(
            f"{case.collective} of {format_bytes(case.msg_bytes)} ({case.dtype}): the buffers of "
            f"{len(ranks)} ranks take {format_bytes(needed)}, and {world.hosts[world.rank]} has "
            f"{memory / 2**30:.3g} GiB; choose smaller --sizes"
        )


def hash_of(text: str) -> str:
    """A fingerprint that is the same in every process (`hash` is not)."""
    import hashlib

    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
