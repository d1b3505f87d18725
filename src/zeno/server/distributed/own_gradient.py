"""The gradient on samples that are trusted, on the rank that has them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from zeno.problem.losses import Loss, takes_batch
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
        """On new samples of each half: [2, d]. As for scores, there is no dropout."""
        model, norms = self._problem.model, self._problem.norms
        batches = [self._samples.take(self._size, "guard", step, half=half) for half in (0, 1)]
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        if self._size >= OWN_STATISTICS_FROM:
            for norm in norms:
                norm.train()
        try:
            with torch.enable_grad(), self._problem.buffers_unchanged():
                return torch.stack([self._problem.gradient_here(batch) for batch in batches])
        finally:
            for module, training in modes:
                module.training = training
