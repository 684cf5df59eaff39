"""Preference tuning: a language model learns which of two answers people prefer (`--task preference`).

    chainrule train pairs.jsonl --task preference --from RUN train.method=dpo --out runs/dpo

The policy begins as the run that it is tuned from, and is compared with a reference that stays as it is: that run, or
another one (train.reference). The methods are in losses/. What comes out is a language model as any other.

Shapes: N examples, B rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.inference.forward import device_of
from chainrule.model import Batch, LanguageModel, Model, State
from chainrule.preferences.answer_task import AnswerCorpus, AnswerTask, AnswerTraining, mean_score
from chainrule.preferences.encoding import PairBatch, RatedBatch, counted_rows
from chainrule.preferences.frozen_layers import keep_frozen_layers
from chainrule.preferences.log_probs import answer_sums
from chainrule.preferences.losses.dpo import dpo
from chainrule.preferences.losses.ipo import ipo
from chainrule.preferences.losses.kto import kto
from chainrule.preferences.losses.orpo import orpo
from chainrule.preferences.losses.simpo import simpo
from chainrule.preferences.objective import AllReduce, Objective, require_language_model
from chainrule.preferences.reference import load_reference, reference_log_probs, score_answers, with_reference
from chainrule.recipe import Recipe, RunningText
from chainrule.run import read_about
from chainrule.settings import NonNegative, Positive, Range, Settings
from chainrule.tasks.example_task import ExampleSplit
from chainrule.tasks.lm import LM
from chainrule.tasks.task import Search, Trained
from chainrule.text.corpus import Corpus
from chainrule.text.tables import format_of

Method: TypeAlias = Literal["dpo", "ipo", "kto", "orpo", "simpo"]

REFERENCE_FREE = ("orpo", "simpo")
SMOOTHED = ("dpo", "simpo")
BETA, SIMPO_BETA = 0.1, 2.0


@dataclass(frozen=True)
class PreferenceTraining(AnswerTraining):
    """`train.*` of preference tuning."""

    method: Method = "dpo"              # the loss: chainrule/preferences/losses has one file for each
    beta: NonNegative = 0.0             # strength of the pull to the reference (dpo, kto), 1 / 2β the margin (ipo),
                                        # weight of the odds ratio (orpo), scale of the reward (simpo); 0: 0.1, simpo 2
    label_smoothing: Annotated[float, Range(0, below=0.5)] = 0.0  # probability that a pair is the wrong way round
    gamma: NonNegative = 0.5            # margin to be reached (simpo)
    desirable: Positive = 1.0           # weight of answers that were liked (kto)
    undesirable: Positive = 1.0         # weight of answers that were not (kto)
    reference: str | None = None        # a run with the same tokenizer as reference; none: the one of --from

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beta:
            object.__setattr__(self, "beta", SIMPO_BETA if self.method == "simpo" else BETA)
        if self.reference is not None and self.method in REFERENCE_FREE:
            raise UserError(f"train.reference={self.reference}: train.method={self.method} has no reference. "
                            "Leave it out.")
        if self.label_smoothing and self.method not in SMOOTHED:
            raise UserError(f"train.label_smoothing is for {' and '.join(SMOOTHED)}; leave it out with "
                            f"train.method={self.method}.")
        if (self.desirable, self.undesirable) != (1.0, 1.0) and self.method != "kto":
            raise UserError("train.desirable and train.undesirable are weights of rated answers, for train.method=kto. "
                            "Leave them out.")


class Answers(NamedTuple):
    """One of the two answers of each pair."""

    log_probs: Tensor            # (B,) under the policy
    tokens: Tensor               # (B,)
    reference: Tensor | None     # (B,) under the reference

    @property
    def mean(self) -> Tensor:
        return self.log_probs / self.tokens.clamp(min=1)


def pair_losses(chosen: Answers, rejected: Answers, settings: PreferenceTraining) -> Tensor:
    """(B,) by the method of the settings."""
    beta, lengths = settings.beta, (chosen.tokens, rejected.tokens)
    policy = chosen.log_probs, rejected.log_probs
    if settings.method == "orpo":
        return orpo(*policy, beta, *lengths)
    if settings.method == "simpo":
        return simpo(*policy, beta, settings.gamma, *lengths, settings.label_smoothing)
    assert chosen.reference is not None
    assert rejected.reference is not None
    if settings.method == "ipo":
        return ipo(*policy, chosen.reference, rejected.reference, beta, *lengths)
    return dpo(*policy, chosen.reference, rejected.reference, beta, settings.label_smoothing)


def implicit_rewards(answers: Answers, settings: PreferenceTraining) -> Tensor:
    """(B,) β log π/π₀; without a reference, β times the mean log p of a token."""
    if answers.reference is None:
        return settings.beta * answers.mean
    return settings.beta * (answers.log_probs - answers.reference)


class PairObjective(Objective):
    """The policy with the loss of pairs around it."""

    metrics = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen",
               "logps/rejected", "completions/mean_length")
    noted = ("rewards/accuracies", "rewards/margins")

    def __init__(self, body: LanguageModel, settings: PreferenceTraining):
        super().__init__(body)
        self.settings = settings

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        """Summed over pairs, and the number of pairs."""
        pairs, counted = cast(PairBatch, batch), counted_rows(batch)
        log_probs, tokens = answer_sums(self.body, pairs.joined())
        parts = zip(log_probs.chunk(2), tokens.chunk(2), (pairs.reference_chosen, pairs.reference_rejected))
        chosen, rejected = (Answers(*part) for part in parts)
        losses = pair_losses(chosen, rejected, self.settings).where(counted, 0)
        self._measure(chosen, rejected, counted)
        return losses.sum(), counted.sum(), None

    @torch.no_grad()
    def _measure(self, chosen: Answers, rejected: Answers, counted: Tensor) -> None:
        first, second = (implicit_rewards(answers, self.settings) for answers in (chosen, rejected))
        numbers = {
            "rewards/chosen": first, "rewards/rejected": second, "rewards/accuracies": first > second,
            "rewards/margins": first - second, "logps/chosen": chosen.log_probs, "logps/rejected": rejected.log_probs,
            "completions/mean_length": (chosen.tokens + rejected.tokens) / 2,
        }
        self.measure(counted.sum(), **{name: number.where(counted, 0).sum() for name, number in numbers.items()})


class RatedObjective(Objective):
    """The policy with KTO's loss of rated answers around it."""

    metrics = ("rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected", "kl", "completions/mean_length")
    noted = ("rewards/margins", "kl")
    kl: Tensor                                   # () estimate of this step

    def __init__(self, body: LanguageModel, settings: PreferenceTraining):
        super().__init__(body)
        self.settings = settings
        self.register_buffer("kl", torch.zeros(()), persistent=False)

    @torch.no_grad()
    def begin_step(self, parts: Iterable[Batch], all_reduce: AllReduce) -> None:
        """z is a mean over the whole step, however it is cut into micro-batches and ranks."""
        super().begin_step(parts, all_reduce)
        sums = torch.zeros(2, dtype=torch.float64, device=self.kl.device)
        for part in parts:
            sums += self._mismatched(cast(RatedBatch, part))
        all_reduce([sums])
        self._set_kl(sums)

    def _mismatched(self, batch: RatedBatch) -> Tensor:
        """(2,) Σ log π/π₀ of prompts with other answers, and how many they are."""
        assert batch.reference_mismatched is not None
        counted = counted_rows(batch)
        ratios = answer_sums(self.body, batch.mismatched())[0] - batch.reference_mismatched
        return torch.stack([ratios.where(counted, 0).sum().double(), counted.sum().double()])

    def _set_kl(self, sums: Tensor) -> None:
        self.kl.copy_((sums[0] / sums[1].clamp(min=1)).clamp(min=0))

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        """Summed over rated answers, and their number."""
        rated, counted, settings = cast(RatedBatch, batch), counted_rows(batch), self.settings
        assert rated.labels is not None
        assert rated.reference is not None
        if not self.training:                    # an evaluation has no steps: z is that of the batch
            with torch.no_grad():
                self._set_kl(self._mismatched(rated))
        log_probs, tokens = answer_sums(self.body, batch)
        losses = kto(log_probs, rated.reference, rated.labels, self.kl, settings.beta, settings.desirable,
                     settings.undesirable)
        self._measure(Answers(log_probs, tokens, rated.reference), rated.labels, counted)
        return losses.where(counted, 0).sum(), counted.sum(), None

    @torch.no_grad()
    def _measure(self, answers: Answers, labels: Tensor, counted: Tensor) -> None:
        rewards = implicit_rewards(answers, self.settings)
        for side, rows in (("chosen", labels & counted), ("rejected", ~labels & counted)):
            self.measure(rows.sum(), **{f"rewards/{side}": rewards.where(rows, 0).sum(),
                                        f"logps/{side}": answers.log_probs.where(rows, 0).sum()})
        self.measure(counted.sum(), **{"kl": self.kl * counted.sum(),
                                       "completions/mean_length": answers.tokens.where(counted, 0).sum()})


