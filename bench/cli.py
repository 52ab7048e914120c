"""The command `mpicoll`: one verb each for listing, proving, measuring and reporting.

Every rank parses, so that all of them agree on a wrong command line; only the first one says so. Of all verbs
only the one that was typed is imported: `mpicoll --help` is to be quick, and a rank to be started soon.
Exit status: 0 good, 1 the answer is no, 2 wrong usage, 128 + signal when stopped.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from mpicoll.bench.world import Refused, abort_on_error, in_words, is_first, let_the_first_speak
from mpicoll.errors import MpicollError


class _Parser(argparse.ArgumentParser):
    """Speaks on the first rank only. Flags are written in full, as scripts look for them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def _print_message(self, message: str, file: Any = None) -> None:
        if is_first():
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Usage and message, status 2."""
        let_the_first_speak()
        self.print_usage(sys.stderr)
        self.exit(2, f"mpicoll: {message}; see {self.prog} --help\n")


#: Of each verb: who adds its parser, within `mpicoll.bench`, and what it is for.
VERBS = {
    "list": ("catalogue:add_parser", "what algorithms there are, and what they cost"),
    "show": ("tools:add_show", "draw what every rank holds after every round"),
    "verify": ("tools:add_verify", "prove algorithms, and refuse mutants of them"),
    "info": ("info:add_parser", "machine, MPI, placement, and what will spoil the numbers (under mpirun)"),
    "probe": (
        "probe:add_parser",
        "prove whether this MPI can send and receive device memory (not under mpirun)",
    ),
    "calibrate": ("calibrate:add_parser", "measure what `mpicoll model` needs to know (under mpirun)"),
    "sweep": ("sweep:add_parser", "measure own algorithms against MPI's (under mpirun)"),
    "launch": (
        "launch:add_parser",
        "many launches of a sweep: ranks, nodes, placement, environments, repeats",
    ),
    "report": ("report:add_parser", "summary.csv, report.html and figures from sweeps and campaigns"),
    "compare": ("compare:add_parser", "what changed between two results; status 1 on a regression"),
    "overlap": (
        "overlap:add_parser",
        "how much gradient communication hides behind a training step (under mpirun)",
    ),
    "import": ("importing:add_parser", "results of OSU micro-benchmarks, Intel MPI Benchmarks or nccl-tests"),
    "gpu-check": ("gpu_check:add_parser", "prove and measure device buffers here (under mpirun)"),
    "model": ("model:add_parser", "predict times, what dominates them, and who wins where"),
}


class _Version(argparse.Action):
    """Looks the version up when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from mpicoll.bench.machine import version

        parser.exit(message=f"mpicoll {version('mpicoll') or '(not installed)'}\n")


def make_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The command line: all of it, or of all verbs but one no more than what they are for."""
    parser = _Parser(
        prog="mpicoll", description="Collective algorithms: listed, proved, drawn, measured against MPI's."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (adder, purpose) in VERBS.items():
        if verb not in (None, name):
            verbs.add_parser(name, help=purpose)
            continue
        module, _, function = adder.partition(":")
        getattr(import_module(f"mpicoll.bench.{module}"), function)(_Described(verbs, purpose))
    return parser


class _Described:
    """Gives a verb's parser what the verb is for."""

    def __init__(self, verbs: Any, purpose: str) -> None:
        self.verbs, self.purpose = verbs, purpose

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        words = f"{self.purpose[0].upper()}{self.purpose[1:]}."
        return self.verbs.add_parser(name, **{"help": self.purpose, "description": words, **options})


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status."""
    words = sys.argv[1:] if argv is None else argv
    verb = next((word for word in words if not word.startswith("-")), "")
    try:
        args = make_parser(verb).parse_args(words)
        with abort_on_error():
            return args.func(args)
    except MpicollError as error:
        # Agreed by all ranks, or raised before there were others.
        if _speaks():
            print(f"mpicoll: {error}", file=sys.stderr, flush=True)
        let_the_first_speak()
        return error.status if isinstance(error, Refused) else 2
    except BrokenPipeError:  # `mpicoll list | head`
        sys.stderr.close()
        return 0
    except (OSError, MemoryError) as error:  # a place where nothing can be written, a full disk
        print(f"mpicoll: {in_words(error)}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt as error:
        print(f"mpicoll: {in_words(error)}", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT


def _speaks() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or mpi.Is_finalized() or not mpi.Is_initialized():
        return is_first()
    return mpi.COMM_WORLD.rank == 0 and (mpi.COMM_WORLD.size > 1 or is_first())
