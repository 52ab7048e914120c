"""From schedule to program: where every block lies, what is sent from where, in which order.

`compile_program` binds a schedule to the *shape* of a call (element counts and buffer offsets), not
yet to memory or MPI: the `Program` (`program`) is plain data. What it decides:

- **Copy elision.** A block that nobody has written yet still lies in the send buffer: it is sent
  from there, and its first reduction is the three-operand ``recv = send ⊕ landing``.
- **Landing.** Reducing receives land in scratch; copying receives land where the block will stay.
- **Packing.** A message whose blocks are scattered travels as one packed message when its pieces
  are small, else as one message for each run of blocks. Both sides see only block numbers and
  lengths when they decide, so they always agree.
- **Channels.** The data is striped over `channels` independent copies of the schedule, `depth` of
  which are in flight: while one reduces, the messages of the others travel, and the landing area
  stays small enough for the cache. All ranks visit the channels in the same rotation, and a
  channel's round waits only for rounds that started before it on every rank; so if the schedule
  cannot deadlock, neither can the program.
- **Stages.** Where times are wanted, a mark stands wherever the program goes over to a round of another
  stage, so that every moment of a run belongs to one stage. Without them there are no marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .partition import block_offset
from .program import (
    LANDING,
    RECV,
    SEND,
    WORK,
    Combine,
    Copy,
    Layout,
    Mark,
    Message,
    Program,
    Region,
    Start,
    Step,
    Wait,
)
from .registry import Algorithm, Params
from .schedule import Recv, Round, Send, Side, blocks_of

PACK_BYTES = 16384  # mean bytes per run of blocks below which a scattered message is packed


def compile_program(
    algorithm: Algorithm,
    rank: int,
    size: int,
    params: Params,
    layout: Layout,
    itemsize: int,
    *,
    channels: int = 1,
    depth: int = 1,
    timed: bool = False,
) -> Program:
    """Compile the schedule of `rank` to a program.

    `itemsize` is in bytes; `channels` and `depth` are described in the module's text. `timed` puts marks
    between stages.
    Raises `Unsupported` where the algorithm cannot serve the case.
    """
    blocks = algorithm.blocks(size, params)
    rounds = list(algorithm.schedule(rank, size, params))
    program = Program(rank, size, len(rounds), timed=timed)
    if layout.stash is not None:
        offset, program.work = layout.stash
        program.add([Copy(Region(WORK, 0, program.work), Region(RECV, offset, program.work))], (0, -1))
    width = max(1, min(depth, channels))
    slots: list[list[_Channel]] = [[] for _ in range(width)]
    for slot, members in enumerate(slots):
        work, landing = program.work, program.landing
        for number in range(slot, channels, width):
            channel = _Channel(algorithm, program, layout, itemsize, blocks, (channels, number, slot))
            channel.compile(rounds, params.get("root", 0))
            members.append(channel)
            work, landing = max(work, channel.work_top), max(landing, channel.landing_top)
        program.work, program.landing = work, landing
    _interleave(program, slots)
    if timed:
        program.add([Mark(len(program.stages))], program.places[-1])
    return program


def _interleave(program: Program, slots: Sequence[Sequence[_Channel]]) -> None:
    """Rotate over the slots: finish the round of one slot's channel, start its next, move on."""
    running = [_emit(program, members) for members in slots]
    while running:
        running = [slot for slot in running if next(slot, None) is not None]


def _emit(program: Program, members: Sequence[_Channel]) -> Iterator[bool]:
    """Emit a slot's channels one after the other, pausing after each round's start."""
    for channel in members:
        for number, stage in enumerate(channel.stages):
            place = channel.number, number
            program.enter(stage.name, place)
            program.add(stage.before, place)
            first = len(program.messages)
            program.messages += stage.messages
            last = len(program.messages)
            if last > first:
                program.add([Start(first, last)], place)
            program.add(stage.meanwhile, place)
            yield True
            program.enter(stage.name, place)
            if last > first:
                program.add([Wait(first, last)], place)
            program.add(stage.after, place)


@dataclass(slots=True)
class _Stage:
    """A round, compiled: pack, start, copy while messages travel, wait, unpack and combine."""

    name: str = ""
    before: list[Step] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    meanwhile: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)


