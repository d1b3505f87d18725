"""Properties that all faults share."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zeno
from support.fake_cluster import DIED, ROWS, D, FakeCluster, M, normal
from zeno.problem.registry import describe
from zeno.training.settings import make_fault
from zeno.workers.worker import Worker

OWN_PARAMETERS = {
    "label_noise": "share=0.5",
    "feature_noise": "sigma=0.5",
    "backdoor": "label=3, size=2, share=0.25, value=2.0",
    "sign_flip": "scale=10.0",
    "gaussian": "sigma=2.0",
    "huge": "value=1e+20",
    "replay": "every=3",
    "random_bits": "words=7, bits=2",
    "alie": "z=1.5",
    "inner_product": "eps=0.1",
    "min_max": "direction='sign'",
    "min_sum": "direction='unit'",
    "slow": "steps=3",
    "pulse": "every=3, scale=2.0",
    "fang": "against='krum'",
    "cancelling_offsets": "strength=3.0",
    "stale": "age=3",
    "flood": "speed=30.0, sends='inner_product'",
}
SCHEDULED = "on=2, start=1, end=9, chance=0.5, redraw=True"


@pytest.mark.parametrize("name", zeno.FAULTS)
def test_the_description_of_a_fault_parses_to_an_equal_one(name: str) -> None:
    own = OWN_PARAMETERS.get(name, "")
    for parameters in ("", own, SCHEDULED, f"{own}, {SCHEDULED}" if own else SCHEDULED):
        text = f"{name}({parameters})" if parameters else name
        fault = make_fault(text)
        assert type(fault) is zeno.FAULTS[name]
        assert describe(fault, zeno.FAULTS) == text
        both = f"{text}+zero"
        assert describe(make_fault(both), zeno.FAULTS) == both
        assert make_fault(both) == fault + zeno.Zero()
        run = zeno.Run(fault=fault + zeno.Zero(), faulty=4, rule=zeno.Mean())
        assert f'fault = "{both}"' in run.to_toml()


ON_DATA = {"label_flip", "label_noise", "feature_noise", "backdoor"}
NO_NUMBERS = {"crash", "hang", "slow", "garbage"}
AT_FIRST_CORRECT = {"replay", "pulse", "stale"}


def sent_under(fault: zeno.Fault, seed: int, steps: int = 2) -> list[list[zeno.Reply]]:
    rows = ROWS.clone()
    cluster = zeno.Faulty(FakeCluster(list(rows)), lambda step: dict.fromkeys([1, 2, 5], fault), seed)
    cluster.trial = lambda candidates, step: candidates.nanmean(dim=0)
    found = [list(cluster.gradients(torch.zeros(D), {}, step)) for step in range(steps)]
    assert torch.equal(rows, ROWS), "what workers computed is not written to"
    return found


def as_text(replies: list[list[zeno.Reply]]) -> str:
    torch.set_printoptions(threshold=10**6, precision=9)
    try:
        return repr(replies)
    finally:
        torch.set_printoptions(profile="default")


@pytest.mark.parametrize("name", zeno.FAULTS)
def test_every_fault_keeps_to_its_workers_and_depends_on_seed_and_step_alone(name: str) -> None:
    fault = make_fault(name)
    sent = sent_under(fault, seed=0)
    assert as_text(sent) == as_text(sent_under(fault, seed=0))
    if name in ("gaussian", "non_finite", "random_bits", "garbage", "fang"):
        assert as_text(sent) != as_text(sent_under(fault, seed=1))
        assert as_text(sent[:1]) != as_text(sent[1:]).replace("step=1", "step=0")
    for replies in sent:
        by_worker = {reply.worker: reply.gradient for reply in replies if not reply.late}
        assert [i for i in by_worker if i not in (1, 2, 5)] == [0, 3, 4, 6]
        for i, row in enumerate(ROWS):
            gradient: Any = by_worker.get(i)
            if i not in (1, 2, 5):
                assert torch.equal(gradient, row)
            elif name not in NO_NUMBERS:
                assert (gradient.shape, gradient.dtype) == ((D,), torch.float32)
            if i in (1, 2, 5) and name not in NO_NUMBERS | ON_DATA | AT_FIRST_CORRECT:
                assert not torch.equal(gradient, row)


def in_bits(reply: zeno.Reply) -> tuple[object, ...]:
    sent: Any = reply.gradient
    content = (sent.dtype, sent.numpy().tobytes()) if isinstance(sent, Tensor) else sent
    return reply.worker, reply.step, reply.late, reply.error, content


def in_bits_under(fault: zeno.Fault, faulty: Sequence[int], dead: Sequence[int] = ()) -> list[list[tuple[object, ...]]]:
    cluster = zeno.Faulty(normal(*dead), lambda step: dict.fromkeys(faulty, fault), seed=0)
    cluster.trial = lambda candidates, step: candidates.nanmean(dim=0)
    return [[in_bits(r) for r in cluster.gradients(torch.zeros(D), {}, step)] for step in range(4)]


@pytest.mark.parametrize("faulty", [[1, 2, 5], [1], range(M)], ids=["some", "one", "all"])
@pytest.mark.parametrize("name", zeno.FAULTS)
def test_gradients_that_a_fault_does_not_need_make_no_difference(
    name: str, faulty: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for parameters in ("", OWN_PARAMETERS.get(name, "")):
        fault = make_fault(f"{name}({parameters})" if parameters else name)
        sparing = in_bits_under(fault, faulty)
        with monkeypatch.context() as patch:
            patch.setattr(type(fault), "needs", zeno.Fault.needs)
            assert sparing == in_bits_under(fault, faulty)


@pytest.mark.parametrize(
    ("fault", "dead"),
    [
        (zeno.BitFlip(), [1]),
        (zeno.BitFlip(), [1, 2]),
        (zeno.BitFlip(), [1, 2, 5]),
        (zeno.BitFlip(), [0, 3]),
        (zeno.Mimic(), [0]),
        (zeno.Mimic(), [0, 3, 4, 6]),
        (zeno.Mimic(), range(M)),
    ],
)
def test_gradients_that_are_not_needed_make_no_difference_when_a_needed_one_is_missing(
    fault: zeno.Fault, dead: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sparing = in_bits_under(fault, [1, 2, 5], dead)
    monkeypatch.setattr(type(fault), "needs", zeno.Fault.needs)
    assert sparing == in_bits_under(fault, [1, 2, 5], dead)


@pytest.mark.parametrize("name", ["bit_flip", "gaussian", "zero", "huge", "mimic", "crash", "hang", "slow"])
def test_records_are_the_same_without_the_gradients_that_a_fault_does_not_need(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = make_fault(f"{name}(chance=0.7, redraw=True)")
    run = zeno.Run(workers=6, batch_size=20, faulty=4, fault=fault, steps=6, rule=zeno.Zeno(trim=4, batch_size=16))
    sparing = zeno.train(run)
    monkeypatch.setattr(type(fault), "needs", zeno.Fault.needs)
    assert sparing == zeno.train(run)


@pytest.mark.parametrize(
    ("fault", "num"),
    [("bit_flip", 9), ("zero", 8), ("mimic", 8), ("crash", 8), ("sign_flip", 20), ("alie", 20), ("label_flip", 20),
     ("bit_flip+zero", 20), ("zero(on=6)+zero(on=6, end=1)", 20)],
)  # fmt: skip
def test_only_gradients_that_matter_are_computed(fault: str, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    batch = Worker.batch

    def counting(self: Worker, step: int) -> zeno.Batch:
        computed.append(self.index)
        return batch(self, step)

    monkeypatch.setattr(Worker, "batch", counting)
    zeno.train(zeno.Run(workers=20, batch_size=5, faulty=12, fault=make_fault(fault), steps=1, rule=zeno.Zeno(trim=12)))
    assert len(computed) == len(set(computed)) == num


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", [None, lambda candidates, step: candidates.nanmean(dim=0)], ids=["unknown", "mean"])
@pytest.mark.parametrize("faulty", [[1, 2, 5], [1], range(M)], ids=["some", "one", "all"])
@pytest.mark.parametrize("name", [name for name in zeno.FAULTS if name not in NO_NUMBERS | {"non_finite"}])
def test_what_replaces_a_gradient_is_finite_and_of_its_dtype(
    name: str, faulty: Sequence[int], rule: Any, dtype: torch.dtype
) -> None:
    if (name, dtype) == ("random_bits", torch.float64):
        pytest.skip("random_bits raises for it")
    rows = ROWS.to(dtype)
    for parameters in ("", OWN_PARAMETERS.get(name, "")):
        fault = make_fault(f"{name}({parameters})" if parameters else name)
        cluster = zeno.Faulty(FakeCluster(list(rows)), lambda step: dict.fromkeys(faulty, fault), 0)  # noqa: B023
        cluster.trial = rule
        for step in range(3):
            for reply in cluster.gradients(torch.zeros(D, dtype=dtype), {}, step):
                assert reply.gradient is not None
                assert reply.gradient.dtype == dtype
                assert reply.gradient.isfinite().all() or name == "random_bits"


@pytest.mark.parametrize("name", zeno.FAULTS)
def test_faults_of_the_data_change_the_batch_and_no_other_does(name: str) -> None:
    batch = zeno.Batch(torch.rand(16, 1, 8, 8), torch.arange(16) % 10)
    before = zeno.Batch(batch.inputs.clone(), batch.targets.clone())
    found = make_fault(name).on_batch(batch, 10, np.random.default_rng(0))
    assert torch.equal(batch.inputs, before.inputs)
    assert torch.equal(batch.targets, before.targets)
    same = torch.equal(found.inputs, batch.inputs) and torch.equal(found.targets, batch.targets)
    assert same == (name not in ON_DATA)
    assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in batch]
    again = make_fault(name).on_batch(batch, 10, np.random.default_rng(0))
    assert torch.equal(again.inputs, found.inputs)
    assert torch.equal(again.targets, found.targets)


@pytest.mark.parametrize("name", zeno.FAULTS)
def test_a_run_tolerates_every_fault(name: str) -> None:
    fault = replace(make_fault(name), start=0)
    run = zeno.Run(workers=6, batch_size=20, faulty=2, fault=fault, steps=6, eval_every=6)
    records = zeno.train(replace(run, rule=zeno.Zeno(trim=2, batch_size=16)))
    assert len(records) == 6
    assert all(record.skipped is None and record.faulty == [0, 1] for record in records)
    assert records[-1].train_loss is not None
    assert records[-1].train_loss < 3
    for record in records:
        assert set(record.errors) == ({0, 1} if name in NO_NUMBERS | {"non_finite"} else set()) or name == "random_bits"
        assert record.late == ([0, 1] if name == "slow" and record.step else [])
    mean = zeno.train(replace(run, rule=zeno.Mean()))
    assert len(mean) == 6
    assert (mean[-1].train_loss is None) == (name == "random_bits"), "a flipped exponent drives the mean out of range"


def test_a_run_has_several_faults_at_their_times_on_their_workers() -> None:
    fault = zeno.Crash(on=1, start=1, end=3) + zeno.Garbage(on=1, start=2) + zeno.SignFlip()
    records = zeno.train(
        zeno.Run(workers=6, batch_size=20, faulty=3, fault=fault, steps=4, rule=zeno.Zeno(trim=3, batch_size=16))
    )
    assert [record.faulty for record in records] == [[2], [0, 2], [0, 1, 2], [1, 2]]
    assert [sorted(record.errors) for record in records] == [[], [0], [0, 1], [1]]
    assert records[1].errors == {0: DIED}


def test_without_faulty_workers_no_fault_acts() -> None:
    run = zeno.Run(workers=4, batch_size=20, steps=3, rule=zeno.Mean())
    assert zeno.train(replace(run, fault=zeno.Crash() + zeno.Zero())) == zeno.train(run)
    with pytest.raises(ValueError, match=r"faulty=0 needs faults .* Found 3. Set faulty=3"):
        replace(run, fault=zeno.Crash(on=2) + zeno.Zero(on=1))


def test_an_omniscient_fault_does_worse_to_the_mean_than_one_that_only_flips_signs() -> None:
    run = zeno.Run(workers=6, batch_size=20, faulty=2, steps=6, eval_every=6, rule=zeno.Mean())
    omniscient, flipped = (
        zeno.train(replace(run, fault=f))[-1].train_loss for f in (zeno.Omniscient(), zeno.SignFlip())
    )
    assert flipped is not None
    assert omniscient is None or omniscient > flipped + 1
