"""What a report is made of: sections, each a function in a module of its own.

**How to add one.** Write a function that takes a `Loaded` and returns a `Section`, or None when it has
nothing to say (no such column, no such file), and add its ``"module:function"`` to `SECTIONS` where it should
stand. Nothing else: the page, the figures, the navigation and the terminal follow.

    def section(data: Loaded) -> Section | None:
        told = data.summary[data.summary["residual"].notna()]     # or a file of yours beside samples.csv:
        if told.empty:                                            # for path in data.beside("stages.csv")
            return None
        return Section(
            title="Model and bound",
            words=["The model is within 10 % at 11 of 13 sizes."],     # sentences, plain text
            charts={"residuals": figures.residuals(told)},             # name of the file -> Altair chart
            tables=[Table("Largest residuals", ("size", "residual"), [("4 B", "0.21")])],
        )

A section says what was measured, in words first; a number in it has its unit; what is missing is a dash
and is counted in the words, never filled in. A section that cannot be made raises: a report that lacks
one silently is not complete. Import pandas, scipy and altair inside of the module that draws, never from a
module that a rank of a running job imports. Charts of about 640 × 380 fit the page; give a chart a title that
stands alone in a slide. Names of charts are unique within a section, which makes their files unique.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from mpicoll.bench.loading import Loading

if TYPE_CHECKING:
    import pandas as pd

    from mpicoll.bench.frame import Results

#: The sections of a report, in the order in which they are shown.
SECTIONS: tuple[str, ...] = (
    "mpicoll.bench.overview:section",
    "mpicoll.bench.trust:section",
    "mpicoll.bench.panels:section",
    "mpicoll.bench.overview:topology",
    "mpicoll.bench.links:section",
    "mpicoll.bench.calibrated:section",
    "mpicoll.bench.prediction:section",
    "mpicoll.bench.stage_panel:section",
    "mpicoll.bench.overlap_section:section",
    "mpicoll.bench.guidelines:section",
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """All that a section may read.

    `summary` has one row per case and contender (`stats.summarise`); `results.samples` has the raw rows, with
    the columns `source` (run directory) and `launch` that together name a launch; `results.runs` maps a
    source to its `run.json`; `given` are the directories as the user named them; `calibrations` say in
    words by which calibration an environment's times were modelled; `loading` has what users' files added.
    """

    results: Results
    summary: pd.DataFrame
    given: tuple[Path, ...]
    calibrations: Mapping[str, str] = field(default_factory=dict)
    loading: Loading = field(default_factory=Loading)

    @property
    def samples(self) -> pd.DataFrame:
        """The raw rows of all launches."""
        return self.results.samples

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """`run.json` by run directory."""
        return self.results.runs

    def launches(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(run directory, facts of a launch) of all launches."""
        for source, run in self.runs.items():
            for launch in run["launches"]:
                yield source, launch

    def beside(self, name: str) -> list[Path]:
        """The files called `name` that lie beside a `samples.csv`, or in a directory that was named."""
        folders = dict.fromkeys([*self.given, *map(Path, self.runs)])
        return [folder / name for folder in folders if (folder / name).is_file()]


@dataclass(frozen=True, slots=True)
class Table:
    """A small table: every cell a text ready to be read, or None for a dash. Long ones fold on the page."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | None]]
    folded: bool = False


@dataclass(slots=True)
class Section:
    """A part of the report; `parts` are sections of their own below it, folded if `folded`."""

    title: str
    words: list[str] = field(default_factory=list)
    charts: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    parts: list[Section] = field(default_factory=list)
    folded: bool = False

    @property
    def slug(self) -> str:
        """The title as part of a file's name and of an address in the page."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        # A name of a file has 255 bytes, and a panel's title may list many settings.
        return slug if len(slug) <= 120 else f"{slug[:110]}-{crc32(slug.encode()):08x}"

    def walk(self) -> Iterator[Section]:
        """This section and all below it."""
        yield self
        for part in self.parts:
            yield from part.walk()


def find(address: str) -> Callable[[Loaded], Section | None]:
    """The function that an entry of `SECTIONS` names."""
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)


def make_all(data: Loaded) -> list[Section]:
    """All sections that have something to say."""
    made = (find(address)(data) for address in SECTIONS)
    return [section for section in made if section is not None]
