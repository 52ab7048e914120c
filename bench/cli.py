"""The command `mpicoll`: one verb each for listing, proving, measuring and reporting.

Every rank parses, so that all of them agree on a wrong command line; only the first one says so.
Exit status: 0 good, 1 the answer is no, 2 wrong usage, 128 + signal when stopped.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from mpicoll.bench import (
    calibrate,
    compare,
    gpu_check,
    importing,
    info,
    launch,
    model,
    overlap,
    probe,
    report,
    sweep,
    tools,
)
from mpicoll.bench.machine import version
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


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="mpicoll", description="Collective algorithms: listed, proved, drawn, measured against MPI's."
    )
    parser.add_argument(
        "--version", action="version", version=f"mpicoll {version('mpicoll') or '(not installed)'}"
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    tools.add_parsers(verbs)
    for module in (
        info,
        probe,
        calibrate,
        sweep,
        launch,
        report,
        compare,
        overlap,
        importing,
        gpu_check,
        model,
    ):
        module.add_parser(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status."""
    args = make_parser().parse_args(argv)
    try:
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
