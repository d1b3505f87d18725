"""Workers: local steps and momentum."""

import copy
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from support.fake_cluster import FakeCluster
from zeno.cli import app as cli
from zeno.faults.injection import poisoned
from zeno.problem import models, tasks
from zeno.problem.dataset import generator
from zeno.problem.problem import Problem
from zeno.records.folder import RUN_FILE, read
from zeno.training.build import learning_rates, make_cluster
from zeno.training.run import Run
from zeno.training.settings import from_settings
from zeno.workers import local
from zeno.workers.checks import NOT_FINITE
from zeno.workers.cluster import NOBODY, Status
from zeno.workers.momentum import Momentum, MomentumCluster
from zeno.workers.reply import ErrorKind
from zeno.workers.worker import Worker

SMALL = zeno.Run(workers=5, batch_size=10, steps=8, eval_every=4, rule=zeno.Zeno(trim=2), faulty=2)
LRS = (0.5, 0.5, 0.05)
DATA = zeno.Dataset(
    torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 10, classes=10
)


def worker(k: int, model: nn.Module | None = None, precision: str = "float32", index: int = 1) -> Worker:
    torch.manual_seed(0)
    problem = Problem(model or models.mlp((1, 8, 8), 10))
    return Worker(index, problem, DATA, torch.arange(20, 60), 6, 7, precision, k, LRS)


def samples(index: int, step: int, num: int) -> Tensor:
    """Which samples of the shard 20 to 59 a worker draws at a step, of seed 7."""
    return 20 + torch.from_numpy(generator(7, "batch", index, step).integers(40, size=num))


# Local steps


@pytest.mark.parametrize("step", [0, 2])
def test_local_steps_arrive_where_plain_sgd_does(step: int) -> None:
    double = zeno.Dataset(DATA.inputs.double(), DATA.targets, classes=10)
    own = replace(worker(4, models.mlp((1, 8, 8), 10).double()), dataset=double)
    params = own.problem.flat.clone()

    model = copy.deepcopy(own.problem.model)
    optimizer, met = torch.optim.SGD(model.parameters(), lr=LRS[step]), []
    for rows in samples(1, step, 4 * 6).split(6):
        optimizer.zero_grad()
        F.cross_entropy(model(double.inputs[rows]), double.targets[rows]).backward()
        met.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        optimizer.step()
    arrived = nn.utils.parameters_to_vector(model.parameters()).detach()

    sent = own.gradient(params, {}, step)
    assert torch.allclose(sent, sum(met, torch.zeros(())), rtol=1e-10, atol=1e-13)
    assert torch.allclose(params - LRS[step] * sent, arrived, rtol=1e-10, atol=1e-13)
    assert torch.allclose((params - arrived) / LRS[step], sent, rtol=1e-8, atol=1e-11)
    assert (sent - 4 * met[0]).norm() > 0.1 * sent.norm(), "four times the first gradient would be something else"


def test_one_local_step_is_the_gradient_of_one_batch_to_the_last_bit() -> None:
    own = worker(1, nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)))
    params = own.problem.flat.clone()
    seed = int(generator(7, "dropout", 1, 2).integers(2**63))
    expected = own.problem.gradient(params, DATA.batch(samples(1, 2, 6)), seed)
    assert torch.equal(own.gradient(params, {}, 2), expected)
    assert torch.equal(replace(own, lrs=()).gradient(params, {}, 2), expected)


def test_a_run_of_one_worker_with_local_steps_is_plain_sgd_with_the_lr_of_the_schedule() -> None:
    run = replace(
        SMALL, workers=1, faulty=0, rule=zeno.Mean(), local_steps=3, schedule="steplr(step_size=2, gamma=0.5)", steps=4
    )
    record = zeno.train(run)[-1]

    task = tasks.load_task("digits")
    torch.manual_seed(int(generator(0, "initialisation").integers(2**63)))
    model = task.model()
    for step, lr in enumerate([0.1, 0.1, 0.05, 0.05]):
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for rows in torch.from_numpy(generator(0, "batch", 0, step).integers(1437, size=30)).split(10):
            batch = task.train.batch(rows)
            optimizer.zero_grad()
            F.cross_entropy(model(batch.inputs), batch.targets).backward()
            optimizer.step()
    everything = task.train.batch(torch.arange(1437))
    with torch.no_grad():
        loss = F.cross_entropy(model(everything.inputs), everything.targets).item()
    assert record.train_loss == pytest.approx(loss, rel=1e-5)
    assert record.train_loss != pytest.approx(zeno.train(replace(run, schedule=None))[-1].train_loss, rel=1e-3)


