"""Write on: every model continues the text by sampling, side by side, each token with its bits, −log₂ p.

The bits are those of the model's own distribution, before temperature and cuts, so that a token drawn at a low
temperature is seen to be an expected one. The draws are those of `chainrule sample` with the same seed. A page with a
server streams them (serve/endpoints/page_write.py); a file has one sample of each model.

Shapes: B rows, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from chainrule.inference.decoding import DecodeLoop, Values, prefill_prompts
from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.generate import Continuation, has_end
from chainrule.inference.sampling import Sampling, SamplingStrategy, require_possible, uniform_blocks, uniforms
from chainrule.model import BOUNDARY
from chainrule.run import Run
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import LIVE, Options, View

LETTERS = 6000     # characters at the end of the text that are continued
SHOWN = 200        # of these, characters before what is written
TOKENS = 200       # to write, at first
IN_FILE = 100      # tokens of each model in a file

Piece = tuple[str, float, int]    # text, and its bits and tokens; the end of a text is ""


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    about = {"models": [subject.name for subject in subjects], "prompt": text[-SHOWN:]}
    if options.get(LIVE):
        return about | {"tokens": TOKENS, "written": None}
    sampling = Sampling()
    written = [[as_json(piece) for piece in write_on(subject.run, text, IN_FILE, sampling)] for subject in subjects]
    return about | {"tokens": IN_FILE, "seed": sampling.seed, "written": written}


@torch.inference_mode()
def write_on(run: Run, prompt: str, limit: int, sampling: Sampling) -> Iterator[Piece]:
    """What follows the prompt, piece by piece; a token that is only a part of a character waits for the next."""
    model, text = run.language_model, Continuation(run.tokenizer, prompt[-LETTERS:], sampling.stop)
    ends, waiting, count = has_end(run.tokenizer, past_end=False), 0.0, 0
    with eval_mode(model):
        strategy = ScoredSampling(sampling, ends, [text.prompt])
        loop = DecodeLoop(model, prefill_prompts(model, [text.prompt]), strategy)
        random = uniform_blocks(lambda step: uniforms(sampling.seed, step, 1), 1, device_of(model))
        for step, uniform in enumerate(islice(random, limit)):
            token = int(loop.next_token(uniform[0], limit - step))
            require_possible(loop)
            waiting += abs(float(loop.values["log_probs"])) / math.log(2)    # of a certain token it may be -0.0
            piece, ended, count = text.add([token]), ends and token == BOUNDARY, count + 1
            if piece or ended:
                yield "" if ended else piece, waiting, count
                waiting, count = 0.0, 0
            if ended:
                return
    if piece := text.rest():
        yield piece, waiting, count


class ScoredSampling(SamplingStrategy):
    """Sampling that keeps the log-probability of the last token of each row, by the model's own distribution."""

    def begin(self, logits: Tensor) -> Values:
        return {**super().begin(logits), "log_probs": torch.zeros(len(logits), device=logits.device)}

    def choose(self, logits: Tensor, values: Values, inputs: Tensor) -> Values:
        after = super().choose(logits, values, inputs)
        own = logits.float().log_softmax(-1)                 # (B, V)
        return {**after, "log_probs": own.gather(1, after["tokens"][:, None])[:, 0]}


def as_json(piece: Piece) -> list[Any]:
    """JSON has no infinity: the bits of an impossible token are null."""
    text, bits, tokens = piece
    return [text, bits if math.isfinite(bits) else None, tokens]


VIEW = View(
    "write", "Write on",
    "Every chosen model continues the text, token by token, side by side. Each token is coloured by its bits: how much "
    "it surprised the model that wrote it.",
    lambda subject: subject.continues_text, _make, several=True, needs="a language model of plain text",
)
