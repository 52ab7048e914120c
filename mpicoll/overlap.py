"""Gradients averaged over all ranks while the backward pass still computes the others.

A `GradientReducer` gathers gradients in *buckets* (S. Li et al., "PyTorch Distributed", VLDB 2020): one
all-reduce of many gradients costs one latency, and the first can be on their way while the last are computed.
The buckets are filled in the order in which gradients become ready, measured in the first step.

    reducer = mpicoll.GradientReducer(comm, {"w1": grad_w1, "b1": grad_b1, "w2": grad_w2})
    for batch in data:
        ...                        # the backward pass fills grad_w2, then
        reducer.ready("w2")        # launched as soon as its bucket is full
        ...
        reducer.wait()             # as late as possible: all gradients now hold the ranks' average
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from . import device
from .agree import Agreement
from .buckets import Bucket, Layout, Parameter, bucket_sizes, lay_out, listed
from .comm import Comm
from .errors import ArgumentError, MismatchError, MpicollError
from .gradients import State, check_array, collected, digest, memory_of, mismatch, note_rows, register
from .requests import background_held
from .runner import Plan, check_background

BUCKET_BYTES = 4 << 20


class Flight(NamedTuple):
    """One bucket's way in one step; times in seconds of `time.perf_counter`."""

    bucket: int
    nbytes: int
    launched: float  # full, and handed over
    began: float  # its first message was started
    ended: float  # the result was there
    waited: float  # the program came to wait for it
    arrived: float  # and went on