class Preference(AnswerTask):
    name, target = "preference", "pair"
    generates, predicts, needs_base = True, False, True
    train: ClassVar[Mapping[str, type[Settings]]] = {"gradient": PreferenceTraining}
    use = "`chainrule sample {run}` lets it continue a text, `chainrule eval {run} PAIRS` measures its preferences"
    next_commands: ClassVar[Sequence[str]] = ('sample {run} --prompt "The "', "eval {run} PAIRS", "chat {run}")

    def suits(self, model_class: type[Model]) -> bool:
        return issubclass(model_class, LanguageModel) and model_class.learns_by == "gradient" \
            and not model_class.needs_source

    def reads_rated(self, recipe: Recipe) -> bool:
        return bool(recipe.train.method == "kto")

    def complete(self, recipe: Recipe, texts: Sequence[str]) -> Recipe:
        require_language_model(recipe)
        if recipe.train.reference is not None:
            path = Path(recipe.train.reference)
            read_about(path)                                # refuses what is no run, before anything is computed
            recipe = replace(recipe, train=replace(recipe.train, reference=str(path.resolve())))
        return super().complete(recipe, texts)

    def begin(self, model: Model, corpus: Corpus) -> Corpus:
        """Reference log-probabilities, of the model as it starts or of train.reference."""
        recipe = recipe_of(corpus)
        if recipe.train.method in REFERENCE_FREE:
            return corpus
        keep_frozen_layers(model)
        reference: Any = model
        if recipe.train.reference is not None:
            reference = load_reference(recipe, corpus.tokenizer).language_model.to(device_of(model))
        return refer(cast(AnswerCorpus, corpus), reference)

    def objective(self, model: Model, recipe: Recipe) -> Objective:
        wrap = RatedObjective if self.reads_rated(recipe) else PairObjective
        return wrap(cast(LanguageModel, model), recipe.train)

    def measure_validation(self, model: Model, corpus: Corpus) -> dict[str, Any]:
        recipe, split = recipe_of(corpus), cast(AnswerCorpus, corpus).splits["valid"]
        if split.encoded.reference is None and recipe.train.method not in REFERENCE_FREE:
            reference = load_reference(recipe, corpus.tokenizer).language_model.to(device_of(model))
            split = refer(cast(AnswerCorpus, corpus), reference).splits["valid"]
        return measure_answers(cast(LanguageModel, model), split, recipe)

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        """Of JSON lines: loss, accuracy and margin. Of any other file, those of a language model."""
        if not all(format_of(Path(file)) == "jsonl" for file in files):
            plain = RunningText(**{name: getattr(text, name) for name in ("errors", "separator")})
            return LM.measure(run, files, plain, search)
        split = self.held_out(run, files, text, self.reads_rated(run.recipe))
        if run.recipe.train.method not in REFERENCE_FREE:
            reference = load_reference(run.recipe, run.tokenizer, getattr(run, "path", None)).language_model
            log_probs = reference_log_probs(reference.to(device_of(run.model)), split, "float32")
            split = with_reference(split, log_probs)
        return measure_answers(run.model, split, run.recipe)


