"""What the hand-written pages in docs say: their commands run and print what follows, their code is real."""

from __future__ import annotations

import csv
import re
import shutil
import textwrap
from pathlib import Path

import pytest

from test_examples import ROOT, elsewhere, lacking, shell

PRINTED = {"algorithms.md", "libraries.md"}  # by `mpicoll list`: see tests/unit/test_catalogue.py
PAGES = sorted(p for p in (ROOT / "docs").glob("*.md") if p.name not in PRINTED)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {page.name: BLOCK.findall(page.read_text(encoding="utf-8")) for page in PAGES}
CODE = [p.read_text(encoding="utf-8") for d in ("examples", "mpicoll") for p in (ROOT / d).rglob("*.py")]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@every_page
def test_every_block_says_its_language(page: Path) -> None:
    assert {language for language, _ in BLOCKS[page.name]} <= {"shell", "python", "text"}
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(BLOCKS[page.name])


@every_page
def test_commands_run_and_print_what_follows(page: Path, tmp_path: Path) -> None:
    """One after the other in one directory; a text block after a command has lines of what it prints.

    What lacks a package is left out here, and skipped with the reason in tests/test_examples.py.
    """
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    printed, left_out = "", False
    for language, text in BLOCKS[page.name]:
        if language == "shell":
            left_out = bool(lacking(text))
        if left_out:
            continue
        if language == "shell" and not elsewhere(text):
            done = shell(text, tmp_path, 100)
            assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
            printed = done.stdout + done.stderr
        elif language == "text":
            for line in text.splitlines():
                assert line in printed, f"not printed: {line}\nbut:\n{printed}"


@every_page
def test_python_is_part_of_the_code(page: Path) -> None:
    for language, text in BLOCKS[page.name]:
        if language == "python":
            forms = [textwrap.indent(text, " " * depth) for depth in (0, 4, 8)]
            assert any(form in code for form in forms for code in CODE), f"nowhere in the code:\n{text}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_times_of_proofs_are_those_of_the_results() -> None:
    text = (
        (ROOT / "docs" / "verification.md").read_text(encoding="utf-8").partition("## How long it takes")[2]
    )
    with (ROOT / "results" / "verification" / "times.csv").open(encoding="utf-8") as file:
        rows = [(row["what"], int(row["ranks"]), float(row["cpu_seconds"])) for row in csv.DictReader(file)]
    said = [f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}" for *_, seconds in rows]
    assert len(rows) > 30
    lines = [line for line in text.splitlines() if line.startswith(("| P", "| `"))]
    cells = [cell for line in lines for cell in re.findall(r"(?<=\| )[\d.]+(?= \|)", line)]
    assert cells + re.findall(r"([\d.]+) s at", text) == said
