"""`zeno.Server` with a loss(model, batch) and batches in any form."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BatchEncoding, BertConfig, BertForSequenceClassification

import zeno
from support.own_loops import INPUTS, TARGETS, loader, net, parameters, sent_by
from zeno.problem.losses import takes_batch
from zeno.problem.nested import read
from zeno.server.samples import LoaderSamples, halves_of

CPU = torch.device("cpu")


@dataclass
class Sample:
    x: Tensor
    y: Tensor
    note: str = "the same in all batches"


def pair_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def dict_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Any]] = {
    "a tuple": (lambda x, y: (x, y), pair_loss),
    "a list": (lambda x, y: [x, y], pair_loss),
    "a dict": (lambda x, y: {"x": x, "y": y, "weight": None}, dict_loss),
    "a Hugging Face batch": (lambda x, y: BatchEncoding({"x": x, "y": y}), dict_loss),
    "a dataclass": (Sample, lambda model, batch: F.cross_entropy(model(batch.x), batch.y)),
    "nested": (
        lambda x, y: {"halves": (x[:, :3], [x[:, 3:]]), "y": y},
        lambda model, batch: F.cross_entropy(
            model(torch.cat([batch["halves"][0], *batch["halves"][1]], 1)), batch["y"]
        ),
    ),
}


@pytest.mark.parametrize("rule", [zeno.Zeno(trim=3, batch_size=32), zeno.ZenoAuto(samples=40)], ids=["Zeno", "auto"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_batches_gives_the_steps_of_inputs_and_targets(form: str, rule: zeno.Rule) -> None:
    make_batch, loss = FORMS[form]
    model, other = net(), net()
    sgd = [torch.optim.SGD(one.parameters(), lr=0.3) for one in (model, other)]
    server = zeno.Server(model, F.cross_entropy, sgd[0], loader(), rule)
    same = zeno.Server(other, loss, sgd[1], [make_batch(x, y) for x, y in loader()], rule)
    start = parameters(model)
    for step in range(4):
        expected = server.step(sent_by(model, 6, 2, step))
        found = same.step(sent_by(other, 6, 2, step))
        assert torch.equal(found.kept, expected.kept)
        assert found.scores is not None
        assert expected.scores is not None
        torch.testing.assert_close(found.scores, expected.scores, atol=1e-6, rtol=1e-4)
    assert not torch.equal(parameters(model), start)
    torch.testing.assert_close(parameters(other), parameters(model), atol=1e-5, rtol=1e-4)


class Scale(nn.Module):
    """One parameter w, at first 1. A text is a row of numbers, padded with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, texts: Tensor) -> Tensor:
        return self.w * texts.sum(dim=1)


def squared_error(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    assert batch["text"][:, -1].any(), "no text is padded to more than the length of its own batch"
    return F.mse_loss(model(batch["text"]), batch["label"])


PADDED = [  # the sums of the texts are 3, 1, 2 and 4, the labels 0
    {"text": torch.tensor([[1.0, 2], [1, 0], [2, 0]]), "label": torch.zeros(3)},
    {"text": torch.tensor([[1.0, 1, 1, 1]]), "label": torch.zeros(1)},
]


def test_each_length_is_evaluated_by_itself_and_counts_by_its_samples() -> None:
    model = Scale()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    server = zeno.Server(model, squared_error, optimizer, PADDED, zeno.Zeno(trim=1, rho=0.01, batch_size=4))
    # The loss is w^2 (9 + 1 + 4 + 16) / 4 = 7.5 w^2. The candidates lead to w = 0.5 and w = 1.5, and have norm 5.
    scores = server.step([torch.tensor([5.0]), torch.tensor([-5.0])]).scores
    assert scores is not None
    assert scores.tolist() == pytest.approx([7.5 * (1 - 0.25) - 0.25, 7.5 * (1 - 2.25) - 0.25])
    assert float(model.w.detach()) == pytest.approx(0.5)


def test_the_gradient_over_pieces_is_that_of_all_samples() -> None:
    model = Scale()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = zeno.Zeno(trim=1, rho=0, batch_size=4, score="first_order")
    server = zeno.Server(model, squared_error, optimizer, PADDED, rule)
    scores = server.step([torch.tensor([1.0]), torch.tensor([-2.0])]).scores
    assert scores is not None
    assert scores.tolist() == pytest.approx([0.1 * 15, -0.1 * 30])  # the gradient of 7.5 w^2 is 15


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)
        self.dropout = nn.Dropout(0.5)

    def forward(self, values: Tensor) -> Tensor:  # [n, length] -> [n, length]
        outputs: Tensor = self.dropout(self.norm(values[:, None]))[:, 0]
        return outputs


def mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    outputs: Tensor = model(batch)
    return outputs.square().mean()


def test_running_statistics_are_those_of_the_servers_samples_weighted_by_their_number() -> None:
    modes: set[tuple[bool, ...]] = set()

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        modes.add(tuple(module.training for module in model.modules()))
        return mean_square(model, batch)

    model = Normed()
    texts = [torch.full((192, 2), 1.0), torch.full((64, 3), 5.0)]  # 256, as many as the statistics are of
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    server = zeno.Server(model, loss, optimizer, texts, zeno.Zeno(trim=1, batch_size=4))
    assert float(model.norm.running_mean) == pytest.approx((192 * 1 + 64 * 5) / 256)  # type: ignore[arg-type]
    assert modes == {(False, True, False)}, "only the norm is in training mode"
    server.step([torch.ones(2), -torch.ones(2), torch.zeros(2)])
    assert modes == {(False, True, False), (False, False, False)}, "no dropout in scores"
    assert all(module.training for module in model.modules())


def test_scores_of_a_few_samples_at_once_use_running_statistics() -> None:
    """32 samples normalise with their own statistics, but not in pieces of 8 and 24: the 8 are too few."""
    for lengths, training in (([2, 2], True), ([2, 3], False)):
        seen: list[bool] = []

        def loss(model: nn.Module, batch: Tensor, seen: list[bool] = seen) -> Tensor:
            seen.append(bool(model.get_submodule("norm").training))
            return mean_square(model, batch)

        model = Normed()
        batches = [torch.randn(size, length) for size, length in zip((8, 24), lengths, strict=True)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        server = zeno.Server(model, loss, optimizer, batches, zeno.Zeno(trim=1, batch_size=32))
        seen.clear()
        with server._model_restored() as x:
            batch = server.core.samples.take(32, "score", 0)
            server.problem.at(x, 0.1, batch).descents(torch.zeros(2, 2))
        assert set(seen) == {training}


# Halves by content


def padded(rows: list[list[int]], length: int, pad: int = 0, left: bool = False) -> Tensor:
    filled = [[pad] * (length - len(row)) + row if left else row + [pad] * (length - len(row)) for row in rows]
    return torch.tensor(filled)


TEXTS = [[i + 5, i // 2 + 3, i % 7 + 1, i + 1][: 2 + i % 3] for i in range(200)]
ONES = [[1] * len(text) for text in TEXTS]
PADDINGS: dict[str, Callable[[int], Any]] = {
    "zeros": lambda length: {"ids": padded(TEXTS, length), "label": torch.arange(200) % 2},
    "ignored labels": lambda length: (padded(TEXTS, length), padded(TEXTS, length, -100)),
    "a mask": lambda length: BatchEncoding(
        {
            "input_ids": padded(TEXTS, length, pad=50256),
            "attention_mask": padded(ONES, length),
            "labels": padded(TEXTS, length, -100),
        }
    ),
    "a mask, on the left": lambda length: (
        {"input_ids": padded(TEXTS, length, 50256, left=True), "attention_mask": padded(ONES, length, left=True)},
        torch.arange(200) % 2,
    ),
}


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_text_is_in_the_same_half_whatever_length_it_is_padded_to(padding: str) -> None:
    halves = [halves_of(read(PADDINGS[padding](length), CPU)) for length in (4, 6, 11)]
    assert torch.equal(halves[0], halves[1])
    assert torch.equal(halves[0], halves[2])
    assert 60 < int(halves[0].sum()) < 140


def test_a_list_that_is_as_long_as_some_batches_only_raises() -> None:
    def batches(*sizes: int, empty: bool = False) -> LoaderSamples:
        made = [{"x": torch.zeros(size, 2), "size": () if empty and size != 2 else (32, 32)} for size in sizes]
        return LoaderSamples(made, CPU, zeno.Zeno(trim=1), nested=True)

    for sizes in ((4, 2), (2, 4)):
        with pytest.raises(ValueError) as raised:
            batches(*sizes).take(6, "score", 0)
        assert str(raised.value) == (
            "A Server needs lists of plain values with one for each sample in all batches, or in none. Found "
            "batch['size'], which is as long as one batch but not as another. Pass it as a tensor with one row per "
            "sample, or leave it out of the batch: the loss can refer to it."
        )
    assert batches(4, 3, 1).take(20, "score", 0).size == 20
    assert batches(4, 2, empty=True).take(20, "score", 0).size == 20


def test_only_labels_that_can_be_negative_are_ignored() -> None:
    pixels = torch.zeros(200, 8, dtype=torch.uint8)
    pixels[:, :7] = torch.randint(2, (200, 7), generator=torch.Generator().manual_seed(0)) * 156  # -100 as uint8
    pixels[:, 7] = 1
    halves = halves_of(read(pixels, CPU))
    assert 60 < int(halves.sum()) < 140
    assert torch.equal(halves, halves_of(read(pixels.view(200, 2, 4), CPU)))
    labels = pixels.view(torch.int8)
    assert len(set(halves_of(read(labels, CPU)).tolist())) == 1


def test_texts_beside_tensors_are_content() -> None:
    halves = halves_of(read({"x": torch.zeros(200), "text": [f"text {i}" for i in range(200)]}, CPU))
    assert 60 < int(halves.sum()) < 140


def test_no_text_is_ever_in_both_halves() -> None:
    def shuffled() -> Iterator[Any]:
        for step in range(40):
            rows = torch.randperm(200, generator=torch.Generator().manual_seed(step))[:20].tolist()
            yield {"ids": padded([TEXTS[i] for i in rows], 4 + step % 5), "number": torch.tensor(rows)}

    samples = LoaderSamples(list(shuffled()), CPU, zeno.ZenoAuto(), nested=True)
    numbers: list[set[int]] = [set(), set()]
    for step in range(12):
        for half in (0, 1):
            batch = samples.take(24, "score", step, half=half)
            assert not isinstance(batch, zeno.Batch)
            assert batch.size == 24
            numbers[half] |= {i for piece in batch.pieces for i in piece.batch()["number"].tolist()}
    assert not numbers[0] & numbers[1]
    assert min(map(len, numbers)) > 50


# Models of a user's


def test_a_model_with_its_loss_inside_and_frozen_parameters_is_trained() -> None:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model = BertForSequenceClassification(config)
    model.bert.embeddings.requires_grad_(False)
    ids = torch.randint(1, 9, (64, 5))
    batches = [
        BatchEncoding(
            {
                "input_ids": F.pad(ids[rows], (0, more)),
                "attention_mask": F.pad(torch.ones_like(ids[rows]), (0, more)),
                "labels": ids[rows, 0] % 2,
            }
        )
        for rows, more in zip(torch.arange(64).split(16), (0, 3, 1, 0), strict=True)
    ]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    before = model.bert.embeddings.word_embeddings.weight.detach().clone()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        found: Tensor = model(**batch).loss
        return found

    server = zeno.Server(model, loss, optimizer, batches, zeno.Zeno(trim=1, batch_size=40, rho=1e-6))
    optimizer.zero_grad()
    model.train(False)
    loss(model, batches[0]).backward()
    good = zeno.flatten(model)
    threads = torch.get_num_threads()
    try:
        kept = []
        for number in (1, 2):  # in one thread, and on copies of the model
            torch.set_num_threads(number)
            kept.append(server.step([good, -good, good]).kept.tolist())
    finally:
        torch.set_num_threads(threads)
    assert kept == [[True, False, True]] * 2
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, before)


def test_a_rank_of_torchrun_scores_batches_in_any_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'alone'}", rank=0, world_size=1)
    try:
        model = Scale()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        server = zeno.Server(model, squared_error, optimizer, PADDED, zeno.Zeno(trim=0, batch_size=4))
        squared_error(model, PADDED[1]).backward()
        zeno.distributed.step(model, optimizer, server)
    finally:
        dist.destroy_process_group()
    assert float(model.w.detach()) == pytest.approx(1 - 0.1 * 2 * 16)


# Mistakes


def wrong_losses() -> dict[str, tuple[Any, Any, type[Exception], str]]:
    pairs = [(INPUTS, TARGETS)]
    return {
        "another name, any batch": (
            lambda net, batch: dict_loss(net, batch),
            [{"x": INPUTS, "y": TARGETS}],
            ValueError,
            "A Server needs batches of two tensors, (inputs, targets), for a loss of (outputs, targets). Found "
            "(a dict). For other batches, pass a loss(model, batch), with its first parameter named `model`.",
        ),
        "another name, inputs and targets": (
            lambda net, batch: pair_loss(net, batch),
            pairs,
            TypeError,
            "'Tensor' object is not callable. The loss was called as loss(outputs, targets). If it is a "
            "loss(model, batch), name its first parameter `model`.",
        ),
        "a method of the model": (
            lambda net, batch: net.loss(batch),
            pairs,
            TypeError,
            "'Tensor' object has no attribute 'loss'. The loss was called as loss(outputs, targets). If it is a "
            "loss(model, batch), name its first parameter `model`.",
        ),
        "all that a model returns": (
            lambda model, batch: {"loss": pair_loss(model, batch)},
            pairs,
            ValueError,
            "A Server needs a loss that returns one number as a tensor, the mean over the samples. Found dict. Return "
            "the loss alone. A Hugging Face model computes model(**batch).loss from a batch with labels.",
        ),
        "a number": (
            lambda model, batch: pair_loss(model, batch).item(),
            pairs,
            ValueError,
            "A Server needs a loss that returns one number as a tensor, the mean over the samples. Found float. Leave "
            "out .item(), and use reduction='mean'.",
        ),
        "a loss for each sample": (
            lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
            pairs,
            ValueError,
            "A Server needs a loss that returns one number as a tensor, the mean over the samples. Found shape [4]. "
            "Pass reduction='mean', or take its mean.",
        ),
        "other numbers of samples": (
            pair_loss,
            [(INPUTS, TARGETS[:3])],
            ValueError,
            "A Server needs batches in which every tensor has one row per sample, and at least one row. Found batch[0] "
            "of shape [400, 6], batch[1] of shape [3]. Keep tensors without samples out of the batch: the loss can "
            "refer to them.",
        ),
    }


@pytest.mark.parametrize("case", wrong_losses())
def test_mistakes_raise_these_errors_and_leave_the_model_unchanged(case: str) -> None:
    loss, data, kind, words = wrong_losses()[case]
    model = net()
    x = parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    server = zeno.Server(model, loss, optimizer, data, zeno.Zeno(trim=1, batch_size=4))
    with pytest.raises(kind) as raised:
        server.step(sent_by(model, 3, 0, 0))
    assert str(raised.value) == words
    assert torch.equal(parameters(model), x)


class LossOfModule(nn.Module):
    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return pair_loss(model, batch)


class Trainer:
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return pair_loss(model, batch)


LOSSES: list[tuple[Any, bool]] = [
    (pair_loss, True),
    (lambda model, batch, weight=1.0: weight * pair_loss(model, batch), True),
    (LossOfModule(), True),
    (Trainer().loss, True),
    (functools.partial(lambda model, batch, weight: weight * pair_loss(model, batch), weight=1.0), True),
    (F.cross_entropy, False),
    (nn.CrossEntropyLoss(), False),
    (lambda *given: F.cross_entropy(*given), False),
]


@pytest.mark.parametrize(("loss", "expected"), LOSSES)
def test_the_name_of_the_first_parameter_decides_how_a_loss_is_called(loss: Any, expected: bool) -> None:
    assert takes_batch(loss) == expected
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    server = zeno.Server(model, loss, optimizer, loader(), zeno.Zeno(trim=1, batch_size=32))
    assert server.step(sent_by(model, 3, 0, 0)).kept.sum() == 2


def test_a_function_without_a_signature_is_called_with_outputs_and_targets() -> None:
    assert not takes_batch(torch.dot)
