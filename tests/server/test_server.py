"""`zeno.Server`: the server of a user's own loop."""

import copy
import itertools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from support.own_loops import INPUTS, TARGETS, gradients_of, layer, loader, make, net, parameters, sent_by
from zeno.problem.nested import read as read_batch
from zeno.records.folder import read
from zeno.records.ledger import ledger_of
from zeno.server.samples import halves_of
from zeno.workers.reply import NO_REPLY

# One step, against what the paper says, worked out here


def test_a_step_follows_the_paper() -> None:
    model, server = make(zeno.Zeno(trim=2, rho=0.01, batch_size=32))
    sent = sent_by(model, 4, 1, step=0)
    x = parameters(model)
    batch = INPUTS[:32], TARGETS[:32]  # the first that the loader gives

    @torch.no_grad()
    def loss_at(params: Tensor) -> float:
        other = net()
        other.load_state_dict(zeno.unflatten(params, other), strict=False)
        return float(F.cross_entropy(other.double()(batch[0].double()), batch[1]))

    scores = [loss_at(x) - loss_at(x - 0.3 * u) - 0.01 * float(u.double().square().sum()) for u in sent]
    best = sorted(range(4), key=lambda i: -scores[i])[:2]

    aggregate = server.step(sent)
    assert aggregate.scores is not None
    torch.testing.assert_close(aggregate.scores, torch.tensor(scores, dtype=torch.float64), atol=1e-6, rtol=1e-4)
    assert aggregate.kept.nonzero().flatten().tolist() == sorted(best)
    torch.testing.assert_close(parameters(model), x - 0.3 * (sent[best[0]] + sent[best[1]]) / 2)


def test_a_loop_survives_12_faulty_of_20_and_names_them_where_averaging_does_not() -> None:
    def accuracy(rule: zeno.Rule) -> tuple[float, zeno.Server]:
        model, server = make(rule)
        for step in range(80):
            server.step(sent_by(model, 20, 12, step))
        return float((model(INPUTS).argmax(dim=1) == TARGETS).float().mean()), server

    with_zeno, server = accuracy(zeno.Zeno(trim=13, batch_size=64))
    assert with_zeno > 0.9
    assert server.ledger.suspects == list(range(12))
    assert accuracy(zeno.Mean())[0] < 0.3


# In which forms gradients come


def forms(model: nn.Module, vectors: list[Tensor]) -> dict[str, Any]:
    by_name = [zeno.unflatten(vector, model) for vector in vectors]
    return {
        "vectors": vectors,
        "one tensor": torch.stack(vectors),
        "a tuple": tuple(vectors),
        "lists by parameter": [list(parts.values()) for parts in by_name],
        "tuples by parameter": [tuple(parts.values()) for parts in by_name],
        "dicts by name": by_name,
        "dicts in another order": [dict(reversed(parts.items())) for parts in by_name],
        "all kinds": [vectors[0], list(by_name[1].values()), by_name[2], *vectors[3:]],
        "float64": [vector.double() for vector in vectors],
        "arrays": [vector.numpy() for vector in vectors],
        "one array": torch.stack(vectors).numpy(),
        "arrays by parameter": [[part.numpy() for part in parts.values()] for parts in by_name],
        "arrays by name": [{name: part.numpy() for name, part in parts.items()} for parts in by_name],
        "what needs a gradient": [vector.clone().requires_grad_() for vector in vectors],
        "not contiguous": [torch.stack([vector, vector], dim=1)[:, 0] for vector in vectors],
    }


@pytest.mark.parametrize("form", forms(net(), [torch.zeros(74)] * 4))
def test_every_form_gives_the_same_step(form: str) -> None:
    model, server = make()
    expected = server.step(sent_by(model, 4, 1, 0))
    other, same = make()
    found = same.step(forms(other, sent_by(other, 4, 1, 0))[form])
    assert torch.equal(found.kept, expected.kept)
    assert torch.equal(found.update, expected.update)
    assert torch.equal(parameters(model), parameters(other))


