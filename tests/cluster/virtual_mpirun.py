"""How each MPI's mpirun is told to use the nodes of a virtual cluster, rank by rank."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from virtual_nodes import ClusterError

# With more ranks than cores, waiting ranks must sleep; see `environment` in tests/launch.py.
MPICH = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "10",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "eth0",
}
OPENMPI = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
# What an mpirun or a Slurm job leaves in the environment of a rank: a job started in it must not see it.
LEFT_OVER = ("PMI_", "PMIX_", "PRTE_", "OMPI_COMM", "OPAL_", "HYDI_", "HYDRA_", "MPI_LOCAL", "SLURM_")
# Variables of the caller that its ranks get to see: Open MPI passes on none by itself.
TAKEN_ALONG = ("PATH", "PYTHON", "VIRTUAL_ENV", "MPICOLL", "MPIR_CVAR", "OMPI_", "UCX_", "OMP_")


def parse_placement(text: str, nodes: int, ppn: int) -> tuple[int, ...]:
    """The node of each rank, counted from 0.

    `text` is "block", "cyclic", the number of ranks on each node as "3+1", or the nodes as "0,1,1,0".
    """
    if text == "block":
        return tuple(rank // ppn for rank in range(nodes * ppn))
    if text == "cyclic":
        return tuple(rank % nodes for rank in range(nodes * ppn))
    try:
        if "+" in text:
            return tuple(node for node, ranks in enumerate(text.split("+")) for _ in range(int(ranks)))
        return tuple(int(node) for node in text.split(","))
    except ValueError:
        raise ClusterError(f"placement {text!r} is not block, cyclic, 3+1 or 0,1,1,0") from None


def settings(kind: str) -> dict[str, str]:
    """The environment that an MPI needs on virtual nodes, "mpich" or "openmpi"; good in a Slurm job too."""
    return dict(MPICH if kind == "mpich" else OPENMPI)


def flavour(mpirun: Path) -> str:
    """Which MPI an mpirun belongs to."""
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in said:
        return "openmpi"
    if "HYDRA" in said:
        return "mpich"
    raise ClusterError(f"{mpirun} is neither MPICH's nor Open MPI's")


def command(
    mpirun: Path,
    directory: Path,
    subnet: str,
    placement: Sequence[int],
    argv: Sequence[str],
    env: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """The command line that runs `argv`, a rank for each entry of `placement`, and the environment it needs.

    It runs on the machine, and takes the ``rsh`` in the cluster's `directory` for ssh. The ranks talk over
    the nodes' eth0 only.
    """
    kind = flavour(mpirun)
    kept = {name: value for name, value in env.items() if not name.startswith(LEFT_OVER)}
    env = {**kept, **settings(kind)}
    agent = str(directory / "rsh")
    hosts = [f"{subnet}.{node + 1}" for node in range(max(placement) + 1)]
    slots = ",".join(f"{host}:{max(1, placement.count(node))}" for node, host in enumerate(hosts))
    words = ["-n", str(len(placement)), *argv]
    if kind == "mpich":
        ranks = ",".join(map(str, placement))
        shell = ["-launcher", "ssh", "-launcher-exec", agent, "-localhost", f"{subnet}.254"]
        return [str(mpirun), *shell, "-hosts", slots, "-rankmap", ranks, *words], env
    sequence = directory / f"sequence-{'-'.join(map(str, placement))}"
    sequence.write_text("".join(f"{hosts[node]}\n" for node in placement))
    shell = ["--prtemca", "plm_ssh_agent", agent, "--prtemca", "prte_if_include", f"{subnet}.0/24"]
    where = ["--host", slots, "--map-by", f"seq:file={sequence}", "--bind-to", "none"]
    taken = [word for name in sorted(env) if name.startswith(TAKEN_ALONG) for word in ("-x", name)]
    return [str(mpirun), *shell, *where, *taken, *words], env
