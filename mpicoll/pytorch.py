"""PyTorch modules trained on several ranks: gradients travel while `backward` still computes others.

    from mpicoll.pytorch import ModuleReducer

    with ModuleReducer(comm, model) as reducer:  # all ranks begin with the parameters of rank 0
        for rows, targets in this_ranks_part:
            optimizer.zero_grad()
            loss(model(rows), targets).backward()  # full buckets leave meanwhile
            reducer.wait()  # every parameter's .grad is now the average over the ranks
            optimizer.step()

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from mpi4py import MPI

from . import device
from .buckets import Bucket, Parameter, listed
from .comm import Comm
from .errors import ArgumentError, MismatchError
from .gradients import mismatch
from .overlap import Flight, GradientReducer


class ModuleReducer:
    """A `GradientReducer` for the parameters of a `torch.nn.Module`, told by torch when gradients are ready.

    `module` may also be a mapping from names to leaf tensors. Those that require a gradient now are reduced,
    each as soon as ``backward()`` has accumulated into its ``.grad`` (the hook that torch calls then is
    `torch.Tensor.register_post_accumulate_grad_hook`). There is one ``backward()`` and one `wait` a step, on
    all ranks; further backward passes of the step run within `no_sync`. Construction and `free` are
    collective.

    - `broadcast`: all ranks begin with parameters and buffers of rank 0. Later changes of buffers, such as
      the running means of a batch normalisation, stay each rank's own;
    - `views`: ``.grad`` lies in a bucket from the first step on, and nothing is copied, except where
      ``zero_grad()`` has thrown it away: keep it by ``zero_grad(set_to_none=False)``. Without, the memory of
      ``.grad`` is copied into its bucket, and the result back into it;
    - `unused`: "error", or "zero": a parameter without a part in this rank's backward pass adds what its
      ``.grad`` holds, or zero if that is None;
    - all other options are those of `GradientReducer`.

    Parameters on a CUDA device need CuPy, and MPI_THREAD_SERIALIZED, as torch calls hooks in a thread of its
    own there.

    Raises `ArgumentError` and `MismatchError` on all ranks alike on construction. A rank that fails later
    tells the others, as one of `GradientReducer` does.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        module: Any,
        *,
        broadcast: bool = True,
        views: bool = False,
        unused: str = "error",
        **options: Any,
    ) -> None:
        self._views, self._unused = views, unused
        self._parameters = _begin_alike(comm, module, broadcast)
        # Of the gradients' shapes and types. Only read: `ready` is told where each gradient lies.
        arrays = {name: array_of(name, tensor) for name, tensor in self._parameters.items()}
        self._reducer = GradientReducer(comm, arrays, views=views, unused=unused, **options)
        self._seen: set[str] = set()  # names of gradients that were ready in this step
        self._slots: dict[str, Any] = self._fetch_slots() if views else {}
        self._hooks = [
            tensor.register_post_accumulate_grad_hook(partial(self._ready, name))
            for name, tensor in self._parameters.items()
        ]

    def _fetch_slots(self) -> dict[str, Any]:
        """The gradients' places in the buckets, as tensors."""
        import torch

        return {
            name: torch.as_tensor(self._reducer.gradients[name], device=tensor.device)
            for name, tensor in self._parameters.items()
        }

    def _ready(self, name: str, parameter: Any) -> None:
        """The hook: `backward` has accumulated a gradient."""
        if not self._reducer._syncing:
            return
        with self._reducer._telling():
            gradient = None if self._views else array_of(name, parameter.grad)
            if self._views:
                self._into_slot(name, parameter)
        with _stream_of(parameter):
            self._reducer.ready(name, gradient)
        self._seen.add(name)

    def _into_slot(self, name: str, parameter: Any) -> None:
        slot = self._slots[name]
        if parameter.grad is not slot:  # in the first step, and after zero_grad() to None
            parameter.grad = slot.copy_(parameter.grad.detach())

    def wait(self) -> None:
        """Wait until every ``.grad`` holds the average; after ``backward()``, before the optimizer's step.

        Raises `ArgumentError`, naming them, if parameters had no part in the backward pass on this rank, and
        `RevokedError`, naming them, if they had none on another.
        """
        reducer = self._reducer
        if not reducer._syncing:
            return
        with _stream_of(next(iter(self._parameters.values()))):
            self._settle_unused()
            rebuilt = reducer._rebuilt
            reducer.wait()
        self._seen.clear()
        if self._views and not rebuilt:
            self._slots = self._fetch_slots()
            for name, parameter in self._parameters.items():
                parameter.grad = self._slots[name]

    def _settle_unused(self) -> None:
        missing = [name for name in self._parameters if name not in self._seen]
        if missing and self._unused == "error":
            with self._reducer._telling():
                raise ArgumentError(
                    f"{len(missing)} of {len(self._parameters)} parameters had no part in the backward pass "
                    f"of rank {self._reducer._comm.rank}: {listed(missing)}; if that is meant, "
                    "give unused='zero'"
                )
        for name in missing:
            parameter = self._parameters[name]
            if parameter.grad is None:
                parameter.grad = parameter.new_zeros(parameter.shape)
            self._ready(name, parameter)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The buckets, in the order in which they are expected to be full."""
        return self._reducer.buckets

    @property
    def flights(self) -> list[Flight]:
        """When each bucket of the last step travelled."""
        return self._reducer.flights

    def no_sync(self) -> AbstractContextManager[None]:
        """Within: `backward` accumulates on this rank alone, and `wait` does nothing. On all ranks alike."""
        return self._reducer.no_sync()

    def free(self) -> None:
        """Take the hooks off, and free the reducer. Collective; not in the middle of a step."""
        self.__exit__(None, None, None)

    def __enter__(self) -> ModuleReducer:
        """Within: an exception on this rank is told to the others, who wait for its gradients."""
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """Free the reducer, or give it up."""
        for hook in self._hooks:
            hook.remove()
        self._reducer.__exit__(kind, error, traceback)


def array_of(name: str, tensor: Any) -> Any:
    """A tensor's own memory as an array of NumPy or CuPy.

    Raises `ArgumentError` where there is none: for a sparse tensor, bfloat16, another device.
    """
    try:
        return device.asarray(tensor.detach()) if tensor.is_cuda else tensor.detach().numpy()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        what = f"{name!r} ({tensor.dtype}, {tensor.layout}, {tensor.device})"
        raise ArgumentError(
            f"{what} cannot be reduced, as it is no array of NumPy or CuPy: {error}"
        ) from error


def _begin_alike(comm: MPI.Intracomm, module: Any, broadcast: bool) -> dict[str, Any]:
    """The parameters to be reduced, after a check that all ranks gave the same tensors. Collective."""
    tensors: dict[str, Any] = {}
    facts: tuple[Parameter, ...] = ()
    error: Exception | None = None
    try:
        tensors = _tensors(module)
        facts = tuple(_fact(name, tensor) for name, tensor in tensors.items())
    except Exception as caught:  # of a module that is anything: the others are waiting
        error = caught
    ours = Comm(comm)
    try:
        agreement = ours._planner.agreement
        agreement.begin()
        try:
            agreement.settle(("tensors", facts, broadcast), error)
        except MismatchError:
            raise MismatchError(mismatch(agreement.comm.allgather((facts, broadcast)))) from None
        for name, tensor in tensors.items() if broadcast else ():
            whole = tensor.detach().contiguous()  # a copy where its memory is in another order
            with _stream_of(tensor):
                ours.Bcast(array_of(name, whole), root=0)
            tensor.detach().copy_(whole)
    finally:
        ours.Free()
    return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


def _tensors(module: Any) -> dict[str, Any]:
    """What ranks must have in common. Raises `ArgumentError` if it cannot be reduced."""
    if isinstance(module, Mapping):
        tensors = dict(module)
    else:
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    trained = [name for name, tensor in tensors.items() if tensor.requires_grad]
    if not trained:
        raise ArgumentError(f"none of {len(tensors)} tensors requires a gradient")
    if len({id(tensors[name]) for name in trained}) < len(trained):
        raise ArgumentError("a parameter has two names: give it one, as its gradient is ready once")
    inner = [name for name in trained if not tensors[name].is_leaf]
    if inner:
        raise ArgumentError(f"not leaves of the graph, so that torch keeps no gradient: {listed(inner)}")
    if any(tensors[name].is_cuda for name in trained) and MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ArgumentError(
            "torch calls hooks of device memory in its own thread: set mpi4py.rc.thread_level"
        )
    return tensors


def _fact(name: str, tensor: Any) -> Parameter:
    array_of(name, tensor)
    dtype = str(tensor.dtype)
    return Parameter(name, tuple(tensor.shape), dtype, dtype, tensor.element_size())


def _stream_of(tensor: Any) -> AbstractContextManager[Any]:
    """Within: what is queued on a device goes to torch's current stream, behind what made the tensor."""
    if not tensor.is_cuda:
        return nullcontext()
    import torch

    stream: AbstractContextManager[Any] = device.foreign_stream(
        torch.cuda.current_stream(tensor.device).cuda_stream
    )
    return stream
