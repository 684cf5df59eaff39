"""The log for TensorBoard too, where it is installed (`train.tensorboard=true`)."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule.errors import UserError
from chainrule.run import BOARD


class Board:
    def __init__(self, writer: Any):
        self.writer = writer

    def add(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            if name != "step" and math.isfinite(value):
                self.writer.add_scalar(name, value, facts["step"])
        self.writer.flush()


def open_board(out: Path | None) -> Board:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("train.tensorboard=true needs TensorBoard: pip install tensorboard, or leave it out.") from None
    return Board(SummaryWriter(str((out or Path()) / BOARD)))
