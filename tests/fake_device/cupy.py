"""A stand-in for CuPy without a GPU: host memory behind CuPy's names, and execution as late as possible.

What is queued on a stream happens when something waits for it, and not before: until then memory holds what
it held, and new memory garbage. So a missing wait gives a wrong answer. Only what mpicoll uses is here. Put
this directory on PYTHONPATH, and ``import cupy`` gives it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np

__version__ = "fake"
FAKE = True
_streams: dict[int, Stream] = {}
_current: list[Stream] = []
_device = [0]


class CUDARuntimeError(RuntimeError):
    """As CuPy raises it without a driver."""


class Stream:
    """A queue of actions, run in order when somebody waits."""

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self.ptr = len(_streams)
        self.queue: deque[tuple[int, Any]] = deque()
        self.count = 0
        _streams[self.ptr] = self

    def put(self, action: Any) -> None:
        self.count += 1
        self.queue.append((self.count, action))

    def run(self, last: int) -> None:
        while self.queue and self.queue[0][0] <= last:
            self.queue.popleft()[1]()

    def synchronize(self) -> None:
        self.run(self.count)

    @property
    def done(self) -> bool:
        return not self.queue

    def wait_event(self, event: Event) -> None:
        where = event.where
        if where is not None:
            self.put(lambda: where[0].run(where[1]))

    def __enter__(self) -> Stream:
        _current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.pop()

    def use(self) -> Stream:
        _current[-1] = self
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.ptr == self.ptr

    def __hash__(self) -> int:
        return self.ptr


class Event:
    """A mark in a stream. It says twice that it is not done before it lets the stream get there."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.where: tuple[Stream, int] | None = None
        self.asked = 0
        self.time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or get_current_stream()
        stream.put(self._note)
        self.where, self.asked = (stream, stream.count), 0

    def _note(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        if self.where is not None:
            self.where[0].run(self.where[1])

    @property
    def done(self) -> bool:
        self.asked += 1
        if self.asked > 2:
            self.synchronize()
        return self.asked > 2


def get_current_stream(device_id: int = -1) -> Stream:
    return _current[-1]


class Device:
    """One of FAKE_CUPY_DEVICES devices (1)."""

    def __init__(self, device: int | None = None) -> None:
        self.id = _device[-1] if device is None else device

    def use(self) -> Device:
        _device[-1] = self.id
        return self

    def synchronize(self) -> None:
        for stream in list(_streams.values()):
            stream.synchronize()

    def __enter__(self) -> Device:
        _device.append(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        _device.pop()


# -- memory ------------------------------------------------------------------------------------------------


class Memory:
    """Host memory that plays device memory; full of garbage."""

    def __init__(self, size: int) -> None:
        self.held = np.full(max(size, 1) + 256, 0xA5, np.uint8)
        self.ptr = -(-self.held.ctypes.data // 256) * 256
        self.size, self.device_id = size, _device[-1]


class ManagedMemory(Memory):
    """Memory of the kind that `pointerGetAttributes` calls managed."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        _managed.append((self.ptr, self.ptr + size))


_managed: list[tuple[int, int]] = []


class MemoryAsync(Memory):
    """Memory of a stream-ordered pool."""

    def __init__(self, size: int, stream: Any = None) -> None:
        super().__init__(size)


class UnownedMemory:
    """Memory of somebody else."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner = ptr, size, owner
        self.device_id = _device[-1] if device_id < 0 else device_id


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


def _memory_pool() -> SimpleNamespace:
    return SimpleNamespace(malloc=lambda size: MemoryPointer(Memory(size), 0))


get_default_memory_pool = _memory_pool


def _copy_async(target: int, source: int, size: int, kind: int, stream: int) -> None:
    _streams[stream].put(lambda: ctypes.memmove(target, source, size))


def _device_count() -> int:
    count = int(os.environ.get("FAKE_CUPY_DEVICES", "1"))
    if not count:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return count


def _properties(number: int) -> dict[str, Any]:
    return {"name": b"a fake device in host memory", "totalGlobalMem": 1 << 30}


def _attributes(ptr: int) -> SimpleNamespace:
    return SimpleNamespace(type=3 if any(low <= ptr < high for low, high in _managed) else 2)


# -- arrays ------------------------------------------------------------------------------------------------


class ndarray:  # noqa: N801 (CuPy's name)
    """An array in device memory."""

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize
        self.data = memptr or MemoryPointer(Memory(self.nbytes), 0)
        self.device = Device(self.data.mem.device_id)
        contiguous = strides is None
        self.strides = strides
        self.flags = SimpleNamespace(c_contiguous=contiguous, f_contiguous=contiguous and len(self.shape) < 2)

    @property
    def host(self) -> Any:
        """The memory as it is now, which no program for a real device could see."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        if self.strides is None:
            raw = (ctypes.c_char * self.nbytes).from_address(self.data.ptr)
            return np.frombuffer(raw, self.dtype).reshape(self.shape)
        reach = int(np.dot(np.subtract(self.shape, 1), self.strides))  # from the first element to the last
        raw = (ctypes.c_char * (reach + self.dtype.itemsize)).from_address(self.data.ptr)
        return np.ndarray(self.shape, self.dtype, raw, strides=self.strides)

    @property
    def T(self) -> ndarray:  # noqa: N802 (CuPy's name)
        return ndarray(self.shape[::-1], self.dtype, self.data, self.host.T.strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.data.ptr, False), "version": 3}

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, item: slice) -> ndarray:
        low, high, step = item.indices(self.shape[0])
        shape = (len(range(low, high, step)), *self.shape[1:])
        first, *rest = self.strides or self.host.strides
        place = MemoryPointer(self.data.mem, self.data.ptr - self.data.mem.ptr + low * first)
        contiguous = step == 1 and self.strides is None
        return ndarray(shape, self.dtype, place, None if contiguous else (step * first, *rest))

    def __setitem__(self, item: Any, value: Any) -> None:
        target = self if item is Ellipsis else self[item]
        value = value if isinstance(value, ndarray) else np.array(value, self.dtype)
        get_current_stream().put(lambda: np.copyto(target.host, _host(value)))

    def reshape(self, shape: Any) -> ndarray:
        return ndarray(shape, self.dtype, self.data)

    def fill(self, value: Any) -> None:
        self[...] = value

    def get(self) -> Any:
        """A copy on the host, after what the current stream holds."""
        get_current_stream().synchronize()
        return self.host.copy()

    def set(self, content: Any) -> None:
        self[...] = np.array(content)

    def view(self, dtype: Any) -> ndarray:
        dtype = np.dtype(dtype)
        return ndarray(self.nbytes // dtype.itemsize, dtype, self.data)

    def copy(self) -> ndarray:
        made = ndarray(self.shape, self.dtype)
        made[...] = self
        return made

    def _apply(self, ufunc: Any, other: Any, dtype: Any) -> ndarray:
        made = ndarray(self.shape, dtype)
        get_current_stream().put(lambda: made.host.__setitem__(..., ufunc(self.host, _host(other))))
        return made

    def __add__(self, other: Any) -> ndarray:
        return self._apply(np.add, other, self.dtype)

    def __iadd__(self, other: Any) -> ndarray:
        return self._in_place(np.add, other)

    def _in_place(self, ufunc: Any, other: Any) -> ndarray:
        get_current_stream().put(lambda: ufunc(self.host, _host(other), out=self.host))
        return self

    def __imul__(self, other: Any) -> ndarray:
        return self._in_place(np.multiply, other)

    def __isub__(self, other: Any) -> ndarray:
        return self._in_place(np.subtract, other)

    def __itruediv__(self, other: Any) -> ndarray:
        return self._in_place(np.divide, other)

    def __rmul__(self, other: Any) -> ndarray:
        return self._apply(np.multiply, other, self.dtype)

    def __float__(self) -> float:
        return float(self.get())

    def __ne__(self, other: Any) -> ndarray:  # type: ignore[override]
        return self._apply(np.not_equal, other, bool)

    __hash__ = None  # type: ignore[assignment]

    def sum(self) -> Any:
        return self.get().sum()


def _host(value: Any) -> Any:
    return value.host if isinstance(value, ndarray) else value


def asarray(data: Any, dtype: Any = None) -> ndarray:
    if isinstance(data, ndarray):
        return data
    facts = getattr(data, "__cuda_array_interface__", None)
    if facts is not None:
        dtype = np.dtype(facts["typestr"])
        size = int(np.prod(facts["shape"])) * dtype.itemsize
        place = MemoryPointer(UnownedMemory(facts["data"][0], size, data), 0)
        return ndarray(facts["shape"], dtype, place, facts.get("strides"))
    data = np.asarray(data, dtype)
    made = ndarray(data.shape, data.dtype)
    made[...] = data.copy()
    return made


def empty(shape: Any, dtype: Any = float) -> ndarray:
    return ndarray(shape, dtype)


def copyto(target: ndarray, source: ndarray) -> None:
    target[...] = source


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    made = ndarray(shape, dtype)
    made.fill(0)
    return made


def full(shape: Any, value: Any, dtype: Any = float) -> ndarray:
    made = ndarray(shape, dtype)
    made.fill(value)
    return made


def empty_like(other: ndarray) -> ndarray:
    return ndarray(other.shape, other.dtype)


def asnumpy(array: ndarray) -> Any:
    return array.get()


def arange(stop: int, dtype: Any = int) -> ndarray:
    return asarray(np.arange(stop).astype(dtype))


def array(data: Any) -> ndarray:
    return asarray(data).copy() if isinstance(data, ndarray) else asarray(data)


def vdot(left: ndarray, right: ndarray) -> ndarray:
    made = ndarray((), left.dtype)
    get_current_stream().put(lambda: made.host.__setitem__(..., np.vdot(left.host, right.host)))
    return made


def tanh(source: ndarray, out: ndarray) -> ndarray:
    get_current_stream().put(lambda: np.tanh(source.host, out=out.host))
    return out


def sum(source: ndarray, axis: int, out: ndarray) -> ndarray:
    get_current_stream().put(lambda: np.sum(source.host, axis=axis, out=out.host))
    return out


def _kernel(ufunc: Any) -> Any:
    def run(left: Any, right: Any, out: ndarray) -> ndarray:
        get_current_stream().put(lambda: ufunc(_host(left), _host(right), out=out.host))
        return out

    return run


for _ufunc in (
    np.matmul, np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum, np.logical_and,
    np.logical_or, np.logical_xor, np.bitwise_and, np.bitwise_or, np.bitwise_xor,
):  # fmt: skip
    setattr(sys.modules[__name__], _ufunc.__name__, _kernel(_ufunc))

_current.append(Stream(null=True))
cuda = SimpleNamespace(
    Stream=Stream,
    Event=Event,
    Device=Device,
    MemoryPointer=MemoryPointer,
    MemoryAsync=MemoryAsync,
    ManagedMemory=ManagedMemory,
    UnownedMemory=UnownedMemory,
    get_current_stream=get_current_stream,
    get_elapsed_time=lambda start, end: 1e3 * (end.time - start.time),
    alloc_pinned_memory=lambda size: np.full(size, 0xA5, np.uint8),
    nccl=SimpleNamespace(available=False),
    runtime=SimpleNamespace(
        memcpyAsync=_copy_async,
        memcpyDefault=4,
        getDeviceCount=_device_count,
        getDeviceProperties=_properties,
        pointerGetAttributes=_attributes,
        CUDARuntimeError=CUDARuntimeError,
    ),
)
