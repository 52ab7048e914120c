"""Which algorithms MPI libraries and others have for each collective, by name, beside mpicoll's."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.collectives import COLLECTIVES, Collective
from mpicoll.registry import algorithms

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Collectives that count as another: the same data moved, with counts that may be unequal or must be equal.
SAME = {"reduce_scatter_block": "reduce_scatter"}

Names = dict[str, list[str]]  # by collective


@dataclass(frozen=True, slots=True)
class Library:
    """What one library has; a group is a part of it (a component, say)."""

    key: str
    title: str
    version: str
    source: str
    note: str
    groups: dict[str, Names]
    synonyms: dict[str, dict[str, str]]  # by our collective: names that stand for what another name does

    def names(self, collective: str) -> Iterator[tuple[str, list[str]]]:
        """Each group's algorithms for one of our collectives, none twice."""
        for group, names in self.groups.items():
            found: dict[str, None] = {}
            for theirs, listed in names.items():
                if SAME.get(theirs, theirs) == collective:
                    found |= dict.fromkeys(listed)
            if found:
                yield group, list(found)

    def count(self, collective: str) -> int:
        """How many it has for one of our collectives; in two groups, or under two names, it counts once."""
        known = self.synonyms.get(collective, {})
        return len({known.get(name, name) for _, names in self.names(collective) for name in names})


@cache
def libraries() -> tuple[Library, ...]:
    """The libraries of libraries.toml."""
    with Path(__file__).with_name("libraries.toml").open("rb") as file:
        read = tomllib.load(file)
    return tuple(
        Library(
            key=key,
            title=entry["title"],
            version=entry["version"],
            source=entry["source"],
            note=entry.get("note", ""),
            groups={
                group: names
                for group, names in entry.items()
                if isinstance(names, dict) and group != "synonyms"
            },
            synonyms=entry.get("synonyms", {}),
        )
        for key, entry in read.items()
    )


TOP = """# Who has which algorithms

This page is printed by `mpicoll list --libraries`. Names of other libraries are kept in
`bench/libraries.toml`, as of the versions named; a test compares those of the two MPI libraries with what the
installed libraries say of themselves. mpicoll's are in the register, and described in
[algorithms.md](algorithms.md).

What is counted: algorithms that a user can name. One in two components of a library, or under two names,
counts once; so does one with parameters (radix, segments), and one that serves few numbers of ranks. mpicoll
aims at the six primitives; of gather, scatter and barrier it has what these are composed of.
"""


def libraries_text(collective: str | None = None) -> str:
    """The page in Markdown, of one collective or all: how many of each, then by name."""
    kinds = [kind for kind in COLLECTIVES.values() if collective in (None, kind.name)]
    parts = [TOP] if len(kinds) > 1 else []
    parts += [_counts(kinds), _sources()] if len(kinds) > 1 else [_counts(kinds)]
    for kind in kinds:
        parts.append(f"## {kind.title[0].upper()}{kind.title[1:]}\n\n{_by_name(kind)}")
    return "\n".join(parts)


def _table(rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _counts(kinds: Iterable[Collective]) -> str:
    header = ["collective", *(library.title for library in libraries()), "mpicoll"]
    rows = [header, ["---"] * len(header)]
    for kind in kinds:
        counts = [library.count(kind.name) for library in libraries()] + [len(algorithms(kind.name))]
        rows.append([kind.title, *(str(count) if count else "–" for count in counts)])
    return _table(rows)


def _sources() -> str:
    lines = []
    for library in libraries():
        note = f"; {library.note}" if library.note else ""
        lines.append(f"- {library.title} {library.version}, from {library.source}{note}.")
    return "\n".join(lines) + "\n"


def _by_name(kind: Collective) -> str:
    rows = [["library", "algorithms"], ["---", "---"]]
    for library in libraries():
        named = [
            (f"{group}: " if len(library.groups) > 1 else "") + ", ".join(f"`{name}`" for name in names)
            for group, names in library.names(kind.name)
        ]
        rows.append([library.title, "; ".join(named) or "–"])
    own = [a.name for a in algorithms(kind.name)]
    rows.append(["**mpicoll**", ", ".join(f"`{name}`" for name in own)])
    return _table(rows)
