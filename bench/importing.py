"""`mpicoll import`: results of other benchmarks as result directories; what they do not say stays missing.

Each file is one launch. One file becomes the directory DIR itself, several become DIR/launches/0000 and so
on: `mpicoll report` and `mpicoll compare` read both. What a text cannot say (the machine, say) is None in
``run.json``, whose ``imported`` tells program, version, file and what its times are.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpicoll.bench.foreign import DTYPES, Text, all_lines, read_imb, read_nccl, read_osu, sizes_of
from mpicoll.bench.machine import describe_machine, software, version
from mpicoll.bench.store import Store
from mpicoll.collectives import COLLECTIVES
from mpicoll.errors import ArgumentError

PROGRAMS = ("osu", "imb", "nccl")
_ITEMSIZE = dict(DTYPES.values())


def add_parser(verbs: Any) -> None:
    """Add the verb `import`."""
    parser = verbs.add_parser(
        "import",
        description="Read what another benchmark printed into a result directory. What its text does not say "
        "can be said here, or stays missing.",
    )
    add = parser.add_argument
    add("program", choices=PROGRAMS, help="what printed the files")
    add("files", nargs="+", type=Path, metavar="FILE", help="its output; each file is one launch")
    add("-o", "--output", type=Path, metavar="DIR", help="result directory (results/import-DATE-TIME)")
    add("--ranks", type=int, metavar="P", help="number of ranks: OSU's text does not say it")
    add("--nodes", type=int, metavar="N", help="number of nodes, if known")
    add("--dtype", help=f"if the text does not say it: {', '.join(sorted(_ITEMSIZE))}")
    add("--collective", choices=sorted(set(COLLECTIVES) - {"barrier"}), help="for old nccl-tests")
    add("--mpi", metavar="TEXT", help="the MPI (or NCCL) that was measured, as 'Open MPI 5.0.3'")
    add("--cpu", metavar="TEXT", help="the CPU model, if known")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Read all files, then write; status 0."""
    for name in ("ranks", "nodes"):
        if (number := getattr(args, name)) is not None and number < 1:
            raise ArgumentError(f"--{name} must be at least 1")
    texts = [(path, _read(args, path)) for path in args.files]
    output = args.output or Path("results") / time.strftime("import-%Y%m%d-%H%M%S")
    for number, (path, text) in enumerate(texts):
        directory = output if len(texts) == 1 else output / "launches" / f"{number:04d}"
        count = write(directory, text, path, args)
        for reason in text.left_out:
            print(f"left out: {reason}")
        print(f"{directory}: {count} results of {text.program} from {path}")
    print(f"next: mpicoll report {output}")
    return 0


def _read(args: argparse.Namespace, path: Path) -> Text:
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}") from None
    try:
        text = _READERS[args.program](content, args)
        _complete(text, args)
    except ArgumentError as error:
        raise ArgumentError(f"{path}: {error}") from None
    except (KeyError, ValueError) as error:  # a line without a column, a word that is no number
        raise ArgumentError(
            f"{path}: a line of results is cut off, or is none of {args.program}'s ({error})"
        ) from None
    return text


_READERS: dict[str, Any] = {
    "osu": lambda content, args: read_osu(content),
    "imb": lambda content, args: read_imb(content),
    "nccl": lambda content, args: read_nccl(content, args.collective, args.ranks),
}


def _complete(text: Text, args: argparse.Namespace) -> None:
    """Add what the user says. Raises `ArgumentError` for what is missing, contradicts or is there twice."""
    if not any(table.lines for table in text.tables):
        left = f" ({'; '.join(text.left_out)})" if text.left_out else ""
        raise ArgumentError(f"no results of {text.program} in it{left}")
    seen = set()
    for table in text.tables:
        table.nodes = table.nodes or args.nodes
        if table.ranks is None:
            table.ranks = args.ranks
        if table.ranks is None:
            raise ArgumentError("the text does not say how many ranks there were: --ranks P")
        if args.ranks not in (None, table.ranks):
            raise ArgumentError(f"--ranks {args.ranks}, but the text says {table.ranks}")
        if table.dtype is None and args.dtype:
            if args.dtype not in _ITEMSIZE:
                raise ArgumentError(f"unknown dtype {args.dtype}; known: {', '.join(sorted(_ITEMSIZE))}")
            table.dtype, table.itemsize = args.dtype, _ITEMSIZE[args.dtype]
    for table, line in all_lines(text):
        key = (table.collective, table.dtype, table.ranks, line.nbytes, line.contender)
        if key in seen:
            again = f"{table.collective} of {line.nbytes} bytes"
            raise ArgumentError(f"{again} twice: give each run a file of its own")
        seen.add(key)


