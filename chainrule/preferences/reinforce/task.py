"""Reinforcement learning: a language model learns from rewards of its own answers (`--task reinforce`).

    chainrule train prompts.jsonl --task reinforce --from RUN --reward REWARD train.method=grpo --out runs/grpo

The policy begins as the run that it is tuned from. Rollouts are drawn while it trains (rollout_order.py); a penalty
keeps it near the reference, by default that run. What comes out is a language model as any other.

Shapes: N prompts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule import __version__
from chainrule.device import choose_precision
from chainrule.errors import UserError
from chainrule.inference.forward import device_of
from chainrule.model import BOUNDARY, Batch, LanguageModel, Model
from chainrule.preferences.answer_task import mean_score, plain_template
from chainrule.preferences.encoding import encode_prompt, refuse_dropped
from chainrule.preferences.objective import require_language_model, without_dropout
from chainrule.preferences.records import Prompt, read_prompts, refuse_two_formats
from chainrule.preferences.reference import load_reference
from chainrule.preferences.reinforce.environment import Environment, HeldOut
from chainrule.preferences.reinforce.policy import Policy
from chainrule.preferences.reinforce.rewards import load_reward
from chainrule.preferences.reinforce.rollout_order import RolloutOrder
from chainrule.preferences.reinforce.rollouts import Sampler
from chainrule.preferences.reinforce.training import ReinforceTraining
from chainrule.recipe import Gradient, Recipe, RunningText, Text
from chainrule.settings import Settings
from chainrule.tasks.batching import Ids
from chainrule.tasks.example_task import ExampleCorpus, ExampleSplit, ExampleTask, example_split, refuse_none
from chainrule.tasks.examples import gather_examples, held_out_examples
from chainrule.tasks.lm import LM
from chainrule.tasks.task import Search, Trained
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.corpus import Corpus
from chainrule.text.sources import Source
from chainrule.text.tables import Place, format_of, numbered_lines
from chainrule.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class PromptText(Text):
    """`text.*` of prompts."""


@dataclass(frozen=True)
class PromptCorpus(ExampleCorpus):
    recipe: Recipe = field(kw_only=True)
    chat_template: str | None = None    # by which chats are written; the run keeps it
    end_of_turn: int | None = None      # the token that ends an answer beside the boundary


@dataclass(frozen=True)
class Prompts:
    """Encoded prompts, each without the boundary that comes before it."""

    rows: tuple[list[int], ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> NDArray[Any]:
        """As a text: each after a boundary."""
        return np.array([id for row in self.rows for id in (BOUNDARY, *row)], np.uint32)

    @property
    def target_count(self) -> int:
        return len(self)

    @property
    def sizes(self) -> tuple[Ids, ...]:
        return (np.array([len(row) for row in self.rows]),)

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        raise NotImplementedError("prompts have no targets before they are answered")


class Reinforce(ExampleTask[Prompt]):
    name, target = "reinforce", "target"
    generates, predicts, needs_base = True, False, True
    own_training = True
    text = PromptText
    train: ClassVar[Mapping[str, type[Settings]]] = {"gradient": ReinforceTraining}
    use = "`chainrule sample {run}` lets it continue a text, `chainrule eval {run} PROMPTS` measures its reward"
    next_commands: ClassVar[Sequence[str]] = ('sample {run} --prompt "The "', "eval {run} PROMPTS.jsonl")

    def suits(self, model_class: type[Model]) -> bool:
        return issubclass(model_class, LanguageModel) and model_class.learns_by == "gradient" \
            and not model_class.needs_source

    def complete(self, recipe: Recipe, texts: Sequence[str]) -> Recipe:
        require_language_model(recipe)
        if recipe.train.reward is None:
            raise UserError("--task reinforce needs a reward: --reward RUN, --reward RUN:LABEL of a classifier, or "
                            "--reward python:MODULE.FUNCTION.")
        return without_dropout(recipe)

    def read(self, sources: Sequence[Source], text: Any) -> Iterable[Prompt]:
        """JSON lines with `prompt`; of any other file each line is a prompt."""
        for source in sources:
            if format_of(source.path) == "jsonl":
                yield from read_prompts([source], text.errors)
            else:
                yield from (Prompt(line.rstrip("\r\n"), Place(str(source.path), number))
                            for number, line in numbered_lines(source, text.errors) if line.strip())

    def prepare(
        self, recipe: Recipe, texts: Sequence[str], valid: Sequence[str] = (), test: Sequence[str] = (),
        tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None,
    ) -> PromptCorpus:
        assert tokenizer is not None                       # the base's
        gathered = gather_examples(self.read, texts, recipe.text, valid=valid, test=test, seed=recipe.train.seed)
        corpus = prompt_corpus(gathered.splits, recipe, tokenizer, template)
        settings: ReinforceTraining = recipe.train
        note = f"train.lr={settings.lr:g}, train.kl={settings.kl_weight:g}, {settings.method}"
        return replace(corpus, notes=(*gathered.notes, note))

    def objective(self, model: Model, recipe: Recipe) -> Policy:
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise UserError("--task reinforce draws its answers on one device; start it without torchrun.")
        return Policy(model, recipe.train)

    def order(  # type: ignore[override]
        self, model: Model, corpus: Corpus, settings: Gradient
    ) -> RolloutOrder:
        policy, made = cast(Policy, model), cast(PromptCorpus, corpus)
        policy.environment = environment_of(policy.body, made)
        split = made.splits["train"]
        return RolloutOrder(policy, prompts_of(split), contents_of(split))

    def validation(self, model: Model, corpus: Corpus) -> HeldOut:  # type: ignore[override]
        policy, made = cast(Policy, model), cast(PromptCorpus, corpus)
        return held_out(policy.environment, made.splits["valid"], policy.settings)

    def measure_validation(self, model: Model, corpus: Corpus) -> dict[str, Any]:
        made = cast(PromptCorpus, corpus)
        environment = environment_of(cast(LanguageModel, model), made)
        return measure_answers(environment, made.splits["valid"], made.recipe.train)

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        """Of JSON lines: reward and KL divergence from the reference. Of any other file, those of a language model."""
        if not all(format_of(Path(file)) == "jsonl" for file in files):
            plain = RunningText(**{name: getattr(text, name) for name in ("errors", "separator")})
            return LM.measure(run, files, plain, search)
        examples = held_out_examples(self.read, files, text)
        corpus = prompt_corpus({"test": examples}, run.recipe, run.tokenizer, run.template)
        environment = environment_of(run.model, corpus, getattr(run, "path", None))
        return measure_answers(environment, corpus.splits["test"], run.recipe.train)


def prompt_corpus(
    splits: Mapping[str, Sequence[Prompt]], recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate | None
) -> PromptCorpus:
    """Encoded prompts; those of chats are written by the template, or by a plain one."""
    for examples in splits.values():
        refuse_none(examples)
    chats = refuse_two_formats([example for examples in splits.values() for example in examples])
    template = (template or plain_template(tokenizer)) if chats else None
    encoded = {name: example_split(examples, encode_prompts(examples, recipe, tokenizer, template))
               for name, examples in splits.items()}
    source, end = (None, None) if template is None else (template.source, template.end_of_turn)
    return PromptCorpus(encoded, tokenizer, (), recipe=recipe, chat_template=source, end_of_turn=end)


def encode_prompts(
    examples: Sequence[Prompt], recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate | None
) -> Prompts:
    """Prompts as tokens; each leaves room for an answer in the model's context."""
    context, most, rows = getattr(recipe.model, "context", None), recipe.train.answer_tokens, []
    for example in examples:
        if template is not None and not isinstance(example.prompt, str):
            refuse_dropped(template, example.prompt, example.place)
        ids = encode_prompt(tokenizer, template, example.prompt)
        if context is not None and len(ids) + most - 1 > context:
            raise UserError(f"{example.place}: the prompt has {len(ids)} tokens with the boundary, and the model holds "
                            f"{context}, which leaves less than train.answer_tokens={most} for an answer. Shorten it, "
                            "or lower train.answer_tokens (`eval`: --answer-tokens).")
        rows.append(ids[1:])
    return Prompts(tuple(rows))


