"""The gradient on samples that are trusted, on the rank that has them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from zeno.problem.dataset import Batch
from zeno.problem.losses import Loss, takes_batch
from zeno.problem.nested import NestedBatch
from zeno.problem.oracle import OWN_STATISTICS_FROM
from zeno.problem.problem import Problem
from zeno.rules.zeno_auto import ZenoAuto
from zeno.server.samples import LoaderSamples


class OwnGradient:
    """Gradients at the current parameters of a model, which stays as it is: its buffers, its modes, its gradients."""

    def __init__(self, model: nn.Module, loss: Loss, data: Iterable[Any], rule: ZenoAuto) -> None:
        self._problem = Problem(model, loss)
        self._size = rule.samples // 2
        self._samples = LoaderSamples(data, self._problem.parameters[0].device, rule, takes_batch(loss))

    def halves(self, step: int) -> Tensor:
        """On new samples of each half: [2, d]. The first is with dropout, as those of the ranks, the second without."""
        model = self._problem.model
        batches = [self._samples.take(self._size, "guard", step, half=half) for half in (0, 1)]
        modes = [(module, module.training) for module in model.modules()]
        try:
            with torch.enable_grad(), self._problem.buffers_unchanged(), self._problem.draws(step):
                return torch.stack([self._gradient(batch, half == 0) for half, batch in enumerate(batches)])
        finally:
            for module, training in modes:
                module.training = training

    def _gradient(self, batch: Batch | NestedBatch, dropout: bool) -> Tensor:
        self._problem.model.train(dropout)
        for norm in self._problem.norms:
            norm.train(self._size >= OWN_STATISTICS_FROM)
        return self._problem.gradient_here(batch)
