"""`mpicoll launch`: a campaign of many launches, here under mpirun or as jobs of a batch system.

One launch is one sample of what differs between starts, however many calls it times; so a campaign repeats
each, spread over time. This verb starts MPI jobs and is none itself.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mpicoll.bench import batch, execution, machine, sweep
from mpicoll.bench.campaign import Campaign, Launch, read_campaign
from mpicoll.bench.launchers import check, command, settings_of
from mpicoll.bench.outlook import outlook
from mpicoll.bench.progress import Progress
from mpicoll.bench.records import replace_file
from mpicoll.bench.sites import Site, read_site, shipped
from mpicoll.bench.sizes import format_seconds
from mpicoll.bench.spec import Spec
from mpicoll.bench.store import require_same
from mpicoll.errors import ArgumentError, MpicollError

# A process with one of these is a rank. Slurm's own are in batch scripts and interactive shells, too: there,
# a step of several tasks is one.
_RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID")
_STEP_TASKS = "SLURM_STEP_NUM_TASKS"

DEFAULT_SITE = "generic-cpu"  # of a cluster that nobody has described


def add_parser(verbs: Any) -> None:
    """Add the verb `launch`."""
    parser = verbs.add_parser(
        "launch",
        description="Launch every configuration of CAMPAIGN.toml several times, in shuffled order, and "
        "record each. Exit status 1 if any launch failed, 128 + signal when stopped.",
    )
    add = parser.add_argument
    add("campaign", nargs="?", type=Path, metavar="CAMPAIGN.toml", help="factors; see docs/campaigns.md")
    add("-o", "--output", type=Path, metavar="DIR", help="result directory (results/campaign-DATE-TIME)")
    add("--dry-run", action="store_true", help="print the exact commands, ready to paste, and do nothing")
    add("--resume", action="store_true", help="continue the campaign in DIR: what is complete stays")
    add("--repeat", type=int, metavar="K", help="only the launches of this repeat, counted from 0")
    add("--slurm", action="store_true", help="submit to Slurm: one job of an array for each repeat")
    add("--site", metavar="NAME|FILE", help=f"how jobs are started: {', '.join(shipped())}, or a TOML file")
    add("--hosts", metavar="A,B", help="nodes for mpirun, outside of a batch system")
    add("--oversubscribe", action="store_true", help="allow more ranks than cores: no performance results")
    add("--script", choices=tuple(batch.KINDS), help="print this batch script for the site, and do nothing")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Launch, submit, or print."""
    if args.script:
        name = args.site or DEFAULT_SITE
        print(batch.script(args.script, read_site(name), name), end="")
        return 0
    if args.campaign is None:
        raise ArgumentError("which campaign? mpicoll launch CAMPAIGN.toml, or --script KIND")
    refuse_inside_a_job()
    campaign = read_campaign(args.campaign)
    launches, left_out = campaign.plan()
    specs = check_sweeps(campaign, args.campaign)
    if args.repeat is not None and not 0 <= args.repeat < campaign.repeats:
        raise ArgumentError(f"--repeat {args.repeat}: the repeats are 0 to {campaign.repeats - 1}")
    if args.resume and args.output is None:
        raise ArgumentError("--resume needs -o DIR: which campaign is to be continued?")
    site = read_site(args.site or (DEFAULT_SITE if args.slurm else None))
    if args.hosts:
        site = replace(site, hosts=tuple(filter(None, args.hosts.split(","))))
    if twice := sorted({host for host in site.hosts if site.hosts.count(host) > 1}):
        raise ArgumentError(f"named twice among the hosts: {', '.join(twice)}; each is one node")
    if args.oversubscribe:
        site = replace(site, oversubscribe=True)
    directory = args.output or Path("results") / time.strftime("campaign-%Y%m%d-%H%M%S")
    for text in left_out:
        print(f"# left out: {text}", file=sys.stderr)
    mine = [one for one in launches if args.repeat in (None, one.repeat)]
    told = [f"# {text}" for text in outlook(campaign, mine, specs)]
    if args.slurm:
        print(*told, sep="\n", file=sys.stderr)
        return submit(args, campaign, launches, site, directory)
    site = complete(site)
    if site.hosts and site.cores is None and not site.oversubscribe:
        most = max(one.ppn for one in launches)
        print(
            f"# {most} ranks on a host: if it has fewer cores than that, it is no performance result; "
            "say `cores` in a site's file, and more are refused",
            file=sys.stderr,
        )
    commands = {launch: words_of(campaign, site, launch, directory) for launch in launches}
    if args.dry_run:
        print(*told, sep="\n")
        for launch in mine:
            print(f"# {launch.id}: {launch.title}\n{shlex.join(commands[launch])}")
        return 0
    head = {
        "mpicoll": machine.version("mpicoll"), "campaign_file": str(args.campaign),
        "campaign": campaign.identity(), "site": asdict(site), "left_out": left_out,
        "conditions": execution.python_facts(),
    }  # fmt: skip
    require_own(directory, head, resume=args.resume)  # before a lock file is put there
    with execution.held(directory, {one.repeat for one in mine}):
        record = begin(directory, head, commands, resume=args.resume)
        print(*told, sep="\n", file=sys.stderr, flush=True)
        return carry_out(record, mine, campaign.timeout)


