"""The top eigenvalue of symmetric matrices of any scale."""

import torch
from torch import Tensor


def top(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """The largest eigenvalue [...] and its unit eigenvector [..., n] of each matrix [..., n, n]."""
    # LAPACK does not converge on numbers as small as 1e-160, which squares of tiny gradients can be.
    scales = matrices.abs().amax(dim=(-2, -1), keepdim=True).clamp_(min=1e-300)
    scaled = matrices / scales
    values, vectors = torch.linalg.eigh(scaled.where(scaled.abs() > 1e-30, 0))
    return values[..., -1] * scales[..., 0, 0], vectors[..., -1]
