"""`mpicoll probe`: may this MPI be given device memory? Proved by a child job, and remembered."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from mpicoll import device, probe


def add_parser(verbs: Any) -> None:
    """Add the verb `probe`."""
    parser = verbs.add_parser(
        "probe",
        description="Prove whether this MPI can send and receive device memory (not under mpirun). Exit "
        "status 0 if it was proved able; 1 if it was proved not to be, or if nothing could be proved because "
        "there is no device or no CuPy. In both cases messages pass through the host, which needs no proof.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Start the child job, print what it found; status 0 only if the library is proved able."""
    verdict, reported = probe.prove()
    devices = device.describe()
    if args.json:
        facts = {"aware": verdict.aware, "how": verdict.how, "reported": reported, "devices": devices}
        json.dump(facts, sys.stdout, indent=1)
        print(flush=True)
        return 0 if verdict.aware else 1
    word = {True: "proved", False: "not able", None: "nothing could be proved"}[verdict.aware]
    for number, one in enumerate(devices):
        print(f"device {number}  {one['name']}, {one['memory_bytes'] / 2**30:.3g} GiB")
    print(f"device memory in MPI messages: {word} ({verdict.how})")
    print("what the library says of itself, which decides nothing:")
    for name, value in reported.items():
        print(f"  {name} = {', '.join(value) if isinstance(value, list) else value}")
    if not verdict.aware:
        print("so messages of device buffers pass through the host; exit status 1: not proved able")
    if verdict.aware is not None:
        print(f"remembered in {probe.cache_file()}; MPICOLL_GPU_AWARE=0 or 1 overrides it")
    return 0 if verdict.aware else 1
