"""`mpicoll info`: what is this machine, this MPI, this placement, and what will spoil the numbers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from mpicoll import device, probe
from mpicoll.bench import machine
from mpicoll.bench.hazards import Hazard, find_hazards
from mpicoll.bench.spec import THREAD_LEVELS
from mpicoll.bench.world import World, start
from mpicoll.errors import ArgumentError
from mpicoll.select import calibration

# Of the map of nodes, before it is shortened: nodes, and ranks of a domain.
_MOST_LINES, _MOST_WORDS = 64, 16


def add_parser(verbs: Any) -> None:
    """Add the verb `info`."""
    parser = verbs.add_parser("info")
    parser.add_argument(
        "--thread-level", choices=THREAD_LEVELS, default="funneled", help="asked of MPI (funneled)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if measuring here is worthless")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print what is known; with ``--strict``, status 1 if something makes measurements worthless."""
    world = start(args.thread_level, diagnose=True)
    import mpicoll

    native = mpicoll.native_status()
    missing = world.agree(None if native[0] else native[1])
    if missing is not None:
        native = (False, missing)
    hazards = find_hazards(world, native) if world.first else []
    grave = world.control.bcast(any(hazard.grave for hazard in hazards), root=0)
    if world.first and args.json:
        facts = describe(world, native, hazards) | {"device": device_text(), "auto": auto_text()}
        json.dump(facts, sys.stdout, indent=1, ensure_ascii=False)
        print(flush=True)
    elif world.first:
        print(as_text(world, native, hazards), flush=True)
    return int(grave and args.strict)


def device_text() -> str:
    """The devices of this process, which of them ranks use, and whether MPI may see their memory."""
    try:
        devices = device.describe()
    except (ArgumentError, RuntimeError) as error:
        return f"none: {error}"
    if not devices:
        return "none (no CuPy, no driver, or none visible)"
    names = ", ".join(one["name"] for one in devices)
    verdict = probe.aware()
    word = {True: "yes", False: "no", None: "not known to work"}[verdict.aware]
    return (
        f"{len(devices)}: {names}; each rank has that of its place on its node, counted round; "
        f"in MPI messages: {word} ({verdict.how})"
    )


def calibration_facts() -> dict[str, str] | None:
    """By which calibration `algorithm="auto"` chooses; None for the nominal machine.

    Raises `ArgumentError` where no communicator can be made with MPICOLL_CALIBRATION.
    """
    machine = calibration()
    if machine is None:
        return None
    return {"file": os.environ["MPICOLL_CALIBRATION"], "digest": machine.digest, "name": machine.name}


def auto_text() -> str:
    """What `algorithm="auto"` chooses by."""
    try:
        facts = calibration_facts()
    except ArgumentError as error:
        return f"no communicator can be made with this MPICOLL_CALIBRATION: {error}"
    if facts is None:
        return "by a nominal machine (MPICOLL_CALIBRATION=FILE of `mpicoll calibrate` makes it this one)"
    return "by the calibration {file} (digest {digest}): {name}".format_map(facts)


def describe(world: World, native: tuple[bool, str], hazards: list[Hazard]) -> dict[str, Any]:
    """Everything known about the conditions of this job, for `run.json` and ``info --json``."""
    topology = world.topology
    return {
        "machine": world.machine,
        "software": world.software,
        "mpi": {"vendor": world.vendor, "library": world.library, "thread_level": world.thread_level},
        "native_engine": {"available": native[0], "reason": native[1]},
        "ranks": world.size,
        "nodes": world.node_count,
        "ppn": world.ppn,
        "oversubscribed": world.oversubscribed,
        "placement": [
            {"rank": rank, "host": host, "node": node, "cpus": cpus}
            for rank, (host, node, cpus) in enumerate(zip(world.hosts, world.nodes, world.cpus, strict=True))
        ],
        "topology": {
            "placement": topology.placement,
            "leaders": topology.leaders,
            "node_of": topology.node_of,
            "socket_of": topology.socket_of,
            "numa_of": topology.numa_of,
            "machine_of": topology.machine_of,
        },
        "load": machine.load(),
        "busy_cpus": world.busy,
        "environment": machine.environment(),
        "slurm": machine.slurm(),
        "hazards": [hazard.as_dict() for hazard in hazards],
    }


def as_text(world: World, native: tuple[bool, str], hazards: list[Hazard]) -> str:
    """The same for a person."""
    facts, soft = world.machine, world.software
    git = soft.get("git")
    state = f", commit {git['commit'][:10]}{' with changes' if git['changed'] else ''}" if git else ""
    memory = facts.get("memory_bytes")
    lines = [
        f"machine   {facts.get('cpu_model') or 'unknown CPU'} ({facts.get('architecture')}), "
        f"{facts.get('physical_cores')} cores, {facts.get('logical_cpus')} logical CPUs"
        + (f", {memory / 2**30:.3g} GiB" if memory else "")
        + (f", limited to {facts['cpu_quota']:g} CPUs" if facts.get("cpu_quota") else ""),
        f"system    {facts.get('system')}, kernel {facts.get('kernel')}"
        + (", virtual" if facts.get("virtual") else ""),
        f"clock     governor {facts.get('governor') or 'unknown'}, turbo {facts.get('turbo') or 'unknown'}",
        f"MPI       {world.vendor}, thread level {world.thread_level}",
        f"mpicoll   {soft.get('mpicoll') or 'not installed as a package'}{state}",
        f"software  mpi4py {soft.get('mpi4py')}, numpy {soft.get('numpy')}, Python {soft.get('python')}",
        f"engine    native: {native[1]}",
        f"device    {device_text()}",
        f"auto      {auto_text()}",
        f"job       {world.topology}",
        *node_map(world),
        "",
    ]
    if not hazards:
        return "\n".join([*lines, "nothing found that would spoil the numbers"])
    lines.append("what will spoil the numbers here:")
    for hazard in hazards:
        lines += [f"- {hazard.what}" + (" (grave)" if hazard.grave else ""),
                  f"    effect  {hazard.effect}", f"    fix     {hazard.fix}"]  # fmt: skip
    return "\n".join(lines)


def node_map(world: World) -> list[str]:
    """Who is where: a line per node, shortened for large jobs."""
    lines = [_node_line(world, node) for node in range(world.node_count)]
    half = _MOST_LINES // 2
    if len(lines) > _MOST_LINES:
        lines = [*lines[:half], f"  … {len(lines) - 2 * half} more nodes (all with --json) …", *lines[-half:]]
    return lines


def _node_line(world: World, node: int) -> str:
    """A node's ranks with the CPUs they may run on, by NUMA domain where it has ranks in several."""
    topology, ranks = world.topology, world.topology.nodes[node]
    domains = topology.domains("numa")
    parts = []
    for domain in dict.fromkeys(domains[rank] for rank in ranks):
        inside = [rank for rank in ranks if domains[rank] == domain]
        words = [f"{rank} ({world.cpus[rank]})" for rank in inside]
        if len(words) > _MOST_WORDS:
            half = _MOST_WORDS // 2
            words = [*words[:half], f"… {len(words) - 2 * half} more …", *words[-half:]]
        name = topology.numa_of[inside[0]] if topology.numa_of else None
        several = len({domains[rank] for rank in ranks}) > 1
        title = "" if not several else f"NUMA {name}: " if name is not None else "over several NUMA domains: "
        parts.append(title + "  ".join(words))
    return f"  node {node:<4} {world.hosts[ranks[0]]:<20} ranks (CPUs)  {';  '.join(parts)}"
