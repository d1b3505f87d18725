"""A model as functions of one flat vector, against the same things done the slow way, layer by layer."""

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from zeno.problem import models, oracle
from zeno.problem.oracle import OWN_STATISTICS_FROM
from zeno.problem.threads import one_thread
from zeno.rules.linalg.passes import all_finite

MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: models.mlp((1, 8, 8), 10),
    "cnn": lambda: nn.Sequential(*[c for c in models.small_cnn((1, 8, 8), 10).children() if not is_norm(c)]),
    "cnn with batch norm": lambda: models.small_cnn((1, 8, 8), 10),
}


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm2d)


def make(name: str) -> tuple[zeno.Problem, nn.Module]:
    """A problem, and a separate model with the same weights."""
    torch.manual_seed(0)
    model = MODELS[name]()
    return zeno.Problem(copy.deepcopy(model)), model


def batch(size: int, seed: int = 1) -> zeno.Batch:
    rng = torch.Generator().manual_seed(seed)
    return zeno.Batch(torch.rand(size, 1, 8, 8, generator=rng), torch.randint(10, (size,), generator=rng))


def set_parameters(model: nn.Module, flat: Tensor) -> None:
    start = 0
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.data.copy_(flat[start : start + parameter.numel()].view_as(parameter))
        start += parameter.numel()
    assert start == len(flat)


