"""The pictures show what the schedules do."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.cases import cases
from mpicoll.draw import Picture, draw, draw_svg, picture, svg_of, text_of
from mpicoll.errors import Unsupported
from mpicoll.registry import Algorithm, algorithms
from mpicoll.traffic import traffic

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_ring_shows_the_diagonal_after_phase_one(size: int):
    shown = picture("allreduce/ring", size)
    after = shown.frames[size - 1]
    assert len(shown.frames) == 1 + 2 * (size - 1)
    for rank, row in enumerate(after):
        assert [block for block, count in enumerate(row) if count == size] == [rank]


def test_ring_text_marks_the_diagonal():
    lines = draw("allreduce/ring", 4).splitlines()
    column = lines[2].index("round 2")
    cells = [line[column : column + 7].split() for line in lines[4:8]]
    assert [[cell == "■" for cell in row] for row in cells] == [[r == b for b in range(4)] for r in range(4)]


@pytest.mark.parametrize("algorithm", [pytest.param(a, id=str(a)) for a in algorithms()])
@pytest.mark.parametrize("size", [1, 4, 5])
def test_last_frame_is_finished_for_every_algorithm(algorithm: Algorithm, size: int):
    for params in list(cases(algorithm, size))[:1]:
        shown = picture(algorithm, size, params)
        assert len(shown.frames) == 1 + traffic(algorithm, size, params).critical_rounds
        for rank, row in enumerate(shown.promised):
            for column, promised in enumerate(row):
                assert not promised or shown.frames[-1][rank][column] == shown.whole


@pytest.mark.parametrize("algorithm", [pytest.param(a, id=str(a)) for a in algorithms()])
def test_text_and_svg_are_well_formed_for_every_algorithm(algorithm: Algorithm):
    params = next(cases(algorithm, 4), None)
    if params is None:
        with pytest.raises(Unsupported):
            draw(algorithm, 4)
        return
    shown = picture(algorithm, 4, params)
    text = text_of(shown, width=100)
    assert max(map(len, text.splitlines()[1:])) <= max(100, 9 + 3 * shown.columns)
    assert text_of(shown, ascii_only=True).isascii()
    document = ElementTree.fromstring(svg_of(shown))
    cells = [r for r in document.iter(f"{SVG}rect") if r.get("width") != "100%"]
    assert len(cells) == len(shown.frames) * shown.ranks * shown.columns


def test_svg_stays_within_its_size():
    document = ElementTree.fromstring(draw_svg("allreduce/ring", 6))
    width, height = float(document.get("width")), float(document.get("height"))
    for rect in document.iter(f"{SVG}rect"):
        if rect.get("width") != "100%":
            assert 0 <= float(rect.get("x")) <= width - float(rect.get("width"))
            assert 0 <= float(rect.get("y")) <= height - float(rect.get("height"))


def test_svg_colours_finished_cells_alone_green():
    shown = picture("allreduce/ring", 3)
    document = ElementTree.fromstring(svg_of(shown))
    green = sum(rect.get("fill") == "#1a7f37" for rect in document.iter(f"{SVG}rect"))
    finished = sum(count == 3 for frame in shown.frames for row in frame for count in row)
    assert green == finished > 0


def test_titles_are_escaped():
    shown = Picture("a<b & c", "block", 2, (((1,),),), ((True,),))
    assert ElementTree.fromstring(svg_of(shown)).find(f"{SVG}title").text == "a<b & c"


def test_glyphs_tell_results_from_blocks_held_on_the_way():
    """Where nothing is reduced: a result, something passing through, nothing."""
    shown = Picture("x", "block", 1, (((1, 1, 0),),), ((True, False, True),))
    assert [shown.glyph(0, 0, c) for c in range(3)] == ["■", "□", "·"]
    assert [shown.glyph(0, 0, c, ascii_only=True) for c in range(3)] == ["#", "o", "."]
    shown = Picture("x", "block", 12, (((12, 11, 0),),), ((True, True, True),))
    assert [shown.glyph(0, 0, c) for c in range(3)] == ["■", "11", "·"]
