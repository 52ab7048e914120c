"""What a campaign launches: one frozen `Campaign` from a TOML file, and the plan that follows from it.

A launch is one start of an MPI job, and one sample of everything that differs between starts. A campaign's
factors (ranks, nodes, placement, environments, options of the sweep) make *configurations*; each is launched
once per *repeat*. All configurations of one repeat come before those of the next, in an order shuffled for
each repeat, so that a slow hour of the machine falls on all configurations alike (a randomised block design:
R. A. Fisher, The Design of Experiments, 1935).

Pure: nothing here starts a process or looks at the machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mpicoll.bench.arguments import MOST_RANKS
from mpicoll.bench.settings import (
    Settings,
    convert,
    directives,
    flags,
    named,
    numbers,
    read_toml,
    some_of,
    text,
    variables,
    whole,
)
from mpicoll.bench.sizes import parse_seconds
from mpicoll.errors import ArgumentError

PLACEMENTS = ("block", "cyclic")
#: Fewer launches than this decide nothing: all values of four hold the median with 87.5 % only.
ENOUGH_LAUNCHES = 5
# More are a slip of the finger; and each repeat has a lock, which is an open file, each launch a record.
MOST_REPEATS = 500
MOST_LAUNCHES = 10_000
# Decided by `launch` for every launch, so that no campaign may.
_OURS = ("output", "resume", "seed", "o")


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of an MPI job. `number` is its place in the plan, and names its directory."""

    number: int
    repeat: int
    ranks: int
    nodes: int
    ppn: int  # the most ranks on one node
    placement: str
    environment: str  # the name of a set of variables
    options: str  # the name of a set of flags of the sweep

    @property
    def id(self) -> str:
        """The name of its directory under ``launches/``."""
        return f"{self.number:04d}"

    @property
    def configuration(self) -> str:
        """What differs between configurations, in one line."""
        where = f"{self.nodes} nodes x {self.ppn}, {self.placement}" if self.nodes > 1 else "1 node"
        named = [name for name in (self.environment, self.options) if name != "default"]
        return ", ".join([f"{self.ranks} ranks", where, *named])

    @property
    def title(self) -> str:
        """What differs between launches, in one line."""
        return f"{self.configuration}, repeat {self.repeat}"

    def node_of(self, rank: int) -> int:
        """The node on which a rank is asked to be, counted from 0."""
        return rank // self.ppn if self.placement == "block" else rank % self.nodes


