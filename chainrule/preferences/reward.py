"""Reward model: a number for an answer, learned from pairs by Bradley–Terry (`--task reward`).

    r(x, y) = a · h,   h: the body's vector of the last token of 0 x y end        p(y⁺ ≻ y⁻) = σ(r⁺ - r⁻)

Any body with `encode` can have the head; one that reads both ways gives the mean of its vectors. Differences of rewards
mean something, a reward alone does not, unless train.center pulls their mean to 0.

Shapes: N examples, B rows, T tokens, D width.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule import __version__, models
from chainrule.errors import UserError
from chainrule.inference.forward import eval_mode
from chainrule.kernels.cpu.dropout import Dropout
from chainrule.model import IGNORE, Batch, Encoder, Model, State
from chainrule.models.heads import linear_head, pool_vectors
from chainrule.preferences.answer_task import (
    AnswerCorpus,
    AnswerTask,
    AnswerTraining,
    encode_records,
    mean_score,
    plain_template,
)
from chainrule.preferences.encoding import EncodedAnswers, PairBatch, Rows
from chainrule.preferences.losses.bradley_terry import bradley_terry
from chainrule.preferences.objective import Objective
from chainrule.preferences.records import Content, Rated, records_of
from chainrule.recipe import Recipe
from chainrule.settings import BelowOne, NonNegative, Settings
from chainrule.tasks.batching import Ids, to_tensor
from chainrule.tasks.example_task import ExampleSplit, evaluation_batches
from chainrule.tasks.task import Prediction, Search, Trained
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.corpus import Corpus
from chainrule.text.sources import Source
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer

Rewards = NDArray[np.float64]


@dataclass(frozen=True)
class RewardTraining(AnswerTraining):
    """`train.*` of a reward model."""

    full_lr = 1e-4
    lr: NonNegative = 0.0               # peak learning rate; 0: 1e-4
    center: NonNegative = 0.0           # weight of (r⁺ + r⁻)², which keeps the mean of rewards near 0 (TRL's
                                        # center_rewards_coefficient)


@dataclass(frozen=True)
class RewardHead(Settings, part="head"):
    """`head.*` of a reward model."""

    pool: Literal["last", "mean"] | None = None  # the vector of an answer: last token's, or mean; None: by kind
    dropout: BelowOne = 0.0             # dropout on that vector during training


class RewardModel(Objective):
    """A body and a linear head that gives one number."""

    metrics = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")
    noted = ("rewards/accuracies", "rewards/margins")

    def __init__(self, body: Encoder, pool: Literal["last", "mean"], dropout: float = 0.0, center: float = 0.0):
        super().__init__(body)
        self.pool, self.center = pool, center
        self.dropout = Dropout(dropout)
        self.output = linear_head(body.width, 1, bias=False)

    def forward(self, batch: Batch) -> Tensor:
        """(B,) the reward of each row."""
        pooled = pool_vectors(self.body.encode(batch.tokens, batch.lengths), batch, self.pool, None, self.body.backward)
        rewards: Tensor = self.output(self.dropout(pooled))[:, 0]
        return rewards.float()

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        """Summed over pairs, and the number of pairs."""
        pairs, counted = cast(PairBatch, batch), batch.targets != IGNORE
        chosen, rejected = self(both_answers(pairs)).chunk(2)
        losses = bradley_terry(chosen, rejected, pairs.margin, self.center).where(counted, 0)
        numbers = {"rewards/chosen": chosen, "rewards/rejected": rejected, "rewards/accuracies": chosen > rejected,
                   "rewards/margins": chosen - rejected}
        self.measure(counted.sum(), **{name: number.where(counted, 0).sum() for name, number in numbers.items()})
        return losses.sum(), counted.sum(), None


def both_answers(pairs: PairBatch) -> Batch:
    """2B rows: the chosen answers, then the rejected ones."""
    assert pairs.source is not None
    assert pairs.lengths is not None
    assert pairs.source_lengths is not None
    return Batch(torch.cat([pairs.tokens, pairs.source]), pairs.targets.repeat(2),
                 torch.cat([pairs.lengths, pairs.source_lengths]))


@dataclass(frozen=True)
class WholeAnswers(EncodedAnswers):
    """Prompts with one answer, or with two, each read to its end."""

    rows: list[Rows]
    margins: NDArray[np.float32] | None = None       # (N,)
    notes: tuple[str, ...] = ()
    reference: None = None

    @property
    def sizes(self) -> tuple[Ids, ...]:
        return (np.max([rows.whole.lengths for rows in self.rows], axis=0),)

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        (tokens, lengths), *others = (each.whole_batch(rows, widths[0]) for each in self.rows)
        targets = torch.zeros(len(rows), dtype=torch.long)
        if not others:
            return Batch(tokens, targets, lengths)
        margin = None if self.margins is None else to_tensor(self.margins[rows])
        return PairBatch(tokens, targets, lengths, source=others[0][0], source_lengths=others[0][1], margin=margin)


class Reward(AnswerTask):
    name, target = "reward", "pair"
    reads_end = True
    train: ClassVar[Mapping[str, type[Settings]]] = {"gradient": RewardTraining}
    heads: ClassVar[Mapping[str, type[Settings]]] = {"gradient": RewardHead}
    next_commands: ClassVar[Sequence[str]] = ("predict {run} TEXT", "eval {run} PAIRS")

    def suits(self, model_class: type[Model]) -> bool:
        return "classify" in model_class.tasks and hasattr(model_class, "encode")

    def build(self, recipe: Recipe, vocab: int, labels: Sequence[str] = ()) -> RewardModel:
        body = models.build(recipe.kind, recipe.model, vocab)
        pool: Any = recipe.head.pool or ("mean" if body.bidirectional else "last")
        return RewardModel(body, pool, recipe.head.dropout, recipe.train.center)

    def answer_split(
        self, examples: Sequence[Any], recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate | None
    ) -> ExampleSplit:
        split = super().answer_split(examples, recipe, tokenizer, template)
        encoded = split.encoded
        return replace(split, encoded=WholeAnswers(encoded.rows, encoded.margins, encoded.notes))

    def measure_validation(self, model: Model, corpus: Corpus) -> dict[str, Any]:
        return measure_rewards(cast(RewardModel, model), cast(AnswerCorpus, corpus).splits["valid"])

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        return measure_rewards(run.model, self.held_out(run, files, text))

    def line(self, text: str, place: Place) -> Rated:
        return Rated("", text, True, place)

    def read_rows(self, source: Source, text: Any) -> Iterable[Rated]:
        """JSON lines with a prompt and its completion, or with a text."""
        for place, record in records_of([source], text.errors):
            answer = record.get("completion", record.get("text"))
            if not isinstance(answer, str):
                raise UserError(f"{place}: a reward is given to {{\"prompt\": …, \"completion\": …}}, or to "
                                "{\"text\": …}; there is no such text.")
            yield Rated(str(record.get("prompt", "")), answer, True, place)

    def predict(self, run: Trained, examples: Sequence[Rated], search: Search) -> list[Prediction]:
        if not examples:
            raise UserError("there is no input: no line came.")
        rewards = rate(run, examples)
        return [{"answer": f"{reward:.4f}", "reward": float(reward)} for reward in rewards]


def score_answers(made: Trained, prompts: Sequence[Content], answers: Sequence[str]) -> Rewards:
    """(N,) the rewards that a run gives to answers."""
    places = (Place("answer", number) for number in range(1, len(answers) + 1))
    return rate(made, [Rated(*part, True, place) for part, place in zip(zip(prompts, answers), places)])


def rate(made: Trained, examples: Sequence[Rated]) -> Rewards:
    template = made.template or plain_template(made.tokenizer)
    encoded: Any = encode_records(examples, made.recipe, made.tokenizer, template, read=True)
    return predict_rewards(made.model, WholeAnswers(encoded.rows[:1]))[:, 0]


@torch.inference_mode()
def predict_rewards(model: RewardModel, encoded: WholeAnswers) -> Rewards:
    """(N, 1), or (N, 2) of pairs."""
    rewards = np.zeros((len(encoded), len(encoded.rows)))
    with eval_mode(model):
        for ids, batch in evaluation_batches(model, encoded, "rewards"):
            rows = both_answers(batch) if isinstance(batch, PairBatch) else batch
            rewards[ids] = model(rows).view(-1, len(ids)).T.cpu().numpy()
    return rewards


def measure_rewards(model: RewardModel, split: ExampleSplit) -> dict[str, Any]:
    """How often the chosen answer has the higher reward, by how much, and the loss."""
    rewards = predict_rewards(model, split.encoded)
    chosen, rejected = rewards.T
    margins = None if split.encoded.margins is None else torch.from_numpy(split.encoded.margins)
    losses = bradley_terry(torch.from_numpy(chosen), torch.from_numpy(rejected), margins, model.center)
    return {"loss": float(losses.mean()), **mean_score("accuracy", (chosen > rejected).astype(float)),
            **mean_score("margin", chosen - rejected), "rewards/chosen": float(chosen.mean()),
            "rewards/rejected": float(rejected.mean()), "examples": len(chosen),
            "signature": f"pairs:{len(chosen)}|text:{split.sha256[:12]}|chainrule:{__version__}"}
