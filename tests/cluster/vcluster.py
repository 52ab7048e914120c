#!/usr/bin/env python3
"""A virtual cluster on one Linux machine, for MPI programs and Slurm scripts: no containers, no hardware.

Several can be up at once; NAME tells them apart, and each checkout has one of its own unless one is named.
With --slurm, sbatch, srun and the like work on the machine, for any user, after: eval "$(vcluster.py env)"

    machine .254 ----[ bridge in 'login' .250 ]---- node1 eth0 .1
                                 |   |_____________ node2 eth0 .2 ...

Every node's cable is rate-limited, at both ends if there are more than two nodes; that of the machine is
not. There is no added latency: a message between nodes takes about 16 us. Cables and bridge work on the cores
that compute, unlike those of a real network.

Needs root, util-linux and iproute2; --slurm needs slurm-wlm, munge.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import virtual_mpirun
import virtual_nodes
import virtual_slurm
from virtual_nodes import ClusterError, Node

BASE = Path("/run/mpicoll-vcluster")  # must not be world-writable: munge would refuse its folder
FIRST_NETWORK = "10.79"  # the first half of every cluster's /24
SELF = Path(__file__).resolve()
AGENT = """\
#!/bin/sh
exec {python} -ES {program} --name {name} rsh -- "$@"
"""


def own_name() -> str:
    """The name of this checkout's cluster."""
    return os.environ.get("VCLUSTER") or hashlib.sha1(str(SELF).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Settings:
    """What a cluster is asked to be."""

    nodes: int
    rate: str = "2gbit"  # of each node's cable, each way; "none" for no limit
    cpus: int = 2  # that Slurm believes a node to have
    memory: int = 65536  # likewise, in MB
    private_tmp: bool = False
    slurm: bool = False


class Cluster:
    """A cluster that is up, or was: its files are in `directory`, /run/mpicoll-vcluster/NUMBER."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.name = (directory / "name").read_text()
        self.settings = Settings(**json.loads((directory / "settings").read_text()))
        self.subnet = f"{FIRST_NETWORK}.{directory.name}"
        self.interface = f"mpicoll{directory.name}"
        self.login = Node(directory, "login")
        self.nodes = [Node(directory, f"node{i + 1}") for i in range(self.settings.nodes)]
        self.slurm = virtual_slurm.Slurm(directory)
        self.watcher: subprocess.Popen[bytes] | None = None  # started by this process

    # -- up and down ---------------------------------------------------------------------------------------

    @classmethod
    def find(cls, name: str) -> Cluster:
        """The cluster of that name."""
        for file in BASE.glob("*/settings"):
            with contextlib.suppress(OSError):  # it goes down just now
                if (file.parent / "name").read_text() == name:
                    return cls(file.parent)
        raise ClusterError(f"no cluster called {name!r} is up; `vcluster.py up 4` brings one up")

    @classmethod
    def up(cls, name: str, settings: Settings, owner: int | None = None) -> Cluster:
        """Bring one up. It goes down by itself when the process `owner` ends, however that ends."""
        with contextlib.suppress(ClusterError):
            old = cls.find(name)
            raise SystemExit(f"vcluster: {name!r} is up already, with {old.settings}; take it down first")
        if reason := virtual_nodes.missing():
            raise ClusterError(reason)
        directory = _claim()
        (directory / "name").write_text(name)
        (directory / "settings").write_text(json.dumps(asdict(settings)))
        cluster = cls(directory)
        try:
            cluster._start(owner)
        except BaseException:
            cluster.down()
            raise
        return cluster

    def _start(self, owner: int | None) -> None:
        if owner is not None:
            self._watch(owner)
        addresses = {self.subnet + ".250": "login", self.subnet + ".254": os.uname().nodename}
        addresses |= {self.address(i): node.name for i, node in enumerate(self.nodes)}
        hosts = "".join(f"{at} {name}\n" for at, name in {"127.0.0.1": "localhost", **addresses}.items())
        (self.directory / "hosts").write_text(hosts)
        agent = self.directory / "rsh"
        agent.write_text(AGENT.format(python=sys.executable, program=SELF, name=self.name))
        agent.chmod(0o755)
        for node in [self.login, *self.nodes]:
            node.start(private_tmp=self.settings.private_tmp)
        for node in [self.login, *self.nodes]:
            node.await_start()
        self._wire()
        if self.settings.slurm:
            have = self.settings
            self.slurm.start(self.login, self.nodes, subnet=self.subnet, cpus=have.cpus, memory=have.memory)

    def _watch(self, owner: int) -> None:
        """Leave a process behind that waits for the end of `owner`."""
        fd = os.pidfd_open(owner)
        self.watcher = subprocess.Popen(
            [sys.executable, "-ES", str(SELF), "--name", self.name, "watch", str(fd)], pass_fds=[fd], cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        virtual_nodes.remember(self.watcher.pid, self.directory / "watcher")
        os.close(fd)

    def _wire(self) -> None:
        self.login.net("ip link add name bridge type bridge")
        self.login.net(f"ip addr add {self.subnet}.250/24 dev bridge")
        self.login.net("ip link set bridge up")
        for node in self.nodes:
            self._plug_in(node)
        self.login.net(f"ip link add name machine type veth peer name {self.interface} netns {os.getpid()}")
        self.login.net("ip link set machine master bridge up")
        for command in (f"addr add {self.subnet}.254/24 dev", "link set up dev"):
            subprocess.run(["ip", *command.split(), self.interface], check=True)

    def _plug_in(self, node: Node) -> None:
        """Lay the cable from the bridge to a node, rate-limited.

        What two nodes send each other is limited where it leaves them. Among more, what several send to one
        is limited at its own end, too.
        """
        number = self.nodes.index(node)
        port = f"port{number + 1}"
        self.login.net(f"ip link add name {port} type veth peer name eth0 netns {node.pid()}")
        self.login.net(f"ip link set {port} master bridge up")
        node.net(f"ip addr add {self.address(number)}/24 dev eth0")
        node.net("ip link set eth0 up")
        if self.settings.rate != "none":
            ends = [(node, "eth0")] + [(self.login, port)] * (self.settings.nodes > 2)
            for end, interface in ends:
                shape = f"tbf rate {self.settings.rate} burst 128kb latency 50ms"
                end.net(f"tc qdisc replace dev {interface} root {shape}")

    def revive(self, name: str) -> None:
        """Bring a node back that died: `Node.end` is the loss of one."""
        node = self.node(name)
        node.end()
        # A node that boots from an image has none of these: the same job's next start would meet its old
        # sockets there (Slurm's PMIx: "Address already in use").
        for left in (node.tmp, self.slurm.spool(node)):
            shutil.rmtree(left, ignore_errors=True)
        node.start(private_tmp=self.settings.private_tmp)
        node.await_start()
        self._plug_in(node)
        if self.settings.slurm:
            self.slurm.start_node(node)

    def down(self) -> None:
        """Take everything of it away: processes, network, mounts, files."""
        left = [node.name for node in [*self.nodes, self.login] if not node.end()]
        # The cable goes with login's network, a moment later.
        cable = Path("/sys/class/net", self.interface)
        if not virtual_nodes.wait_for(lambda: not cable.exists(), 10):
            left.append(self.interface)
        watcher = self.directory / "watcher"
        if virtual_nodes.living(watcher) != os.getpid() and not virtual_nodes.end(watcher):
            left.append("watcher")
        elif self.watcher:
            self.watcher.wait()
        if left:
            raise ClusterError(f"{', '.join(left)} of {self.name!r} did not end; see {self.directory}")
        shutil.rmtree(self.directory)
        with contextlib.suppress(OSError):  # another cluster is up
            BASE.rmdir()

    # -- use -----------------------------------------------------------------------------------------------

    def address(self, node: int) -> str:
        """The address of a node, counted from 0."""
        return f"{self.subnet}.{node + 1}"

    def node(self, name: str) -> Node:
        """The node with a name or an address."""
        known = {node.name: node for node in [*self.nodes, self.login]}
        known |= {self.address(i): node for i, node in enumerate(self.nodes)}
        if name not in known:
            raise ClusterError(f"no node {name!r}; there are {', '.join(known)}")
        return known[name]

    def mpirun(
        self, launcher: Path, placement: tuple[int, ...], argv: list[str], env: Mapping[str, str] = os.environ
    ) -> tuple[list[str], dict[str, str]]:
        """The command line that runs `argv`, a rank for each entry of `placement`, and its environment."""
        most = max(placement)
        if most >= len(self.nodes):
            raise ClusterError(f"placement needs {most + 1} nodes, there are {len(self.nodes)}")
        return virtual_mpirun.command(launcher, self.directory, self.subnet, placement, argv, env)


def _claim() -> Path:
    """A new directory, whose number nobody else uses for a network."""
    BASE.mkdir(exist_ok=True)
    taken = subprocess.run(["ip", "-o", "-4", "route"], capture_output=True, text=True, check=True).stdout
    for number in range(256):
        if f"{FIRST_NETWORK}.{number}." not in taken:
            with contextlib.suppress(FileExistsError):
                directory = BASE / str(number)
                directory.mkdir()
                return directory
    raise ClusterError(f"256 clusters are up; see {BASE}")


# -- command line ------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--name", default=own_name(), help="of the cluster (this checkout's)")
    verbs = top.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("up", help="bring it up")
    verb.add_argument("nodes", type=int)
    verb.add_argument("--rate", default="2gbit", help="of each node's cable: 1gbit, none (2gbit)")
    verb.add_argument("--slurm", action="store_true", help="with a Slurm")
    verb.add_argument("--cpus", type=int, default=2, help="that Slurm's nodes claim to have (2)")
    verb.add_argument("--memory", type=int, default=65536, help="likewise, in MB (65536)")
    verb.add_argument("--private-tmp", action="store_true", help="a /tmp of its own for every node")
    verb.add_argument("--owner", type=int, metavar="PID", help="goes down when this process ends")
    verbs.add_parser("down", help="take it down, and nothing else")
    verbs.add_parser("status", help="what is up")
    verbs.add_parser("env", help="what makes sbatch and srun speak to it, for eval")
    verbs.add_parser("kill", help="let a node die").add_argument("node")
    verbs.add_parser("revive", help="bring it back").add_argument("node")
    verb = verbs.add_parser("exec", help="run a command on a node, or on 'login'")
    verb.add_argument("node")
    verb.add_argument("command", nargs=argparse.REMAINDER)
    verb = verbs.add_parser("mpirun", help="run a program on the nodes: mpirun [OPTION...] PROGRAM...")
    verb.add_argument("--nodes", type=int, help="how many (all)")
    verb.add_argument("--ppn", type=int, default=2, help="ranks on each (2)")
    verb.add_argument("--placement", default="block", help="block, cyclic, 3+1 or 0,1,1,0 (block)")
    verb.add_argument("--launcher", type=Path, help="the mpirun ($MPIRUN, or the first on the path)")
    verb.add_argument("command", nargs=argparse.REMAINDER)
    for hidden in ("rsh", "watch"):
        verbs.add_parser(hidden).add_argument("command", nargs=argparse.REMAINDER)
    return top


def rsh(cluster: Cluster, words: list[str]) -> list[str]:
    """What mpirun takes for ssh: -- [OPTION...] HOST WORD...; a shell on the node reads the words, joined."""
    while words[0].startswith("-"):
        words = words[2 if words[0] in ("-l", "-p", "-i", "-o", "-F") else 1 :]
    return cluster.node(words[0]).enter(["sh", "-c", " ".join(words[1:])], clean=True)


def become(argv: list[str], env: dict[str, str] | None = None) -> None:
    """Replace this process."""
    sys.stdout.flush()
    os.execvpe(argv[0], argv, env if env is not None else dict(os.environ))


def main() -> int:
    """Do what the command line says."""
    args = parser().parse_args()
    if args.verb == "up":
        wanted = Settings(args.nodes, args.rate, args.cpus, args.memory, args.private_tmp, args.slurm)
        cluster = Cluster.up(args.name, wanted, args.owner)
        print(
            f"{args.name}: {args.nodes} nodes, {cluster.subnet}.1 and so on, logs in {cluster.directory}/log"
        )
        return 0
    cluster = Cluster.find(args.name)
    if args.verb == "watch":
        select.select([int(args.command[0])], [], [])
    if args.verb in ("down", "watch"):
        cluster.down()
    elif args.verb == "status":
        print(f"{cluster.name}: {cluster.settings}")
        for node in [cluster.login, *cluster.nodes]:
            print(f"{node.name}: {virtual_nodes.living(node.file) or 'down'}")
    elif args.verb == "env":
        print(f"export SLURM_CONF={cluster.slurm.conf}")
    elif args.verb == "kill":
        cluster.node(args.node).end()
    elif args.verb == "revive":
        cluster.revive(args.node)
    elif args.verb == "exec":
        become(cluster.node(args.node).enter(args.command))
    elif args.verb == "rsh":
        become(rsh(cluster, args.command))
    elif args.verb == "mpirun":
        launcher = args.launcher or Path(os.environ.get("MPIRUN") or shutil.which("mpirun") or "mpirun")
        where = virtual_mpirun.parse_placement(args.placement, args.nodes or len(cluster.nodes), args.ppn)
        become(*cluster.mpirun(launcher, where, args.command))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"vcluster: {error}")