class _Runs:
    """Joins regions, or tuples of regions moving together, that adjoin."""

    def __init__(self) -> None:
        self.rows: list[tuple[Region, ...]] = []

    def add(self, length: int, *starts: tuple[int, int]) -> None:
        """Append `length` elements at each of `starts` (space, offset)."""
        if self.rows:
            last = self.rows[-1]
            if all(r.space == s and r.offset + r.length == o for r, (s, o) in zip(last, starts, strict=True)):
                self.rows[-1] = tuple(Region(r.space, r.offset, r.length + length) for r in last)
                return
        self.rows.append(tuple(Region(space, offset, length) for space, offset in starts))


Place = tuple[int, int]  # (space, offset)


class _Channel:
    """Compiles the schedule for one stripe of the data."""

    def __init__(
        self,
        algorithm: Algorithm,
        program: Program,
        layout: Layout,
        itemsize: int,
        blocks: int,
        stripe: tuple[int, int, int],
    ) -> None:
        self.collective = algorithm.collective
        self.rank, self.size = program.rank, program.size
        self.layout, self.itemsize, self.blocks = layout, itemsize, blocks
        self.channels, self.number, self.slot = stripe
        self.per_part = blocks // self.collective.parts(self.size)
        self.stages: list[_Stage] = []
        self.where: dict[int, Place] = {}  # the blocks written so far
        self.extents: dict[int, tuple[int, int]] = {}  # block -> (offset in its part, length)
        self.homes: dict[int, Place] = {}
        self.work_top = program.work
        self.landing_base = self.landing_top = self.landing_next = program.landing

    def compile(self, rounds: Sequence[Round], root: int) -> None:
        """Compile all rounds, and the copies that bring every result to its target."""
        for step in rounds:
            self.stages.append(self._stage(step))
        if not self.stages:
            self.stages.append(_Stage())
        untouched, moved = _Runs(), _Runs()
        for part in self.collective.after(self.rank, self.size, root):
            for block in range(part * self.per_part, (part + 1) * self.per_part):
                length = self.extent(block)[1]
                target = self.layout.target(part)
                if target is None or not length:
                    continue
                there = RECV, target + self.extent(block)[0]
                here = self.location(block)
                if here != there:
                    (moved if block in self.where else untouched).add(length, there, here)
        # A block that no message touches can be copied while the first messages travel.
        self.stages[0].meanwhile += [Copy(*row) for row in untouched.rows]
        self.stages[-1].after += [Copy(*row) for row in moved.rows]

    # -- where blocks lie ------------------------------------------------------------------------

    def extent(self, block: int) -> tuple[int, int]:
        """Offset within its part, and length, of this channel's share of a block, in elements."""
        known = self.extents.get(block)
        if known is None:
            part, piece = divmod(block, self.per_part)
            count = self.layout.length(part)
            low = block_offset(count, self.channels, self.number)
            share = block_offset(count, self.channels, self.number + 1) - low
            start = block_offset(share, self.per_part, piece)
            known = low + start, block_offset(share, self.per_part, piece + 1) - start
            self.extents[block] = known
        return known

    def location(self, block: int) -> Place:
        """Where the block lies now."""
        known = self.where.get(block)
        if known is not None:
            return known
        source = self.layout.source(block // self.per_part)
        assert source is not None, f"rank {self.rank} reads block {block}, which it does not hold"
        offset = source + self.extent(block)[0]
        if self.layout.stash is not None:
            return WORK, offset - self.layout.stash[0]
        return (RECV if self.layout.in_place else SEND), offset

    def home(self, block: int) -> Place:
        """Where new values of the block are written: its target, else the work area."""
        known = self.homes.get(block)
        if known is None:
            target = None if self.layout.stash is not None else self.layout.target(block // self.per_part)
            offset, length = self.extent(block)
            if target is not None:
                known = RECV, target + offset
            else:
                known = WORK, self.work_top
                self.work_top += length
            self.homes[block] = known
        return known

    def _landing(self, length: int) -> Region:
        region = Region(LANDING, self.landing_next, length)
        self.landing_next += length
        self.landing_top = max(self.landing_top, self.landing_next)
        return region

    # -- rounds ----------------------------------------------------------------------------------

    def _stage(self, step: Round) -> _Stage:
        stage = _Stage(step.stage)
        self.landing_next = self.landing_base
        combining: dict[int, tuple[list[Place], list[Place]]] = {}
        arrived: dict[int, Place] = {}
        receives = [m for recv in step.recvs for m in self._receive(recv, stage, combining, arrived)]
        for send in step.sends:
            stage.messages += self._send(send, stage)
        stage.messages[:0] = receives  # receives start first: an early match saves a copy
        self._fold(combining, stage)
        self.where |= arrived
        return stage

    def _pieces(self, message: Send | Recv) -> Iterator[list[int]]:
        """The non-empty blocks of a message, cut into what travels as one MPI message each."""
        runs: list[list[int]] = []
        total, previous = 0, -2
        for block in blocks_of(message.windows, self.blocks):
            if block != previous + 1:
                runs.append([])
            previous = block
            if length := self.extent(block)[1]:
                runs[-1].append(block)
                total += length
        if total * self.itemsize < PACK_BYTES * len(runs):
            runs = [[block for run in runs for block in run]]
        return (run for run in runs if run)

    def _send(self, send: Send, stage: _Stage) -> Iterator[Message]:
        if not send.windows:
            yield Message(True, send.peer, self.slot, Region(LANDING, self.landing_base, 0))
        for piece in self._pieces(send):
            runs = _Runs()
            for block in piece:
                runs.add(self.extent(block)[1], self.location(block))
            region = runs.rows[0][0]
            if len(runs.rows) > 1:
                region = self._landing(sum(row[0].length for row in runs.rows))
                stage.before += self._unpacking(region, runs, packing=True)
            yield Message(True, send.peer, self.slot, region)

    def _receive(
        self,
        recv: Recv,
        stage: _Stage,
        combining: dict[int, tuple[list[Place], list[Place]]],
        arrived: dict[int, Place],
    ) -> Iterator[Message]:
        if not recv.windows:
            yield Message(False, recv.peer, self.slot, Region(LANDING, self.landing_base, 0))
        for piece in self._pieces(recv):
            if recv.side is not None:
                region = self._landing(sum(self.extent(block)[1] for block in piece))
                offset = region.offset
                for block in piece:
                    sides = combining.setdefault(block, ([], []))
                    sides[recv.side is Side.RIGHT].append((LANDING, offset))
                    offset += self.extent(block)[1]
            else:
                runs = _Runs()
                for block in piece:
                    arrived[block] = self.home(block)
                    runs.add(self.extent(block)[1], arrived[block])
                region = runs.rows[0][0]
                if len(runs.rows) > 1:
                    region = self._landing(sum(row[0].length for row in runs.rows))
                    stage.after += self._unpacking(region, runs, packing=False)
            yield Message(False, recv.peer, self.slot, region)

    @staticmethod
    def _unpacking(packed: Region, runs: _Runs, *, packing: bool) -> Iterator[Step]:
        offset = packed.offset
        for (scattered,) in runs.rows:
            piece = Region(packed.space, offset, scattered.length)
            yield Copy(piece, scattered) if packing else Copy(scattered, piece)
            offset += scattered.length

    def _fold(self, combining: dict[int, tuple[list[Place], list[Place]]], stage: _Stage) -> None:
        """Emit the left folds of rule 3, level by level, joining blocks that adjoin."""
        levels: list[_Runs] = []
        for block, (lefts, rights) in combining.items():
            mine, home = self.location(block), self.home(block)
            operands = [*lefts, mine, *rights]
            value = operands[0]
            for level, operand in enumerate(operands[1:]):
                # While only landed operands were combined, the first one's landing serves as result.
                out = value if operand[0] == LANDING and level + 1 < len(lefts) else home
                if level == len(levels):
                    levels.append(_Runs())
                levels[level].add(self.extent(block)[1], out, value, operand)
                value = out
            self.where[block] = home
        stage.after += [Combine(*row) for runs in levels for row in runs.rows]
