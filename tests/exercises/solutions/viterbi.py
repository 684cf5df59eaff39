import numpy as np


def viterbi(pi: np.ndarray, a: np.ndarray, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, float]:
    with np.errstate(divide="ignore"):
        log_pi, log_a, log_b = np.log(pi), np.log(a), np.log(b)
    delta = log_pi + log_b[:, x[0]]
    pointers = []
    for symbol in x[1:]:
        scores = delta[:, None] + log_a
        pointers.append(scores.argmax(0))
        delta = log_b[:, symbol] + scores.max(0)
    path = [int(delta.argmax())]
    for pointer in reversed(pointers):
        path.append(int(pointer[path[-1]]))
    return np.array(path[::-1]), float(delta.max())