def refuse_inside_a_job() -> None:
    """Raise `ArgumentError` in a rank of an MPI job."""
    found = [name for name in _RANK if name in os.environ]
    if os.environ.get(_STEP_TASKS, "1") != "1":
        found.append(_STEP_TASKS)
    if found:
        raise ArgumentError(
            f"`mpicoll launch` starts MPI jobs and is no part of one, but {found[0]} is set: run it alone"
        )


def check_sweeps(campaign: Campaign, path: Path) -> dict[str, Spec]:
    """Let the sweep's own parser read what it will be given: better now than in a job that waited for hours.

    What each of the options asks for. Raises `ArgumentError` with the name of the options that it refuses.
    """
    specs = {}
    for options in campaign.options:
        launch = Launch(0, 0, 1, 1, 1, "block", "", options)
        try:
            specs[options] = sweep.check_arguments(campaign.sweep_arguments(launch, Path("DIR"))[1:])
        except ArgumentError as error:
            raise ArgumentError(f"{path}, options {options}: {error}") from None
    return specs


def complete(site: Site) -> Site:
    """A site with all that it leaves to this machine filled in."""
    program = site.program or own_program()
    cores = site.cores
    if cores is None and set(site.hosts) <= {"localhost", socket.gethostname()}:
        cores = len({machine.physical_core(cpu) for cpu in machine.affinity()})
    site = replace(site, program=program, cores=cores)
    if site.launcher == "srun":
        if "SLURM_JOB_ID" not in os.environ:
            raise ArgumentError("srun needs a Slurm job around it: use --slurm, or run this within salloc")
        return site
    mpirun = find_mpirun(site.mpirun)
    if not site.hosts and "SLURM_JOB_NODELIST" in os.environ:
        site = replace(site, hosts=tuple(hosts_of_job(os.environ["SLURM_JOB_NODELIST"])))
    return replace(site, mpirun=mpirun, flavour=site.flavour or flavour_of(mpirun))


def own_program() -> tuple[str, ...]:
    """What `mpicoll` is called on this machine."""
    beside = Path(sys.executable).with_name("mpicoll")
    found = shutil.which("mpicoll")
    if found and beside.exists() and Path(found).samefile(beside):
        return ("mpicoll",)
    return (str(beside),) if beside.exists() else (sys.executable, "-m", "mpicoll")


def find_mpirun(name: str) -> str:
    """`name` if the shell would find it, else the one beside this Python. Raises `ArgumentError`."""
    if shutil.which(name):
        return name
    if "/" not in name and (beside := Path(sys.executable).with_name(name)).exists():
        return str(beside)
    raise ArgumentError(f"no {name} on the path; load your MPI, or pip install 'mpicoll[mpich]'")


def flavour_of(mpirun: str) -> str:
    """Whose mpirun it is: mpich or openmpi. Raises `ArgumentError` if it is neither's."""
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60, check=False)
        text = done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArgumentError(f"{mpirun} --version does not answer: {error}") from None
    for words, flavour in ((r"Open MPI|PRRTE|OpenRTE", "openmpi"), (r"HYDRA|MPICH|Intel\(R\) MPI", "mpich")):
        if re.search(words, text):
            return flavour
    raise ArgumentError(
        f"{mpirun} is neither MPICH's nor Open MPI's; "
        "say which flags it takes: `flavour` in the file of the --site"
    )


def hosts_of_job(nodelist: str) -> list[str]:
    """The nodes of a Slurm job by name. Raises `MpicollError` if Slurm does not answer."""
    argv = ["scontrol", "show", "hostnames", nodelist]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise MpicollError(f"{shlex.join(argv)} failed: {error}") from None
    return done.stdout.split()