def write(directory: Path, text: Text, path: Path, args: argparse.Namespace) -> int:
    """Write one text as a result directory; the number of its results."""
    store = Store(directory, resume=None)
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for table, line in all_lines(text):
        row = row_of(table, line)
        key = tuple(row[name] for name in ("collective", "dtype", "op", "ranks", "msg_bytes", "root"))
        cases.setdefault(key, []).append(row)
        plan = {"case": "/".join(str(part) for part in key), "iterations": line.iterations, "warmup": None}
        store.run["plans"][str(list(cases).index(key))] = plan
    try:
        for number, rows in enumerate(cases.values()):
            store.write_case([{**row, "case": number} for row in rows])
        store.run.update(run_facts(text, path, args))
        store.write_run()
    finally:
        store.close()
    return sum(map(len, cases.values()))


def row_of(table: Any, line: Any) -> dict[str, Any]:
    """One result as a row of samples; columns that the text says nothing of are left out."""
    count, msg_bytes, total_bytes = sizes_of(table, line)
    return {
        "launch": 0, "collective": table.collective, "implementation": table.implementation,
        "requested": line.contender, "algorithm": line.contender, "buffer": table.buffer,
        "dtype": table.dtype, "op": table.op, "root": line.root, "ranks": table.ranks, "nodes": table.nodes,
        "count": count, "msg_bytes": msg_bytes, "total_bytes": total_bytes, "warmup": False,
        "seconds": line.seconds, "seconds_min": line.seconds_min,
        "checked": None if line.wrong is None else True,
        "status": "wrong" if line.wrong else "ok",
        "reason": f"found wrong by {table.implementation}'s benchmark" if line.wrong else None,
    }  # fmt: skip


def run_facts(text: Text, path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What ``run.json`` says: known facts, None for the others, and how far the times are comparable."""
    tables = text.tables
    statistics: Sequence[str] = list(dict.fromkeys(table.statistic for table in tables if table.lines))
    name = f"{text.program} {text.version}" if text.version else text.program
    unknown: dict[str, Any] = dict.fromkeys(
        ("architecture", "logical_cpus", "physical_cores", "python", "mpi4py", "numpy", "commit",
         "thread_level", "native_engine", "ppn")
    )  # fmt: skip
    identity = {
        "cpu_model": args.cpu, "mpi": args.mpi, "mpicoll": version("mpicoll"), **unknown,
        "ranks": tables[0].ranks, "nodes": tables[0].nodes, "spec": {"imported": name},
    }  # fmt: skip
    launch = {
        "launch": 0, "started": None, "ended": None, "status": "complete", "command": None,
        "mpi": {"vendor": args.mpi or f"unknown MPI ({name})", "library": args.mpi, "thread_level": None},
        "machine": {**dict.fromkeys(describe_machine()), "cpu_model": args.cpu},
        "software": dict.fromkeys(software()), "load": None,
        "overheads": None,
        "native_engine": {"available": False, "reason": "not asked: these results were imported"},
        "environment": {}, "slurm": {}, "placement": [],
        "ranks": tables[0].ranks, "nodes": tables[0].nodes, "ppn": None, "oversubscribed": None,
        "hazards": [
            {"what": f"imported from {name}, one number for many calls: {statistic}",
             "effect": "a mean over calls is moved by slow ones; binding and load are unknown",
             "fix": "mpirun … mpicoll sweep --algorithms builtin", "grave": False}
            for statistic in statistics
        ],
    }  # fmt: skip
    imported = {
        "program": text.program, "version": text.version, "file": path.name, "statistic": statistics,
        "blake2b": hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest(), "left_out": text.left_out,
    }  # fmt: skip
    return {"identity": identity, "launches": [{**launch, "imported": imported}], "imported": imported}
