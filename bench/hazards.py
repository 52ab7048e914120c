"""What will spoil the numbers here, what it does to them, and the command that fixes it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from mpicoll.bench import machine
from mpicoll.bench.world import World, launcher_problem
from mpicoll.extension import FIX
from mpicoll.locality import parse_cpus


@dataclass(frozen=True, slots=True)
class Hazard:
    """One thing that spoils measurements; `grave` ones make them no performance result."""

    what: str
    effect: str
    fix: str
    grave: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For `run.json`."""
        return asdict(self)


def find_hazards(world: World, native: tuple[bool, str], sync: str = "") -> list[Hazard]:
    """Everything known to be wrong with measuring in this job. Local to the rank that asks."""
    found = [
        _launcher(world),
        _oversubscription(world),
        _window(world, sync),
        _binding(world),
        _shared_cores(world),
        _thread_level(world),
        _engine(native),
        _load(world),
        *_frequency(world.machine),
        *_settings(machine.environment()),
    ]
    return [hazard for hazard in found if hazard is not None]


def _launcher(world: World) -> Hazard | None:
    problem = launcher_problem(world.size)
    if problem is not None:
        return Hazard(
            problem, "nothing is communicated", "which mpirun; python -m mpi4py --mpi-lib-version", True
        )
    if world.size == 1:
        return Hazard("a world of one rank", "nothing is communicated", "mpirun -n 2 mpicoll …")
    return None


def _oversubscription(world: World) -> Hazard | None:
    if not world.oversubscribed:
        return None
    ranks = max(world.topology.machines, key=lambda ranks: len(ranks) / world.cpus_together(ranks))
    cpus = world.cpus_together(ranks)
    nodes = len({world.nodes[rank] for rank in ranks})
    more = f", a machine of {nodes} nodes" if nodes > 1 else ""
    return Hazard(
        f"oversubscribed: {len(ranks)} ranks share {cpus} CPUs on {world.hosts[ranks[0]]}{more}",
        "ranks wait for each other's time slices: not a performance result",
        f"mpirun -n {cpus} …, or more nodes; for Slurm --ntasks-per-node={cpus}",
        True,
    )


def _window(world: World, sync: str) -> Hazard | None:
    if sync != "window" or not world.oversubscribed:
        return None
    return Hazard(
        "ranks that share CPUs are to begin at one moment",
        "most begin late, are measured again, and are late again: few samples count",
        "mpicoll sweep --sync dissemination",
    )


def _flags(world: World, mpich: str, openmpi: str, slurm: str) -> str:
    """What to type for the launcher at hand: that of the MPI that runs, and `srun` within a job of Slurm."""
    known = {"MPICH": f"mpirun {mpich}", "Open MPI": f"mpirun {openmpi}"}
    mine = [command for vendor, command in known.items() if world.vendor.startswith(vendor)]
    others = [f"{vendor}: {command}" for vendor, command in known.items()]
    within_slurm = [f"srun {slurm}"] if "SLURM_JOB_ID" in os.environ else []
    return "; or ".join([*(mine or others), *within_slurm])


def as_bound(world: World) -> str:
    """The flag that binds ranks as these are bound, for a command that continues; "" if they are not."""
    known = world.vendor.startswith(("MPICH", "Open MPI"))
    return " --bind-to core" if known and world.ppn > 1 and _binding(world) is None else ""


def _binding(world: World) -> Hazard | None:
    """Ranks of a node that may all run on the same several CPUs are not bound."""
    for node in sorted(set(world.nodes)):
        masks = Counter(world.cpus[rank] for rank, at in enumerate(world.nodes) if at == node)
        mask, ranks = masks.most_common(1)[0]
        if ranks > 1 and len(parse_cpus(mask)) > 1:
            return Hazard(
                f"ranks are not bound: {ranks} of them may run on any of CPUs {mask}",
                "they move between cores and lose their caches",
                _flags(world, "--bind-to core", "--bind-to core", "--cpu-bind=cores"),
            )
    return None


