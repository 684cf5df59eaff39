"""The command line with one kind more, the small network: `python worker.py train …`, to be killed."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from training import small

from chainrule import models
from chainrule.cli import main

sys.modules["chainrule.models.small"] = small
models.KINDS = {**models.KINDS, "small": models.Kind("small:Net", "for tests")}

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
