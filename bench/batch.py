"""Batch scripts for Slurm: pure functions from a site to the text of a script.

The files in ``slurm/`` are what these functions say for the sites that come with mpicoll, and a test
compares them; ``mpicoll launch --script KIND --site SITE`` prints the same for any site.

How a job is warned of its time limit was tried with Slurm 22.05, MPICH 5.0 and Open MPI 5.0, under srun
and both mpiruns. The signal must go to the script (``B:``), which hands it to the launcher, and that to the
ranks: all four do. Sent to the job's steps, as without ``B:``, it kills the daemons of Open MPI's mpirun.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpicoll.bench.settings import ABSENT
from mpicoll.bench.sites import Site
from mpicoll.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job; the command has the site's launcher before it where it consists of ranks."""

    title: str
    usage: tuple[str, ...]
    command: tuple[str, ...]
    directives: Mapping[str, str]
    ranks: bool = True
    gpus: bool = False
    resumes: bool = True

    @property
    def sweeps(self) -> bool:
        """Whether its command is one sweep."""
        return self.command[1] == "sweep"


KINDS: dict[str, Kind] = {
    "sweep": Kind(
        "Measure one sweep as a job, and go on in the next where the time limit ended it.",
        (
            "sbatch sweep.sbatch [SPEC.toml] [flags of `mpicoll sweep`]",
            "sbatch --nodes=4 --ntasks-per-node=2 sweep.sbatch --sizes 4:16M:4 -o results/today",
        ),
        ("mpicoll", "sweep", '"$@"', "-o", '"$directory"', "--resume"),
        {"job-name": "mpicoll-sweep", "nodes": "2", "ntasks-per-node": "2", "time": "00:30:00"},
    ),
    "campaign": Kind(
        "One repeat of a campaign: all its configurations on the same nodes, in shuffled order.",
        (
            "mpicoll launch CAMPAIGN.toml --slurm        (submits this)",
            "sbatch --array=0-4%1 campaign.sbatch CAMPAIGN.toml -o DIR [flags of `mpicoll launch`]",
        ),
        (
            "mpicoll", "launch", '"$@"', "--resume",
            '${SLURM_ARRAY_TASK_ID:+--repeat "$SLURM_ARRAY_TASK_ID"}',
        ),
        {"job-name": "mpicoll-campaign", "nodes": "2", "ntasks-per-node": "2", "time": "02:00:00"},
        ranks=False,
    ),
    "overlap": Kind(
        "How much of a bucketed gradient all-reduce hides behind computing.",
        ("sbatch overlap.sbatch [flags of `mpicoll overlap`]",),
        ("mpicoll", "overlap", '"$@"'),
        {"job-name": "mpicoll-overlap", "nodes": "2", "ntasks-per-node": "2", "time": "00:30:00"},
        resumes=False,
    ),
    "gpu": Kind(
        "Measure one sweep on buffers in GPU memory, each rank with a GPU of its own.",
        ("sbatch gpu.sbatch [SPEC.toml] [flags of `mpicoll sweep`]",),
        ("mpicoll", "sweep", "--buffer", "cupy", '"$@"', "-o", '"$directory"', "--resume"),
        {"job-name": "mpicoll-gpu", "nodes": "2", "ntasks-per-node": "4", "time": "00:30:00"},
        gpus=True,
    ),
}  # fmt: skip

#: Starts the command, hands it the signals that the job gets, and leaves its exit status in `status`.
_RUN = """\
told=0 signals=0 job=
trap 'signals=$((signals + 1)) told=1; kill -USR1 "$job" || true' USR1  # the time limit is near
trap 'signals=$((signals + 1)); kill -TERM "$job" || true' TERM         # scancel
"${command[@]}" &
job=$!
while :; do # a signal to this script ends `wait`, and the command goes on
  before=$signals status=0
  wait "$job" || status=$?
  ((signals == before)) && break
done
"""

#: Where the result is to lie: the user's -o DIR, or a place that this job, requeued, finds again.
_DIRECTORY = """\
directory=results/KIND-$SLURM_JOB_ID
for ((i = 1; i <= $#; i++)); do
  next=$((i + 1))
  case ${!i} in
    -o | --output) directory=${!next} ;;
    --output=*) directory=${!i#--output=} ;;
    -o*) directory=${!i#-o} ;;
  esac
done
"""

#: srun was seen to end with 0 when Slurm could not start the step: the record has the last word.
_PROOF = """\
if ((status == 0)) && ! grep -qs '"status": "complete"' "$directory/run.json"; then
  echo "mpicoll: the launcher ended with 0, but $directory/run.json tells of no complete sweep" >&2
  status=1
fi
"""