@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_of_all_parameters_are_taken_where_some_are_frozen(by_name: bool) -> None:
    """None where a parameter is frozen, as `p.grad` is."""

    def frozen() -> tuple[nn.Sequential, zeno.Server]:
        model = net()
        layer(model, 0).requires_grad_(False)
        optimizer = torch.optim.SGD(layer(model, 2).parameters(), lr=0.3)
        return model, zeno.Server(model, F.cross_entropy, optimizer, loader(), zeno.Zeno(trim=1, batch_size=32))

    model, server = frozen()
    parts = [gradients_of(model, torch.arange(20 * i, 20 * i + 20)) for i in range(3)]
    expected = server.step([zeno.flatten(part) for part in parts])
    other, same = frozen()
    names = [name for name, _ in other.named_parameters()]
    sent: list[Any] = [[None, None, *part] for part in parts]
    found = same.step([dict(zip(names, one, strict=True)) for one in sent] if by_name else sent)
    assert torch.equal(found.update, expected.update)
    assert torch.equal(parameters(model), parameters(other))
    sent[2][0] = torch.ones(8, 6)
    same.step([dict(zip(names, one, strict=True)) for one in sent] if by_name else sent)
    assert same.record is not None
    text = "sent a gradient for '0.weight', which is not a trainable parameter"
    assert same.record.errors == {2: zeno.ReplyError(zeno.ErrorKind.MALFORMED, text)}


class Stream:
    """An iterable that is no list, and that hands out one row of memory over and over."""

    def __init__(self, sent: list[Tensor]) -> None:
        self.sent, self.row = sent, torch.empty_like(sent[0])

    def __len__(self) -> int:
        return len(self.sent)

    def __iter__(self) -> Iterator[Tensor]:
        for one in self.sent:
            yield self.row.copy_(one)


@pytest.mark.parametrize("rule", [zeno.Zeno(trim=3, batch_size=32), zeno.Median(), zeno.ZenoAuto()])
def test_candidates_can_arrive_one_by_one_in_the_same_memory(rule: zeno.Rule) -> None:
    model, server = make(rule)
    other, same = make(rule)
    for step in range(3):
        expected = server.step(sent_by(model, 4, 1, step))
        found = same.step(Stream(sent_by(other, 4, 1, step)))
        assert torch.equal(found.kept, expected.kept)
        torch.testing.assert_close(found.update, expected.update)
    found = same.step(iter(sent_by(other, 4, 1, 3)))  # how many there are is known by now
    assert torch.equal(found.kept, server.step(sent_by(model, 4, 1, 3)).kept)


@pytest.mark.parametrize("form", ["a list", "one tensor", "a stream"])
def test_what_a_worker_writes_to_shared_memory_later_has_no_effect(form: str) -> None:
    """The loss stands for a worker that writes at any time: here, whenever a candidate is tried."""
    model, server = make(zeno.Zeno(trim=1, batch_size=32, rho=0))
    sent = torch.stack(sent_by(model, 4, 1, 0))
    expected = server.step(sent.clone())
    shared: list[Tensor] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        for memory in shared:
            memory.fill_(math.nan)
        return F.cross_entropy(outputs, targets)

    other = net()
    same = zeno.Server(other, loss, torch.optim.SGD(other.parameters(), lr=0.3), loader(), server.rule)
    rows = list(sent.clone())
    entries: dict[str, Any] = {"a list": rows, "one tensor": sent, "a stream": Stream(rows)}
    shared += {"a list": rows, "one tensor": [sent], "a stream": [entries["a stream"].row]}[form]
    found = same.step(entries[form])
    assert torch.equal(found.kept, expected.kept)
    torch.testing.assert_close(found.update, expected.update)


def test_only_the_best_candidates_of_a_stream_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    result = zeno.Arrivals.result

    def looking(self: zeno.Arrivals) -> zeno.Aggregate:
        held.append(len(self._memory))
        return result(self)

    monkeypatch.setattr(zeno.Arrivals, "result", looking)
    model, server = make(zeno.Zeno(trim=7, batch_size=8))
    server.step(Stream(sent_by(model, 8, 1, 0)))
    assert held == [2], "and one more, for the candidate that is being scored"
    assert server.core.candidates is None, "no memory for all candidates was allocated"


