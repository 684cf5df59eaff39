"""A run in onnxruntime against chainrule: log-probabilities of a text, a greedy text, sizes and times.

    python benchmarks/agreement/onnx_agrees.py RUN --text FILE [--tokens 500] [--greedy 30]

Exports the run to ONNX in a temporary folder. The first tokens of the file are read in one call, and the greedy text
is written token by token. A JSON line.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import chainrule
from chainrule.formats.onnx.export import FILE, write_onnx
from chainrule.model import BOUNDARY

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


class Exported:
    """One row of an exported model."""

    def __init__(self, folder: Path):
        self.session = onnxruntime.InferenceSession(folder / FILE)
        inputs, sizes = self.session.get_inputs(), {"batch_size": 1, "past_sequence_length": 0}
        self.state = {one.name: np.zeros([sizes.get(size, size) for size in one.shape], TYPES[one.type])
                      for one in inputs if one.name.startswith("past")}
        self.masked, self.length = any(one.name == "attention_mask" for one in inputs), 0

    def step(self, tokens: list[int]) -> torch.Tensor:
        """(T, V): the logits after each token."""
        begin, self.length = self.length, self.length + len(tokens)
        feeds: dict[str, Any] = {"input_ids": np.array([tokens]), **self.state}
        if self.masked:
            feeds |= {"attention_mask": np.ones((1, self.length), np.int64),
                      "position_ids": np.arange(begin, self.length)[None]}
        logits, *after = self.session.run(None, feeds)
        self.state = dict(zip(self.state, after, strict=True))
        return torch.from_numpy(logits[0])


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--greedy", type=int, default=30)
    args = parser.parse_args()
    run = chainrule.load(args.run)
    ids = [BOUNDARY, *run.tokenizer.encode(Path(args.text).read_text(encoding="utf-8")).tolist()][: args.tokens]
    with tempfile.TemporaryDirectory() as folder:
        write_onnx(run, Path(folder) / "out")
        size = sum(file.stat().st_size for file in (Path(folder) / "out" / FILE).parent.iterdir())
        whole, stepped = (Exported(Path(folder) / "out") for _ in range(2))
        logits, (expected, _) = whole.step(ids), run.model.step(torch.tensor([ids]), run.model.start(1))
        prompt, written = ids[: len(ids) // 4 + 1], list[int]()
        started, last = time.perf_counter(), stepped.step(prompt)[-1]
        while len(written) < args.greedy and (token := int(last.argmax())) != BOUNDARY:
            written.append(token)
            last = stepped.step([token])[-1]
        seconds = time.perf_counter() - started
    text = run.generate(run.tokenizer.decode(prompt[1:]), args.greedy, temperature=0)
    difference = (logits.log_softmax(-1) - expected[0].log_softmax(-1)).abs().max()
    print(json.dumps({
        "run": args.run, "kind": run.recipe.kind, "tokens": len(ids), "bytes": size,
        "log_p_difference": float(difference), "largest_logit": float(expected.abs().max()),
        "greedy_tokens": len(written), "greedy_equal": text == run.tokenizer.decode(written),
        "seconds": round(seconds, 2),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
