"""What a worker may send in place of its gradient: the decayed mean of all that it has computed."""

from torch import Tensor

from zeno.rules.linalg.passes import all_finite


class Momentum:
    """Worker momentum: the decayed mean of one worker's gradients (Karimireddy, He and Jaggi, ICML 2021).

    m = g at first, m = beta * m + (1 - beta) * g from then on. Good workers come closer together by it, and what a
    faulty one could hide in their noise at every step no longer fits. One for each worker: it is its worker's memory.
    """

    def __init__(self, beta: float) -> None:
        if not isinstance(beta, float | int) or not 0 <= beta < 1:
            raise ValueError(f"Momentum needs beta of at least 0 and below 1. Found beta={beta!r}.")
        self.beta = beta
        self.mean: Tensor | None = None  # [d]: all that there is to save, and to go on from

    def __call__(self, gradient: Tensor) -> Tensor:  # [d] -> [d]
        """The mean with this gradient, in memory of its own; one that is not finite comes back and is not counted."""
        gradient = gradient.detach()
        if not all_finite(gradient):
            return gradient
        if self.mean is None:
            self.mean = gradient.clone()
        else:  # not in place: somebody may hold the old one, as a state to go on from
            self.mean = (self.beta * self.mean.to(gradient)).add_(gradient, alpha=1 - self.beta)
        return self.mean.clone()
