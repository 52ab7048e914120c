"""The verb `list`, the pages that it prints, and whether the formulas in docstrings are what is counted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from mpicoll.algorithms.patterns import base_factors, ceil_log2, floor_log2, powers
from mpicoll.bench import catalogue, cli
from mpicoll.bench.libraries import libraries, libraries_text
from mpicoll.collectives import COLLECTIVES
from mpicoll.registry import Algorithm, algorithm, algorithms, get, unregister
from mpicoll.schedule import Schedule, Window, recv, send
from mpicoll.traffic import traffic
from test_algorithms import FORMS

DOCS = Path(__file__).resolve().parents[2] / "docs"
ALL = [pytest.param(a, id=str(a)) for a in algorithms()]
Run = Callable[..., int]


@pytest.fixture
def run() -> Run:
    """Run a verb; returns its exit status."""
    parser = cli.make_parser()

    def call(*words: str) -> int:
        args = parser.parse_args(words)
        return args.func(args)

    return call


# -- the committed pages --


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("algorithms.md", ("list", "--format", "markdown")),
        ("libraries.md", ("list", "--libraries")),
    ],
)
def test_page_is_what_the_command_prints(
    run: Run, capsys: pytest.CaptureFixture[str], page: str, words: tuple[str, ...]
):
    assert run(*words) == 0
    stale = f"docs/{page} is stale; write it with: mpicoll {' '.join(words)} > docs/{page}"
    assert (DOCS / page).read_text(encoding="utf-8") == capsys.readouterr().out, stale


def test_page_describes_and_counts_every_algorithm():
    page = (DOCS / "algorithms.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## [^\n]*\(`(\w+)`\)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(COLLECTIVES)
    for name, section in sections.items():
        named = [a.name for a in algorithms(name)]
        assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == named
        assert re.findall(r"^- `(\w+)`", section, re.MULTILINE) == named
        assert section.count("```text\n") == 1


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_every_collective_has_a_picture(kind: str):
    name, size, params = catalogue.DRAWN[kind]
    assert get(kind, name).refusal(size, params) is None


# -- what the command prints --


def test_list_shows_formulas_and_numbers(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run("list", "--ranks", "6") == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if "/" in line.split(" ")[0]]
    assert listed == [str(a) for a in algorithms()]
    shown = [re.split(r"\s{2,}", line) for line in lines]
    assert shown[0][:8] == [
        "algorithm", "P", "ordered", "rounds", "P=6", "sent per rank", "P=6", "combined P=6",
    ]  # fmt: skip
    rows = {row[0]: row[1:] for row in shown}
    assert rows["allreduce/ring"] == ["any", "no", "2(P−1)", "10", "2(P−1)/P·n", "5/3 n", "5/6 n", "–"]
    assert rows["allgather/swing"] == ["even", "–", "⌈log2 P⌉", "3", "(P−1)/P·n", "5/6 n", "–", "–"]
    assert rows["bcast/bine_tree"][:6] == ["2^i", "–", "log2 P", "–", "log2 P·n at the root", "–"]


def test_list_of_one_collective_and_its_nodes(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run("list", "barrier", "--ranks", "4", "--nodes", "3,1") == 0
    out = capsys.readouterr().out
    assert "allreduce/" not in out
    assert "Node of each rank, P=4: 0,0,0,1" in out


def test_list_counts_for_several_numbers_of_ranks(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run("list", "allgather", "--ranks", "4,16") == 0
    ring = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("allgather/ring"))
    assert re.split(r"\s{2,}", ring)[3:8] == ["P−1", "3", "15", "(P−1)/P·n", "3/4 n"]


def test_list_as_markdown_of_one_collective(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run("list", "barrier", "--format", "markdown", "--ranks", "3") == 0
    out = capsys.readouterr().out
    assert out.startswith("## Barrier (`barrier`)\n\n| algorithm | any P? | parameters | rounds | P = 3 |")
    assert "*Reference:* Hensgen, Finkel, Manber" in out


def test_facts_need_no_order_and_formulas_end_outside_brackets():
    @algorithm("bcast", blocks=lambda size, p: 1, name="for tests")
    def for_tests(rank: int, size: int, *, root: int = 0) -> Schedule:
        """Send on.

        Reference: nobody,
        nowhere.
        Bytes per rank: n(1, or 2), or more.
        Works for powers of two. And more.
        """
        yield send((rank + 1) % size, Window(0)) if rank == root else recv(root, Window(0))

    try:
        said = catalogue.facts(get("bcast", "for tests"))
    finally:
        unregister("bcast", "for tests")
    assert said == {
        "Reference": "nobody, nowhere",
        "Bytes per rank": "n(1, or 2), or more",
        "Works for": "powers of two. And more",
    }
    assert catalogue.formula(said["Bytes per rank"]) == "n(1, or 2)"


def test_algorithm_of_a_users_file_is_listed_as_far_as_it_says(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    file = tmp_path / "mine.py"
    file.write_text(
        "from mpicoll import Window, algorithm\n"
        "from mpicoll.schedule import exchange\n"
        "@algorithm('barrier', blocks=lambda size, params: 1)\n"
        "def all_to_all(rank, size):\n"
        "    'Tell everybody.'\n"
        "    for t in range(1, size):\n"
        "        yield exchange((rank + t) % size, (), (), source=(rank - t) % size)\n"
    )
    try:
        assert run("list", "barrier", "--ranks", "4", "--load", str(file)) == 0
        mine = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("barrier/all_to_all"))
        assert mine.split() == ["barrier/all_to_all", "any", "–", "–", "3", "–", "0", "–", "–"]
    finally:
        unregister("barrier", "all_to_all")
    assert run("list", "barrier", "--load", str(tmp_path / "absent.py")) == 2
    assert "cannot read" in capsys.readouterr().err


# -- other libraries --


def test_libraries_are_those_that_users_have():
    assert [library.title for library in libraries()] == ["Open MPI", "MPICH", "NCCL", "gloo", "UCC"]
    for library in libraries():
        for kind in COLLECTIVES:
            for group, names in library.names(kind):
                assert names
                assert len(set(names)) == len(names), (library.title, group)
        unknown = {c for names in library.groups.values() for c in names} - {
            *COLLECTIVES,
            "reduce_scatter_block",
        }
        assert not unknown


def test_one_schedule_in_two_components_counts_once():
    openmpi = libraries()[0]
    tuned, han, adapt = (names for _, names in openmpi.names("bcast"))
    assert {"binomial", "chain", "pipeline"} <= set(tuned) & set(adapt)
    assert openmpi.count("bcast") == len(tuned) + len(han) + len({"in_order_binomial"})


@pytest.mark.parametrize("kind", ["allreduce", "reduce_scatter", "allgather", "bcast", "reduce", "alltoall"])
def test_mpicoll_has_the_most_of_each_primitive(kind: str):
    own = len(algorithms(kind))
    assert {library.title: library.count(kind) for library in libraries() if library.count(kind) > own} == {}


def test_libraries_of_one_collective(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run("list", "gather", "--libraries") == 0
    out = capsys.readouterr().out
    assert out == libraries_text("gather")
    assert "| Open MPI | tuned: `basic_linear`, `binomial`, `linear_sync`; han: `intra`, `simple` |" in out
    assert "| NCCL | – |" in out


# -- pictures --


@pytest.mark.parametrize("chosen", ALL)
def test_show_draws_every_algorithm(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, chosen: Algorithm
):
    words = ["--nodes", "2,2"] if chosen.hierarchical else []
    file = tmp_path / "picture.svg"
    name = [chosen.collective.name, chosen.name]
    assert run("show", *name, "--ranks", "4", *words, "--svg", str(file), "--ascii") == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert f"{chosen}, P=4" in out
    assert f"{chosen}, P=4" in file.read_text(encoding="utf-8")


# -- formulas --
#
# What a table shows as a formula is checked to be what is counted, or to bound it where its words say so.

SIZES = [*range(2, 10), 12, 15, 16, 17, 24, 32]
#: Words in the place of a formula.
NO_FORMULA = {"those of its parts", "those of its two parts", "(f−1)·n for every factor f (+n)", "none"}
#: Names for logarithms, which are exact.
LOGARITHMS = {
    "⌊log2 max(root, P−1−root)⌋": "height",
    "⌈log2 P⌉": "ceil_log2",
    "⌊log2 P⌋": "floor_log2",
    "log2 P": "floor_log2",
    "⌈log_k P⌉": "ceil_log_k",
    "log_k P": "factors",
}
SIGNS = str.maketrans({"−": "-", "·": "*", "⌈": "ceil(", "⌉": ")", "⌊": "floor(", "⌋": ")"})
FUNCTIONS = {"ceil": math.ceil, "floor": math.floor}
CLAIM = re.compile(
    r"(?P<bound>up to |at most |about )?(?P<formula>.+?)(?P<least> at least)?"
    r"( at the root| of each rank's own)?"
    r"( \(\+(?P<more>[12n])\)| \(folded: up to (?P<slack>n more|7n/3).*\))?"
)


def evaluate(formula: str, values: dict[str, Any]) -> Fraction:
    """The value of a formula such as 2⌈log2 P⌉−1+⌈S/2⌉.

    >>> evaluate("2(P−1)/P·n", {"P": 5, "n": 1}), evaluate("2⌈log2 P⌉−1+⌈S/2⌉", {"ceil_log2": 3, "S": 3})
    (Fraction(8, 5), Fraction(7, 1))
    """
    for words, name in LOGARITHMS.items():
        formula = formula.replace(words, name)
    tokens = re.findall(r"\d+|[A-Za-z]\w*|\S", formula.translate(SIGNS))
    code = ""
    for before, token in zip(["+", *tokens], tokens, strict=False):
        if (before[0].isalnum() or before == ")") and before not in FUNCTIONS:  # 2n and P(…) are products
            code += "*" if token[0].isalnum() or token == "(" else ""
        code += f"Fraction({token})" if token.isdigit() else token
    numbers = {name: Fraction(value) for name, value in values.items()}
    return Fraction(eval(code, {"__builtins__": {}, "Fraction": Fraction}, numbers | FUNCTIONS))


def check(text: str, values: dict[str, Any], found: Fraction | int, case: str) -> None:
    """Compare what a table says with what was counted."""
    claim = CLAIM.fullmatch(text)
    assert claim is not None, case
    size, radix = values["P"], values.get("k", 2)
    factors = base_factors(size, radix)
    staying = math.prod(factors) if claim["more"] else size
    values = values | {
        "P": staying,
        "n": 1,
        "ceil_log2": ceil_log2(staying),
        "floor_log2": floor_log2(staying),
        "ceil_log_k": len(powers(radix, staying)),
        "factors": len(factors),
    }
    said = evaluate(claim["formula"], values)
    folded = math.prod(factors) < size
    if folded and claim["more"]:
        said += 2 if claim["more"] == "2" else 1
    most = said
    if folded and claim["slack"]:
        most = said + 1 if claim["slack"] == "n more" else Fraction(7, 3)
    if claim["least"]:
        assert said <= found <= said + 1, f"{case}: {found} and not {said} or one more"
    elif claim["bound"] == "about ":
        assert said / 2 <= found <= said * 3 / 2, f"{case}: {found} and not about {said}"
    elif claim["bound"] or most > said:
        assert 0 < found <= most, f"{case}: {found} and not up to {most}"
    else:
        assert found == said, f"{case}: {found} and not {said}"


def settings(chosen: Algorithm, size: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Parameters, and the names that they have in formulas."""
    if chosen.hierarchical:
        for per_node in (2, 3, 4):
            if size % per_node == 0 and size > per_node:
                nodes = tuple(rank // per_node for rank in range(size))
                yield {"nodes": nodes}, {"Q": per_node, "N": size // per_node}
        return
    values: dict[str, dict[str, Any]] = {
        "segments": {"segments": 5} if "segments" in chosen.defaults else {},
        "k": {"k": 3} if "k" in chosen.defaults else {},
        "throttle": {"throttle": 3} if "throttle" in chosen.defaults else {},
        "root": {"root": size - 2} if "root" in chosen.defaults else {},
    }
    given = {name: value for params in values.values() for name, value in params.items()}
    for params in ({}, given):
        resolved = chosen.resolve(size, params)
        named = {name: resolved[name] for name in ("k", "throttle") if name in resolved}
        root = resolved.get("root", 0)
        named["height"] = floor_log2(max(root, size - 1 - root))
        yield params, named | {"S": resolved.get("segments", 1)}


def check_formulas(chosen: Algorithm, sizes: Iterable[int]) -> set[str]:
    """Check both formulas of an algorithm; which of them were compared."""
    said, compared = catalogue.facts(chosen), set()
    for size in sizes:
        for params, names in settings(chosen, size):
            if chosen.refusal(size, params) is not None:
                continue
            counts = traffic(chosen, size, params)
            rounds = counts.rounds if "rank's own" in said["Rounds"] else counts.critical_rounds
            for label, found in (("Rounds", rounds), ("Bytes per rank", counts.sent)):
                text = catalogue.formula(said[label])
                if text not in NO_FORMULA:
                    check(text, names | {"P": size}, found, f"{chosen} P={size} {params} {label}: {text}")
                    compared.add(label)
    return compared


@pytest.mark.parametrize("chosen", ALL)
def test_formulas_are_what_is_counted(chosen: Algorithm):
    said = catalogue.facts(chosen)
    with_formula = {x for x in ("Rounds", "Bytes per rank") if catalogue.formula(said[x]) not in NO_FORMULA}
    assert check_formulas(chosen, SIZES) == with_formula


@pytest.mark.parametrize("case", [case for case in FORMS if "=" not in case])
def test_formulas_are_the_closed_forms_for_every_size(case: str):
    """The closed forms are compared with the schedules elsewhere; this is cheap, so it is for every P."""
    chosen = get(*case.split("/"))
    said = catalogue.facts(chosen)
    for size in range(2, 65):
        if chosen.refusal(size) is None:
            rounds, sent, _ = FORMS[case](size)
            *_, (_, names) = [pair for pair in settings(chosen, size) if not pair[0]]
            for label, found in (("Rounds", rounds), ("Bytes per rank", sent)):
                text = catalogue.formula(said[label])
                if found is not None and text not in NO_FORMULA:
                    check(text, names | {"P": size}, found, f"{case} P={size} {label}: {text}")


def test_most_algorithms_have_formulas():
    """Else the tests above would compare nothing."""
    without = [a for a in algorithms() if catalogue.formula(catalogue.facts(a)["Rounds"]) in NO_FORMULA]
    assert all(a.hierarchical for a in without)
    assert len(without) < len(algorithms()) / 4


@pytest.mark.parametrize("wrong", ["P−2", "⌈log2 P⌉+1", "up to n", "about 4n", "P at least", "2 (+2)"])
def test_a_wrong_formula_is_refused(wrong: str):
    with pytest.raises(AssertionError, match=r"ring: \d+ and not"):
        check(wrong, {"P": 9}, 8, "ring")
