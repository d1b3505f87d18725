"""What `zeno.Server` raises and warns about, word by word."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from support.own_loops import INPUTS, TARGETS, layer, loader, make, net, sent_by


def wrong() -> dict[str, tuple[Callable[[], object], str]]:
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    rule = zeno.Zeno(trim=1)

    def server(
        model: Any = model,
        loss: Any = F.cross_entropy,
        optimizer: Any = sgd,
        data: Any = ((INPUTS, TARGETS),),
        rule: Any = rule,
    ) -> zeno.Server:
        return zeno.Server(model, loss, optimizer, data, rule)

    def after(change: Callable[[nn.Sequential, torch.optim.Optimizer], object]) -> Callable[[], object]:
        def use() -> object:
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            made = server(model=model, optimizer=optimizer)
            change(model, optimizer)
            return made.step([torch.zeros(74)] * 3)

        return use

    half = net()
    layer(half, 0).double()
    shared = net()
    layer(shared, 2).weight.data = layer(shared, 0).weight.data.flatten()[8:24].view(2, 8)
    embedded = nn.Embedding(5, 3, sparse=True)
    embedded(torch.tensor([1])).sum().backward()
    synced = nn.Sequential(nn.Linear(6, 2), nn.SyncBatchNorm(2))
    no_lr = torch.optim.Adafactor(model.parameters(), lr=0.1)
    no_lr.param_groups[0]["lr"] = None
    normed = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2))
    two = nn.LSTM(6, 2)
    groups = [{"params": [p], "maximize": True} for p in model.parameters()]
    return {
        "no model": (lambda: server(model="net"), "A Server needs model as a torch.nn.Module. Found str."),
        "in DataParallel": (
            lambda: server(model=nn.DataParallel(model)),
            "A Server needs the model itself. Found it wrapped in DataParallel, which averages all gradients before "
            "they can be checked. Pass model.module.",
        ),
        "no loss": (
            lambda: server(loss=0.3),
            "A Server needs loss as a function: loss(outputs, targets) or loss(model, batch). Found float.",
        ),
        "a loss of the batch alone": (
            lambda: server(loss=lambda batch: model(batch[0]).mean()),
            "A Server needs loss as a function: loss(outputs, targets) or loss(model, batch). Found <lambda>(batch).",
        ),
        "no optimizer": (
            lambda: server(optimizer=torch.optim.SGD),
            "A Server needs optimizer as a torch.optim.Optimizer. Found type.",
        ),
        "no rule": (
            lambda: server(rule="zeno"),
            "A Server needs rule as a zeno.Rule, such as zeno.Zeno(trim=4). Found 'zeno'.",
        ),
        "the class of a rule": (
            lambda: server(rule=zeno.Median),
            "A Server needs rule as a zeno.Rule, such as zeno.Zeno(trim=4). Found <class 'zeno.rules.median.Median'>.",
        ),
        "LBFGS": (
            lambda: server(optimizer=torch.optim.LBFGS(model.parameters())),
            "A Server needs an optimizer that steps on gradients alone. Found LBFGS, which evaluates the loss itself, "
            "several times per step.",
        ),
        "uphill": (
            lambda: server(optimizer=torch.optim.SGD(groups, lr=0.1)),
            "A Server minimises the loss. Found SGD with maximize=True. Negate the loss instead.",
        ),
        "half of the model": (
            lambda: server(optimizer=torch.optim.SGD(layer(model, 0).parameters(), lr=0.1)),
            "A Server needs every trainable parameter in the optimizer. Found 2 that are not, such as '2.weight'. "
            "Add them, or freeze them with requires_grad_(False).",
        ),
        "another model": (
            lambda: server(optimizer=torch.optim.SGD([*model.parameters(), *net().parameters()], lr=0.1)),
            "A Server needs an optimizer over this model only. Found 4 parameters in SGD that are not the model's. "
            "Create the optimizer after replacing or moving layers.",
        ),
        "two precisions": (
            lambda: server(model=half, optimizer=torch.optim.SGD(half.parameters(), lr=0.1)),
            "A Problem needs a model with trainable parameters of one dtype on one device. Found "
            "torch.float32 on cpu, torch.float64 on cpu.",
        ),
        "memory in common": (
            lambda: server(model=shared, optimizer=torch.optim.SGD(shared.parameters(), lr=0.1)),
            "A Server needs parameters that do not share memory. Found two that do. Tie weights by using one "
            "Parameter in both places, as in `decoder.weight = encoder.weight`.",
        ),
        "BatchNorm without data": (
            lambda: server(model=normed, optimizer=torch.optim.SGD(normed.parameters(), lr=0.1), data=None),
            "A Server needs data for a model with BatchNorm: running statistics are computed from the server's "
            "samples, never from a worker's. Found data=None with BatchNorm1d.",
        ),
        "no data": (
            lambda: server(data=None),
            "Zeno(trim=1, rho=0.0005, batch_size=4, score='exact') needs samples on the server. Found data=None. Pass "
            "a DataLoader.",
        ),
        "no data without a rule": (
            lambda: server(data=None, rule=None),
            f"{zeno.ZenoAuto()} needs samples on the server. Found data=None. Pass a DataLoader.",
        ),
        "data that ends": (
            lambda: server(data=((INPUTS, TARGETS) for _ in range(9))),
            "A Server needs data that can be iterated again when it ends. Found generator, which cannot. Pass a "
            "DataLoader or a list of batches.",
        ),
        "data that ends, for BatchNorm": (
            lambda: server(
                model=normed,
                optimizer=torch.optim.SGD(normed.parameters(), lr=0.1),
                data=iter([(INPUTS, TARGETS)]),
                rule=zeno.Median(),
            ),
            "A Server needs data that can be iterated again when it ends. Found list_iterator, which cannot. Pass a "
            "DataLoader or a list of batches.",
        ),
        "the same sample": (
            lambda: server(data=[(INPUTS[:1].repeat(5000, 1), TARGETS[:1].repeat(5000))], rule=zeno.ZenoAuto()).step(
                [torch.zeros(74)] * 3
            ),
            f"{zeno.ZenoAuto()} needs at least two different samples on the server, one for each half. Found 15,000 in "
            "a row for the same half: they are copies of a few. Pass more samples.",
        ),
        "frozen since": (
            after(lambda model, _: layer(model, 0).requires_grad_(False)),
            "The trainable parameters have changed since this Server was created. Create a new Server after freezing "
            "or replacing parameters.",
        ),
        "moved since": (
            after(lambda model, _: model.double()),
            "A Server needs its model to stay torch.float32 on cpu. Found torch.float64 on cpu. Move the model before "
            "creating the Server.",
        ),
        "one matrix for all": (
            lambda: server().step(torch.zeros(3, 2)),
            "A Server needs gradients as one floating-point tensor [workers, 74]. Found torch.float32 of shape "
            "[3, 2]. zeno.flatten(model) returns one row.",
        ),
        "one vector": (
            lambda: (one := server(), one.step([torch.zeros(74)] * 3), one.step(torch.zeros(74))),
            "A Server needs gradients as one floating-point tensor [workers, 74]. Found torch.float32 of shape "
            "[74]. zeno.flatten(model) returns one row.",
        ),
        "one number": (
            lambda: server().step(torch.tensor(1.0)),
            "A Server needs gradients as one floating-point tensor [workers, 74]. Found torch.float32 of shape "
            "[]. zeno.flatten(model) returns one row.",
        ),
        "whole numbers in one tensor": (
            lambda: server().step(torch.zeros(3, 74, dtype=torch.int64)),
            "A Server needs gradients as one floating-point tensor [workers, 74]. Found torch.int64 of shape "
            "[3, 74]. zeno.flatten(model) returns one row.",
        ),
        "workers by number": (
            lambda: server().step({0: torch.zeros(74)}),  # type: ignore[arg-type]
            "The name of a worker is a printable text of 1 to 100 characters, without spaces at its ends. Found 0.",
        ),
        "an array of objects": (
            lambda: server().step(torch.zeros(3, 74).numpy().astype(object)),
            "A Server needs gradients as a list with one entry per worker, in order, by name, or as one tensor. "
            "Found ndarray.",
        ),
        "SyncBatchNorm": (
            lambda: server(model=synced, optimizer=torch.optim.SGD(synced.parameters(), lr=0.1)),
            "A Server evaluates candidates on one rank, where SyncBatchNorm would wait for the others. Use BatchNorm.",
        ),
        "no learning rate": (
            lambda: server(optimizer=no_lr),
            "A Server tries steps of the optimizer's lr. Found Adafactor with lr=None. Set one.",
        ),
        "differentiable": (
            lambda: server(optimizer=torch.optim.SGD(model.parameters(), lr=0.1, differentiable=True)),
            "A Server needs differentiable=False. Found SGD with differentiable=True.",
        ),
        "sparse gradients": (
            lambda: zeno.flatten(embedded),
            "zeno.flatten needs dense gradients. Found a sparse one in 'weight'. Pass sparse=False.",
        ),
        "samples of several lengths": (
            lambda: server(data=[(INPUTS[:2], TARGETS[:2]), (INPUTS[:2, :5], TARGETS[:2])]).step([torch.zeros(74)] * 3),
            "A Server needs samples of one shape and dtype for a loss of (outputs, targets). Found (torch.float32 [6], "
            "torch.int64 []) and (torch.float32 [5], torch.int64 []) in batches. Pad all to one length and convert "
            "them to one dtype, or pass a loss of (model, batch).",
        ),
        "samples of several types": (
            lambda: server(data=[(INPUTS[:2], TARGETS[:2]), (INPUTS[:2], TARGETS[:2].float())]).step(
                [torch.zeros(74)] * 3
            ),
            "A Server needs samples of one shape and dtype for a loss of (outputs, targets). Found (torch.float32 [6], "
            "torch.int64 []) and (torch.float32 [6], torch.float32 []) in batches. Pad all to one length and convert "
            "them to one dtype, or pass a loss of (model, batch).",
        ),
        "no batches at all": (
            lambda: server(data=[(INPUTS[0], TARGETS[0])]).step([torch.zeros(74)] * 3),
            "A Server needs batches of two tensors, (inputs, targets), for a loss of (outputs, targets). Found "
            "([6], []). For other batches, pass a loss(model, batch), with its first parameter named `model`.",
        ),
        "nobody": (lambda: server().step([]), "A Server needs at least one worker. Found no gradients."),
        "an iterator at first": (
            lambda: server().step(iter([torch.zeros(74)])),
            "A Server needs to know the number of workers before it reads an iterator. Found list_iterator without a "
            "length. Pass a list, or an object with __len__.",
        ),
        "another number of workers": (
            lambda: (one := server(), one.step([torch.zeros(74)] * 3), one.step([torch.zeros(74)] * 2)),
            "A Server needs one entry for each of its 3 workers at every step. Found 2. Entry i is worker i: pass None "
            "for a worker that sent nothing.",
        ),
        "more than so many": (
            lambda: (one := server(), one.step([torch.zeros(74)] * 3), one.step(iter([torch.zeros(74)] * 4))),
            "A Server needs one entry for each of its 3 workers. Found more.",
        ),
        "no batches": (
            lambda: server(data=[]).step([torch.zeros(74)] * 3),
            "A Server needs data that can be iterated again when it ends, with at least one batch. Found list without "
            "any. Pass a DataLoader or a list of batches.",
        ),
        "batches of one tensor": (
            lambda: server(data=[INPUTS]).step([torch.zeros(74)] * 3),
            "A Server needs batches of two tensors, (inputs, targets), for a loss of (outputs, targets). Found "
            "([400, 6]). For other batches, pass a loss(model, batch), with its first parameter named `model`.",
        ),
        "batches by name": (
            lambda: server(data=[{"x": INPUTS, "y": TARGETS}]).step([torch.zeros(74)] * 3),
            "A Server needs batches of two tensors, (inputs, targets), for a loss of (outputs, targets). Found "
            "(a dict). For other batches, pass a loss(model, batch), with its first parameter named `model`.",
        ),
        "fewer targets": (
            lambda: server(data=[(INPUTS, TARGETS[:3])]).step([torch.zeros(74)] * 3),
            "A Server needs data with one target per input, at least one. Found 400 inputs and 3 targets in a batch.",
        ),
        "a model of two outputs": (
            lambda: server(model=two, optimizer=torch.optim.SGD(two.parameters(), lr=0.1)).step([torch.zeros(80)] * 3),
            "A Problem needs a model that returns one tensor with one row per sample. Found tuple. Pass a loss of "
            "(model, batch), which reads what it needs.",
        ),
        "too few workers": (
            lambda: server().step([torch.zeros(74)]),
            "Zeno needs more than trim candidates. Found 1 with trim=1. Lower trim or add workers.",
        ),
        "a ledger before any step": (
            lambda: server().ledger,
            "A Server has a ledger from its first step on. Found none yet.",
        ),
        "the state of another rule": (
            lambda: server().load_state_dict(server(rule=zeno.Mean()).state_dict()),
            "The state belongs to Mean(least=None). Found Zeno(trim=1, rho=0.0005, batch_size=4, score='exact'). "
            "Create the Server with the same rule.",
        ),
        "flatten before backward": (
            lambda: zeno.flatten(net()),
            "zeno.flatten needs a model with gradients. Found none in Sequential. Call loss.backward() first; for the "
            "parameters themselves pass model.parameters() to zeno.flatten.",
        ),
        "flatten nothing": (lambda: zeno.flatten([]), "zeno.flatten needs at least one tensor. Found none."),
        "flatten what is not there": (
            lambda: zeno.flatten([torch.ones(1), None]),  # type: ignore[list-item]
            "zeno.flatten needs at least one tensor. Found NoneType, Tensor.",
        ),
        "unflatten too little": (
            lambda: zeno.unflatten(torch.zeros(3), net()),
            "zeno.unflatten needs one vector of 74 numbers for this Sequential. Found shape [3].",
        ),
    }


WRONG_LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "a loss for each sample": (
        nn.CrossEntropyLoss(reduction="none"),
        "that returns one number as a tensor, the mean over the samples. Found shape [32]. Pass reduction='mean', or "
        "take its mean.",
    ),
    "a number": (
        lambda outputs, targets: F.cross_entropy(outputs, targets).item(),
        "that returns one number as a tensor, the mean over the samples. Found float. Leave out .item(), and use "
        "reduction='mean'.",
    ),
    "nothing": (
        lambda outputs, targets: None,
        "that returns one number as a tensor, the mean over the samples. Found NoneType. Return the loss alone. A "
        "Hugging Face model computes model(**batch).loss from a batch with labels.",
    ),
    "without a gradient": (
        lambda outputs, targets: F.cross_entropy(outputs, targets).detach(),
        "with a gradient. Found one without: it was detached, or computed under no_grad. Leave that out.",
    ),
}


@pytest.mark.parametrize("case", WRONG_LOSSES)
@pytest.mark.parametrize("rule", [zeno.Zeno(trim=1, batch_size=32), zeno.ZenoAuto(samples=64)], ids=["Zeno", "auto"])
def test_what_a_loss_returns_is_checked(rule: zeno.Rule, case: str) -> None:
    loss, words = WRONG_LOSSES[case]
    model, _, optimizer, data = parts_of(0.1)
    server = zeno.Server(model, loss, optimizer, data, rule)
    if case == "without a gradient" and isinstance(rule, zeno.Zeno):
        server.step([torch.zeros(74)] * 3)  # scores need none
        return
    with pytest.raises(ValueError) as raised:
        server.step([torch.zeros(74)] * 3)
    assert str(raised.value) == f"A Server needs a loss {words}"


@pytest.mark.parametrize("case", wrong())
def test_wrong_use_raises_these_errors(case: str) -> None:
    use, words = wrong()[case]
    with pytest.raises(ValueError) as raised:
        use()
    assert str(raised.value) == words


def test_a_rho_that_lets_zeros_win_warns_at_the_callers_line() -> None:
    with pytest.warns(
        UserWarning, match=r"rho=0.0005 is not below the smallest learning rate, 0.0001: zeros may"
    ) as warned:
        zeno.Server(*parts_of(1e-4), zeno.Zeno(trim=1))
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match=r"rho=0.0005 is not below the smallest learning rate, 0.0001"):
        zeno.Server(*parts_of(1e-4, 0.0), zeno.chain(zeno.Clip(1.0), zeno.Zeno(trim=1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zeno.Server(*parts_of(1e-4), zeno.Zeno(trim=1, rho=1e-6))
        zeno.Server(*parts_of(1e-4), zeno.ZenoAuto())
        zeno.Server(*parts_of(0.0), zeno.Zeno(trim=1))


def test_a_learning_rate_that_falls_below_rho_warns_once() -> None:
    model, server = make(zeno.Zeno(trim=1))
    server.step(sent_by(model, 3, 0, 0))
    for lr in (1e-4, 1e-5):
        server.optimizer.param_groups[0]["lr"] = lr
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            server.step(sent_by(model, 3, 0, 0))
        assert [warning.filename for warning in warned] == ([__file__] if lr == 1e-4 else [])


def parts_of(*rates: float) -> tuple[nn.Module, Any, torch.optim.Optimizer, Any]:
    model = net()
    groups = [{"params": layer(model, 2 * i).parameters(), "lr": rates[i % len(rates)]} for i in range(2)]
    return model, F.cross_entropy, torch.optim.SGD(groups, lr=0.1), loader()
