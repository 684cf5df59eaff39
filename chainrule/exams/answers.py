"""Answers after prompts: log p of given ones, and texts that are written, with the shared prefix read once.

The prompts of one draw begin with the same K examples. These are read once, into one state; each question goes on from
a copy of it (`pick`), and each answer of several tokens from a copy of the question's state. Questions of one length
are read together, so that no state holds padding. The result is that of reading every text from its beginning.

Shapes: N questions, B rows, T tokens, C answers, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.exams.prompts import Question, shared_length
from chainrule.inference.beam import Beam, beam_from, max_new_tokens
from chainrule.inference.decoding import Prefilled
from chainrule.inference.forward import device_of, eval_mode, on_device, prefill
from chainrule.inference.score import Places, Tokens
from chainrule.model import BOUNDARY, LanguageModel, State, pick, state_bytes

STATE_BYTES = {"cpu": 1 << 28, "cuda": 1 << 32}    # of the states of rows that are read together, about
ROWS = {"cpu": 64, "cuda": 512}                    # that are read together, at most

LogProbs = NDArray[np.float64]
Advance = Callable[[int], None]


@torch.inference_mode()
def score_answers(model: LanguageModel, questions: Sequence[Question], advance: Advance = lambda _: None) -> LogProbs:
    """(N, C): log p of each answer, summed over its tokens."""
    scores = np.zeros((len(questions), len(questions[0].answers) if questions else 0))
    with eval_mode(model):
        for chosen, logits, state in read_prompts(model, questions):
            scores[chosen] = _score_rows(model, [questions[at] for at in chosen], logits, state)
            advance(len(chosen))
    return scores


def read_prompts(model: LanguageModel, questions: Sequence[Question]) -> Iterator[tuple[Places, Tensor, State]]:
    """The places of some questions with prompts of one length, (B, V) logits after them, and their states."""
    prompts = [question.prompt for question in questions]
    lengths, sizes = (np.array(some) for some in ([len(prompt) for prompt in prompts], [one.size for one in questions]))
    shared = min(shared_length(prompts), int(lengths.min()) - 1)
    first = None
    if shared:
        _, first = prefill(model, on_device(model, prompts[0][None, :shared]))
    rows = _rows_at_once(model, first)
    for length in np.unique(lengths):
        alike = np.flatnonzero(lengths == length)
        alike = alike[np.argsort(sizes[alike], kind="stable")]           # answers of one length need no padding
        for begin in range(0, len(alike), rows):
            chosen = alike[begin : begin + rows]
            tokens = on_device(model, np.stack([prompts[at][shared:] for at in chosen]))
            start = None if first is None else pick(first, tokens.new_zeros(len(chosen)))
            yield chosen, *prefill(model, tokens, start)


def _rows_at_once(model: LanguageModel, state: State, rows: int = 1) -> int:
    """As many as have states that fit in memory; `state`: that of so many rows."""
    kind = device_of(model).type
    most = ROWS.get(kind, ROWS["cpu"])
    each = 0 if state is None else state_bytes(state) // rows
    return most if not each else max(1, min(most, STATE_BYTES.get(kind, STATE_BYTES["cpu"]) // each))


def _score_rows(model: LanguageModel, questions: Sequence[Question], logits: Tensor, state: State) -> LogProbs:
    """(B, C): the first token of each answer from the logits, the others from branches of the state."""
    log_p = logits.float().log_softmax(-1).double()
    first = on_device(model, np.array([[answer[0] for answer in one.answers] for one in questions]))
    scores = log_p.gather(1, first).cpu().numpy()
    longer = [(row, place) for row, one in enumerate(questions) for place, answer in enumerate(one.answers)
              if len(answer) > 1]
    most = _rows_at_once(model, state, len(questions))
    for begin in range(0, len(longer), most):
        some = longer[begin : begin + most]
        rest = _score_rest(model, [questions[row].answers[place] for row, place in some],
                           pick(state, torch.tensor([row for row, _ in some])))
        for (row, place), more in zip(some, rest):
            scores[row, place] += more
    return scores


def _score_rest(model: LanguageModel, answers: Sequence[Tokens], state: State) -> LogProbs:
    """(B,): log p of each answer without its first token. Shorter ones are padded on the right."""
    sizes = np.array([len(answer) for answer in answers])
    rows = np.full((len(answers), sizes.max()), BOUNDARY, np.int64)
    for row, answer in zip(rows, answers):
        row[: len(answer)] = answer
    tokens = on_device(model, rows)
    log_p, _ = model.score(tokens[:, :-1], tokens[:, 1:], state)
    real = np.arange(1, sizes.max()) < sizes[:, None]
    total: LogProbs = np.where(real, log_p.double().cpu().numpy(), 0.0).sum(1)
    return total


class LineEnds(LanguageModel):
    """A model whose texts end with their line: the probability of the tokens in `ends` is added to the boundary's."""

    def __init__(self, model: LanguageModel, ends: Sequence[int]):
        super().__init__()
        self.model, self.context = model, model.context
        self.ends: Tensor
        self.register_buffer("ends", torch.tensor(sorted({BOUNDARY, *ends}), device=device_of(model)))

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        return self.model.start(rows, source, lengths)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, state = self.model.step(tokens, state)
        return self._folded(logits), state

    def next_logits(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, state = self.model.next_logits(tokens, state)
        return self._folded(logits), state

    def reserve(self, state: State, tokens: int) -> State:
        return self.model.reserve(state, tokens)

    def _folded(self, logits: Tensor) -> Tensor:
        total = logits.index_select(-1, self.ends).logsumexp(-1)
        folded = logits.index_fill(-1, self.ends, -torch.inf)
        folded[..., BOUNDARY] = total
        return folded


@torch.inference_mode()
def write_answers(
    model: LanguageModel, questions: Sequence[Question], beam: Beam, ends: Sequence[int], advance: Advance
) -> list[tuple[int, ...]]:
    """The tokens that beam search, or greedy decoding, writes after each prompt, up to a token of `ends`."""
    written: list[tuple[int, ...]] = [()] * len(questions)
    wrapped = LineEnds(model, ends)
    with eval_mode(wrapped):
        for chosen, logits, state in read_prompts(wrapped, questions):
            read = len(questions[chosen[0]].prompt)
            steps = max_new_tokens(model.context, beam.limit, read=read)
            begun = Prefilled(logits, state, np.full(len(chosen), read), model.context)
            for place, result in zip(chosen, beam_from(wrapped, begun, beam, steps)):
                written[place] = result.texts[0].tokens if result.texts else ()
            advance(len(chosen))
    return written
