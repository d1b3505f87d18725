"""A run on a device: all its tensors are there, and no operation mixes them with tensors on the CPU.

Tested on a simulated device, for machines without a GPU: the numbers stay in the CPU's memory, and tensors that were
moved to `cuda` are marked. An operation on marked and unmarked tensors is an error, as it would be on a GPU.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import zeno
from support.oracle import FakeOracle
from zeno.faults import FAULTS
from zeno.problem import tasks
from zeno.records.folder import MODEL_FILE
from zeno.rules import PARTS, PRE_AGGREGATORS, Arrivals
from zeno.rules.linalg.sketch import signs_of
from zeno.server.core import Step
from zeno.server.engine import Engine
from zeno.server.samples import DatasetSamples
from zeno.training.settings import make_fault, make_rule

CUDA = torch.device("cuda", 0)
DEVICE, IS_CUDA = (vars(torch._C.TensorBase)[name].__get__ for name in ("device", "is_cuda"))
aten = torch.ops.aten
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
NO_SCALARS = {aten.stack.default, aten.cat.default, aten.mm.default, aten.mv.default, aten.dot.default}


class Marks:
    """Which memory is on the device. Held by weak references, so that no other memory can be taken for it."""

    def __init__(self) -> None:
        self._marked: dict[int, StorageWeakRef] = {}
        self.mixed: list[str] = []  # operations on tensors of both devices

    def has(self, tensor: Tensor) -> bool:
        try:
            return tensor.untyped_storage()._cdata in self._marked
        except (NotImplementedError, RuntimeError):  # of torch.func, which has no storage
            return False

    def put(self, result: Any, there: bool = True) -> Any:
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            if there:
                self._marked[storage._cdata] = StorageWeakRef(storage)
            else:
                self._marked.pop(storage._cdata, None)
        if len(self._marked) > 20_000:
            self._marked = {key: ref for key, ref in self._marked.items() if not ref.expired()}
        return result

    def raise_mixed(self, text: str) -> None:
        self.mixed.append(text)
        raise RuntimeError(f"Expected all tensors to be on the same device: {text}")


def tensors_in(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


class Meetings(TorchDispatchMode):
    """What is computed from something on the device is there too; it may not meet what is not.

    As on a GPU, indices may come from the CPU, and so may single numbers; copies may go from one to the other.
    """

    def __init__(self, marks: Marks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.marks = marks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.copy_.default:
            return func(*args, **kwargs)
        meeting = tensors_in((args, kwargs))
        if func in INDEXED:
            meeting = [t for t in meeting if self.marks.has(t) or all(t is not i for i in tensors_in(args[1]))]
        there = [self.marks.has(t) for t in meeting]
        if any(there):
            writes = func._schema.is_mutable
            for i, (tensor, marked) in enumerate(zip(meeting, there, strict=True)):
                single = tensor.ndim == 0 and func not in NO_SCALARS and not (writes and i == 0)
                if not marked and not single:
                    self.marks.raise_mixed(
                        f"{func} of {[(list(t.shape), m) for t, m in zip(meeting, there, strict=True)]}"
                    )
        result = func(*args, **kwargs)
        return self.marks.put(result) if any(there) else result


class Device(TorchFunctionMode):
    """Takes `cuda` in calls of torch for what it is here: a mark."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == IS_CUDA:
            return self.marks.has(args[0])
        if func in (DEVICE, Tensor.numpy, Tensor.__array__) and self.marks.has(args[0]):
            if func == DEVICE:
                return CUDA
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if func is Tensor.cpu:
            return self._moved(args[0], False)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        device = kwargs.pop("device", None)
        result = func(*args, **kwargs)
        return result if device is None else self.marks.put(result, there=torch.device(device).type == "cuda")

    def _to(self, tensor: Tensor, *wanted: Any, **named: Any) -> Tensor:
        """Of a device, a dtype, both, or as another tensor; other arguments do not matter here."""
        there = self.marks.has(tensor)
        for one in (*wanted, *named.values()):
            if isinstance(one, torch.dtype | Tensor):
                tensor = tensor.type(one if isinstance(one, torch.dtype) else one.dtype)
            if isinstance(one, str | torch.device | Tensor):
                there = self.marks.has(one) if isinstance(one, Tensor) else torch.device(one).type == "cuda"
        return self._moved(tensor, there)

    def _moved(self, tensor: Tensor, there: bool) -> Tensor:
        return tensor if self.marks.has(tensor) == there else self.marks.put(tensor.detach().clone(), there)