def recipe_of(corpus: Corpus) -> Recipe:
    recipe = cast(AnswerCorpus, corpus).recipe
    assert recipe is not None
    return recipe


def refer(corpus: AnswerCorpus, reference: LanguageModel) -> AnswerCorpus:
    """The corpus with the reference's log-probabilities."""
    recipe = recipe_of(corpus)
    splits = {name: with_reference(split, reference_log_probs(reference, split, recipe.train.precision))
              for name, split in corpus.splits.items() if name != "test"}
    return replace(corpus, splits=splits)


def measure_answers(model: LanguageModel, split: ExampleSplit, recipe: Recipe) -> dict[str, Any]:
    """Loss, and of pairs accuracy and margin of the implicit reward, with 95 % intervals."""
    settings, encoded = recipe.train, split.encoded
    columns = [torch.from_numpy(part).T for part in score_answers(model, encoded)]
    references = [None, None] if encoded.reference is None else list(torch.from_numpy(encoded.reference).double().T)
    first, second = (Answers(*part) for part in zip(*columns, references))
    facts = {"examples": len(encoded), "method": settings.method,
             "signature": f"method:{settings.method}|beta:{settings.beta:g}|text:{split.sha256[:12]}"
                          f"|chainrule:{__version__}"}
    rewards = implicit_rewards(first, settings).numpy()
    if settings.method == "kto":
        labels = encoded.labels
        kl = (second.log_probs - cast(Tensor, second.reference)).mean().clamp(min=0)
        losses = kto(first.log_probs, cast(Tensor, first.reference), torch.from_numpy(labels), kl, settings.beta,
                     settings.desirable, settings.undesirable)
        sides = {f"rewards/{name}": float(rewards[rows].mean())
                 for name, rows in (("chosen", labels), ("rejected", ~labels)) if rows.any()}
        margin = {"margin": sides["rewards/chosen"] - sides["rewards/rejected"]} if len(sides) == 2 else {}
        accuracy = mean_score("accuracy", ((rewards > 0) == labels).astype(float))
        return {"loss": float(losses.mean()), **accuracy, **margin, **sides, "kl": float(kl), **facts}
    others = implicit_rewards(second, settings).numpy()
    losses = pair_losses(first, second, settings)
    return {"loss": float(losses.mean()), **mean_score("accuracy", (rewards > others).astype(float)),
            **mean_score("margin", rewards - others),
            "rewards/chosen": float(rewards.mean()), "rewards/rejected": float(others.mean()),
            "logps/chosen": float(first.log_probs.mean()), "logps/rejected": float(second.log_probs.mean()), **facts}
