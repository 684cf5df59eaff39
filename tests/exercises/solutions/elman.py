import numpy as np


def elman_forward(
    W: np.ndarray, U: np.ndarray, b_h: np.ndarray, V: np.ndarray, b_y: np.ndarray, h0: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    h, hs = h0, []
    for x_t in x:
        h = np.tanh(W @ h + U @ x_t + b_h)
        hs.append(h)
    return np.array(hs), np.array(hs) @ V.T + b_y


def log_softmax(y):
    y = y - y.max(-1, keepdims=True)
    return y - np.log(np.exp(y).sum(-1, keepdims=True))


def elman_loss(y: np.ndarray, targets: np.ndarray) -> float:
    return -float(log_softmax(y)[np.arange(len(y)), targets].sum())


def bptt(
    W: np.ndarray, U: np.ndarray, b_h: np.ndarray, V: np.ndarray, b_y: np.ndarray, h0: np.ndarray, x: np.ndarray,
    targets: np.ndarray,
) -> dict[str, np.ndarray]:
    h, y = elman_forward(W, U, b_h, V, b_y, h0, x)
    dy = np.exp(log_softmax(y))
    dy[np.arange(len(y)), targets] -= 1
    grads = {"W": np.zeros_like(W), "U": np.zeros_like(U), "b_h": np.zeros_like(b_h), "V": dy.T @ h, "b_y": dy.sum(0)}
    from_later = np.zeros_like(h0)
    for t in reversed(range(len(x))):
        dh = V.T @ dy[t] + from_later
        da = (1 - h[t] ** 2) * dh
        grads["W"] += np.outer(da, h[t - 1] if t else h0)
        grads["U"] += np.outer(da, x[t])
        grads["b_h"] += da
        from_later = W.T @ da
    return grads | {"h0": from_later}