#: Only a job that was told and did not finish goes on; whatever else ended it would end it again.
_AGAIN = """\
if ((told && status)); then
  if ((${SLURM_RESTART_COUNT:-0} < ${MPICOLL_MAX_RESTARTS:-20})); then
    echo "mpicoll: out of time; the job goes back into the queue and continues from there"
    scontrol requeue "$SLURM_JOB_ID" && exit "$status"
  fi
  echo "mpicoll: out of time; to continue: sbatch the same with the same -o DIR" >&2
fi
"""


def script(kind: str, site: Site, name: str) -> str:
    """The text of a batch script. `name` is the site's, as ``--site`` takes it.

    Raises `ArgumentError` for an unknown kind.
    """
    if kind not in KINDS:
        raise ArgumentError(f"unknown kind of script {kind!r}; known: {', '.join(KINDS)}")
    job = KINDS[kind]
    parts = [
        ["#!/usr/bin/env bash", f"# {job.title}", "#", *(f"#   {line}" for line in job.usage), "#",
         f"# For the site: {site.title}.",
         f"# Written by `mpicoll launch --script {kind} --site {name}`: change the site, not this file."],
        [f"#SBATCH {_flag(key, value)}" for key, value in directives(job, site).items()],
        ["set -euo pipefail", "", *preamble(site)],
        _DIRECTORY.replace("KIND", kind).splitlines() if job.sweeps else [],
        [*command_lines(job, site, name), ""],
        _RUN.splitlines(),
        _PROOF.splitlines() if job.sweeps else [],
        [*(_AGAIN.splitlines() if job.resumes else []), 'exit "$status"'],
    ]  # fmt: skip
    return "\n".join(line for part in parts for line in part) + "\n"


def directives(job: Kind, site: Site) -> dict[str, str]:
    """The long flags of sbatch and their values; the site's win."""
    ours = {**job.directives, "output": "%x-%j.log"}
    if job.resumes:
        ours |= {"signal": f"B:USR1@{site.warn}", "requeue": "", "open-mode": "append"}
    merged = {**ours, **dict(site.sbatch), **(dict(site.gpu) if job.gpus else {})}
    return {key: value for key, value in merged.items() if value != ABSENT}


def preamble(site: Site) -> list[str]:
    """Shell lines that make a node ready."""
    lines = [f"module load {' '.join(map(shlex.quote, site.modules))}"] if site.modules else []
    lines += [*site.setup, *(f"export {name}={shlex.quote(value)}" for name, value in site.environment)]
    return [*lines, ""] if lines else []


def command_lines(job: Kind, site: Site, name: str) -> list[str]:
    """Shell lines that leave the command in the array `command`."""
    words = [*(site.program or ("mpicoll",)), *job.command[1:]]
    if not job.ranks:
        words += ["--site", shlex.quote(name)]
        return [f"command=({' '.join(words)})"]
    return [
        "# How ranks are started; MPICOLL_LAUNCHER, if it is set, has another way.",
        f"launcher=({shlex.join(launcher_words(site, gpus=job.gpus))})",
        '[[ -z ${MPICOLL_LAUNCHER:-} ]] || read -ra launcher <<< "$MPICOLL_LAUNCHER"',
        f'command=("${{launcher[@]}}" {" ".join(words)})',
    ]


def launcher_words(site: Site, *, gpus: bool = False) -> list[str]:
    """The launcher for all ranks of an allocation, which it knows from Slurm."""
    if site.launcher == "srun":
        bind = "cores" if site.binding == "core" else "none"
        return ["srun", f"--mpi={site.mpi}", "--kill-on-bad-exit=1", f"--cpu-bind={bind}", *site.flags]
    if site.flavour == "openmpi":  # its daemons hand on what is named, and nothing else for sure
        named = [word for name, _ in site.environment for word in ("-x", name)]
        return [site.mpirun, "--bind-to", site.binding, *named, *site.flags]
    return [site.mpirun, "-bind-to", site.binding, *site.flags]


def submission(
    nodes: int, ppn: int, repeats: Sequence[int], settings: Mapping[str, str], log: str
) -> list[str]:
    """The words of sbatch for repeats of a campaign; the script and its arguments follow."""
    flags = {"nodes": str(nodes), "ntasks-per-node": str(ppn), "array": _array(repeats), "output": log}
    return ["sbatch", *(_flag(key, value) for key, value in {**flags, **settings}.items() if value != ABSENT)]


def _flag(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def _array(repeats: Sequence[int]) -> str:
    """Numbers of an array, one running at a time: repeats are to be spread over time, and over nodes."""
    low, high = repeats[0], repeats[-1]
    return f"{low}-{high}%1" if high > low else str(low)
