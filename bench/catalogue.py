"""The verb `list`: which algorithms there are and what each costs, as a table of text or as Markdown.

Words and formulas are those of the docstrings; numbers are counted off the schedules (`traffic`). The
committed `docs/algorithms.md` is the Markdown of all of them; a test fails when it is not.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.bench.arguments import chosen, parse_nodes, parse_ranks, usage
from mpicoll.bench.libraries import libraries_text
from mpicoll.bench.loading import add_load, load
from mpicoll.cases import cases
from mpicoll.collectives import COLLECTIVES, Collective
from mpicoll.draw import draw
from mpicoll.errors import ArgumentError, Unsupported
from mpicoll.registry import Algorithm
from mpicoll.traffic import Traffic, traffic

#: Sizes at which an algorithm is asked whether it serves them, to say "any P".
ASKED = range(1, 34)
#: Ranks per node where nothing else is said.
PER_NODE = 4
#: What the Markdown draws of each collective: an algorithm, a number of ranks, parameters.
DRAWN: dict[str, tuple[str, int, dict[str, Any]]] = {
    "allreduce": ("ring", 4, {}),
    "reduce_scatter": ("circulant", 6, {}),
    "allgather": ("bruck", 6, {}),
    "bcast": ("circulant_pipelined", 5, {"segments": 4}),
    "reduce": ("binomial", 6, {}),
    "alltoall": ("bruck", 3, {}),
    "gather": ("binomial", 6, {}),
    "scatter": ("binomial", 6, {}),
    "barrier": ("dissemination", 6, {}),
}


def add_parser(subparsers: Any) -> None:
    """Add the verb `list`."""
    verb = subparsers.add_parser("list")
    verb.add_argument("collective", nargs="?", help=f"one of {', '.join(COLLECTIVES)}")
    verb.add_argument("--ranks", metavar="P", help="count costs for P ranks, as 8 or 8,12 (the default)")
    verb.add_argument("--nodes", help="ranks per node, as 4,4, or the node of each rank (4 ranks per node)")
    verb.add_argument("--format", choices=("text", "markdown"), default="text", help="text (default)")
    verb.add_argument("--libraries", action="store_true", help="who has which: MPI libraries and mpicoll")
    add_load(verb)
    verb.set_defaults(func=run_list)


@usage
def run_list(args: argparse.Namespace) -> int:
    """Print the algorithms and their costs."""
    load(args.load)
    algorithms = chosen(args.collective)
    if args.libraries:
        print(libraries_text(args.collective), end="")
        return 0
    sizes = parse_ranks(args.ranks or "8,12")
    if args.nodes and len(sizes) > 1:
        raise ArgumentError(f"--nodes is for one number of ranks, --ranks {args.ranks or '8,12'} are several")
    node_maps = {size: parse_nodes(args.nodes, size) if args.nodes else _full(size) for size in sizes}
    make = markdown if args.format == "markdown" else text
    print(make(algorithms, node_maps), end="")
    return 0


NodeMaps = dict[int, tuple[int, ...]]  # by number of ranks


def _full(size: int) -> tuple[int, ...]:
    return tuple(rank // PER_NODE for rank in range(size))


# -- what a docstring says ---------------------------------------------------------------------------------


def facts(algorithm: Algorithm) -> dict[str, str]:
    """The labelled sentences of an algorithm's docstring, each on one line, without the final stop.

    >>> from mpicoll.registry import get
    >>> list(facts(get("allreduce", "ring")))
    ['Works for', 'Rounds', 'Bytes per rank', 'Not ordered', 'Reference']
    """
    found: dict[str, str] = {}
    label = ""
    for line in (inspect.getdoc(algorithm.generate) or "").splitlines()[1:]:
        begins = re.match(r"(Works for) |([A-Z][a-z]+(?: [a-z]+)*): ", line)
        if begins:
            label = begins[1] or begins[2]
            found[label] = line[begins.end() :]
        elif label:
            found[label] += f" {line}"
    if "Rounds and bytes per rank" in found:
        found.setdefault("Rounds", found["Rounds and bytes per rank"])
        found.setdefault("Bytes per rank", found["Rounds and bytes per rank"])
    return {label: sentence.strip().removesuffix(".") for label, sentence in found.items()}


def formula(sentence: str) -> str:
    """The formula that a sentence begins with: up to a comma, a semicolon or "with" outside brackets.

    >>> formula("⌊log2 max(root, P−1−root)⌋+S with S segments, in each of which …")
    '⌊log2 max(root, P−1−root)⌋+S'
    >>> formula("(P−1)/P·n (folded: up to n more, for an extra); both are optimal")
    '(P−1)/P·n (folded: up to n more, for an extra)'
    """
    depth = 0
    for place, letter in enumerate(sentence):
        depth += (letter in "(⌈⌊") - (letter in ")⌉⌋")
        if not depth and (letter in ",;" or sentence.startswith(" with ", place)):
            return sentence[:place]
    return sentence


def served(algorithm: Algorithm) -> str:
    """For which sizes an algorithm serves at least one case, in a word."""
    refused = [size for size in ASKED if next(iter(cases(algorithm, size)), None) is None]
    if not refused:
        return "any"
    served = [size for size in ASKED if size not in refused]
    if served == [size for size in ASKED if size & (size - 1) == 0]:
        return "2^i"
    if served in ([s for s in ASKED if s % 2 == 0], [1] + [s for s in ASKED if s % 2 == 0]):
        return "even"
    return "some"


def parameters(algorithm: Algorithm) -> str:
    """Names and defaults."""
    return ", ".join(k if v is None else f"{k}={v}" for k, v in algorithm.defaults.items())


def ordered(algorithm: Algorithm) -> str:
    """Whether operands are combined in rank order; a dash where nothing is combined."""
    return ("yes" if algorithm.ordered else "no") if algorithm.collective.reduces else "–"


# -- what a schedule costs ---------------------------------------------------------------------------------


def counts(algorithm: Algorithm, node_maps: NodeMaps) -> list[Traffic | None]:
    """The traffic with default parameters for each number of ranks; None where it is refused."""
    found: list[Traffic | None] = []
    for size, nodes in node_maps.items():
        try:
            found.append(traffic(algorithm, size, {"nodes": nodes} if algorithm.hierarchical else {}))
        except Unsupported:
            found.append(None)
    return found


def _rounds(counted: Traffic | None) -> str:
    return str(counted.critical_rounds) if counted else "–"


def _share(share: Fraction) -> str:
    return "n" if share == 1 else f"{share} n" if share else "0"


def _sent(counted: Traffic | None) -> str:
    return _share(counted.sent) if counted else "–"


def _reduced(counted: Traffic | None) -> str:
    return _share(counted.reduced) if counted else "–"


# -- text --------------------------------------------------------------------------------------------------

LEGEND = """
rounds: the longest chain of rounds that wait for each other. sent, combined: the most that any rank sends,
and combines. n: the vector of a reduction or broadcast, all P parts of the others (those of one rank in an
all-to-all). A rank of an all-gather or all-to-all, and the root of a gather or scatter, besides copies its
own part, n/P. Counted with the default parameters shown; a plan tunes some of them to its message."""


def text(algorithms: Sequence[Algorithm], node_maps: NodeMaps) -> str:
    """The table for a terminal."""
    at = [f"P={size}" for size in node_maps]
    header = ["algorithm", "P", "ordered", "rounds", *at, "sent per rank", *at, f"combined {at[0]}", *at[1:]]
    rows = [[*header, "parameters"]]
    for algorithm in algorithms:
        said, counted = facts(algorithm), counts(algorithm, node_maps)
        row = [str(algorithm), served(algorithm), ordered(algorithm)]
        row += [formula(said.get("Rounds", "–")), *map(_rounds, counted)]
        row += [formula(said.get("Bytes per rank", "–")), *map(_sent, counted)]
        row += map(_reduced, counted) if algorithm.collective.reduces else ["–"] * len(counted)
        rows.append([*row, parameters(algorithm) or "–"])
    lines = [_aligned(rows), LEGEND]
    if any(algorithm.hierarchical for algorithm in algorithms):
        lines += (f"Node of each rank, P={p}: {','.join(map(str, nodes))}" for p, nodes in node_maps.items())
    return "\n".join(lines) + "\n"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


# -- Markdown ----------------------------------------------------------------------------------------------

TOP = """# The algorithms