class GradientReducer:
    """Averages named gradients over the ranks of `comm`, in buckets, overlapped with what computes them.

    `gradients` maps names to arrays, in the order of the forward pass: the buckets of the first step are
    filled in reverse. All ranks must register the same names, shapes and types. Construction, the end of the
    first step, and `free` are collective.

    - `bucket_bytes`, `first_bucket_bytes` (a quarter of it): how full buckets get, see `buckets.lay_out`;
    - `average`: divide by the number of ranks (else the sum is returned);
    - `views`: the reducer owns the gradients; ``reducer.gradients[name]`` are views of its buckets, to be
      fetched anew after the first `wait`: in the second step `ready` refuses a gradient that was written into
      an old one. Nothing is copied. Without, `ready` copies a gradient into its bucket, and the result is
      copied back;
    - `wire_dtype`: such as "float16": gradients travel in this type (not with `views`). They are divided by
      the number of ranks first, so that sums do not overflow;
    - `unused`: "error", or "zero" to let a gradient that was not ready count as zero;
    - `overlap`: False runs every bucket to its end when it is full, in one order on all ranks;
    - `background`: True promises that between the first `ready` and the end of `wait` nobody else calls MPI,
      which MPI_THREAD_SERIALIZED needs; by default a thread makes progress at MPI_THREAD_MULTIPLE, and
      elsewhere every `ready` does;
    - `engine`, `algorithm`, `channels`, … as for `Comm.Allreduce_init`.

    Gradients may be CuPy arrays: buckets then lie in device memory, and `ready` makes progress instead of a
    thread. A gradient must be complete on the stream that is current in `ready`, and its average is there on
    the one that is current in `wait`; these may be different streams.

    A rank that fails in the middle of a step (in here, or in a ``with reducer:`` block, or because its
    program ends) tells the others, which raise `RevokedError` where they wait; the reducer cannot be used
    any more. Raises `ArgumentError` and `MismatchError` on all ranks alike on construction.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        gradients: Mapping[str, Any],
        *,
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int | None = None,
        average: bool = True,
        views: bool = False,
        wire_dtype: Any = None,
        unused: str = "error",
        overlap: bool = True,
        background: bool | None = None,
        engine: str | None = None,
        **options: Any,
    ) -> None:
        asked = dict(comm._asked) if isinstance(comm, Comm) else {}
        self._comm = Comm(comm, **asked | ({"engine": engine} if engine is not None else {}))
        self._options = options
        self._sizes: tuple[int, Any] = bucket_bytes, first_bucket_bytes
        self._average, self._views, self._unused, self._overlap = average, views, unused, overlap
        self._plans: list[Plan] = []
        self._state = State(self._agreement, self._comm.rank)
        try:
            self._set_up(gradients, wire_dtype, background)
        except Exception:  # on all ranks alike
            self.free()
            raise
        self._end = weakref.finalize(self, collected, self._state)
        self._end.atexit = False

    # -- construction ----------------------------------------------------------------------------

    def _set_up(self, gradients: Mapping[str, Any], wire_dtype: Any, background: bool | None) -> None:
        self._parameters = self._agree(gradients, wire_dtype, background)
        self._number = {p.name: n for n, p in enumerate(self._parameters)}
        self.gradients: dict[str, Any] = dict(gradients)
        self._syncing, self._rebuilt = True, False
        self.flights: list[Flight] = []
        self._bind(lay_out(self._parameters, range(len(gradients) - 1, -1, -1), *self._sizes))

    @property
    def _agreement(self) -> Agreement:
        return self._comm._planner.agreement

    def _agree(self, gradients: Mapping[str, Any], wire: Any, background: bool | None) -> list[Parameter]:
        """Check the arguments, and that all ranks gave the same. Collective."""
        self._array_module: Any = np
        self._background = False
        found: list[Parameter] = []
        error: Exception | None = None
        try:
            if not isinstance(gradients, Mapping):
                raise ArgumentError(f"gradients map names to arrays; got a {type(gradients).__name__}")
            ways = {"average": self._average, "views": self._views}
            found = [register(name, array, wire, **ways) for name, array in gradients.items()]
            if self._unused not in ("error", "zero"):
                raise ArgumentError(f'unused is "error" or "zero", not {self._unused!r}')
            if self._views and any(p.wire != p.dtype for p in found):
                raise ArgumentError("views have the type that travels: give no wire_dtype with views=True")
            self._sizes = bucket_sizes(*self._sizes)
            self._array_module = memory_of(gradients)
            if self._array_module is not np and background:
                raise ArgumentError("background=True is for host memory: a thread knows no streams")
            wanted = background if self._array_module is np else False
            if self._overlap:
                engine, may = self._comm.engine, self._comm._planner.choice.may_thread
                self._background = may(engine) if wanted is None else check_background(engine, wanted)
        except Exception as caught:
            error = caught
        self._agreement.begin()
        asked = self._average, self._views, self._unused, self._overlap
        choices = self._sizes, *asked, ("background", self._background)
        try:
            self._agreement.settle(("gradients", tuple(found), choices, repr(self._options)), error)
        except MismatchError:
            mine = tuple(found), choices, repr(self._options)
            raise MismatchError(mismatch(self._comm._planner.comm.allgather(mine))) from None
        return found

    def _bind(self, layout: Layout) -> None:
        """Make flat arrays, views and plans of a layout. Collective."""
        xp = self._array_module

        def allocate() -> dict[str, Any]:
            return {wire: xp.zeros(length, np.dtype(wire)) for wire, length in layout.lengths.items()}

        flats = self._comm._planner.settle(allocate, "memory for gradients")
        slots = []
        for parameter, offset in zip(self._parameters, layout.offsets, strict=True):
            flat = flats[parameter.wire][offset : offset + parameter.size]
            slots.append(flat.reshape(parameter.shape))
        self._outdated: dict[int, tuple[Any, int]] = {}  # views from before, and what they held
        if self._views:
            for index, (parameter, slot) in enumerate(zip(self._parameters, slots, strict=True)):
                before = self.gradients[parameter.name]
                xp.copyto(slot, before)
                self.gradients[parameter.name] = slot
                if self._rebuilt:
                    self._outdated[index] = before, digest(before)
        if xp is not np:  # or a gradient on another stream might come first
            device.current_stream().synchronize()
        for plan in self._plans:
            plan.Free()
        self._layout, self._slots = layout, slots
        self._plans = []
        for bucket in layout.buckets:
            part = flats[bucket.wire][bucket.start : bucket.stop]
            self._plans.append(
                self._comm.Allreduce_init(MPI.IN_PLACE, part, background=self._background, **self._options)
            )
        self._pieces_of: list[list[tuple[int, int, int]]] = [[] for _ in self._parameters]
        for number, bucket in enumerate(layout.buckets):
            for piece in bucket.pieces:
                self._pieces_of[piece.parameter].append((number, piece.start, piece.stop))
        self._begin_step()

    def _begin_step(self) -> None:
        self._state.open = False
        self._complete: dict[int, None] = {}  # parameters, in the order in which they became ready
        self._sources: dict[
            int, list[tuple[Any, slice | None]]
        ] = {}  # by parameter: arrays, and rows of them
        self._parts: dict[int, Any] = {}  # by parameter, if only some rows are ready: whether each is
        self._lacking = [bucket.stop - bucket.start for bucket in self._layout.buckets]  # elements not ready
        self._flying: list[int] = []
        self._launched: dict[int, float] = {}
        self._under_way = [len(pieces) for pieces in self._pieces_of]
        # In device memory, the streams that were current when gradients became ready and buckets left.
        self._ready_on: dict[int, Any] = {}
        self._left_on: dict[int, Any] = {}

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets, in the order in which they are expected to be full."""
        return self._layout.buckets

    @property
    def order(self) -> tuple[str, ...]:
        """Names in the order in which their gradients are expected to become ready."""
        return tuple(self._parameters[index].name for index in self._layout.order)

    # -- a step ----------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within: `ready` and `wait` do nothing, while gradients are accumulated. On all ranks alike."""
        if self._state.open:
            raise ArgumentError("no_sync() in the middle of a step: call wait() first")
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def ready(self, name: str, gradient: Any = None, *, rows: slice | None = None) -> None:
        """Say that a gradient is complete: in the registered array, or, without `views`, in `gradient`.

        `rows`: only these of the first axis, a slice. What is complete of a large gradient can leave while
        the rest is computed, and less of the last one is left when nothing more is computed. Blocks of rows
        may be given in different arrays of the gradient's shape; each gets the average of its own.

        Until `wait`, the array (or its rows) belongs to the reducer with `views`; without, it may be used.
        Raises `ArgumentError` for an unknown name, another shape or type, or what was ready before.
        """
        if not self._syncing:
            return
        with self._telling():
            self._agreement.check()
            try:
                index = self._number.get(name)
            except TypeError:  # a list, perhaps
                index = None
            if index is None:
                known = listed(list(self._number))
                raise ArgumentError(f"no gradient {name!r} is registered; there are {known}")
            if index in self._complete:
                raise ArgumentError(f"gradient {name!r} became ready twice in a step; was wait() forgotten?")
            self._take(index, self.gradients[name] if gradient is None else gradient, rows)
        if not self._background:
            for number in self._flying:
                self._plans[number].Test()

    def _take(self, index: int, gradient: Any, rows: slice | None = None) -> None:
        """Bring a gradient, or rows of it, into its buckets and launch those that are full."""
        parameter, slot = self._parameters[index], self._slots[index]
        if self._views:
            self._check_view(index, gradient)
        elif gradient is not slot:
            check_array(parameter.name, gradient, writable=True)
            if gradient.shape != parameter.shape or gradient.dtype.str != parameter.dtype:
                raise ArgumentError(
                    f"gradient {parameter.name!r} was registered as {parameter.shape} {parameter.dtype}, "
                    f"not {gradient.shape} {gradient.dtype.str}"
                )
        low, high = note_rows(self._parts, index, parameter, rows)
        self._sources.setdefault(index, []).append((gradient, rows))
        if gradient is not slot:
            target, source = (slot, gradient) if rows is None else (slot[rows], gradient[rows])
            if self._scales_first(parameter):
                self._array_module.multiply(source, 1 / self._comm.size, out=target)
            else:
                self._array_module.copyto(target, source)
        if not self._state.open:
            self._state.open, self.flights = True, []
        if index not in self._parts or self._parts[index].all():
            self._outdated.pop(index, None)
            self._complete[index] = None
        if self._array_module is not np:
            if index in self._ready_on:  # other rows, perhaps on another stream
                device.follow(self._ready_on[index])
            self._ready_on[index] = device.current_stream()
        for number, start, stop in self._pieces_of[index]:
            more = min(high, stop) - max(low, start)
            if more > 0:
                self._lacking[number] -= more
                if self._lacking[number] == 0 and self._overlap:
                    self._launch(number)
        while not self._overlap and self._next_is_full():
            self._launch(len(self._launched))

    def _check_view(self, index: int, gradient: Any) -> None:
        """Refuse a gradient elsewhere than in its bucket, and one that was written where that was before."""
        before, held = self._outdated.get(index, (None, 0))
        name = repr(self._parameters[index].name)
        if gradient is not self._slots[index] and gradient is not before:
            raise ArgumentError(f"gradient {name}: with views=True write into reducer.gradients[{name}]")
        if before is not None and (gradient is before or digest(before) != held):
            raise ArgumentError(
                f"gradient {name} was written into a view from before the first wait(), which has rebuilt "
                f"the buckets: fetch reducer.gradients[{name}] anew"
            )

    def _scales_first(self, parameter: Parameter) -> bool:
        return self._average and parameter.wire != parameter.dtype

    def _next_is_full(self) -> bool:
        number = len(self._launched)
        return number < len(self._plans) and self._lacking[number] == 0

    def _launch(self, number: int) -> None:
        self._launched[number] = time.perf_counter()
        if self._array_module is not np:
            for piece in self._layout.buckets[number].pieces:
                device.follow(self._ready_on[piece.parameter])
            self._left_on[number] = device.current_stream()
        if self._overlap:
            self._plans[number].Start()
            self._flying.append(number)
        else:
            self._plans[number]()
            now = time.perf_counter()
            self.flights.append(self._flight(number, (self._launched[number], now), now, now))

    def wait(self) -> None:
        """Wait until all gradients are averaged.

        Raises `ArgumentError`, naming them, if some are not ready on this rank, and `RevokedError`, naming
        them, if they are not on another.
        """
        for _ in self.arriving():
            pass

    def arriving(self) -> Iterator[str]:
        """`wait`, but yields each name as soon as its gradient is there, while others are under way.

        To be exhausted: a rank that leaves earlier gives the step up.
        """
        if not self._syncing:
            return
        with self._telling():
            self._agreement.check()
            self._settle_unused()
            for number in list(self._launched):
                self._land(number)
                for piece in self._layout.buckets[number].pieces:
                    self._under_way[piece.parameter] -= 1
                    if not self._under_way[piece.parameter]:
                        self._give_back(piece.parameter)
                        yield self._parameters[piece.parameter].name
            yield from (p.name for p in self._parameters if not p.size)
            self._outdated.clear()
            if not self._rebuilt:
                self._rebuild()
            self._begin_step()

    def _land(self, number: int) -> None:
        """Wait for a bucket; in device memory its result is there in the order of the current stream."""
        if self._overlap:
            self._wait_for(number)
        if number in self._left_on:
            device.follow(self._left_on[number])

    def _wait_for(self, number: int) -> None:
        """Wait for a bucket under way, and note its flight."""
        waited = time.perf_counter()
        plan = self._plans[number]
        plan.Wait()
        arrived = time.perf_counter()
        times = plan.flight if self._background else (self._launched[number], arrived)
        self.flights.append(self._flight(number, times, waited, arrived))

    def _flight(self, number: int, times: tuple[float, float], waited: float, arrived: float) -> Flight:
        nbytes = self._layout.buckets[number].nbytes
        return Flight(number, nbytes, self._launched[number], *times, waited, arrived)

    def _settle_unused(self) -> None:
        missing = [n for n in range(len(self._parameters)) if n not in self._complete]
        if in_part := [n for n in missing if n in self._parts]:
            names = listed([self._parameters[n].name for n in in_part])
            raise ArgumentError(f"some rows were not ready on rank {self._comm.rank} of gradients {names}")
        if missing and self._unused == "error":
            names = listed([self._parameters[n].name for n in missing])
            raise ArgumentError(
                f"{len(missing)} of {len(self._parameters)} gradients were not ready when rank "
                f"{self._comm.rank} came to wait: {names}; call ready() for each, or give unused='zero'"
            )
        for index in sorted(missing, key=self._layout.order.index):
            name = self._parameters[index].name
            self.gradients[name][...] = 0
            self._take(index, self.gradients[name])

    def _give_back(self, index: int) -> None:
        """Divide, and put the result where the gradient, or each block of its rows, came from."""
        parameter = self._parameters[index]
        for source, rows in self._sources[index]:
            result, target = self._slots[index], source
            if rows is not None:
                result, target = result[rows], target[rows]
            if self._average and self._comm.size > 1 and not self._scales_first(parameter):
                self._array_module.divide(result, self._comm.size, out=target)
            elif source is not self._slots[index]:
                self._array_module.copyto(target, result)

    def _rebuild(self) -> None:
        """After the first step: fill buckets in the order of readiness, as rank 0 saw it. Collective."""
        order = np.array(list(self._complete), np.int64)
        self._comm.Bcast(order, root=0)
        self._rebuilt = True
        if tuple(order) != self._layout.order:
            self._bind(lay_out(self._parameters, order.tolist(), *self._sizes))

    # -- failure and the end -----------------------------------------------------------------------

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._abandon(error)
            raise

    def _abandon(self, error: BaseException) -> None:
        """Give up, and tell the other ranks why."""
        self._state.open = False
        why = f"rank {self._comm.rank} gave up its gradients: {type(error).__name__}: {error}"
        with background_held():
            self._agreement.revoke(why)
        for plan in self._plans:
            plan.abandon()

    def __enter__(self) -> GradientReducer:
        """Within: an exception on this rank is told to the others, who wait for its gradients."""
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """Free the reducer, or give it up; also where `wait` was forgotten, which raises `MpicollError`."""
        if error is not None:
            self._abandon(error)
            return
        with self._telling():
            self.free()

    def free(self) -> None:
        """Free plans and communicator. Collective; not in the middle of a step."""
        if self._state.open:
            raise MpicollError("free() in the middle of a step: call wait() first")
        for plan in self._plans:
            plan.Free()
        self._plans = []
        self._comm.Free()
