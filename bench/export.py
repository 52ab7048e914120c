"""Schedules in the formats of others: GOAL, for LogGOPSim and ATLAHS, and MSCCL's XML.

GOAL (Hoefler, Siebert, Lumsdaine, ICPP, 2009): for each rank, operations with labels, and what requires what.
All operations of a round require those of the round before; combining is a `calc` of nanoseconds.

MSCCL XML (Cowan et al., ASPLOS, 2023): for each GPU, thread blocks that talk to one peer each, whose steps
run in order; what else must come before is a `nop` with a dependency. Chunks are our blocks, in place.
Receives of a round wait for its sends, which read the state before it.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from typing import Any

from mpicoll.errors import Unsupported
from mpicoll.registry import Algorithm
from mpicoll.schedule import Recv, Round, Send, Window
from mpicoll.traffic import block_lengths

Params = Mapping[str, Any]


def goal(
    algorithm: Algorithm, size: int, nbytes: int, params: Params | None = None, gamma: float = 3e-11
) -> str:
    """The schedule in GOAL, for parts of `nbytes` each; combining takes `gamma` seconds per byte."""
    lengths = block_lengths(algorithm.collective, size, algorithm.blocks(size, params), nbytes)

    def of(message: Send | Recv) -> int:
        blocks = len(lengths)
        return sum(lengths[b % blocks] for w in message.windows for b in range(w.start, w.start + w.length))

    lines = [f"num_ranks {size}"]
    for rank in range(size):
        lines += ["", f"rank {rank} {{", *_goal_rank(algorithm.schedule(rank, size, params), of, gamma), "}"]
    return "\n".join(lines) + "\n"


def _goal_rank(rounds: Iterator[Round], of: Any, gamma: float) -> Iterator[str]:
    before: list[str] = []
    number = 0
    for step in rounds:
        made, first = [], number
        # Messages with no data are skipped on both sides; a token has no windows, and is sent as one byte.
        words: list[tuple[str, Send | Recv]] = [(f"send {{}}b to {m.peer} tag 0", m) for m in step.sends]
        words += [(f"recv {{}}b from {m.peer} tag 0", m) for m in step.recvs]
        for text, message in words:
            count = of(message) if message.windows else 1
            if count:
                number += 1
                made.append(f"l{number}")
                yield f"l{number}: {text.format(count)}"
        for label in made:
            yield from (f"{label} requires {other}" for other in before)
        combined = sum(of(m) for m in step.recvs if m.side is not None)
        if combined:
            number += 1
            yield f"l{number}: calc {max(1, round(combined * gamma * 1e9))}"
            yield from (f"l{number} requires {label}" for label in made)
            made = [f"l{number}"]
        before = made if number > first else before


def msccl(algorithm: Algorithm, size: int, params: Params | None = None) -> str:
    """The schedule of an all-reduce as MSCCL XML.

    Raises `Unsupported` for other collectives, whose input and output are not one buffer.
    """
    kind = algorithm.collective.name
    if kind != "allreduce":
        raise Unsupported(f"only an all-reduce is exported to MSCCL, not {algorithm}")
    blocks = algorithm.blocks(size, params)
    facts = {"name": algorithm.name, "proto": "Simple", "nchannels": 1, "nchunksperloop": blocks}
    facts |= {"ngpus": size, "coll": kind, "inplace": 1, "outofplace": 0, "minBytes": 0, "maxBytes": 0}
    root = ET.Element("algo", {key: str(value) for key, value in facts.items()})
    for rank in range(size):
        gpu = ET.SubElement(
            root, "gpu", id=str(rank), i_chunks=str(blocks), o_chunks=str(blocks), s_chunks="0"
        )
        _Gpu(gpu).add(algorithm.schedule(rank, size, params), blocks)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


class _Gpu:
    """The thread blocks of a rank: one for each peer and direction."""

    def __init__(self, element: ET.Element) -> None:
        self.element = element
        self.threads: dict[tuple[str, int], ET.Element] = {}

    def add(self, rounds: Iterator[Round], blocks: int) -> None:
        """All rounds; whatever a round does comes after all of the rounds before it."""
        last: list[ET.Element] = []  # the final step of each thread block in the latest round
        for step in rounds:
            ends: list[ET.Element] = []
            for kind, messages in (("s", step.sends), ("r", step.recvs)):
                for message in messages:
                    thread = self._thread(kind, message.peer)
                    for earlier in [*last, *(ends if kind == "r" else ())]:
                        self._after(thread, earlier)
                    reduces = isinstance(message, Recv) and message.side is not None
                    for start, length in _pieces(message.windows, blocks):
                        end = self._step(thread, "rrc" if reduces else kind, start, length)
                    if message.windows:
                        ends.append(end)
            last = ends or last

    def _thread(self, kind: str, peer: int) -> ET.Element:
        if (kind, peer) not in self.threads:
            to, source = (peer, -1) if kind == "s" else (-1, peer)
            number = str(len(self.threads))
            self.threads[kind, peer] = ET.SubElement(
                self.element, "tb", id=number, send=str(to), recv=str(source), chan="0"
            )
        return self.threads[kind, peer]

    def _after(self, thread: ET.Element, earlier: ET.Element) -> None:
        other = next(t for t in self.threads.values() if earlier in list(t))
        if other is not thread:
            earlier.set("hasdep", "1")
            waiting = self._step(thread, "nop", 0, 0)
            waiting.set("depid", other.get("id", ""))
            waiting.set("deps", earlier.get("s", ""))

    def _step(self, thread: ET.Element, kind: str, start: int, count: int) -> ET.Element:
        facts = {
            "s": len(thread),
            "type": kind,
            "srcbuf": "i",
            "srcoff": start,
            "dstbuf": "i",
            "dstoff": start,
        }
        facts |= {"cnt": count, "depid": -1, "deps": -1, "hasdep": 0}
        return ET.SubElement(thread, "step", {key: str(value) for key, value in facts.items()})


def _pieces(windows: tuple[Window, ...], blocks: int) -> Iterator[tuple[int, int]]:
    """Windows as runs that do not wrap around."""
    for start, length in windows:
        first = min(length, blocks - start % blocks)
        yield start % blocks, first
        if length > first:
            yield 0, length - first