@pytest.mark.parametrize(
    "schedule", [None, "steplr(step_size=3)", "cosineannealinglr(T_max=8)", "onecyclelr(max_lr=0.5, total_steps=8)"]
)
def test_the_lr_of_every_step_is_known_beforehand(schedule: str | None) -> None:
    run = replace(SMALL, schedule=schedule, optimizer="sgd(momentum=0.9)")
    assert list(learning_rates(run)) == [record.lr for record in zeno.train(run)]


def test_local_steps_of_length_0_are_gradients_at_one_place() -> None:
    run = replace(SMALL, local_steps=2, schedule="linearlr(start_factor=0.5, end_factor=0.0, total_iters=2)", steps=4)
    assert learning_rates(run)[2:] == (0.0, 0.0)
    assert all(record.errors == {} for record in zeno.train(run))


def test_a_fault_of_the_data_acts_on_every_local_batch() -> None:
    own = worker(3)
    params = own.problem.flat.clone()
    flipped = replace(own, dataset=zeno.Dataset(DATA.inputs, 9 - DATA.targets, classes=10))
    sent = poisoned([own], lambda step: {1: zeno.LabelFlip()})[0].gradient(params, {}, 0)
    assert torch.equal(sent, flipped.gradient(params, {}, 0))
    assert not torch.equal(sent, own.gradient(params, {}, 0))


def test_every_local_step_has_a_batch_a_dropout_mask_and_the_precision_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, float, int, str]] = []
    gradient = Problem.gradient

    def spy(self: Problem, params: Tensor, batch: zeno.Batch, seed: int, precision: str) -> Tensor:
        seen.append((seed, batch.inputs.sum().item(), len(batch.targets), precision))
        return gradient(self, params, batch, seed, precision)

    monkeypatch.setattr(Problem, "gradient", spy)
    zeno.train(replace(SMALL, local_steps=3, precision="bf16", steps=2))
    seeds, sums, sizes, precisions = map(list, zip(*seen, strict=True))
    assert len(set(seeds)) == len(set(sums)) == len(seen) == 5 * 3 * 2
    assert set(sizes) == {10}
    assert set(precisions) == {"bf16"}


@pytest.mark.parametrize("quick", [0.0, 1e9], ids=["slow", "quick"])
@pytest.mark.parametrize("model", ["mlp", "batch norm and dropout"])
def test_a_cluster_sends_what_its_workers_compute_alone(
    model: str, quick: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "QUICK", quick)
    monkeypatch.setattr(zeno.LocalCluster, "_at_once", lambda *args: pytest.fail("they are at different parameters"))
    first = worker(2, None if model == "mlp" else models.small_cnn((1, 8, 8), 10))
    cluster = zeno.LocalCluster([replace(first, index=i) for i in range(3)])
    params, buffers = first.problem.flat.clone(), copy.deepcopy(first.problem.buffers)
    expected = {
        (i, step): replace(first, index=i, problem=copy.deepcopy(first.problem)).gradient(params, buffers, step)
        for i in range(3)
        for step in range(3)
    }
    torch.set_num_threads(2)
    try:
        sent = {(r.worker, step): r.gradient for step in range(3) for r in cluster.gradients(params, buffers, step)}
    finally:
        torch.set_num_threads(1)
    assert sorted(sent) == sorted(expected)
    assert all(torch.equal(expected[key], found) for key, found in sent.items() if found is not None)
    assert all(torch.equal(now, buffers[name]) for name, now in first.problem.buffers.items())