def slow_loss(model: nn.Module, flat: Tensor, samples: zeno.Batch) -> float:
    set_parameters(model, flat)
    own_statistics = len(samples.targets) >= OWN_STATISTICS_FROM
    model.eval()
    for module in model.modules():
        if is_norm(module) and own_statistics:
            module.train()
    with torch.no_grad():
        return F.cross_entropy(model(samples.inputs).double(), samples.targets).item()


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two torch threads, and every forward long enough for another beside it."""
    monkeypatch.setattr(oracle, "WORTH_A_THREAD", 0.0)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_the_papers_cnn_has_its_number_of_parameters() -> None:
    assert zeno.Problem(models.cnn((3, 32, 32), 10)).size == 1_310_922


def test_parameters_are_views_of_one_buffer() -> None:
    problem, _ = make("cnn with batch norm")
    problem.load(torch.arange(problem.size, dtype=torch.float32))
    assert torch.cat([p.flatten() for p in problem.model.parameters()]).tolist() == list(range(problem.size))


def test_parameters_that_were_given_other_memory_become_views_again() -> None:
    problem, _ = make("mlp")
    other = torch.arange(problem.size, dtype=torch.float32)
    nn.utils.vector_to_parameters(other, problem.model.parameters())
    assert torch.equal(problem.flat, other)
    problem.load(torch.zeros(problem.size))
    assert all(parameter.eq(0).all() for parameter in problem.model.parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [4, 64])
def test_scores_equal_a_slow_implementation_of_the_definition(name: str, size: int) -> None:
    problem, model = make(name)
    x, lr, rho, samples = problem.flat.clone(), 0.1, 5e-4, batch(size)
    candidates = torch.stack([problem.gradient(x, batch(50, seed), seed) for seed in range(2, 6)])
    problem.refresh(x, batch(100, 7).inputs)
    model.load_state_dict(problem.model.state_dict())

    rule = zeno.Zeno(trim=1, rho=rho, batch_size=size)
    scores = rule(candidates, problem.at(x, lr, samples)).scores

    assert scores is not None
    for u, score in zip(candidates, scores.tolist(), strict=True):
        start = slow_loss(copy.deepcopy(model), x, samples)
        tried = slow_loss(copy.deepcopy(model), x - lr * u, samples)
        assert score == pytest.approx(start - tried - rho * (u.double() ** 2).sum().item(), rel=1e-5)


def test_which_statistics_normalise_the_scores_can_be_chosen() -> None:
    problem, _ = make("cnn with batch norm")
    x = problem.flat.clone()
    problem.refresh(x, batch(100, 7).inputs)
    rows = problem.gradient(x, batch(50, 2), 1)[None]
    for size, default in ((4, False), (64, True)):
        descents = [problem.descent(x, rows, 0.1, batch(size), own).item() for own in (None, False, True)]
        assert descents[0] == descents[1 + default] != descents[2 - default]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_those_of_plain_backward(name: str) -> None:
    problem, model = make(name)
    samples = batch(20)
    model.train()
    torch.manual_seed(3)
    F.cross_entropy(model(samples.inputs), samples.targets).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(problem.gradient(problem.flat.clone(), samples, seed=3), expected, rtol=1e-4, atol=1e-6)


def test_dropout_is_on_for_gradients_from_the_seed_and_off_for_scores() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    problem = zeno.Problem(model)
    x, samples = problem.flat.clone(), batch(40)
    assert torch.equal(problem.gradient(x, samples, 1), problem.gradient(x, samples, 1))
    assert not torch.equal(problem.gradient(x, samples, 1), problem.gradient(x, samples, 2))
    candidates = problem.gradient(x, samples, 1)[None]
    assert torch.equal(problem.descent(x, candidates, 0.1, samples), problem.descent(x, candidates, 0.1, samples))
    assert problem.loss(x, samples) == problem.loss(x, samples)


def test_gradients_leave_the_callers_random_state_alone() -> None:
    problem, _ = make("cnn with batch norm")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    problem.gradient(problem.flat.clone(), batch(4), 1)
    assert torch.equal(torch.rand(3), expected)


def test_neither_gradients_nor_scores_change_the_buffers() -> None:
    problem, _ = make("cnn with batch norm")
    x = problem.flat.clone()
    problem.refresh(x, batch(100).inputs)
    before = {name: buffer.clone() for name, buffer in problem.buffers.items()}
    candidates = problem.gradient(x, batch(50, 2), 1)[None]
    problem.descent(x, candidates, 0.1, batch(4))
    problem.descent(x, candidates, 0.1, batch(64))
    assert all(torch.equal(buffer, before[name]) for name, buffer in problem.buffers.items())


def test_refresh_sets_the_statistics_of_these_samples_and_forgets_older_ones() -> None:
    problem = zeno.Problem(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    x = problem.flat.clone()
    problem.refresh(x, torch.randn(50, 2) + 10)
    inputs = torch.randn(80, 2)
    problem.refresh(x, inputs)
    with torch.no_grad():
        features = problem.model[0](inputs)  # type: ignore[index]
    torch.testing.assert_close(problem.buffers["1.running_mean"], features.mean(dim=0))
    torch.testing.assert_close(problem.buffers["1.running_var"], features.var(dim=0))
    assert problem.norms[0].momentum == 0.1


def test_the_descent_of_a_non_finite_candidate_is_nan_and_others_are_unaffected() -> None:
    problem, _ = make("mlp")
    x, samples = problem.flat.clone(), batch(8)
    good = problem.gradient(x, samples, 1)
    rows = torch.stack([good, torch.full_like(good, torch.nan), good])
    descents = problem.descent(x, rows, 0.1, samples)
    assert descents[1].isnan()
    assert descents[0] == descents[2] > 0
    assert torch.equal(problem.flat, x), "the model is left as it was"


def test_descent_works_at_the_current_parameters_of_the_model() -> None:
    problem, _ = make("mlp")
    x, samples = problem.flat.clone(), batch(8)
    rows = torch.stack([problem.gradient(x, samples, 1)] * 3)
    assert torch.equal(problem.descent(problem.flat, rows, 0.1, samples), problem.descent(x, rows, 0.1, samples))
    assert torch.equal(problem.flat, x)


def test_accuracy_is_the_share_of_labels_with_the_highest_output() -> None:
    problem = zeno.Problem(nn.Linear(2, 2, bias=False))
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 1.0], [2.0, 5.0]])
    assert problem.accuracy(torch.eye(2).flatten(), zeno.Batch(inputs, torch.tensor([0, 1, 1, 1]))) == 0.75


def test_frozen_parameters_are_not_part_of_the_vector() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    assert zeno.Problem(model).size == 4


def test_a_model_without_trainable_parameters_raises() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        zeno.Problem(nn.ReLU())


def test_a_loss_with_float32_weights_can_be_scored() -> None:
    torch.manual_seed(0)
    problem = zeno.Problem(models.mlp((1, 8, 8), 10), nn.CrossEntropyLoss(weight=torch.linspace(1, 2, 10)))
    x, samples = problem.flat.clone(), batch(8)
    assert problem.descent(x, problem.gradient(x, samples, 1)[None], 0.1, samples)[0] > 0


def test_results_do_not_require_a_gradient_even_if_the_arguments_do() -> None:
    problem, _ = make("mlp")
    x, samples = nn.Parameter(problem.flat.clone()), batch(8)
    assert problem.loss(x, samples) == problem.loss(x.detach(), samples)
    rows = nn.Parameter(problem.gradient(x, samples, 1)[None].clone())
    assert not problem.descent(x, rows, 0.1, samples).requires_grad
    assert not problem.flat.requires_grad


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda problem: pickle.loads(pickle.dumps(problem))])
def test_copies_and_pickles_have_their_own_buffer(duplicate: Callable[[zeno.Problem], zeno.Problem]) -> None:
    problem, _ = make("mlp")
    x, samples = problem.flat.clone(), batch(8)
    other = duplicate(problem)
    assert other.loss(-x, samples) != other.loss(x, samples) == problem.loss(x, samples)
    other.load(torch.zeros_like(x))
    assert torch.equal(problem.flat, x)


def test_models_that_reshape_their_inputs_get_the_layout_they_expect() -> None:
    class Reshaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3 * 8 * 8, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.layer(inputs.view(len(inputs), -1))
            return outputs

    problem = zeno.Problem(Reshaping())
    samples = zeno.Batch(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1]))
    assert problem.gradient(problem.flat, samples, 0).isfinite().all()


def test_a_refresh_that_raises_restores_the_momentum() -> None:
    problem = zeno.Problem(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    with pytest.raises(ValueError, match="more than 1 value"):
        problem.refresh(problem.flat, torch.randn(1, 2))
    assert problem.norms[0].momentum == 0.1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.usefixtures("side_by_side")
def test_scores_are_the_same_in_parallel_one_by_one_and_alone(name: str, size: int) -> None:
    problem, model = make(name)
    x, samples = problem.flat.clone(), batch(size)
    problem.refresh(x, batch(100, 7).inputs)
    model.load_state_dict(problem.model.state_dict())
    rows = torch.stack([problem.gradient(x, batch(50, seed), seed) for seed in range(2, 9)])
    together = problem.descent(x, rows, 0.1, samples)
    assert len(problem.replicas(2, samples)) == 2
    assert torch.get_num_threads() == 2
    assert torch.equal(problem.flat, x)
    assert together.tolist() == [problem.descent(x, row[None], 0.1, samples).item() for row in rows]
    torch.set_num_threads(1)
    assert torch.equal(problem.descent(x, rows, 0.1, samples), together)
    start = slow_loss(copy.deepcopy(model), x, samples)
    slow = [start - slow_loss(copy.deepcopy(model), x - 0.1 * u, samples) for u in rows]
    assert together.tolist() == pytest.approx(slow, rel=1e-5)
    assert together.argsort().tolist() == torch.tensor(slow).argsort().tolist()


class Closure(nn.Module):
    """Computes with the layer of the original, however often it is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.of: Callable[[Tensor], Tensor] = lambda inputs: self.layer(inputs.flatten(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.of(inputs)


class Single(nn.Linear):
    def __deepcopy__(self, memo: object) -> nn.Module:
        raise TypeError("there is only one")


@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize("name", MODELS)
def test_gradients_on_two_halves_are_the_same_in_parallel_and_alone(name: str) -> None:
    problem, _ = make(name)
    x, samples = problem.flat.clone(), batch(40)
    before = [buffer.clone() for buffer in problem.model.buffers()]
    own, judge = samples.cut(slice(20)), samples.cut(slice(20, None))
    # What a worker would send, with dropout; and the gradient of the loss that candidates are scored with, without.
    with one_thread():
        expected = torch.stack([problem.gradient(x, own, 7), problem.at(x, 0.1, judge).gradient()])
    problem.load(x)
    for _ in range(2):  # the first time shows that it takes long enough for threads
        assert torch.equal(problem.at(x, 0.1, samples, seed=7).half_gradients(), expected)
    assert problem.gradient_seconds > 0
    assert torch.equal(problem.flat, x)
    assert all(map(torch.equal, problem.model.buffers(), before))


def hooked() -> nn.Module:
    model = models.mlp((1, 8, 8), 10)
    model.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    return model


@pytest.mark.parametrize("kind", [Closure, lambda: nn.Sequential(nn.Flatten(), Single(64, 10)), hooked])
@pytest.mark.usefixtures("side_by_side")
def test_models_that_cannot_be_copied_are_scored_one_by_one(kind: Callable[[], nn.Module]) -> None:
    problem = zeno.Problem(kind())
    x, samples = problem.flat.clone(), batch(8)
    rows = torch.stack([problem.gradient(x, samples, 1) * scale for scale in (1, -1, 2, 0)])
    assert problem.replicas(2, samples) == [problem]
    found = problem.descent(x, rows, 0.1, samples).tolist()
    start = slow_loss(problem.model, x, samples)
    assert found == pytest.approx([start - slow_loss(problem.model, x - 0.1 * u, samples) for u in rows], rel=1e-5)
    assert found[3] == 0


@pytest.mark.usefixtures("side_by_side")
def test_copies_follow_changes_of_the_original() -> None:
    torch.manual_seed(0)
    frozen, norm, trained = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)
    frozen.requires_grad_(False)
    model = nn.Sequential(nn.Flatten(), frozen, norm, nn.ReLU(), trained)
    problem = zeno.Problem(model)
    x, samples = problem.flat.clone(), batch(8)
    rows = torch.stack([problem.gradient(x, samples, 1)] * 3)

    def check() -> float:
        found = problem.descent(x, rows, 0.1, samples)
        expected = slow_loss(problem.model, x, samples) - slow_loss(problem.model, x - 0.1 * rows[0], samples)
        assert found.tolist() == pytest.approx([expected] * 3, rel=1e-5)
        return expected

    seen = {check()}
    frozen.weight.data.mul_(2)
    seen.add(check())
    problem.refresh(x, batch(50, 3).inputs)
    seen.add(check())
    norm.eps = 1.0
    seen.add(check())
    model[3] = nn.Tanh()
    seen.add(check())
    assert len(seen) == 5


@pytest.mark.usefixtures("side_by_side")
def test_an_exception_while_scoring_in_parallel_belongs_to_its_candidate() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if float(outputs.abs().max()) > 1e6:
            raise ZeroDivisionError("in a thread")
        return F.cross_entropy(outputs, targets)

    problem = zeno.Problem(models.mlp((1, 8, 8), 10), loss)
    rows = torch.zeros(50, problem.size)
    rows[[7, 30]] = 1e30
    x = problem.flat.clone()
    descents, raised = problem.at(x, 0.1, batch(4)).trials(rows)
    assert raised == dict.fromkeys([7, 30], "ZeroDivisionError: in a thread")
    assert descents.isnan().nonzero().flatten().tolist() == [7, 30]
    assert torch.equal(problem.descent(x, rows, 0.1, batch(4)).nan_to_num(1), descents.nan_to_num(1))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.usefixtures("side_by_side")
def test_one_non_finite_number_is_found_and_large_numbers_are_accepted(bad: float) -> None:
    problem, _ = make("mlp")
    x, samples = problem.flat.clone(), batch(8)
    good = problem.gradient(x, samples, 1)
    rows = torch.stack([good] * 4)
    rows[1, 77] = bad
    rows[2] = 3e38  # finite, but its sum is not
    descents = problem.descent(x, rows, 1e-38, samples)
    assert descents.isnan().tolist() == [False, True, False, False]
    assert descents[0] == descents[3] != descents[2]
    assert [all_finite(row) for row in rows] == [True, False, True, True]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [4, 64])
