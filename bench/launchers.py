"""How a launch becomes a command line: one short pure function per launcher, from values to a list of words.

Checked with MPICH 5.0 (hydra), Open MPI 5.0 (PRRTE) and Slurm 22.05; what each flag is for stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpicoll.bench.campaign import Campaign, Launch
from mpicoll.bench.settings import Settings
from mpicoll.bench.sites import Site
from mpicoll.errors import ArgumentError


def command(launch: Launch, site: Site, settings: Settings, program: Sequence[str]) -> list[str]:
    """The words that start `program` as the ranks of `launch`, with `settings` in their environment.

    Raises `ArgumentError` for what the site cannot do.
    """
    check(launch, site)
    return LAUNCHERS["srun" if site.launcher == "srun" else str(site.flavour)](
        launch, site, settings, program
    )


def settings_of(campaign: Campaign, site: Site, launch: Launch) -> Settings:
    """The variables of a launch: the site's, then the campaign's, which win."""
    return tuple({**dict(site.environment), **dict(campaign.environment[launch.environment])}.items())


def check(launch: Launch, site: Site) -> None:
    """Raise `ArgumentError` if the site has no room for a launch."""
    if site.cores is not None and launch.ppn > site.cores and not site.oversubscribe:
        raise ArgumentError(
            f"{launch.ppn} ranks on a node of {site.cores} cores: they would share time slices; "
            "if that is wanted, which is no performance result, say --oversubscribe, or "
            "`oversubscribe = true` in the file of the --site"
        )
    if site.hosts and launch.nodes > len(site.hosts):
        raise ArgumentError(f"{launch.nodes} nodes are wanted, but only these known: {', '.join(site.hosts)}")
    if site.launcher == "mpirun" and launch.nodes > 1 and not site.hosts:
        raise ArgumentError(
            f"{launch.nodes} nodes are wanted: name them (--hosts a,b, or `hosts` of a site), or use --slurm"
        )


def _bind(launch: Launch, site: Site) -> str:
    crowded = site.cores is not None and launch.ppn > site.cores
    return "none" if crowded else site.binding


def mpich(launch: Launch, site: Site, settings: Settings, program: Sequence[str]) -> list[str]:
    """MPICH's mpirun (hydra)."""
    argv = [site.mpirun, "-n", str(launch.ranks)]
    if site.hosts:
        # `host:k` takes k ranks in a row; when all hosts have theirs, hydra begins again at the first.
        each = launch.ppn if launch.placement == "block" else 1
        argv += ["-hosts", ",".join(f"{host}:{each}" for host in site.hosts[: launch.nodes])]
    argv += ["-bind-to", _bind(launch, site)]
    for name, value in settings:
        argv += ["-genv", name, value]
    return [*argv, *site.flags, *program]


def openmpi(launch: Launch, site: Site, settings: Settings, program: Sequence[str]) -> list[str]:
    """Open MPI's mpirun (PRRTE)."""
    argv = [site.mpirun, "-n", str(launch.ranks)]
    if site.hosts:
        argv += ["--host", ",".join(f"{host}:{launch.ppn}" for host in site.hosts[: launch.nodes])]
    # `slot` fills a node before the next one, `node` deals ranks out in turn.
    policy = "slot" if launch.placement == "block" else "node"
    argv += ["--map-by", policy + (":oversubscribe" if site.oversubscribe else "")]
    argv += ["--bind-to", _bind(launch, site)]
    for name, value in settings:
        argv += ["-x", f"{name}={value}"]  # its daemons hand on nothing else of the environment
    return [*argv, *site.flags, *program]


def srun(launch: Launch, site: Site, settings: Settings, program: Sequence[str]) -> list[str]:
    """Slurm's srun, within a job."""
    argv = ["env", *(f"{name}={value}" for name, value in settings)] if settings else []
    argv += ["srun", f"--mpi={site.mpi}"]  # without the right one, every rank is alone in a world of its own
    argv += [f"--nodes={launch.nodes}", f"--ntasks={launch.ranks}", f"--ntasks-per-node={launch.ppn}"]
    bind = "cores" if _bind(launch, site) == "core" else "none"
    argv += [f"--distribution={launch.placement}", f"--cpu-bind={bind}"]
    argv += ["--kill-on-bad-exit=1"]  # otherwise the others wait for ever for a rank that died
    if site.oversubscribe:
        argv += ["--overcommit"]
    return [*argv, *site.flags, *program]


Launcher = Callable[[Launch, Site, Settings, Sequence[str]], list[str]]
LAUNCHERS: dict[str, Launcher] = {"mpich": mpich, "openmpi": openmpi, "srun": srun}
