"""Snapshots of the lesson pretraining: lora, dpo."""

from typing import Any

import numpy as np
import torch
from torch import nn

from chainrule.layers.lora import LoRA

Random = np.random.Generator


@torch.no_grad()
def lora(random: Random) -> dict[str, Any]:
    inputs, outputs, rank, alpha = 6, 5, 2, 8.0
    linear = nn.Linear(inputs, outputs)
    W, c, A, B, x = (
        torch.from_numpy(random.normal(size=size)).float()
        for size in ((outputs, inputs), (outputs,), (rank, inputs), (outputs, rank), (3, inputs))
    )
    adapter = LoRA(W, rank, alpha / rank)
    adapter.down.copy_(A)
    adapter.up.copy_(B)
    merged = adapter(W)
    linear.weight.copy_(merged)
    linear.bias.copy_(c)
    return {"W": W, "c": c, "A": A, "B": B, "rank": rank, "alpha": alpha, "x": x, "merged": merged, "y": linear(x)}


def dpo(random: Random) -> dict[str, Any]:
    """The formula of Rafailov et al. 2023, written out; its gradient by autograd."""
    pairs, length, vocab, beta = 4, 6, 5, 0.5
    logits = torch.from_numpy(random.normal(size=(pairs, length, vocab)))
    targets = torch.from_numpy(random.integers(0, vocab, (pairs, length)))
    begins, ends = torch.tensor([2, 1, 3, 2])[:, None], torch.tensor([6, 4, 5, 3])[:, None]
    place = torch.arange(length)
    completion = (place >= begins) & (place < ends)
    log_prob = torch.stack(
        [
            sum(
                (logits[row, t].log_softmax(0)[targets[row, t]] for t in range(length) if completion[row, t]),
                torch.zeros(()),
            )
            for row in range(pairs)
        ]
    )
    policy_w, policy_l, reference_w, reference_l = (torch.from_numpy(random.normal(-8, 3, pairs)) for _ in range(4))
    policy_w.requires_grad_()
    policy_l.requires_grad_()
    z = beta * ((policy_w - reference_w) - (policy_l - reference_l))
    loss = -(1 / (1 + torch.exp(-z))).log().mean()
    of_w, of_l = torch.autograd.grad(loss, [policy_w, policy_l])
    return {
        "logits": logits,
        "targets": targets,
        "completion": completion,
        "log_prob": log_prob,
        "policy_w": policy_w,
        "policy_l": policy_l,
        "reference_w": reference_w,
        "reference_l": reference_l,
        "beta": beta,
        "loss": loss,
        "gradient_w": of_w,
        "gradient_l": of_l,
        "reward_w": beta * (policy_w - reference_w),
    }
