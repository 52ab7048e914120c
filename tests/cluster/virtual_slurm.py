"""A real Slurm on the nodes of a virtual cluster: munged, slurmctld and one slurmd a node, all its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from virtual_nodes import ClusterError, Node, wait_for

TOOLS = ("munged", "slurmctld", "slurmd", "sinfo", "sbatch", "srun")

CONFIGURATION = """\
ClusterName=vcluster
SlurmctldHost=login({login})
NodeName=node[1-{count}] NodeAddr={subnet}.[1-{count}] CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP

# Nodes claim these CPUs, whatever the machine has
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU

# No cgroups, no binding, no accounting daemon, no mail
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
MpiDefault=none

# One munged serves all nodes, through a socket of our own
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
SlurmUser=root
SlurmdUser=root

StateSaveLocation={directory}/slurm/state
SlurmdSpoolDir={directory}/slurm/spool.%n
TmpFS={directory}/tmp/%n
TaskProlog={directory}/slurm/task_prolog
SlurmctldPidFile={directory}/slurm/slurmctld.pid
SlurmdPidFile={directory}/slurm/slurmd.%n.pid
SlurmctldLogFile={directory}/log/slurmctld.log
SlurmdLogFile={directory}/log/slurmd.%n.log

# Act at once, so that tests are short
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=30
KillWait=5
OverTimeLimit=5
WaitTime=0
MinJobAge=3600
"""

# What it prints becomes part of the environment of every task. /tmp is shared; see `Node.enter`.
TASK_PROLOG = """\
#!/bin/sh
echo "export TMPDIR={directory}/tmp/$SLURMD_NODENAME"
"""


def missing() -> str | None:
    """Why this machine cannot run Slurm on virtual nodes, or None; see also `virtual_nodes.missing`."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"Slurm's tests need {', '.join(absent)}: apt-get install slurm-wlm munge" if absent else None


def has_pmix() -> bool:
    """Whether ``srun --mpi=pmix`` will work: Debian's plugin opens a name that only a -dev package has."""
    wanted = ("*/slurm*/mpi_pmix.so", "*/pmix2/lib/libpmix.so")
    return all(any(Path("/usr/lib").glob(pattern)) for pattern in wanted)


class Slurm:
    """The Slurm of the cluster in `directory`."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.conf = directory / "slurm" / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """The environment in which sbatch, srun, scontrol... speak to this Slurm, on the machine itself."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SRUN_"))}
        return {**clean, "SLURM_CONF": str(self.conf)}

    def ask(self, *argv: str, env: Mapping[str, str] | None = None) -> str:
        """Run one of its commands that must succeed; what it prints."""
        env = env or self.environment()
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise ClusterError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def start(self, login: Node, nodes: Sequence[Node], *, subnet: str, cpus: int, memory: int) -> None:
        """Start everything, and wait until all nodes have registered."""
        reason = missing()
        if reason:
            raise ClusterError(reason)
        at, munge = self.directory, self.directory / "munge"
        for folder in (munge, at / "slurm" / "state"):
            folder.mkdir(parents=True)
        self.conf.write_text(
            CONFIGURATION.format(
                directory=at, subnet=subnet, login=f"{subnet}.250", count=len(nodes), cpus=cpus,
                memory=memory,
            )
        )  # fmt: skip
        prolog = at / "slurm" / "task_prolog"
        prolog.write_text(TASK_PROLOG.format(directory=at))
        prolog.chmod(0o755)
        # Before 24.05 one cannot say that there are no cgroups; but the plugin for version 1 is content where
        # none is mounted, and then goes unused.
        version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout.split()[
            1
        ]
        old = tuple(int(part) for part in version.split(".")[:2]) < (24, 5)
        (at / "slurm" / "cgroup.conf").write_text(f"CgroupPlugin={'cgroup/v1' if old else 'disabled'}\n")
        key = munge / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "seed")]
        login.run(
            ["munged", *files, f"--socket={munge / 'socket'}", f"--log-file={at / 'log' / 'munged.log'}"]
        )
        login.run(["slurmctld", "-f", str(self.conf)])
        for node in nodes:
            self.start_node(node)
        if not wait_for(lambda: self.ready(len(nodes)), 30):
            raise ClusterError(f"Slurm's nodes do not register: {self.ask('sinfo', '--Node', '--long')}")

    def spool(self, node: Node) -> Path:
        """Where the slurmd of a node keeps what it needs to run its steps."""
        return self.directory / "slurm" / f"spool.{node.name}"

    def start_node(self, node: Node) -> None:
        """Start the slurmd of a node."""
        self.spool(node).mkdir(exist_ok=True)
        node.run(["slurmd", "-f", str(self.conf), "-N", node.name])

    def ready(self, nodes: int) -> bool:
        """Whether so many nodes are at work."""
        states = "idle,alloc,mix,comp"
        try:
            return len(self.ask("sinfo", "--noheader", "--Node", f"--states={states}").splitlines()) == nodes
        except ClusterError:
            return False
