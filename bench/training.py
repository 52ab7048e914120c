"""A small but true neural network in NumPy or CuPy: what `mpicoll overlap` hides communication behind.

Every rank has its own part of each batch. A gradient is announced as soon as the backward pass has
computed it (on a device: has queued the kernels that do), from the last layer to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mpicoll.bench.places import Host, Span, spans

RATE = 0.02  # of learning
BLOCKS = 3  # of rows in which the gradient of a layer's weights is computed
HELD_BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")  # by `mpicoll.bench`


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers of equal width, and the rows of a batch on each rank."""

    layers: int
    width: int
    batch: int
    dtype: str = "float32"

    @property
    def parameters(self) -> int:
        """Number of weights and biases."""
        return self.layers * self.width * (self.width + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return self.parameters * np.dtype(self.dtype).itemsize

    @property
    def flops(self) -> int:
        """Useful floating-point operations of a step on one rank: the products of matrices.

        One forward and one for the weights' gradients in each layer, and one more in all but the first.
        """
        product = 2 * self.batch * self.width * self.width
        return product * (3 * self.layers - 1)


def names(shape: Shape) -> list[str]:
    """The parameters, in the order of the forward pass."""
    return [f"{kind}{layer}" for layer in range(shape.layers) for kind in ("w", "b")]


def draw_parameters(shape: Shape, seed: int) -> dict[str, Any]:
    """The same on every rank: weights that keep the variance of what passes through, biases of zero."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for layer in range(shape.layers):
        weights = rng.standard_normal((shape.width, shape.width)) / np.sqrt(shape.width)
        found[f"w{layer}"] = weights.astype(shape.dtype)
        found[f"b{layer}"] = np.zeros(shape.width, shape.dtype)
    return found


def draw_data(shape: Shape, seed: int, rank: int) -> tuple[Any, Any]:
    """This rank's inputs, and what the network should make of them: a linear map, squashed."""
    rng = np.random.default_rng((seed, rank))
    teacher = np.random.default_rng(seed + 1).standard_normal((shape.width, shape.width))
    inputs = rng.standard_normal((shape.batch, shape.width))
    targets = np.tanh(inputs @ teacher / np.sqrt(shape.width))
    return inputs.astype(shape.dtype), targets.astype(shape.dtype)


class Network:
    """A multilayer perceptron: ``tanh`` in the hidden layers, none in the last; half the squared error.

    `gradients` are written, never replaced, so that they may be views of buckets. Nothing is allocated in a
    step but what NumPy needs for itself. On a device nothing waits for it until the step is over.
    """

    def __init__(
        self,
        shape: Shape,
        parameters: Mapping[str, Any],
        data: tuple[Any, Any],
        place: Host | None = None,
    ) -> None:
        self.shape = shape
        self.place = place or Host()
        xp = self._xp = self.place.xp
        with self.place.stream():
            self.parameters = {name: xp.array(array) for name, array in parameters.items()}
            self.inputs, self.targets = (xp.asarray(array) for array in data)
            rows = self.inputs.shape
            self._outputs = [xp.zeros(rows, shape.dtype) for _ in range(shape.layers)]
            self._deltas = [xp.zeros(rows, shape.dtype) for _ in range(2)]
            self.place.finish()
        edges = [shape.width * k // BLOCKS for k in range(BLOCKS + 1)]
        self.blocks = [slice(low, high) for low, high in pairwise(edges) if low < high]  # of rows of weights
        self._squares: Any = float("nan")  # the squared error of the last step, summed
        self.spans: list[Span] = []  # what the program did in the last step
        self.kernels: list[Span] = []  # what the device did, if there is one

    @property
    def loss(self) -> float:
        """Of the last step, before its update: half the squared error, mean over rows."""
        return 0.5 * float(self._squares) / self.shape.batch

    def step(
        self,
        gradients: Mapping[str, Any],
        ready: Callable[..., None],
        arriving: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """Forward, backward, and the update; `spans` and `kernels` tell when.

        `ready(name)` is called for each bias' gradient, and for weights' `ready(name, rows=slice)` as soon as
        those rows are there. `arriving()` yields names of gradients as they become final, to be used at once.
        """
        place = self.place
        with place.stream():
            marks = [place.mark("")]
            self._forward()
            marks.append(place.mark("forward"))
            for layer in reversed(range(self.shape.layers)):
                self._gradients_of(layer, gradients, ready, marks)
                if layer:
                    self._pass_on(layer)
                    marks.append(place.mark(f"backward {layer}"))
            for name in arriving() if arriving else ():
                marks.append(place.mark("wait"))
                self._update(name, gradients)
                marks.append(place.mark("update"))
            marks.append(place.mark("wait"))
            if not arriving:
                for name in self.parameters:
                    self._update(name, gradients)
                marks.append(place.mark("update"))
            self.finish(marks)

    def finish(self, marks: list[Any]) -> None:
        """End a step: wait for the device, if there is one, and tell of it."""
        place = self.place
        if place.device:
            place.finish()
            marks.append(place.mark("synchronise"))
            place.finish()
        self.spans, self.kernels = spans(marks), place.kernels(marks)

    def _forward(self) -> None:
        xp, below, last = self._xp, self.inputs, self.shape.layers - 1
        for layer, output in enumerate(self._outputs):
            xp.matmul(below, self.parameters[f"w{layer}"], out=output)
            output += self.parameters[f"b{layer}"]
            if layer < last:
                xp.tanh(output, out=output)
            below = output
        delta = self._deltas[0]
        xp.subtract(below, self.targets, out=delta)
        self._squares = xp.vdot(delta, delta)
        delta /= self.shape.batch

    def _gradients_of(
        self, layer: int, gradients: Mapping[str, Any], ready: Callable[..., None], marks: list[Any]
    ) -> None:
        """The gradients of a layer; those of its weights in blocks of rows, which can leave one by one."""
        below = self._outputs[layer - 1] if layer else self.inputs
        delta, weights = self._deltas[0], gradients[f"w{layer}"]
        self._xp.sum(delta, axis=0, out=gradients[f"b{layer}"])
        marks.append(self.place.mark(f"backward {layer}"))
        ready(f"b{layer}")
        marks.append(self.place.mark(f"ready b{layer}"))
        for number, rows in enumerate(self.blocks):
            self._xp.matmul(below.T[rows], delta, out=weights[rows])
            marks.append(self.place.mark(f"backward {layer}"))
            ready(f"w{layer}", rows=rows)
            marks.append(self.place.mark(f"ready w{self._block(layer, number)}"))

    def filled(self, name: str, stop: int) -> str:
        """What is ready when the first `stop` elements of a gradient are.

        "w3.0" stands for the first block of rows of w3, the name alone for all of it.
        """
        if name[0] != "w":
            return name
        number = next(n for n, rows in enumerate(self.blocks) if rows.stop * self.shape.width >= stop)
        return f"w{self._block(int(name[1:]), number)}"

    def _block(self, layer: int, number: int) -> str:
        return f"{layer}.{number}" if number < len(self.blocks) - 1 else str(layer)

    def _update(self, name: str, gradients: Mapping[str, Any]) -> None:
        parameter = self.parameters[name]
        parameter -= RATE * gradients[name]

    def _pass_on(self, layer: int) -> None:
        """The gradient of the layer below, through the derivative of tanh."""
        xp, (delta, next_delta) = self._xp, self._deltas
        xp.matmul(delta, self.parameters[f"w{layer}"].T, out=next_delta)
        output = self._outputs[layer - 1]
        xp.multiply(output, output, out=delta)
        xp.subtract(1, delta, out=delta)
        next_delta *= delta
        self._deltas.reverse()