def prompts_of(split: ExampleSplit) -> list[NDArray[np.int64]]:
    return [np.array(row, np.int64) for row in split.encoded.rows]


def contents_of(split: ExampleSplit) -> list[Any]:
    return [example.prompt for example in split.examples]


def environment_of(policy: LanguageModel, corpus: PromptCorpus, near: Path | None = None) -> Environment:
    """Reference and reward are loaded on the policy's device; `near`: the tuned run, beside which its base may be."""
    recipe, device = corpus.recipe, device_of(policy)
    settings: ReinforceTraining = recipe.train
    precision = choose_precision(settings.precision, device)
    longest = max(len(row) for split in corpus.splits.values() for row in split.encoded.rows)
    sampler = Sampler(policy, settings.answer_tokens, settings.temperature, dtype=precision.dtype,
                      end_of_turn=corpus.end_of_turn, longest=longest)
    reference = load_reference(recipe, corpus.tokenizer, near).language_model.to(device)
    reward = load_reward(cast(str, settings.reward), device)
    return Environment(sampler, reference, reward, corpus.tokenizer, precision, settings.reward_clip)


def held_out(environment: Environment, split: ExampleSplit, settings: ReinforceTraining) -> HeldOut:
    rows = settings.prompts * settings.generations
    return HeldOut(environment, prompts_of(split), contents_of(split), rows, settings.seed)


def measure_answers(environment: Environment, split: ExampleSplit, settings: ReinforceTraining) -> dict[str, Any]:
    """Mean reward, KL divergence in nats per answer, and length, with intervals by a bootstrap over the prompts."""
    answers = held_out(environment, split, settings)
    found = [(batch.rewards, batch.kl, batch.loss_mask.sum(1)) for batch in map(answers.at, range(answers.steps))]
    facts: dict[str, Any] = {}
    for name, parts in zip(("reward", "kl", "mean_length"), zip(*found)):
        facts |= mean_score(name, torch.cat(parts).double().cpu().numpy())
    signature = f"seed:{settings.seed}|tokens:{settings.answer_tokens}|text:{split.sha256[:12]}|chainrule:{__version__}"
    return {**facts, "examples": len(answers.prompts), "signature": signature}