@contextmanager
def cuda() -> Iterator[Marks]:
    """A device that is none."""
    own, marks = torch.Generator(), Marks()
    signs_of.cache_clear()  # those of another such device are here
    with ExitStack() as stack:
        for name, value in {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "default_generators": (own,),
            "get_rng_state": lambda device: own.get_state(),
            "set_rng_state": lambda state, device: own.set_state(state),
        }.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(Device(marks))
        stack.enter_context(Meetings(marks))
        yield marks
    assert marks.mixed == []


SMALL = zeno.Run(workers=7, batch_size=8, steps=2, eval_every=2, eval_samples=20, faulty=1, fault=zeno.NonFinite())
RULES = [*(f"{name}+mean" if name in PRE_AGGREGATORS else name for name in PARTS), "zeno_auto"]
TOLD = {"clip+mean": "clip(norm=1.0)+mean", "centered_clipping": "centered_clipping(radius=0.5)"}
"""What a rule cannot do without, or would do nothing without."""


def on_cuda(**changed: Any) -> zeno.ExecutionSettings:
    return zeno.ExecutionSettings(device="cuda", **changed)


def trained_there(run: zeno.Run) -> list[zeno.Record]:
    """The records of a run on the device, after a look at where everything is."""
    step = Engine.step

    def looking(self: Engine, number: int, skip: Collection[int] = ()) -> Step:
        outcome = step(self, number, skip)
        assert isinstance(self.core.samples, DatasetSamples)
        dataset = self.core.samples.dataset
        assert self.core.candidates is not None
        data = [dataset.inputs, dataset.targets, *self.problem.buffers.values()]
        made = [] if outcome.aggregate is None else [one for one in outcome.aggregate if isinstance(one, Tensor)]
        assert {one.device for one in (self.params, self.problem.flat, self.core.candidates, *data, *made)} == {CUDA}
        return outcome

    with cuda(), patch.object(Engine, "step", looking):
        return zeno.train(run, execution=on_cuda())


def test_the_simulated_device_raises_where_a_gpu_would() -> None:
    with cuda() as marks:
        here, there = torch.ones(3), torch.ones(3).to("cuda")
        assert {one.device for one in (here, there.cpu(), torch.zeros(2), there.to("cpu"))} == {torch.device("cpu")}
        made = (there + 1, there[:2], there.double(), there.new_zeros(2), torch.zeros(2, device=there.device))
        assert {one.device for one in (there, here.to(there), *made)} == {CUDA}
        for allowed in (
            lambda: there[torch.tensor([0, 2])],
            lambda: there * torch.tensor(2.0),
            lambda: there.copy_(here),
            lambda: there.sum().item(),
            lambda: there.cpu().numpy(),
        ):
            allowed()
        mixed: list[Callable[[], object]] = [
            lambda: there + here,
            lambda: here * there.sum(),
            lambda: here[there.long()],
            lambda: torch.stack([there.sum(), here.sum()]),
            lambda: torch.mv(torch.ones(2, 3), there),
            lambda: there.where(here > 0, 0),
            lambda: torch.add(there, there, out=here),
            lambda: there.index_put_((torch.tensor([0, 1]),), here[:2]),
        ]
        for one in mixed:
            with pytest.raises(RuntimeError, match="on the same device"):
                one()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert len(marks.mixed) == len(mixed)
        marks.mixed.clear()


@pytest.mark.parametrize("name", RULES)
def test_every_rule_works_on_the_device(name: str) -> None:
    rule = make_rule(TOLD.get(name, name), defaults={"trim": 1})
    run = replace(SMALL, rule=rule)
    assert trained_there(run) == zeno.train(run)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_works_on_the_device(name: str) -> None:
    run = replace(SMALL, fault=make_fault(name), rule=zeno.TrimmedMean(trim=2), faulty=2)
    records = trained_there(run)
    assert records == zeno.train(run)
    assert all(record.skipped is None for record in records)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "small_cnn", "steps": 2, "workers": 3, "rule": zeno.Zeno(trim=1)},
        {"rule": zeno.Zeno(trim=2, score="first_order")},
        {"rule": zeno.ZenoAuto(samples=8), "fault": zeno.SignFlip(), "workers": 3},
        {"split": zeno.ByLabel(), "server_data": 0.1},
        {"split": zeno.Dirichlet()},
        {"optimizer": "adam", "schedule": "steplr(step_size=1)", "lr": 0.01},
        {"rule": zeno.Krum(faulty=0), "faulty": 1},
    ],
    ids=["batch norm and dropout", "first order", "auto", "by label", "dirichlet", "adam", "a skipped step"],
)
def test_other_settings_of_a_run_work_on_the_device(change: dict[str, Any]) -> None:
    run = replace(SMALL, **{"rule": zeno.Zeno(trim=2), **change})
    assert trained_there(run) == zeno.train(run)


