"""A candidate after which the model or the loss raises is unusable; an exception at the parameters is the user's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import zeno
from support.fake_cluster import FakeCluster
from zeno.problem import oracle as oracle_module
from zeno.server.engine import Engine

TRUE = torch.tensor([1.0, 2.0])
DOWN = -TRUE  # a gradient that lowers the loss from parameters 0
HUGE = 1e30 * DOWN
M, BAD = 7, 2
INPUTS = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS @ TRUE[:, None]
REASON = "sent a gradient after which the loss raises ValueError: outputs beyond 1e6"


def checked_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    if float(outputs.abs().max()) > 1e6:
        raise ValueError("outputs beyond 1e6\nand more lines")
    return F.mse_loss(outputs, targets)


def zero_model() -> nn.Linear:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def make(rule: zeno.Rule, loss: Callable[[Tensor, Tensor], Tensor] = checked_loss) -> tuple[nn.Linear, zeno.Server]:
    model = zero_model()
    data = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=32)
    return model, zeno.Server(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data, rule)


def sent(*bad: int) -> list[Tensor]:
    """A good gradient from each worker, of slightly different lengths, and 1e30 of it from bad ones."""
    return [HUGE.clone() if worker in bad else (1 + worker / 100) * DOWN for worker in range(M)]


ZENO = zeno.Zeno(trim=3, batch_size=32)
FORMS: dict[str, Callable[[list[Tensor]], Any]] = {
    "a list": list,
    "one tensor": torch.stack,
    "a stream": lambda rows: dict(enumerate(rows)).values(),  # an iterable with a length
}


@pytest.mark.parametrize("form", FORMS)
def test_the_candidate_is_dropped_with_the_reason_on_the_record(form: str) -> None:
    model, server = make(ZENO)
    server.step(FORMS[form](sent(BAD)))
    assert server.record is not None
    assert server.record.errors == {BAD: zeno.ReplyError(zeno.ErrorKind.LOSS_RAISED, REASON)}
    assert server.record.kept == [False, False, False, True, True, True, True], "the longest ones lower the loss most"
    assert server.record.scores is not None
    assert [score is None for score in server.record.scores] == [worker == BAD for worker in range(M)]
    mean = (1.03 + 1.04 + 1.05 + 1.06) / 4
    torch.testing.assert_close(model.weight.detach()[0], 0.1 * mean * TRUE)


@dataclass(frozen=True)
class Best(zeno.Rule):
    """A rule that calls the oracle itself."""

    batch_size: int = 32

    @property
    def samples(self) -> int:
        return self.batch_size

    def __call__(self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None) -> zeno.Aggregate:
        assert oracle is not None
        best = oracle.descents(candidates).nan_to_num(-torch.inf).argmax()
        return zeno.Aggregate(candidates[best], F.one_hot(best, len(candidates)).double())


SHUFFLED = zeno.chain(zeno.Bucketing(size=1), ZENO)  # rows in another order than the workers
CLIPPED = zeno.chain(zeno.Clip(1e20), ZENO)


@pytest.mark.parametrize("rule", [zeno.BANT(), zeno.FedGreed(), Best(), SHUFFLED, CLIPPED], ids=repr)
def test_other_rules_that_try_candidates_go_on_without_it(rule: zeno.Rule) -> None:
    model, server = make(rule)
    aggregate = server.step(sent(BAD))
    assert not aggregate.kept[BAD]
    assert float((model.weight.detach() - 0.1 * TRUE).abs().max()) < 0.02
    assert server.record is not None
    assert server.record.errors == {BAD: zeno.ReplyError(zeno.ErrorKind.LOSS_RAISED, REASON)}
    assert server.record.note is None


NOTE = "A mixture of candidates was not used: the loss after it raises ValueError: outputs beyond 1e6"


@pytest.mark.parametrize(
    "rule",
    [zeno.AutoBANT(), zeno.chain(zeno.Bucketing(size=2), zeno.BANT()), zeno.chain(zeno.Bucketing(size=2), Best())],
    ids=repr,
)
def test_mixtures_after_which_the_loss_raises_are_not_used_and_are_nobodys_error(rule: zeno.Rule) -> None:
    model, server = make(rule)
    aggregate = server.step([*sent(BAD), DOWN])  # an even number: no bucket has one worker only
    assert not aggregate.kept[BAD]
    assert float((model.weight.detach() - 0.1 * TRUE).abs().max()) < 0.02
    assert server.record is not None
    assert server.record.errors == {}
    assert server.record.note == NOTE


def test_a_step_skipped_because_of_mixtures_says_so() -> None:
    _, server = make(zeno.chain(zeno.Bucketing(size=4), zeno.Zeno(trim=0, batch_size=32)))
    with pytest.raises(zeno.TooFewUsable, match=f"usable candidates. Found . of 7. {NOTE}"):
        server.step(sent(BAD))
    assert server.record is not None
    assert server.record.note == NOTE


def test_more_of_them_than_the_rule_tolerates_skip_the_step_with_the_reasons() -> None:
    model, server = make(ZENO)
    for gradients in (sent(0, 1, 2, 3), iter(sent(0, 1, 2, 3))):
        with pytest.raises(zeno.TooFewUsable, match=r"Found 3 of 7. Worker 0 sent a gradient after .* beyond 1e6"):
            server.step(gradients)
        assert server.record is not None
        assert sorted(server.record.errors) == [0, 1, 2, 3]
    assert model.weight.tolist() == [[0.0, 0.0]]


def test_an_exception_at_the_parameters_is_raised() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ZeroDivisionError("my own mistake")

    for rule in (ZENO, zeno.AutoBANT(), zeno.FedGreed(), zeno.BANT(), zeno.ZenoAuto()):
        _, server = make(rule, loss)
        for gradients in (sent(), iter(sent())):
            server.workers = M
            with pytest.raises(ZeroDivisionError, match="my own mistake"):
                server.step(gradients)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", [ZENO, zeno.BANT(), zeno.FedGreed()], ids=repr)
@pytest.mark.parametrize("broken", ["parameters", "loss", "parameters and gradients"])
def test_a_loss_that_is_not_finite_at_the_parameters_is_nobodys_error(form: str, rule: zeno.Rule, broken: str) -> None:
    factor = torch.inf if broken == "loss" else 1.0
    model, server = make(rule, lambda outputs, targets: factor * F.mse_loss(outputs, targets))
    gradients = [torch.full_like(TRUE, torch.nan)] * M if "gradients" in broken else sent()
    if "parameters" in broken:
        model.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError) as raised:
        server.step(FORMS[form](gradients))
    assert str(raised.value) == (
        f"Scores need a finite loss on the server's samples. Found {'inf' if broken == 'loss' else 'nan'} at the "
        "current parameters. Go back to a checkpoint, or check the samples and the loss."
    )
    assert not isinstance(raised.value, zeno.TooFewUsable)


def test_an_exception_without_a_text_of_its_own_is_named() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if float(outputs.abs().max()) > 1e6:
            raise SilentError
        return F.mse_loss(outputs, targets)

    _, server = make(ZENO, loss)
    server.step(sent(BAD))
    assert server.record is not None
    assert server.record.errors[BAD].text.endswith("the loss raises SilentError")


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_scores_in_parallel_and_on_arrival_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_module, "WORTH_A_THREAD", 0.0)
    records = []
    for remote in (False, True):
        params = nn.Parameter(torch.zeros(2))
        problem = zeno.Problem(zero_model(), checked_loss)
        cluster = FakeCluster(sent(BAD), remote=remote)
        dataset = zeno.Dataset(INPUTS, TARGETS, None)
        optimizer = torch.optim.SGD([params], lr=0.1)
        engine = Engine(problem, ZENO, cluster, dataset, torch.arange(256), optimizer)
        records.append(engine.step(0).record())
        engine.close()
        if not remote:  # on arrival, it depends on timing whether several wait to be scored
            assert len(problem.replicas._copies) == 2, "in parallel"
        assert bool(params.isfinite().all())
    assert records[0] == records[1]
    assert records[0].errors == {BAD: zeno.ReplyError(zeno.ErrorKind.LOSS_RAISED, REASON)}


def test_a_loss_that_accepts_only_the_parameters_themselves_is_scored_without_copies() -> None:
    """Copies of a model are tested at 1.01 times its parameters, where this loss raises."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        assert not (outputs - 1.01).abs().min() < 1e-3, "not here"
        return F.mse_loss(outputs, targets)

    problem = zeno.Problem(zero_model(), loss)
    batch = zeno.Batch(torch.tensor([[1.0, 0.0]] * 4), torch.zeros(4, 1))
    problem.load(torch.tensor([1.0, 1.0]))
    assert problem.replicas(2, batch) == [problem]
    assert problem.flat.tolist() == [1.0, 1.0]


def test_bce_loss_does_not_end_the_step() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Hardsigmoid(), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    data = DataLoader(TensorDataset(INPUTS, torch.rand(256, 1)), batch_size=32)
    server = zeno.Server(model, nn.BCELoss(), torch.optim.SGD(model.parameters(), lr=0.1), data, ZENO)
    rows = [torch.full((3,), 1e30 if worker == BAD else 0.01) for worker in range(M)]
    server.step(rows)
    assert server.record is not None
    assert list(server.record.errors) == [BAD]
    assert "RuntimeError" in server.record.errors[BAD].text