@dataclass(frozen=True, slots=True)
class Campaign:
    """Everything that decides what is launched, with defaults."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = (1,)
    ppn: tuple[int, ...] = ()
    placement: tuple[str, ...] = ("block",)
    repeats: int = ENOUGH_LAUNCHES
    seed: int = 1
    timeout: float = 1800.0  # seconds for one launch
    spec: str | None = None  # a SPEC.toml for the sweep; read relative to the campaign's file
    sweep: Settings = ()  # flags of `mpicoll sweep` for all launches
    environment: Mapping[str, Settings] = field(default_factory=lambda: {"default": ()})
    options: Mapping[str, Settings] = field(default_factory=lambda: {"default": ()})
    sbatch: Settings = ()  # directives of its jobs, which win over the site's

    def identity(self) -> dict[str, Any]:
        """What may not change while a campaign is continued; JSON types only."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del values["timeout"], values["sbatch"]
        return values

    def shapes(self) -> tuple[list[tuple[int, int, int]], list[str]]:
        """All (ranks, nodes, ppn), and in words the combinations that cannot be."""
        found: dict[tuple[int, int, int], None] = {}
        left_out = []
        for nodes in self.nodes:
            found |= dict.fromkeys((nodes * ppn, nodes, ppn) for ppn in self.ppn)
            for ranks in self.ranks:
                if ranks < nodes:
                    left_out.append(f"{ranks} ranks on {nodes} nodes: a node would be empty")
                else:
                    found[ranks, nodes, -(-ranks // nodes)] = None
        return list(found), left_out

    def configurations(self) -> tuple[list[Launch], list[str]]:
        """One launch of each kind, and in words what was left out."""
        shapes, left_out = self.shapes()
        kinds: list[Launch] = []
        for ranks, nodes, ppn in shapes:
            for placement in self.placement:
                what = f"{ranks} ranks on {nodes} node{'s' if nodes > 1 else ''}, {placement}"
                if nodes == 1 and placement != self.placement[0]:
                    left_out.append(f"{what}: the same as {self.placement[0]}")
                elif placement == "block" and ranks <= (nodes - 1) * ppn:
                    left_out.append(f"{what}: {ppn} on each would leave a node empty")
                else:
                    kinds += [
                        Launch(0, 0, ranks, nodes, ppn, placement, environment, options)
                        for environment in self.environment
                        for options in self.options
                    ]
        return kinds, left_out

    def plan(self) -> tuple[list[Launch], list[str]]:
        """All launches in their order, and in words what was left out.

        Raises `ArgumentError` if nothing is left, or far too much.
        """
        kinds, left_out = self.configurations()
        if not kinds:
            raise ArgumentError(f"a campaign of no launch: {'; '.join(left_out)}")
        most = max(kind.ranks for kind in kinds)
        for number, limit, what in (
            (most, MOST_RANKS, "ranks"), (self.repeats, MOST_REPEATS, "repeats"),
            (len(kinds) * self.repeats, MOST_LAUNCHES, "launches"),
        ):  # fmt: skip
            if number > limit:
                raise ArgumentError(f"a campaign of {number} {what}: more than {limit} cannot be asked for")
        launches: list[Launch] = []
        for repeat in range(self.repeats):
            order = random.Random(f"{self.seed}/{repeat}").sample(kinds, len(kinds))
            launches += [
                replace(kind, number=len(launches) + index, repeat=repeat) for index, kind in enumerate(order)
            ]
        return launches, left_out

    def sweep_arguments(self, launch: Launch, directory: Path) -> list[str]:
        """The arguments of ``mpicoll`` in one launch. Each repeat has an order and data of its own."""
        argv = ["sweep"] if self.spec is None else ["sweep", self.spec]
        for key, value in {**dict(self.sweep), **dict(self.options[launch.options])}.items():
            flag = f"--{key.replace('_', '-')}"
            if value in ("true", "false"):
                argv.append(flag if value == "true" else f"--no-{flag[2:]}")
            else:
                argv += [flag, value]
        argv += ["--seed", str(self.seed + launch.repeat)]
        return [*argv, "-o", str(directory / "launches" / launch.id), "--resume"]


def read_campaign(path: Path) -> Campaign:
    """The campaign of a TOML file, whose keys are the fields of `Campaign`.

    Raises `ArgumentError` for a file that cannot be read, an unknown key or a bad value.
    """
    campaign = Campaign(**convert(read_toml(path), _CONVERTERS, path))
    if bool(campaign.ranks) == bool(campaign.ppn):
        raise ArgumentError(f"{path} needs either ranks (of the whole job) or ppn (ranks per node)")
    asked = [key for one in (campaign.sweep, *campaign.options.values()) for key, _ in one]
    for key in asked:
        if key in _OURS:
            raise ArgumentError(f"{path}: `mpicoll launch` itself decides {key} for each launch")
    if campaign.spec is None:
        return campaign
    return replace(campaign, spec=str(Path(path).parent / campaign.spec))


_CONVERTERS = {
    "ranks": numbers,
    "nodes": numbers,
    "ppn": numbers,
    "placement": some_of(*PLACEMENTS),
    "repeats": whole(1),
    "seed": whole(0),
    "timeout": parse_seconds,
    "spec": text,
    "sweep": flags,
    "environment": named(variables),
    "options": named(flags),
    "sbatch": directives,
}