def test_a_loss_with_weights_moves_to_the_device() -> None:
    def task() -> zeno.Task:
        return replace(tasks.load_task("digits"), loss=nn.CrossEntropyLoss(weight=torch.arange(10) + 1.0))

    assert trained_there(replace(SMALL, task=task())) == zeno.train(replace(SMALL, task=task()))


@pytest.mark.parametrize("devices", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")], ids=" to ".join)
@pytest.mark.parametrize(
    "change",
    [
        {"rule": zeno.CenteredClipping(radius=0.5), "optimizer": "sgd(momentum=0.9)", "fault": zeno.Replay()},
        {"rule": zeno.ZenoAuto(samples=8), "optimizer": "adam", "lr": 0.01, "workers": 3},
    ],
    ids=["centered clipping", "zeno_auto"],
)
def test_a_checkpoint_can_be_resumed_on_another_device(
    tmp_path: Path, devices: tuple[str, str], change: dict[str, Any]
) -> None:
    run = replace(SMALL, steps=3, **change)
    with cuda():
        first, second = (zeno.ExecutionSettings(device=device) for device in devices)
        zeno.train(replace(run, steps=2), tmp_path, execution=first)
        records = zeno.train(run, tmp_path, execution=second, resume=True)
    assert records[2:] == zeno.train(run)[2:]
    weights = safetensors.torch.load_file(tmp_path / MODEL_FILE)
    assert {weight.device.type for weight in weights.values()} == {"cpu"}


def test_arrivals_stay_on_the_device() -> None:
    with cuda():
        oracle = FakeOracle(lambda rows: rows.sum(dim=1))
        arrivals = Arrivals(zeno.Zeno(trim=1, rho=0), 3, oracle, torch.zeros(5).to("cuda"))
        for worker, number in enumerate((2.0, -1.0, 4.0)):
            arrivals.add(worker, torch.full((5,), number).to("cuda"))
        found = arrivals.result()
        assert {one.device for one in found if isinstance(one, Tensor)} == {CUDA}
    assert found.update.tolist() == [3.0] * 5
    assert found.kept.tolist() == [True, False, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_device_raises_at_once() -> None:
    with pytest.raises(
        ValueError,
        match=r"A run on a GPU needs a CUDA device. Found device='cuda', and torch finds none. Set device to cpu",
    ):
        zeno.ExecutionSettings(device="cuda")


@pytest.mark.parametrize("text", ["gpu", "", "cuda:", "cuda:x", "cpu:0", "mps", "meta", "CUDA"])
def test_an_unknown_device_raises_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=f"The setting device must be .*cpu, or cuda.* Found device='{text}'"):
        zeno.ExecutionSettings(device=text)


def test_a_device_needs_its_number_and_workers_in_this_process() -> None:
    with cuda():
        with pytest.raises(ValueError, match=r"Found device='cuda:1', and the last CUDA device is cuda:0."):
            zeno.ExecutionSettings(device="cuda:1")
        with pytest.raises(ValueError, match=r"Workers of a Ray cluster compute on the CPU. Found device='cuda'"):
            on_cuda(cluster="ray")
        assert on_cuda().to_toml() == 'device = "cuda"\n'


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rule", ["zeno", "zeno_auto", "centered_clipping", "median", "krum"])
def test_a_gpu_gives_the_same_results_as_the_cpu(rule: str, tmp_path: Path) -> None:
    run = replace(SMALL, rule=make_rule(rule, defaults={"trim": 2}), steps=8, batch_size=50)
    zeno.train(replace(run, steps=4), tmp_path, execution=on_cuda())
    there, here = zeno.train(run, tmp_path, execution=on_cuda(), resume=True), zeno.train(run)
    assert [record.kept for record in there] == [record.kept for record in here]
    assert there[-1].train_loss == pytest.approx(here[-1].train_loss, rel=1e-3)