def words_of(campaign: Campaign, site: Site, launch: Launch, directory: Path) -> list[str]:
    """The whole command line of a launch."""
    program = [*site.program, *campaign.sweep_arguments(launch, directory)]
    return command(launch, site, settings_of(campaign, site, launch), program)


def begin(
    directory: Path, head: dict[str, Any], commands: dict[Launch, list[str]], *, resume: bool
) -> execution.Record:
    """Open or continue the record of a campaign. Raises `ArgumentError` if it is not this one."""
    require_own(directory, head, resume=resume)
    record = execution.Record(directory, head, commands)
    record.write_campaign()
    return record


def require_own(directory: Path, head: dict[str, Any], *, resume: bool) -> None:
    """Raise `ArgumentError` if a directory holds something that is not to be continued."""
    old = execution.read_json(directory / "campaign.json")
    if old is not None:
        if not resume:
            raise ArgumentError(
                f"{directory} already holds a campaign; continue it with --resume, or choose another -o"
            )
        for part in ("campaign", "conditions"):
            require_same(old.get(part) or head[part], head[part], directory)
    elif (directory / "run.json").exists():
        raise ArgumentError(f"{directory} holds a result of `mpicoll sweep`; choose another -o")


def carry_out(record: execution.Record, launches: Sequence[Launch], timeout: float) -> int:
    """Start those of the launches that are not complete; the exit status."""
    left = [one for one in launches if record.of(one)["state"] != "complete"]
    progress = Progress(len(launches), len(launches) - len(left), first=True, unit="launch")
    with execution.Stopping() as stopping:
        for launch in left:
            if stopping.received:
                break
            done = execution.execute(record, launch, timeout, stopping)
            last = done["attempts"][-1]
            reason = f": {last['reason']}" if last["reason"] else ""
            if record.crowded(launch):
                reason += "; OVERSUBSCRIBED: no performance result"
            took = format_seconds(last["seconds"])
            progress.case(f"{launch.id} {launch.title}; {done['state']}{reason} ({took})")
    progress.close()
    record.write_campaign()
    records = [record.of(one) for one in launches]
    print(f"{record.directory}: {execution.count_states(records)}", flush=True)
    if stopping.received:
        print("stopped; continue with the same command and --resume", file=sys.stderr)
        return 128 + stopping.received
    for one in (one for one in records if one["state"] != "complete"):
        last = one["attempts"][-1]
        print(f"{one['id']} {one['state']}: {last['reason']}\n{last['output_tail']}", file=sys.stderr)
    print(f"next: mpicoll report {record.directory}", flush=True)
    return int(any(one["state"] != "complete" for one in records))


def submit(
    args: argparse.Namespace, campaign: Campaign, launches: Sequence[Launch], site: Site, directory: Path
) -> int:
    """Submit the repeats of a campaign as an array of jobs, or print what would be typed."""
    if args.hosts:
        raise ArgumentError("--hosts is for mpirun without a batch system; Slurm chooses the nodes")
    for launch in launches:
        check(launch, replace(site, hosts=("",) * launch.nodes))
    name = args.site or DEFAULT_SITE
    path = directory / "campaign.sbatch"
    repeats = [args.repeat] if args.repeat is not None else range(campaign.repeats)
    size = max(one.nodes for one in launches), max(one.ppn for one in launches)
    log = str(directory / "slurm-%A_%a.log")
    words = batch.submission(*size, repeats, dict(campaign.sbatch), log)
    words += [str(path), str(args.campaign), "-o", str(directory)]
    words += ["--oversubscribe"] if args.oversubscribe else []
    if args.dry_run:
        made = [*own_program(), "launch", "--script", "campaign", "--site", name]
        print(f"mkdir -p {shlex.quote(str(directory))}")
        print(f"{shlex.join(made)} > {shlex.quote(str(path))}")
        print(shlex.join(words))
        return 0
    if not args.resume and (directory / "campaign.json").exists():
        raise ArgumentError(f"{directory} already holds a campaign; continue it with --resume")
    replace_file(path, batch.script("campaign", site, name))
    # Variables of sbatch would win over the directives in the script.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SBATCH_")}
    try:
        return subprocess.run(words, env=clean, check=False).returncode and 1
    except OSError as error:
        raise MpicollError(f"cannot start sbatch: {error.strerror}") from None