def test_local_steps_that_diverge_are_dropped() -> None:
    records = zeno.train(replace(SMALL, faulty=0, rule=zeno.Mean(), local_steps=3, lr=1e30, steps=2))
    assert records[0].skipped is not None
    assert records[0].errors == dict.fromkeys(range(5), NOT_FINITE)


# Momentum


def test_momentum_by_hand() -> None:
    momentum = Momentum(0.5)
    gradients = [torch.tensor(values) for values in ([4.0, 0.0], [0.0, 8.0], [2.0, 2.0])]
    broken = torch.tensor([torch.nan, 1.0])
    found = [momentum(gradients[0]), momentum(gradients[1]), momentum(broken), momentum(gradients[2])]
    assert [one.tolist() for one in (found[0], found[1], found[3])] == [[4.0, 0.0], [2.0, 4.0], [2.0, 3.0]]
    assert found[2].isnan().tolist() == [True, False]
    assert [one.tolist() for one in gradients] == [[4.0, 0.0], [0.0, 8.0], [2.0, 2.0]], "inputs are not written to"


def test_momentum_starts_with_the_first_gradient_that_is_finite() -> None:
    momentum = Momentum(0.9)
    assert momentum(torch.tensor([torch.inf, 0.0])).tolist() == [torch.inf, 0.0]
    assert momentum.mean is None
    assert momentum(torch.tensor([3.0, 1.0])).tolist() == [3.0, 1.0]


def test_momentum_shares_no_memory_with_its_inputs_and_outputs() -> None:
    momentum, gradient = Momentum(0.5), torch.tensor([4.0])
    sent = momentum(gradient)
    gradient.zero_()
    sent.zero_()
    assert momentum.mean is not None
    before, second = momentum.mean, momentum(torch.tensor([8.0]))
    assert (before.tolist(), second.tolist()) == ([4.0], [6.0])
    later = Momentum(0.5)
    later.mean = before
    assert later(torch.tensor([8.0])).tolist() == [6.0], "it goes on from a mean that was saved"


@pytest.mark.parametrize("beta", [-0.1, 1.0, float("nan")])
def test_momentum_raises_for_a_beta_outside_its_range(beta: float) -> None:
    with pytest.raises(ValueError, match=rf"Momentum needs beta of at least 0 and below 1\. Found beta={beta!r}\."):
        Momentum(beta)


def steady(odd: zeno.Reply | None = None) -> FakeCluster:
    """Three workers that send 10 * (step + 1) + worker, twice; worker 1 sends `odd` at step 1, if there is one."""

    def sent(worker: int, step: int) -> zeno.Reply | Tensor:
        return odd if odd is not None and (worker, step) == (1, 1) else torch.full((2,), 10.0 * (step + 1) + worker)

    return FakeCluster(sent, size=3, remote=True)


def sent(cluster: zeno.Cluster, step: int, skip: Collection[int] = NOBODY) -> dict[int, float]:
    """The first coordinate of each worker's gradient."""
    found = {}
    for reply in cluster.gradients(torch.zeros(2), {}, step, skip=skip):
        assert reply.gradient is not None
        found[reply.worker] = reply.gradient[0].item()
    return found


def test_each_worker_sends_the_mean_of_its_own_gradients() -> None:
    cluster = MomentumCluster(steady(), 0.5)
    assert sent(cluster, 0) == {0: 10.0, 1: 11.0, 2: 12.0}
    assert sent(cluster, 1) == {0: 15.0, 1: 16.0, 2: 17.0}
    assert sent(cluster, 2) == {0: 22.5, 1: 23.5, 2: 24.5}
    assert cluster.remote
    assert cluster.status == Status(1, 1, 1)


def test_a_mean_is_updated_once_per_step_and_only_for_workers_that_were_asked() -> None:
    cluster = MomentumCluster(steady(), 0.5)
    sent(cluster, 0)
    assert sent(cluster, 1, skip={0, 1}) == {2: 17.0}
    assert sent(cluster, 1, skip={1, 2}) == {0: 15.0}, "the second question of a step, to another worker"
    assert sent(cluster, 2) == {0: 22.5, 1: 21.0, 2: 24.5}, "worker 1 goes on from step 0"


