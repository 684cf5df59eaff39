"""Tests of the exercise attention, against a snapshot that chainrule's attention made."""

import math

import adapters
import torch

from chainrule.exercises.expect import same, snapshot

FORMULA = "softmax(Q Kᵀ / √d_k + M) V, softmax by rows"


def tensors(s, *names):
    return [torch.from_numpy(s[name]) for name in names]


def test_causal_mask():
    no = -math.inf
    same(adapters.causal_mask(3), [[0, no, no], [0, 0, no], [0, 0, 0]], "causal_mask(3)", "0 on and below the diagonal")


def test_attention_of_one_head():
    s = snapshot(__file__)
    found, weights = adapters.attention(*tensors(s, "Q", "K", "V"), torch.from_numpy(s["M"]))
    same(weights, s["weights"], "the weights of attention(Q, K, V, M)", "softmax(Q Kᵀ / √d_k + M)", tolerance=1e-5)
    same(found, s["mixed"], "X' of attention(Q, K, V, M)", FORMULA, tolerance=1e-5)


def test_attention_without_a_mask():
    s = snapshot(__file__)
    M = torch.zeros(s["M"].shape, dtype=torch.from_numpy(s["M"]).dtype)
    found, _ = adapters.attention(*tensors(s, "Q", "K", "V"), M)
    same(found, s["unmasked"], "X' with M = 0", FORMULA, tolerance=1e-5)


def test_many_heads():
    s = snapshot(__file__)
    X, *W = tensors(s, "X", "W_Q", "W_K", "W_V", "W_O")
    found = adapters.multi_head_attention(X, *W, int(s["heads"]), torch.from_numpy(s["M"]))
    formula = "heads of d_k = D / h columns each, concatenated in order, times W_O"
    same(found, s["multi_head"], "multi_head_attention(…)", formula, tolerance=1e-5)


def test_weights_of_the_lectures_poll():
    x = torch.diag(torch.tensor([1.0, 1.0, 2.0, 1.0]))
    q = torch.log(torch.tensor([[0.1, 0.2, 0.6, 0.1]])) * 2
    found, _ = adapters.attention(q, torch.eye(4), x, torch.zeros(1, 4))
    same(found, [[0.1, 0.2, 1.2, 0.1]], "x'_4 with the weights .1 .2 .6 .1", "Σ_j a_4j v_j", tolerance=1e-5)
