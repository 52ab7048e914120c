"""ModuleReducer: torch's own result on the undivided batch, on every rank; misuse is heard of by all."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import mpicoll
from mpicoll.pytorch import ModuleReducer

from .support import WORLD, same_everywhere

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn
torch.set_num_threads(1)

pytestmark = pytest.mark.ranks(1, 2, 3, 4)
SIZE, RANK = WORLD.size, WORLD.rank
ROWS = 12  # of the undivided batch: as many on each rank
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA device")
    ),
]
views = pytest.mark.parametrize("views", [False, True], ids=["copied", "views"])


def network(seed: int = 0, device: str = "cpu") -> Any:
    torch.manual_seed(seed)
    layers = [nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 2)]
    return nn.Sequential(*layers).double().to(device)


def mine(batch: Any) -> Any:
    """This rank's rows of a batch."""
    return batch[RANK * ROWS // SIZE : (RANK + 1) * ROWS // SIZE]


def batch(step: int, device: str = "cpu") -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100 + step)
    rows, targets = (torch.randn(ROWS, n, dtype=torch.double, generator=generator) for n in (5, 2))
    return rows.to(device), targets.to(device)


class Branches(nn.Module):
    """Exact arithmetic: a gradient is the sum of the integers that its parameter was multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.ones(50))
        self.spare = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.tensor(0))

    def run(self, factor: float, *, spare: bool = True) -> None:
        """Forward and backward: adds `factor` to every gradient that takes part."""
        loss = (self.used * factor).sum()
        (loss + (self.spare * factor).sum() if spare else loss).backward()


@views
@pytest.mark.parametrize("to_none", [True, False], ids=["to-none", "to-zero"])
@pytest.mark.parametrize("device", DEVICES)
def test_training_is_that_on_the_undivided_batch(views: bool, to_none: bool, device: str) -> None:
    """Up to the order in which ROWS rows are summed, of numbers about 1: 2e-16 a sum, over a few layers."""
    model = network(RANK, device)  # other parameters on each rank, until they are broadcast
    whole = network(0, device)
    loss = nn.MSELoss()
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, whole))
    with ModuleReducer(WORLD, model, views=views, bucket_bytes=200) as reducer:
        assert len(reducer.buckets) > 2
        for step in range(4):
            rows, targets = batch(step, device)
            ours.zero_grad(set_to_none=to_none)
            theirs.zero_grad()
            loss(model(mine(rows)), mine(targets)).backward()
            reducer.wait()
            loss(whole(rows), targets).backward()
            for parameter, expected in zip(model.parameters(), whole.parameters(), strict=True):
                torch.testing.assert_close(parameter.grad, expected.grad, rtol=0, atol=1e-13)
                same_everywhere(parameter.grad.cpu().numpy())
            ours.step()
            theirs.step()
            for parameter, expected in zip(model.parameters(), whole.parameters(), strict=True):
                torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-13)
                same_everywhere(parameter.detach().cpu().numpy())
            assert sorted(flight.bucket for flight in reducer.flights) == list(range(len(reducer.buckets)))
    assert {name[0] for name in reducer._reducer.order[:2]} == {"4"}  # as torch's backward pass came to them


@pytest.fixture
def gloo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's own process group of these ranks."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as name:
        store = WORLD.bcast(f"file://{name}/store", root=0)
        torch.distributed.init_process_group("gloo", init_method=store, rank=RANK, world_size=SIZE)
        yield
        torch.distributed.destroy_process_group()
        WORLD.Barrier()  # the folder is rank 0's


@views
def test_gradients_are_those_of_distributed_data_parallel(views: bool, gloo: None) -> None:
    """Bit for bit on two ranks: there is one sum, and halves are exact. On more, sums have another order."""
    model, theirs = network(0), nn.parallel.DistributedDataParallel(network(0))
    loss = nn.MSELoss()
    with ModuleReducer(WORLD, model, views=views, bucket_bytes=200) as reducer:
        for step in range(3):
            rows, targets = map(mine, batch(step))
            for each in (model, theirs):
                each.zero_grad()
                loss(each(rows), targets).backward()
            reducer.wait()
            for ours, other in zip(model.parameters(), theirs.module.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, other.grad, rtol=0, atol=0 if SIZE < 3 else 1e-14)


@views
def test_accumulation_without_synchronisation(views: bool) -> None:
    model = Branches()
    with ModuleReducer(WORLD, model, views=views) as reducer:
        for step in range(3):
            with reducer.no_sync():
                for part in range(2):
                    model.run(10 * RANK + part + step)
                    reducer.wait()  # does nothing
                assert (model.used.grad == 2 * (10 * RANK + step) + 1).all()
            model.run(10 * RANK + 2 + step)
            reducer.wait()
            expected = sum(3 * (10 * rank + step) + 3 for rank in range(SIZE)) / SIZE
            assert (model.used.grad == expected).all()
            assert (model.spare.grad == expected).all()
            model.zero_grad()


def test_views_are_the_buckets_memory() -> None:
    model = Branches()
    with ModuleReducer(WORLD, model, views=True) as reducer:
        for _ in range(2):
            model.run(1)
            reducer.wait()
        lies = {name: p.grad.data_ptr() for name, p in model.named_parameters()}
        assert lies == {name: array.ctypes.data for name, array in reducer._reducer.gradients.items()}
        for set_to_none in (False, True):
            model.zero_grad(set_to_none=set_to_none)
            model.run(RANK)
            reducer.wait()
            assert (model.used.grad == sum(range(SIZE)) / SIZE).all()
            assert {name: p.grad.data_ptr() for name, p in model.named_parameters()} == lies


def test_without_views_the_gradient_stays_where_it_was() -> None:
    model = Branches()
    model.run(0)
    lies = model.used.grad.data_ptr()
    with ModuleReducer(WORLD, model) as reducer:
        model.run(RANK)
        reducer.wait()
        assert (model.used.grad == sum(range(SIZE)) / SIZE).all()
        assert model.used.grad.data_ptr() == lies


@pytest.mark.parametrize("broadcast", [True, False])
def test_parameters_and_buffers_of_rank_0(broadcast: bool) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 2))
    model = model.to(memory_format=torch.channels_last)  # whose memory is in another order
    model[2].requires_grad_(False)
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values()):
            tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) + 10 * number + 1000 * RANK)
    before = copy.deepcopy(model.state_dict())
    reducer = ModuleReducer(WORLD, model, broadcast=broadcast)
    assert set(reducer._reducer.gradients) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    reducer.free()
    for name, tensor in model.state_dict().items():
        assert (tensor == before[name] - (1000 * RANK if broadcast else 0)).all(), name


@pytest.mark.parametrize("first", [True, False], ids=["first-step", "later"])
def test_unused_parameters_are_named_on_every_rank(first: bool) -> None:
    model, late = Branches(), SIZE - 1
    reducer = ModuleReducer(WORLD, model)
    if not first:
        model.run(1)
        reducer.wait()
    kind, message = mpicoll.RevokedError, f"rank {late} gave up .*'spare'"
    if late == RANK:
        kind, message = (
            mpicoll.ArgumentError,
            f"1 of 2 parameters .* of rank {late}: 'spare'; .*unused='zero'",
        )
    model.run(1, spare=late != RANK)
    with pytest.raises(kind, match=message):
        reducer.wait()
    with pytest.raises(mpicoll.MpicollError, match="gave up"):
        model.run(1)
    WORLD.Barrier()  # the user's communicator goes on working


@views
def test_unused_parameters_count_as_zero_if_wished(views: bool) -> None:
    model, late = Branches(), SIZE - 1
    with ModuleReducer(WORLD, model, views=views, unused="zero") as reducer:
        for _ in range(3):
            model.run(SIZE, spare=late != RANK)
            reducer.wait()
            assert (model.used.grad == SIZE).all()
            assert (model.spare.grad == SIZE - 1).all()
            assert (model.spare == 1).all()  # and no parameter was taken for a gradient
            model.zero_grad()
        with reducer.no_sync():
            model.run(2)
        model.run(2, spare=False)
        reducer.wait()
        assert (model.spare.grad == 2).all(), "what was accumulated before counts"


def test_exact_sums_half_the_bytes_and_a_mapping() -> None:
    tensors = {"a": torch.zeros(9, requires_grad=True), "b": torch.zeros((), requires_grad=True)}
    with ModuleReducer(WORLD, tensors, average=False, wire_dtype="float16") as reducer:
        (tensors["a"].sum() * (RANK + 1) + tensors["b"]).backward()
        reducer.wait()
        assert reducer.buckets[0].itemsize == 2
    assert (tensors["a"].grad == SIZE * (SIZE + 1) // 2).all()
    assert tensors["b"].grad == SIZE


def backward_twice(reducer: ModuleReducer, model: Any) -> None:
    for _ in range(2):
        model.run(1, spare=False)  # so that the bucket is not full


def other_type(reducer: ModuleReducer, model: Any) -> None:
    model.double()
    model.run(1)


def error_in_between(reducer: ModuleReducer, model: Any) -> None:
    with reducer:
        raise ZeroDivisionError("in layer 2")


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (backward_twice, "became ready twice in a step; was wait"),
        (other_type, r"registered as .* <f4, not .* <f8"),
        (error_in_between, "in layer 2"),
    ],
)
def test_misuse_on_one_rank_is_heard_of_by_the_others(misuse: Any, message: str) -> None:
    model = Branches()
    reducer = ModuleReducer(WORLD, model)
    if RANK == 0:
        with pytest.raises((mpicoll.ArgumentError, ZeroDivisionError), match=message):
            misuse(reducer, model)
    else:
        model.run(1)
        with pytest.raises(mpicoll.RevokedError, match=f"rank 0 gave up .*{message}"):
            reducer.wait()
    WORLD.Barrier()


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(4, 3, sparse=True)
    reducer = ModuleReducer(WORLD, model)
    with pytest.raises(mpicoll.MpicollError, match=r"'weight' .*sparse.* cannot be reduced"):
        model(torch.tensor([1])).sum().backward()
    del reducer
    WORLD.Barrier()


def frozen() -> Any:
    return nn.Linear(2, 2).requires_grad_(False)


def lazy() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that lazy modules are new
        return nn.LazyLinear(2)


def twice() -> Any:
    tensor = torch.zeros(2, requires_grad=True)
    return {"a": tensor, "b": tensor}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (frozen, {}, "none of 2 tensors requires a gradient"),
        (twice, {}, "a parameter has two names"),
        (lambda: {"a": torch.ones(2, requires_grad=True) * 2}, {}, "not leaves of the graph.*'a'"),
        (lambda: nn.Linear(2, 2).bfloat16(), {}, r"'weight' \(torch.bfloat16.* cannot be reduced"),
        (lazy, {}, "uninitialized"),
        (lambda: 5, {}, "named_parameters"),
        (Branches, {"unused": "ignore"}, '"error" or "zero"'),
        (Branches, {"views": True, "wire_dtype": "f2"}, "no wire_dtype with views"),
    ],
    ids=["frozen", "twice", "not-leaf", "bfloat16", "lazy", "no-module", "unused", "wire"],
)
def test_wrong_arguments_are_refused_on_all_ranks(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((mpicoll.MpicollError, AttributeError, RuntimeError), match=message):
        ModuleReducer(WORLD, make(), **options)
    if SIZE > 1:  # on one rank only
        told = message if RANK == 0 else f"rank 0 refused.*{message}"
        with pytest.raises((mpicoll.MpicollError, AttributeError, RuntimeError), match=told):
            ModuleReducer(WORLD, make() if RANK == 0 else Branches(), **(options if RANK == 0 else {}))


def test_ranks_with_other_modules_are_told_which() -> None:
    if SIZE == 1:
        pytest.skip("one rank agrees with itself")
    message = r"number 0 is 'weight' \(2, 2\) torch.float32 on rank 0, 'weight' \(2, 3\) .* on rank 1"
    with pytest.raises(mpicoll.MismatchError, match=message):
        ModuleReducer(WORLD, nn.Linear(2 + RANK, 2))
    with pytest.raises(mpicoll.MismatchError, match="options differ"):
        ModuleReducer(WORLD, nn.Linear(2, 2), broadcast=bool(RANK))


def test_free_takes_the_hooks_off() -> None:
    model = Branches()
    reducer = ModuleReducer(WORLD, model)
    reducer.free()
    model.run(RANK)
    assert (model.used.grad == RANK).all()