ODD = {
    "died": zeno.Reply(1, 1, None, zeno.ReplyError(ErrorKind.DIED, "died")),
    "came late": zeno.Reply(1, 0, torch.ones(2), zeno.ReplyError(ErrorKind.LATE, "came late"), late=True),
    "late, with numbers": zeno.Reply(1, 1, torch.ones(2), late=True),
    "of another step": zeno.Reply(1, 0, torch.ones(2)),
    "numbers and an error": zeno.Reply(1, 1, torch.ones(2), zeno.ReplyError(ErrorKind.RAISED, "raised something")),
    "12 numbers": zeno.Reply(1, 1, torch.ones(12)),
    "float64": zeno.Reply(1, 1, torch.ones(2, dtype=torch.float64)),
    "sparse": zeno.Reply(1, 1, torch.ones(2).to_sparse()),
    "a string": zeno.Reply(1, 1, "hello"),  # type: ignore[arg-type]
    "nothing": zeno.Reply(1, 1, None),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_replies_that_are_not_gradients_of_the_step_pass_and_leave_the_mean_unchanged(odd: zeno.Reply) -> None:
    cluster = MomentumCluster(steady(odd), 0.5)
    sent(cluster, 0)
    assert {r.worker: r for r in cluster.gradients(torch.zeros(2), {}, 1)}[1] is odd
    assert sent(cluster, 2) == {0: 22.5, 1: 21.0, 2: 24.5}


def test_gradients_that_are_not_finite_reach_the_server_and_leave_the_mean_unchanged() -> None:
    nan = zeno.Reply(1, 1, torch.tensor([torch.nan, 0.0]))
    cluster = MomentumCluster(steady(nan), 0.5)
    sent(cluster, 0)
    assert torch.tensor(sent(cluster, 1)[1]).isnan()
    assert sent(cluster, 2)[1] == 21.0


def test_faults_of_the_message_act_on_the_momentum() -> None:
    cluster = zeno.Faulty(MomentumCluster(steady(), 0.5), lambda step: {1: zeno.SignFlip(scale=2.0)}, seed=0)
    assert sent(cluster, 0) == {0: 10.0, 1: -22.0, 2: 12.0}
    assert sent(cluster, 1) == {0: 15.0, 1: -32.0, 2: 17.0}, "and what was sent is not what is remembered"


def test_a_mean_does_not_change_while_the_gradients_of_its_worker_are_not_needed() -> None:
    fault = zeno.Zero()
    cluster = zeno.Faulty(MomentumCluster(steady(), 0.5), lambda step: {1: fault} if step == 1 else {}, seed=0)
    assert [sent(cluster, step)[1] for step in range(3)] == [11.0, 0.0, 21.0]


def test_a_saved_state_does_not_change_as_the_cluster_continues() -> None:
    first, second = MomentumCluster(steady(), 0.5), MomentumCluster(steady(), 0.5)
    sent(first, 0, skip={2})
    state = first.state_to_save()
    expected = sent(first, 1)
    second.load_state(state)
    assert sent(second, 1) == expected == {0: 15.0, 1: 16.0, 2: 22.0}


def test_entering_and_leaving_are_forwarded() -> None:
    inner = steady()
    with MomentumCluster(inner, 0.5) as cluster:
        assert isinstance(cluster, MomentumCluster)
    assert inner.events == ["entered", "left"]


# Both, in a run


def test_both_together_send_the_momentum_of_the_change() -> None:
    own = worker(2, index=0)
    cluster = MomentumCluster(zeno.LocalCluster([own]), 0.75)
    params, mean = own.problem.flat.clone(), None
    for step in range(3):
        change = replace(own, problem=copy.deepcopy(own.problem)).gradient(params, {}, step)
        mean = change if mean is None else 0.75 * mean + 0.25 * change
        (reply,) = cluster.gradients(params, {}, step)
        assert reply.gradient is not None
        assert torch.allclose(reply.gradient, mean, rtol=1e-5, atol=1e-7)
        params = params - 0.1 * mean


def test_a_run_wraps_its_cluster_in_the_right_order_and_only_where_it_has_to() -> None:
    def made(**settings: Any) -> zeno.Cluster:
        task = tasks.load_task("digits")
        return make_cluster(replace(SMALL, **settings), task, Problem(task.model()), torch.arange(100))

    assert type(made(faulty=0)) is zeno.LocalCluster
    inside = made(faulty=0, worker_momentum=0.9, local_steps=2)
    assert type(inside) is MomentumCluster
    assert [momentum.beta for momentum in inside.momenta] == [0.9] * 5
    assert type(inside.cluster) is zeno.LocalCluster
    assert {(w.local_steps, tuple(w.lrs)) for w in inside.cluster.workers} == {(2, (0.1,) * 8)}
    outside = made(worker_momentum=0.9)
    assert type(outside) is zeno.Faulty
    assert type(outside.cluster) is MomentumCluster


@pytest.mark.parametrize(
    "run",
    [
        replace(SMALL, faulty=0, worker_momentum=0.9),
        replace(SMALL, worker_momentum=0.9, fault=zeno.Zero(chance=0.5), redraw=True),
        replace(SMALL, worker_momentum=0.5, local_steps=2, schedule="steplr(step_size=3)"),
    ],
    ids=["without faults", "with a fault that needs no gradients", "with local steps and a schedule"],
)
def test_a_resumed_run_continues_with_its_momenta(run: zeno.Run, tmp_path: Path) -> None:
    def stop(record: zeno.Record) -> None:
        if record.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zeno.train(run, tmp_path, stop)
    straight = zeno.train(run)
    assert zeno.train(run, tmp_path, resume=True) == straight
    assert straight != zeno.train(replace(run, worker_momentum=0.0)), "or there would be nothing to lose"


def test_a_folder_written_before_these_settings_can_be_resumed(tmp_path: Path) -> None:
    first = zeno.train(replace(SMALL, steps=4), tmp_path)
    lines = (tmp_path / RUN_FILE).read_text().splitlines(keepends=True)
    older = [line for line in lines if not line.startswith(("local_steps", "worker_momentum"))]
    assert len(older) == len(lines) - 2
    (tmp_path / RUN_FILE).write_text("".join(older))
    with pytest.raises(ValueError, match=r"has other settings: local_steps = 1 there, local_steps = 2 here"):
        zeno.train(replace(SMALL, local_steps=2), tmp_path, resume=True)
    assert zeno.train(SMALL, tmp_path, resume=True)[:4] == first


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local_steps": 0}, "The setting local_steps must be at least 1. Found local_steps=0."),
        ({"local_steps": 1.5}, "The setting local_steps must be of type int. Found local_steps=1.5."),
        ({"worker_momentum": 1.0}, "worker_momentum must be at least 0 and below 1. Found worker_momentum=1.0."),
        ({"worker_momentum": -0.5}, "worker_momentum must be at least 0 and below 1. Found worker_momentum=-0.5."),
        ({"worker_momentum": "0.9"}, "The setting worker_momentum must be of type float. Found worker_momentum='0.9'."),
    ],
)
def test_invalid_settings_raise(settings: dict[str, Any], words: str) -> None:
    for make in (from_settings, lambda values: Run(**values)):
        with pytest.raises(ValueError) as error:
            make(settings)
        assert words in str(error.value)


def test_both_are_flags_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = "--local-steps 4 --worker-momentum 0.9 --steps 3 --workers 4 --rule mean --batch-size 10"
    monkeypatch.setattr(sys, "argv", ["zeno", "train", *flags.split(), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, capsys.readouterr().err
    run = zeno.Run(local_steps=4, worker_momentum=0.9, steps=3, workers=4, rule=zeno.Mean(), batch_size=10)
    assert read(tmp_path / "out") == zeno.train(run)
    assert run.to_toml() in (tmp_path / "out" / RUN_FILE).read_text()