# Whatever a worker sends


def nested(*sizes: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        return torch.nested.nested_tensor([torch.ones(size) for size in sizes])


class SilentError(Exception):
    __str__ = __repr__ = lambda self: 1 / 0  # type: ignore[assignment, return-value]


class Endless(dict[str, Tensor]):
    def items(self) -> Any:
        return ((f"name {i}", None) for i in itertools.count())


class Exiting(dict[str, Tensor]):
    def __init__(self, error: BaseException = SystemExit("bye")) -> None:
        self.error = error

    def items(self) -> Any:
        raise self.error


class LongList(list[Tensor]):
    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Any:
        return itertools.repeat(torch.ones(8, 6))


BROKEN: dict[str, tuple[Any, str]] = {
    "nothing": (None, "sent no reply"),
    "a string": ("hello", "sent str, expected a tensor, or one for each parameter"),
    "a number": (3.0, "sent float, expected a tensor, or one for each parameter"),
    "too few numbers": (torch.ones(12), "sent numbers of shape [12], expected [74]"),
    "a matrix": (torch.ones(74, 1), "sent numbers of shape [74, 1], expected [74]"),
    "whole numbers": (
        torch.ones(74, dtype=torch.int64),
        "sent torch.int64, torch.strided, expected floating point, torch.strided",
    ),
    "complex numbers": (
        torch.ones(74, dtype=torch.complex64),
        "sent torch.complex64, torch.strided, expected floating point, torch.strided",
    ),
    "a sparse tensor": (
        torch.ones(74).to_sparse(),
        "sent torch.float32, torch.sparse_coo, expected floating point, torch.strided",
    ),
    "no memory": (torch.ones(74, device="meta"), "sent a tensor without the memory for its numbers"),
    "an array of objects": (np.ones(74, object), "sent ndarray, expected a tensor"),
    "a mapping without end": (Endless(), "sent more than 100000 tensors, expected 4"),
    "a mapping that exits": (Exiting(), "sent what cannot be read: SystemExit: bye"),
    "a mapping whose error has no text": (Exiting(SilentError()), "sent what cannot be read: SilentError"),
    "names that are no text": ({3: torch.ones(8, 6)}, "sent what cannot be read: TypeError"),
    "a list that is longer than it says": (LongList([torch.ones(8, 6)]), "sent 1 tensors, expected 4"),
    "a nested tensor": (
        nested(3, 5),
        "sent torch.float32, nested, expected floating point, torch.strided",
    ),
    "a nested tensor of a parameter": (
        [nested(3), torch.ones(8), torch.ones(2, 8), torch.ones(2)],
        "sent torch.float32, nested, expected floating point, torch.strided for '0.weight'",
    ),
    "what is not there yet": (nn.UninitializedParameter(), "sent numbers of shape [0], expected [74]"),
    "NaN": (torch.full((74,), math.nan), "sent numbers that are not finite"),
    "beyond float32": (torch.full((74,), 1e300, dtype=torch.float64), "sent numbers that are not finite"),
    "too few tensors": ([torch.ones(8, 6)], "sent 1 tensors, expected 4"),
    "a tensor of another shape": (
        [torch.ones(8, 6), torch.ones(8), torch.ones(2, 9), torch.ones(2)],
        "sent numbers of shape [2, 9], expected [2, 8] for '2.weight'",
    ),
    "a string among tensors": (
        [torch.ones(8, 6), torch.ones(8), "2.weight", torch.ones(2)],
        "sent str, expected a tensor for '2.weight'",
    ),
    "nothing for every parameter": ([None] * 4, "sent no gradients: None for every parameter"),
    "an empty dict": ({}, "sent no gradient for '0.weight'"),
    "a name without end": ({"x" * 10**6: torch.ones(3)}, "sent a gradient for '" + "x" * 120 + "', which is not"),
    "another name": ({"backdoor": torch.ones(3)}, "sent a gradient for 'backdoor', which is not a trainable parameter"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("stream", [False, True])
def test_broken_entries_are_dropped_with_their_reason_on_record(kind: str, stream: bool) -> None:
    broken, reason = BROKEN[kind]
    model, server = make(zeno.Zeno(trim=1, batch_size=32))
    x = parameters(model)
    sent: list[Any] = [*sent_by(model, 3, 0, 0), broken]
    assert server.step(sent).kept.tolist() == [True, True, True, False]
    if stream:
        server.step(iter([*sent_by(model, 3, 0, 0), broken]))
    assert server.record is not None
    assert list(server.record.errors) == [3]
    assert server.record.errors[3].text.startswith(reason)
    assert parameters(model).isfinite().all()
    assert not torch.equal(parameters(model), x)


def test_a_parameter_that_backward_did_not_reach_counts_as_0() -> None:
    model, server = make(zeno.Mean())
    parts = gradients_of(model, torch.arange(20))
    before = layer(model, 0).weight.detach().clone()
    server.step([[None, *parts[1:]]])
    assert torch.equal(layer(model, 0).weight, before)
    assert server.record is not None
    assert server.record.errors == {}


def test_too_many_broken_entries_raise_with_reasons_and_change_nothing() -> None:
    model, server = make(zeno.Zeno(trim=1, batch_size=8), optimizer="Adam")
    x = parameters(model)
    broken: list[Any] = [sent_by(model, 1, 0, 0)[0], None, torch.ones(3), "hello", None, None]
    with pytest.raises(zeno.TooFewUsable) as raised:
        server.step(broken)
    assert str(raised.value) == (
        "Zeno(trim=1, rho=0.0005, batch_size=8, score='exact') needs 5 usable candidates. "
        "Found 1 of 6. Worker 1 sent no reply. Worker 2 sent numbers of shape [3], expected [74]. "
        "Worker 3 sent str, expected a tensor, or one for each parameter. And 2 more."
    )
    assert torch.equal(parameters(model), x)
    assert server.optimizer.state_dict()["state"] == {}
    assert server.record is not None
    assert server.record.skipped == str(raised.value)
    server.step([*sent_by(model, 5, 0, 1), None])  # training continues
    assert not torch.equal(parameters(model), x)


def test_an_exception_while_scoring_leaves_the_model_unchanged() -> None:
    calls = 0

    def stumbling(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return F.cross_entropy(outputs, targets)

    model = net().train()
    server = zeno.Server(
        model, stumbling, torch.optim.SGD(model.parameters(), lr=0.1), loader(), zeno.Zeno(1, batch_size=8)
    )
    x = parameters(model)
    with pytest.raises(KeyboardInterrupt):
        server.step([1e3 * torch.ones(74)] * 4)
    assert torch.equal(parameters(model), x)
    assert all(module.training for module in model.modules())


# What optimizers, models and loops bring along


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        ("Adam", {"weight_decay": 0.01}),
        ("AdamW", {"lr": torch.tensor(0.01)}),
        ("RMSprop", {}),
        ("Adagrad", {}),
    ],
)
def test_the_update_goes_through_the_optimizer(optimizer: str, settings: dict[str, Any]) -> None:
    model, server = make(zeno.Mean(), optimizer, **settings)
    plain = net()
    kind = getattr(torch.optim, optimizer)
    other = kind(plain.parameters(), **{"lr": 0.3, **settings})
    schedules = [torch.optim.lr_scheduler.StepLR(one, step_size=2) for one in (server.optimizer, other)]
    for step in range(5):
        sent = sent_by(plain, 3, 0, step)
        mean = zeno.unflatten(torch.stack(sent).mean(dim=0), plain)
        for name, parameter in plain.named_parameters():
            parameter.grad = mean[name].clone()
        other.step()
        server.step(sent)
        for schedule in schedules:
            schedule.step()
        torch.testing.assert_close(parameters(model), parameters(plain))
        assert all(parameter.grad is None for parameter in model.parameters()), "nothing is left for the next backward"


def test_scores_use_the_learning_rate_of_each_group_and_follow_schedules() -> None:
    model = net()
    groups = [{"params": layer(model, 2).parameters(), "lr": 0.5}, {"params": layer(model, 0).parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    server = zeno.Server(model, F.cross_entropy, optimizer, [(INPUTS, TARGETS)], zeno.Zeno(0, rho=0.0, batch_size=400))
    [u] = sent_by(model, 1, 0, 0)
    for factor in (1.0, 0.1):
        for group in optimizer.param_groups:
            group["lr"] *= factor
        reference = copy.deepcopy(model)
        before = float(F.cross_entropy(reference(INPUTS), TARGETS).detach())
        with torch.no_grad():
            for name, part in zeno.unflatten(u, reference).items():
                rate = (0.1 if name.startswith("0.") else 0.5) * factor
                reference.get_parameter(name).sub_(rate * part)
        after = float(F.cross_entropy(reference(INPUTS), TARGETS).detach())
        scores = server.step([u]).scores
        assert scores is not None
        assert float(scores[0]) == pytest.approx(before - after, rel=1e-3)
        torch.testing.assert_close(parameters(model), parameters(reference))


def test_first_order_scores_use_the_learning_rate_of_each_group() -> None:
    model = net()
    groups = [{"params": layer(model, 0).parameters(), "lr": 0.1}, {"params": layer(model, 2).parameters(), "lr": 0.5}]
    rule = zeno.Zeno(0, rho=0.0, batch_size=400, score="first_order")
    server = zeno.Server(model, F.cross_entropy, torch.optim.SGD(groups), [(INPUTS, TARGETS)], rule)
    own = gradients_of(model, torch.arange(400))
    sent = gradients_of(model, torch.arange(20))
    dots = [float((g * u).sum()) for g, u in zip(own, sent, strict=True)]
    scores = server.step([sent]).scores
    assert scores is not None
    assert float(scores[0]) == pytest.approx(0.1 * (dots[0] + dots[1]) + 0.5 * (dots[2] + dots[3]), rel=1e-4)


def test_frozen_parameters_are_not_trained() -> None:
    model = net()
    layer(model, 0).requires_grad_(False)
    server = zeno.Server(model, F.cross_entropy, torch.optim.Adam(model.parameters()), loader(), zeno.Mean())
    before = layer(model, 0).weight.detach().clone()
    after = layer(model, 2).weight.detach().clone()
    loss = F.cross_entropy(model(INPUTS), TARGETS)
    loss.backward()
    sent = {name: parameter.grad for name, parameter in model.named_parameters()}  # None for those that are frozen
    assert zeno.flatten(model).shape == (18,)
    server.step([zeno.flatten(model), sent])
    assert server.record is not None
    assert server.record.errors == {}
    assert torch.equal(layer(model, 0).weight, before)
    assert not torch.equal(layer(model, 2).weight, after)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.outer = nn.Linear(6, 6)
        self.outer.weight = self.inner.weight

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.outer(self.inner(inputs))
        return outputs


def test_tied_weights_stay_tied_and_count_once() -> None:
    torch.manual_seed(0)
    model = Tied()
    server = zeno.Server(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), loader(), zeno.Mean())
    assert server.problem.size == 36 + 6 + 6
    F.cross_entropy(model(INPUTS), TARGETS).backward()
    server.step([zeno.flatten(model)] * 3)
    assert model.outer.weight is model.inner.weight


def test_accumulated_gradients_are_the_gradient_of_all_batches() -> None:
    model, server = make(zeno.Mean())
    for rows in torch.arange(40).split(10):
        (F.cross_entropy(model(INPUTS[rows]), TARGETS[rows]) / 4).backward()
    accumulated = zeno.flatten(model)
    torch.testing.assert_close(accumulated, zeno.flatten(gradients_of(model, torch.arange(40))))
    x = parameters(model)
    server.step([accumulated])
    torch.testing.assert_close(parameters(model), x - 0.3 * accumulated)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_in_half_precision_train_a_model_in_full_precision(dtype: torch.dtype) -> None:
    model, server = make()
    sent = [vector.to(dtype) for vector in sent_by(model, 4, 0, 0)]
    sent[1][3] = math.inf  # as of a loss that was scaled too far
    aggregate = server.step(sent)
    assert aggregate.kept.tolist().count(True) == 1
    assert server.record is not None
    assert server.record.errors == {1: zeno.ReplyError(zeno.ErrorKind.NOT_FINITE, "sent numbers that are not finite")}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_scores_are_in_full_precision_inside_autocast_and_without_gradients() -> None:
    model, server = make()
    expected = server.step(sent_by(model, 4, 1, 0)).scores
    other, same = make()
    sent = sent_by(other, 4, 1, 0)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = same.step(sent).scores
    assert found is not None
    assert expected is not None
    assert torch.equal(found, expected)
    auto = net()
    given = sent_by(auto, 4, 1, 0)
    for without in (torch.no_grad, torch.inference_mode):
        _, server = make(zeno.ZenoAuto())
        with without():
            server.step(given)  # which asks for the gradient of the server's own


def test_a_model_in_half_precision_works() -> None:
    model = net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    server = zeno.Server(model, F.cross_entropy, optimizer, [(INPUTS.bfloat16(), TARGETS)], zeno.Zeno(1, batch_size=32))
    loss = F.cross_entropy(model(INPUTS.bfloat16()), TARGETS)
    loss.backward()
    good = zeno.flatten(model)
    assert server.step([good, -good, good]).kept.tolist() == [True, False, True]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_running_statistics_are_those_of_the_servers_samples_and_modes_are_restored() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[2].eval()  # somebody's choice
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    server = zeno.Server(model, F.cross_entropy, optimizer, [(INPUTS, TARGETS)], zeno.Zeno(1, batch_size=4))
    server.step([torch.zeros(server.problem.size)] * 3)
    assert [module.training for module in model] == [True, True, False, True]
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    # Of the 400 samples, 256 were for the statistics at the start, 4 for the scores, and the next 256 are for these.
    taken = torch.arange(256 + 4, 256 + 4 + 256) % 400
    torch.testing.assert_close(norm.running_mean, model[0](INPUTS[taken]).mean(dim=0).detach())


def test_using_the_model_between_steps_does_not_change_scores() -> None:
    def scores(used: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        server = zeno.Server(model, F.cross_entropy, optimizer, [(INPUTS, TARGETS)], zeno.Zeno(0, batch_size=4))
        for _ in range(5 if used else 0):
            model(100 * INPUTS + 50)  # in training mode: running statistics follow it
        found = server.step([torch.full((46,), 0.1)]).scores
        assert found is not None
        return found

    assert torch.equal(scores(True), scores(False))


def test_data_that_raise_leave_the_model_unchanged() -> None:
    class Failing:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            yield INPUTS[:300], TARGETS[:300]
            raise OSError("the disk is gone")

    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    server = zeno.Server(model, F.cross_entropy, optimizer, Failing(), zeno.Zeno(0, batch_size=4))
    x = parameters(model)
    with pytest.raises(OSError, match="the disk is gone"):
        server.step([torch.ones(46)])
    assert torch.equal(parameters(model), x)
    assert server.optimizer.state_dict()["state"] == {}
    assert server.steps == 0


def test_gradients_can_be_clipped_before_the_optimizer_uses_them() -> None:
    model, server = make(zeno.Mean())

    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    server.optimizer.register_step_pre_hook(clip)
    x, sent = parameters(model), sent_by(model, 3, 0, 0)
    aggregate = server.step(sent)
    assert float((parameters(model) - x).norm()) == pytest.approx(0.3 * 0.01, rel=1e-3)
    torch.testing.assert_close(aggregate.update, torch.stack(sent).mean(dim=0))


def test_every_step_is_scored_on_fresh_samples_whatever_the_batches_are() -> None:
    seen: list[Tensor] = []

    class Looking(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(inputs)
            return super().forward(inputs)

    model = Looking(1, 1)
    numbers = torch.arange(10.0)[:, None]
    batches = [(part, part) for part in numbers.split(4)]  # of 4, 4 and 2
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rule = zeno.Zeno(0, batch_size=3, rho=0)
    server = zeno.Server(model, F.mse_loss, optimizer, batches, rule)
    drawn = []
    for _ in range(4):
        seen.clear()
        server.step([torch.zeros(2)])
        drawn.append(seen[0].flatten().tolist())
    assert drawn == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]


def test_a_rule_that_needs_no_samples_needs_no_data() -> None:
    model = net()
    server = zeno.Server(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), None, zeno.Median())
    sent = sent_by(model, 3, 0, 0)
    x = parameters(model)
    server.step(sent)
    torch.testing.assert_close(parameters(model), x - 0.1 * torch.stack(sent).median(dim=0).values)


def test_without_a_rule_a_server_uses_zeno_without_tuning() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert zeno.Server(model, F.cross_entropy, optimizer, loader(), rule=None).rule == zeno.ZenoAuto()


def test_a_server_that_trains_alone_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    model, server = make(zeno.ZenoAuto(samples=32))
    server.step(sent_by(model, 4, 1, 0))
    assert not caplog.records
    for _ in range(2):
        server.step([torch.zeros(3)] * 4)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "No worker sent a usable gradient at step 1. Worker 0 " in record.getMessage()
    assert record.getMessage().endswith("The server trains on its own samples alone.")


def test_a_rule_that_returns_no_aggregate_raises_and_changes_nothing() -> None:
    class Forgets(zeno.Rule):
        def __call__(self, candidates: Any, oracle: Any = None, state: object = None) -> zeno.Aggregate:
            return cast(zeno.Aggregate, None)

    model, server = make(Forgets())
    before = parameters(model)
    with pytest.raises(TypeError, match=r"must return a zeno.Aggregate\(update, weights\).*Found None"):
        server.step(sent_by(model, 4, 0, 0))
    assert torch.equal(parameters(model), before)
    assert server.steps == 0


def test_a_compiled_model_works() -> None:
    model = net()
    compiled: nn.Module = torch.compile(model, backend="eager")  # type: ignore[assignment]
    server = zeno.Server(compiled, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.3), loader(), zeno.Zeno(1))
    sent = sent_by(model, 4, 1, 0)
    x = parameters(model)
    server.step([*sent[:3], zeno.unflatten(sent[3], model)])  # by the names of a model that is not compiled
    assert server.record is not None
    assert server.record.errors == {}
    assert not torch.equal(parameters(model), x)


# What a run leaves behind


def test_a_folder_holds_a_record_of_every_step(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    rule = zeno.Zeno(trim=3, batch_size=64)
    with zeno.Server(model, F.cross_entropy, optimizer, loader(), rule, folder=tmp_path / "mine") as server:
        for step in range(60):
            server.step([*sent_by(model, 5, 2, step), None])
    records = read(tmp_path / "mine")
    assert [record.step for record in records] == list(range(60))
    assert records[3].errors == {5: NO_REPLY}
    assert ledger_of(records, 6).rows == server.ledger.rows
    assert server.ledger.suspects == [0, 1, 5]
    assert 'rule = "zeno(trim=3, batch_size=64)"' in (tmp_path / "mine" / "run.toml").read_text()
    assert server.ledger.steps == 60, "it is there when the files are closed"


def test_an_unsuitable_folder_raises_before_anything_changes(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        server = zeno.Server(model, F.cross_entropy, optimizer, loader(), zeno.Mean(), folder=tmp_path)
        x, state = parameters(model), copy.deepcopy(optimizer.state_dict())
        if _ == 0:
            server.step(sent_by(model, 3, 0, 0))
            server.close()
        else:
            with pytest.raises(
                ValueError,
                match=r"already holds the records of other steps\. Pass another folder, or load the state_dict",
            ):
                server.step(sent_by(model, 3, 0, 0))
            assert torch.equal(parameters(model), x)
            assert str(optimizer.state_dict()) == str(state)


def test_a_first_step_that_raises_leaves_the_folder_usable(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with zeno.Server(model, F.cross_entropy, optimizer, loader(), zeno.Zeno(trim=3), folder=tmp_path) as server:
        with pytest.raises(ValueError, match=r"Zeno needs more than trim candidates. Found 2 with trim=3"):
            server.step(sent_by(model, 2, 0, 0))
        server.step(sent_by(model, 5, 0, 0))
    assert "workers = 5" in (tmp_path / "run.toml").read_text()
    assert len(read(tmp_path)) == 1


def test_a_server_continues_where_another_stopped(tmp_path: Path) -> None:
    halves = halves_of(read_batch((INPUTS, TARGETS), torch.device("cpu")))
    some = torch.cat([(halves == half).nonzero().flatten()[:100] for half in (0, 1)])
    batches = [(INPUTS[some], TARGETS[some])]  # as many as there are, so that every draw is of all of them
    rule = zeno.ZenoAuto(samples=200)

    def begin(folder: str, seed: int) -> tuple[nn.Sequential, torch.optim.Optimizer, zeno.Server]:
        model = net(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        return model, optimizer, zeno.Server(model, F.cross_entropy, optimizer, batches, rule, folder=tmp_path / folder)

    model, optimizer, server = begin("through", 0)
    saved: list[Any] = []
    for step in range(12):
        if step == 7:
            parts = [model.state_dict(), optimizer.state_dict(), server.state_dict()]
            torch.save(parts, tmp_path / "saved")
            saved = torch.load(tmp_path / "saved", weights_only=True)
        server.step(sent_by(model, 6, 3, step))
    server.close()

    other, same, later = begin("through", 5)
    other.load_state_dict(saved[0])
    same.load_state_dict(saved[1])
    later.load_state_dict(saved[2])
    before = read(tmp_path / "through")
    assert later.ledger.steps == 7, "what was written after the state was saved is not counted"
    for step in range(7, 12):
        later.step(sent_by(other, 6, 3, step))
    later.close()
    assert torch.equal(parameters(other), parameters(model))
    assert read(tmp_path / "through") == before
    assert later.ledger.rows == server.ledger.rows


def test_without_a_folder_the_rule_and_the_ledger_continue_from_the_state(tmp_path: Path) -> None:
    model, server = make(zeno.ZenoAuto(samples=32))
    with pytest.raises(ValueError, match=r"has a ledger from its first step on\. Found none yet"):
        _ = server.ledger
    for step in range(120):
        server.step([*sent_by(model, 5, 0, step), None])
    assert server.ledger.suspects == [5]
    torch.save(server.state_dict(), tmp_path / "saved")
    _, other = make(zeno.ZenoAuto(samples=32))
    other.load_state_dict(torch.load(tmp_path / "saved", weights_only=True))
    assert other.ledger.rows == server.ledger.rows
    assert str(other.ledger.state_dict()) == str(server.ledger.state_dict())
    for one in (server, other):
        one.step([*sent_by(model, 5, 0, 120), None])
    assert other.ledger.steps == 121
    assert other.ledger.rows[5].evidence == server.ledger.rows[5].evidence > 1e3


def test_the_records_in_the_folder_must_be_those_of_the_loaded_state(tmp_path: Path) -> None:
    model, server = make()
    server.step(sent_by(model, 4, 0, 0))
    sent: list[Any] = sent_by(model, 4, 0, 0)
    for name, entries in [("same", sent), ("other", [*sent[:3], None])]:
        with zeno.Server(
            model, F.cross_entropy, server.optimizer, loader(), server.rule, folder=tmp_path / name
        ) as earlier:
            earlier.step(entries)
        state = earlier.state_dict()
    folder = tmp_path / "same"
    with zeno.Server(model, F.cross_entropy, server.optimizer, loader(), server.rule, folder=folder) as wrong:
        wrong.load_state_dict(state)
        with pytest.raises(ValueError, match=r"are not those of the 1 steps that this Server continues after"):
            wrong.step(sent_by(model, 4, 0, 1))


def test_a_server_that_continues_needs_the_earlier_records(tmp_path: Path) -> None:
    model, server = make()
    server.step(sent_by(model, 4, 0, 0))
    other = zeno.Server(model, F.cross_entropy, server.optimizer, loader(), server.rule, folder=tmp_path)
    other.load_state_dict(server.state_dict())
    with pytest.raises(ValueError, match=r"continues after 1 steps needs their records\. Found 0 in"):
        other.step(sent_by(model, 4, 0, 0))