This page is printed by `mpicoll list --format markdown`, from the register of algorithms: words and formulas
are those of the docstrings, numbers are counted off the schedules, pictures are drawn from them. Tests fail
when the page is stale, and when a formula is not what is counted.

Reading the tables:

- *rounds*: the longest chain of rounds that wait for each other, through all ranks; *sent*: the most that any
  rank sends; *combined*: the most that any rank combines.
- n is the vector of an all-reduce, broadcast or reduce, and all P parts of the others (for all-to-all, the P
  parts of one rank). S is the number of segments, k a radix.
- A rank of an all-gather or all-to-all, and the root of a gather or scatter, also copies its own part, n/P,
  from one buffer to the other. All others copy nothing: what is combined goes from one to the other.
- Where ranks are *folded* away, P in a formula is the number of those that stay (the next lower power of two,
  or another number with small factors), and the fold costs what is in brackets: (+2) rounds, (+n) bytes.
- *ordered*: operands are always combined in rank order, so that an operation need not be commutative. Every
  algorithm gives bitwise the same result on all ranks.
- Numbers are for the default parameters shown; a plan tunes some of them to its message.
- Compositions over nodes need a node map. It is {per_node} ranks per node here, and the numbers are those of
  the algorithms that they are composed of by default.

Every one is proved for every P from 1 to 64: [how](verification.md). What other libraries have is in
[libraries.md](libraries.md); how to add one, in [writing-an-algorithm.md](writing-an-algorithm.md).
"""


def markdown(algorithms: Sequence[Algorithm], node_maps: NodeMaps) -> str:
    """The page, or a part of it: for each collective a table, what the docstrings say, and a picture."""
    kinds = [kind for kind in COLLECTIVES.values() if any(a.collective is kind for a in algorithms)]
    parts = [TOP.format(per_node=PER_NODE)] if len(kinds) > 1 else []
    for kind in kinds:
        mine = [a for a in algorithms if a.collective is kind]
        parts += [
            f"## {kind.title[0].upper()}{kind.title[1:]} (`{kind.name}`)\n",
            _table(kind, mine, node_maps),
        ]
        parts += ["\n".join(map(_described, mine)) + "\n", _picture(kind)]
    return "\n".join(parts)


def _table(kind: Collective, algorithms: Iterable[Algorithm], node_maps: NodeMaps) -> str:
    at = [f"P = {size}" for size in node_maps]
    header = ["algorithm", "any P?"] + ["ordered"] * kind.reduces + ["parameters", "rounds", *at]
    header += ["sent per rank", *at] + ([f"combined, {at[0]}", *at[1:]] if kind.reduces else [])
    rows = [header, ["---"] * len(header)]
    for algorithm in algorithms:
        said, counted = facts(algorithm), counts(algorithm, node_maps)
        works_for = _restriction(said["Works for"]) if "Works for" in said else served(algorithm)
        row = [f"`{algorithm.name}`", works_for]
        row += [ordered(algorithm)] * kind.reduces
        row += [f"`{parameters(algorithm)}`" if algorithm.defaults else "–"]
        row += [formula(said.get("Rounds", "–")), *map(_rounds, counted)]
        row += [formula(said.get("Bytes per rank", "–")), *map(_sent, counted)]
        rows.append(row + (list(map(_reduced, counted)) if kind.reduces else []))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _restriction(works_for: str) -> str:
    """What stands in the column "any P?": yes, or the restriction in words.

    >>> _restriction("any P; others than powers of two are folded"), _restriction("even P, and P = 1")
    ('yes, folded', 'even P, and P = 1')
    """
    words = works_for.partition(". ")[0]
    if words.partition(";")[0] in ("any P", "any P and any node map"):
        return "yes, folded" if "folded" in words else "yes"
    return words


def _described(algorithm: Algorithm) -> str:
    """One line: what it does, and what the docstring says of its costs and origin."""
    said = {k: v for k, v in facts(algorithm).items() if k != "Works for"}
    if "Rounds and bytes per rank" in said:
        del said["Rounds"], said["Bytes per rank"]
    sentences = [algorithm.summary, *(f"*{label}:* {sentence}." for label, sentence in said.items())]
    return f"- `{algorithm.name}`: {' '.join(sentences)}"


def _picture(kind: Collective) -> str:
    name, size, params = DRAWN[kind.name]
    words = " ".join(f" --param {key}={value}" for key, value in params.items())
    drawn = draw(f"{kind.name}/{name}", size, params)
    return f"`mpicoll show {kind.name} {name} --ranks {size}{words}` draws:\n\n```text\n{drawn}\n```\n"
