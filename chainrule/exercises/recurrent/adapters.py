"""Adapters of the lesson recurrent: the only file that binds your code to the tests; yours to change."""


def elman_forward(W, U, b_h, V, b_y, h0, x):
    from elman import elman_forward

    return elman_forward(W, U, b_h, V, b_y, h0, x)


def elman_loss(y, targets):
    from elman import elman_loss

    return elman_loss(y, targets)


def bptt(W, U, b_h, V, b_y, h0, x, targets):
    from elman import bptt

    return bptt(W, U, b_h, V, b_y, h0, x, targets)


def lstm_step(x, h, C, W, b):
    from lstm import lstm_step

    return lstm_step(x, h, C, W, b)


def lstm(x, h0, C0, W, b):
    from lstm import lstm

    return lstm(x, h0, C0, W, b)