def _shared_cores(world: World) -> Hazard | None:
    """Bound ranks on hardware threads of one core (known for the node of rank 0 only)."""
    at_home = [rank for rank, node in enumerate(world.nodes) if node == world.nodes[0]]
    single = [cpus for rank in at_home if len(cpus := parse_cpus(world.cpus[rank])) == 1]
    cores = Counter(machine.physical_core(cpu) for cpus in single for cpu in cpus)
    crowded = [core for core, ranks in cores.items() if ranks > 1]
    if not crowded or world.oversubscribed:
        return None
    return Hazard(
        f"{len(crowded)} cores run more than one rank on their hardware threads",
        "these ranks share execution units and caches",
        _flags(world, "--bind-to core", "--map-by core --bind-to core", "--hint=nomultithread"),
    )


def _thread_level(world: World) -> Hazard | None:
    if world.thread_level != "multiple":
        return None
    return Hazard(
        "MPI runs at thread level multiple",
        "locks in every call, and MPICH loses its collectives in shared memory",
        "mpicoll sweep --thread-level funneled",
    )


def _engine(native: tuple[bool, str]) -> Hazard | None:
    if native[0]:
        return None
    what, _, fix = native[1].partition(FIX)
    return Hazard(f"no native engine: {what}", "about a microsecond more per round", fix or "mpicoll info")


def _load(world: World) -> Hazard | None:
    """Other programs, where they need CPUs that the ranks do: a node with CPUs to spare may use those."""
    cpus = world.machine.get("logical_cpus") or 1
    most = max(map(len, world.topology.machines))
    if world.busy is None or world.busy < max(0.0, cpus - most) + 0.3:
        return None
    return Hazard(
        f"other programs run: they keep {world.busy:.1f} of {cpus} CPUs busy",
        "they take time from the ranks at random moments",
        "ps -eo pcpu,pid,args --sort=-pcpu | head; wait for them, or take a node of your own",
        world.busy > max(0.0, cpus - most) + 0.6,
    )


def _frequency(facts: dict[str, Any]) -> list[Hazard]:
    found = []
    governor = facts.get("governor")
    if governor not in (None, "performance"):
        found.append(
            Hazard(
                f"CPU frequency governor {governor}",
                "the clock rate changes with the load",
                "sudo cpupower frequency-set -g performance",
            )
        )
    if governor is None:
        found.append(
            Hazard(
                "the CPU's clock rate cannot be read",
                "it may change unseen; compare only paired times",
                "cpupower frequency-info (on the machine itself)",
            )
        )
    elif facts.get("turbo") == "on":
        found.append(
            Hazard(
                "turbo is on",
                "the clock rate depends on temperature and neighbours",
                "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo",
            )
        )
    if facts.get("virtual"):
        found.append(
            Hazard(
                "a virtual machine",
                "the host takes time away unseen; topology may be invented",
                "measure on the hardware itself, or repeat launches and trust only large differences",
            )
        )
    return found


def _settings(environment: dict[str, str]) -> list[Hazard]:
    found = []
    debug = sorted(key for key in environment if key in ("MPICOLL_TRACE", "MPICOLL_SYNC_SENDS"))
    if debug:
        found.append(
            Hazard(
                f"{' and '.join(debug)} set",
                "a test mode, slower by design",
                f"unset {' '.join(debug)}",
                True,
            )
        )
    if environment.get("OMPI_MCA_mpi_yield_when_idle", "0") not in ("0", "false"):
        found.append(
            Hazard(
                "Open MPI yields when idle",
                "small messages take longer",
                "unset OMPI_MCA_mpi_yield_when_idle (unless ranks share cores)",
            )
        )
    tuned = sorted(
        key for key in environment if key.startswith(("MPIR_CVAR_", "OMPI_MCA_coll_", "I_MPI_ADJUST_"))
    )
    if tuned:
        found.append(
            Hazard(
                f"MPI's collectives are tuned by {', '.join(tuned)}",
                "the builtin is not the library's default",
                f"unset {' '.join(tuned)}",
            )
        )
    return found
