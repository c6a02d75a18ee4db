"""Muon: momentum whose update is orthogonalised, for the weight matrices of the hidden layers.

Algorithm: Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024). Matrices of one
shape are orthogonalised together.
"""

from __future__ import annotations

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(stack: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices of [N, rows, columns], roughly, in bfloat16."""
    a, b, c = _COEFFICIENTS
    x = stack.bfloat16()
    turned = x.shape[1] > x.shape[2]
    if turned:
        x = x.transpose(1, 2)
    x = x / (x.float().norm(dim=(1, 2), keepdim=True).to(x.dtype) + 1e-7)
    for _ in range(steps):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(1, 2) if turned else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; the step is scaled so that AdamW-like learning rates fit all shapes."""

    def __init__(
        self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for weight in group["params"]:
                by_shape.setdefault(weight.shape, []).append(weight)
            for shape, weights in by_shape.items():
                updates = []
                for weight in weights:
                    state = self.state[weight]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(weight)
                    state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                    updates.append(weight.grad.lerp(state["momentum"], group["momentum"]))
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for weight, update in zip(weights, orthogonal(torch.stack(updates)), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(update.to(weight.dtype), alpha=-group["lr"] * scale)
