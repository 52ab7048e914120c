"""Pictures of a schedule: what every rank holds after every round, as text or SVG.

Drawn from the schedule, never by hand. Ranks are rows, blocks are columns; a cell shows how many
contributions the rank holds for that block, and whether that is all of them.

>>> import mpicoll.algorithms
>>> print(draw("allreduce/ring", 4))
allreduce/ring, P=4: contributions to each block, after each round (■ all 4, · none)
<BLANKLINE>
        start    round 0  round 1  round 2  round 3  round 4  round 5
 block  0 1 2 3  0 1 2 3  0 1 2 3  0 1 2 3  0 1 2 3  0 1 2 3  0 1 2 3
rank 0  1 1 1 1  1 1 2 1  1 3 2 1  ■ 3 2 1  ■ 3 2 ■  ■ 3 ■ ■  ■ ■ ■ ■
rank 1  1 1 1 1  1 1 1 2  1 1 3 2  1 ■ 3 2  ■ ■ 3 2  ■ ■ 3 ■  ■ ■ ■ ■
rank 2  1 1 1 1  2 1 1 1  2 1 1 3  2 1 ■ 3  2 ■ ■ 3  ■ ■ ■ 3  ■ ■ ■ ■
rank 3  1 1 1 1  1 2 1 1  3 2 1 1  3 2 1 ■  3 2 ■ ■  3 ■ ■ ■  ■ ■ ■ ■

After round 2, the last of the reduce-scatter phase, the diagonal is finished: rank p holds exactly one
finished block, block p. The all-gather then widens the diagonal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from .holdings import Holdings
from .registry import Algorithm, get


@dataclass(frozen=True, slots=True)
class Picture:
    """A sequence of frames; ``frames[t][rank][column]`` counts contributions after round t-1.

    `whole` contributions are all that there are. Rounds are counted as `traffic.critical_rounds` does: a
    frame shows every rank after the rounds that it can have finished by then.
    """

    title: str
    column: str  # what the columns are
    whole: int
    frames: tuple[tuple[tuple[int, ...], ...], ...]
    promised: tuple[tuple[bool, ...], ...]  # whether the rank ends with this column

    @property
    def ranks(self) -> int:
        """Number of ranks, which are the rows."""
        return len(self.promised)

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self.promised[0])

    def label(self, frame: int) -> str:
        """What stands above a frame."""
        return f"round {frame - 1}" if frame else "start"

    def glyph(self, frame: int, rank: int, column: int, ascii_only: bool = False) -> str:
        """One cell in text."""
        finished, passing, none = "#o." if ascii_only else "■□·"
        count = self.frames[frame][rank][column]
        if self.whole == 1:
            return none if not count else finished if self.promised[rank][column] else passing
        return finished if count == self.whole else str(count or none)


def picture(algorithm: Algorithm | str, size: int, params: Mapping[str, Any] | None = None) -> Picture:
    """What every rank holds after each round of `algorithm` (or its name, ``"allreduce/ring"``).

    Raises `ScheduleError` if the schedule gets stuck, and `Unsupported` for a case that it cannot serve.
    """
    if isinstance(algorithm, str):
        algorithm = get(*algorithm.split("/", 1))
    kind, resolved = algorithm.collective, algorithm.resolve(size, params)
    schedules = [algorithm.schedule(rank, size, params) for rank in range(size)]
    state = Holdings(kind, schedules, algorithm.blocks(size, params), resolved.get("root", 0))
    state.run()
    frames = [state.at(time) for time in range(max(state.time) + 1)]
    given = "".join(f", {k}={v}" for k, v in resolved.items() if v is not None)
    return Picture(
        title=f"{algorithm}, P={size}{given}",
        column="rank" if state.barrier else "block",
        whole=size if kind.reduces else 1,
        frames=tuple(tuple(tuple(bin(c).count("1") for c in row) for row in rows) for rows in frames),
        promised=tuple(tuple(row) for row in state.promised),
    )


def draw(
    algorithm: Algorithm | str,
    size: int,
    params: Mapping[str, Any] | None = None,
    *,
    ascii_only: bool = False,
    width: int = 100,
) -> str:
    """The picture as text, its frames side by side as far as `width` characters allow; see the module.

    >>> import mpicoll.algorithms
    >>> print(draw("allreduce/ring", 2, ascii_only=True))
    allreduce/ring, P=2: contributions to each block, after each round (# all 2, . none)
    <BLANKLINE>
            start    round 0  round 1
     block  0 1      0 1      0 1
    rank 0  1 1      # 1      # #
    rank 1  1 1      1 #      # #
    """
    return text_of(picture(algorithm, size, params), ascii_only=ascii_only, width=width)


def text_of(shown: Picture, *, ascii_only: bool = False, width: int = 100) -> str:
    """A picture as text; see `draw`."""
    finished, passing, none = "#o." if ascii_only else "■□·"
    if shown.whole == 1:
        extra = f", {passing} held on the way" if shown.column == "block" else ""
        what, legend = f"the {shown.column}s known", f"{finished} its result{extra}, {none} nothing"
    else:
        what, legend = "contributions to each block", f"{finished} all {shown.whole}, {none} none"
    cell = max(len(str(shown.columns - 1)), len(str(shown.whole - 1)))
    inner = (cell + 1) * shown.columns - 1
    wide = max(inner, len(shown.label(len(shown.frames) - 1)))
    names = [f" {shown.column}", *(f"rank {rank}" for rank in range(shown.ranks))]
    margin = max(map(len, names))
    per_line = max(1, (width - margin) // (wide + 2))
    lines = [f"{shown.title}: {what}, after each round ({legend})"]
    for first in range(0, len(shown.frames), per_line):
        chosen = range(first, min(first + per_line, len(shown.frames)))
        rows = [[shown.label(f) for f in chosen]]
        rows.append([" ".join(f"{c:>{cell}}" for c in range(shown.columns))] * len(chosen))
        for rank in range(shown.ranks):
            glyphs = ([shown.glyph(f, rank, c, ascii_only) for c in range(shown.columns)] for f in chosen)
            rows.append([" ".join(f"{glyph:>{cell}}" for glyph in row) for row in glyphs])
        lines.append("")
        for name, row in zip(["", *names], rows, strict=True):
            lines.append(f"{name:<{margin}}  {'  '.join(f'{text:<{wide}}' for text in row)}".rstrip())
    return "\n".join(lines)


_CELL, _GAP, _TOP, _LEFT, _HEAD = 22, 26, 58, 62, 50  # pixels
_STYLE = (
    "text{font-family:ui-sans-serif,Helvetica,Arial,sans-serif;font-size:11px;fill:#24292f}"
    "text.t{font-size:14px;font-weight:600}text.c{text-anchor:middle}text.e{text-anchor:end}"
    "rect{stroke:#fff;stroke-width:1.5}text.w{fill:#fff}text.g{fill:#6e7781}"
)


def _colour(fraction: float) -> str:
    """From pale grey (nothing) through light blue to deep blue; finished cells are green."""
    if fraction >= 1:
        return "#1a7f37"
    low, high = ((246, 248, 250), (221, 235, 250)) if not fraction else ((221, 235, 250), (33, 97, 181))
    mixed = (round(a + (b - a) * fraction) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def svg_of(shown: Picture, *, per_line: int | None = None) -> str:
    """A picture as an SVG document; colour is the fraction of contributions, green is finished."""
    inner = _CELL * shown.columns
    across = min(len(shown.frames), per_line or max(1, 960 // (inner + _GAP)))
    down = -(-len(shown.frames) // across)
    tall = _CELL * shown.ranks + _TOP
    width, height = _LEFT + across * (inner + _GAP), _HEAD + down * tall
    legend = "number: contributions held; green: finished" if shown.whole > 1 else "blue: held; green: result"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 420)}" height="{height}" role="img">',
        f"<title>{escape(shown.title)}</title><style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="t" x="8" y="22">{escape(shown.title)}</text>',
        f'<text class="g" x="8" y="40">{legend}</text>',
    ]
    for frame in range(len(shown.frames)):
        line, place = divmod(frame, across)
        parts += _svg_frame(shown, frame, _LEFT + place * (inner + _GAP), _HEAD + line * tall, place == 0)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _svg_frame(shown: Picture, frame: int, x: int, y: int, named: bool) -> list[str]:
    """One frame with its corner at (x, y): label, column numbers, cells, and rank names if `named`."""
    top, half = y + 34, _CELL // 2
    parts = [f'<text x="{x}" y="{y + 16}">{shown.label(frame)}</text>']
    for column in range(shown.columns):
        centre = x + column * _CELL + half
        parts.append(f'<text class="c g" x="{centre}" y="{top - 4}">{column}</text>')
    for rank in range(shown.ranks):
        middle = top + rank * _CELL + half + 4
        if named:
            parts.append(f'<text class="e" x="{x - 8}" y="{middle}">rank {rank}</text>')
        for column in range(shown.columns):
            left, count = x + column * _CELL, shown.frames[frame][rank][column]
            done = count == shown.whole and (shown.whole > 1 or shown.promised[rank][column])
            fraction = 1.0 if done else 0.5 * count if shown.whole == 1 else count / shown.whole
            parts.append(
                f'<rect x="{left}" y="{top + rank * _CELL}" width="{_CELL}" height="{_CELL}" '
                f'fill="{_colour(fraction)}"/>'
            )
            if count and shown.whole > 1:
                tone = " w" if fraction > 0.55 else ""
                parts.append(f'<text class="c{tone}" x="{left + half}" y="{middle}">{count}</text>')
    return parts


def draw_svg(algorithm: Algorithm | str, size: int, params: Mapping[str, Any] | None = None) -> str:
    """The picture as an SVG document; see the module."""
    return svg_of(picture(algorithm, size, params))
