"""A small but true neural network, trained in NumPy: what `mpicoll overlap` hides communication behind.

Every rank has its own part of each batch. A gradient is announced as soon as the backward pass has
computed it, from the last layer to the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

clock = time.perf_counter
RATE = 0.02  # of learning
HELD_BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")  # by `mpicoll.bench`


class Span(NamedTuple):
    """Something the program did, from `begin` to `end` [s of `time.perf_counter`]."""

    name: str
    begin: float
    end: float


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
    step but what NumPy needs for itself.
    """

    def __init__(self, shape: Shape, parameters: Mapping[str, Any], data: tuple[Any, Any]) -> None:
        self.shape = shape
        self.parameters = {name: array.copy() for name, array in parameters.items()}
        self.inputs, self.targets = data
        rows = self.inputs.shape
        self._outputs = [np.zeros(rows, shape.dtype) for _ in range(shape.layers)]
        self._deltas = [np.zeros(rows, shape.dtype) for _ in range(2)]
        self.loss = float("nan")
        self.spans: list[Span] = []

    def step(
        self, gradients: Mapping[str, Any], ready: Callable[[str], None], wait: Callable[[], None]
    ) -> None:
        """Forward, backward, and, after `wait`, the update; `spans` tells when."""
        self.spans = []
        begin = clock()
        self._forward()
        begin = self._note("forward", begin)
        for layer in reversed(range(self.shape.layers)):
            self._gradients_of(layer, gradients)
            begin = self._note(f"backward {layer}", begin)
            ready(f"b{layer}")
            ready(f"w{layer}")
            begin = self._note(f"ready {layer}", begin)
            if layer:
                self._pass_on(layer)
                begin = self._note(f"backward {layer}", begin)
        wait()
        begin = self._note("wait", begin)
        for name, parameter in self.parameters.items():
            parameter -= RATE * gradients[name]
        self._note("update", begin)

    def _note(self, name: str, begin: float) -> float:
        end = clock()
        self.spans.append(Span(name, begin, end))
        return end

    def _forward(self) -> None:
        below, last = self.inputs, self.shape.layers - 1
        for layer, output in enumerate(self._outputs):
            np.matmul(below, self.parameters[f"w{layer}"], out=output)
            output += self.parameters[f"b{layer}"]
            if layer < last:
                np.tanh(output, out=output)
            below = output
        delta = self._deltas[0]
        np.subtract(below, self.targets, out=delta)
        self.loss = 0.5 * float(np.vdot(delta, delta)) / self.shape.batch  # mean over rows
        delta /= self.shape.batch

    def _gradients_of(self, layer: int, gradients: Mapping[str, Any]) -> None:
        below = self._outputs[layer - 1] if layer else self.inputs
        delta = self._deltas[0]
        np.sum(delta, axis=0, out=gradients[f"b{layer}"])
        np.matmul(below.T, delta, out=gradients[f"w{layer}"])

    def _pass_on(self, layer: int) -> None:
        """The gradient of the layer below, through the derivative of tanh."""
        delta, next_delta = self._deltas
        np.matmul(delta, self.parameters[f"w{layer}"].T, out=next_delta)
        output = self._outputs[layer - 1]
        np.multiply(output, output, out=delta)
        np.subtract(1, delta, out=delta)
        next_delta *= delta
        self._deltas.reverse()