def test_the_gradient_of_an_oracle_is_that_of_the_loss_it_scores_with(name: str, size: int) -> None:
    problem, model = make(name)
    x, samples = problem.flat.clone(), batch(size)
    problem.refresh(x, batch(100, 7).inputs)
    before = copy.deepcopy(problem.buffers)
    model.load_state_dict(problem.model.state_dict())
    model.eval()
    for module in model.modules():
        if is_norm(module) and size >= OWN_STATISTICS_FROM:
            module.train()
    F.cross_entropy(model(samples.inputs), samples.targets).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    at = problem.at(x, 0.1, samples)
    torch.testing.assert_close(at.gradient(), expected, rtol=1e-4, atol=1e-6)
    assert at.gradient() is at.gradient(), "computed once"
    assert all(torch.equal(buffer, before[name]) for name, buffer in problem.buffers.items())
    rows = torch.stack([problem.gradient(x, batch(50, seed), seed) for seed in (2, 3)])
    assert torch.equal(at.descents(rows), problem.descent(x, rows, 0.1, samples))
    assert at.lr == 0.1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("each", [False, True], ids=["one rate", "one per parameter"])
def test_the_gradient_after_a_step_is_that_at_the_parameters_it_leads_to(name: str, size: int, each: bool) -> None:
    problem, _ = make(name)
    x, samples = problem.flat.clone(), batch(size)
    problem.refresh(x, batch(100, 7).inputs)
    before = copy.deepcopy(problem.buffers)
    u = problem.gradient(x, batch(50, 2), 2)
    lr = torch.linspace(0.0, 0.2, len(x)) if each else 0.1

    at = problem.at(x, lr, samples)
    here, there = at.gradient().clone(), problem.at(x - lr * u, lr, samples).gradient()
    torch.testing.assert_close(at.gradient(u), there, rtol=1e-3, atol=1e-4 * float(there.abs().max()))
    assert torch.equal(problem.flat, x)
    assert torch.equal(at.gradient(), here)
    assert torch.equal(at.gradient(torch.zeros_like(x)), here)
    assert all(torch.equal(buffer, before[name]) for name, buffer in problem.buffers.items())
    u[0] = float("nan")
    assert not at.gradient(u).isfinite().all()
    assert torch.equal(problem.flat, x)


def test_vectorised_gradients_equal_those_of_each_batch() -> None:
    problem, _ = make("mlp")
    x, batches = problem.flat.clone(), [batch(20, seed) for seed in range(3)]
    inputs, targets = torch.stack([b.inputs for b in batches]), torch.stack([b.targets for b in batches])
    found = problem.gradients(x, inputs, targets)
    for row, samples in zip(found, batches, strict=True):
        torch.testing.assert_close(row, problem.gradient(x, samples, 0))


@pytest.mark.parametrize("name", ["cnn", "cnn with batch norm"])
def test_models_with_random_draws_or_statistics_have_no_vectorised_gradients(name: str) -> None:
    problem, _ = make(name)
    with pytest.raises(RuntimeError):
        problem.gradients(problem.flat.clone(), batch(20).inputs[None], batch(20).targets[None])
