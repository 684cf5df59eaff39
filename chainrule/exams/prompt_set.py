"""Prompts of a few-shot test: its options, the examples in each prompt, and what is scored after it (Min et al. 2022).

    direct     p(word of y | examples, x)        examples: text, label
    channel    p(x | examples, word of y)        examples: label, text; labels are equally probable before x is read
    ensemble   K prompts with one example each, instead of one prompt with K

Where a prompt is longer than the context, its first examples are dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.exams.calibration import CONTENT_FREE, METHODS, NORMALISATIONS
from chainrule.exams.prompts import ChatWriter, Item, PlainWriter, Prompt, Template, Writer, read_labels
from chainrule.exams.shots import Draw, ItemSet
from chainrule.exams.wording import WORDINGS, choose_wording
from chainrule.inference.beam import Beam
from chainrule.model import LanguageModel
from chainrule.run import Run
from chainrule.tasks.examples import label_ids, label_names

WRITTEN = 128          # tokens of a translation at most; a quarter of the context is kept free for them

@dataclass(frozen=True)
class FewShot:
    """How prompts are made and answers are scored."""

    shots: tuple[int, ...] = (0,)
    examples: tuple[str, ...] = ()         # files of the examples that shots are drawn from
    task: str | None = None                # classify or translate; None: by the columns
    template: str | None = None
    separator: str | None = None           # between examples; None: an empty line, or a line end after one line
    labels: str | None = None              # the words of labels: 0=negative,1=positive
    draws: int = 3                         # of the shots
    seed: int = 1
    balanced: bool = True                  # as many shots of each label
    channel: bool = False                  # score the text after its label
    ensemble: bool = False                 # each shot in a prompt of its own; the mean of log p over the prompts
    normalise: str = "none"                # log p over tokens or bytes of the word
    calibration: str = "none"
    chat: bool = False
    limit: int | None = None               # examples that are tested
    beam: Beam = field(default_factory=lambda: Beam(width=1, alpha=0.0, limit=WRITTEN))

    def __post_init__(self) -> None:
        for name, known in (("normalise", NORMALISATIONS), ("calibration", tuple(METHODS))):
            if getattr(self, name) not in known:
                raise UserError(f"--{name} {getattr(self, name)} is not known: it is {', '.join(known)}.")
        if not self.shots or min(self.shots) < 0:
            raise UserError("--shots is a number of examples, 0 or more, or several: 0,1,4,16.")
        if self.draws < 1 or self.seed < 0 or (self.limit is not None and self.limit < 1):
            raise UserError(f"--draws {self.draws} --seed {self.seed} --limit {self.limit}: ask for 1 or more draws "
                            "and examples, and a seed of 0 or more.")
        if self.channel and (self.calibration, self.normalise) != ("none", "none"):
            raise UserError("--channel scores the same text after each label, so there is no label's word that "
                            "--calibration or --normalise could correct. Leave them out.")
        if self.ensemble and not max(self.shots):
            raise UserError("--ensemble is the mean over prompts with one example each, and --shots 0 has no example.")


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a test, for a run and a number of shots."""

    run: Run
    model: LanguageModel
    tested: ItemSet
    pool: ItemSet | None
    options: FewShot

    @cached_property
    def items(self) -> tuple[Item, ...]:
        return self.tested.items[: self.options.limit]

    @cached_property
    def template(self) -> Template:
        given = self.options.template
        if given is not None:
            return Template.parse(given, self.tested.texts, self.tested.labels, self.options.channel)
        *texts, label = self.tested.columns
        return Template.by_names(texts, label, self.options.channel)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels: those of the training examples, where there are some."""
        known = self.tested.items if self.pool is None else self.pool.items
        return label_names((item.answers[0] for item in known if item.answers), "labels")

    @cached_property
    def words(self) -> dict[str, str]:
        return read_labels(self.options.labels, self.labels)

    @cached_property
    def truth(self) -> NDArray[np.int64]:
        return label_ids([item.answers[0] if item.answers else None for item in self.items], self.labels,
                         [item.place for item in self.items], "label")

    @cached_property
    def wording(self) -> str:
        texts = [text for item in self.items for text in item.about]
        return choose_wording(self.run.tokenizer, texts)

    @cached_property
    def separator(self) -> str:
        given = self.options.separator
        if given is not None:
            return given.replace("\\n", "\n")
        return "\n\n" if "\n" in str(self.template) else "\n"

    @cached_property
    def writer(self) -> Writer:
        if self.options.chat:
            if (template := self.run.template) is None:
                raise UserError(f"{self.run.path} has no chat template, which makes one text of messages. Leave --chat "
                                "out.")
            return ChatWriter(template)
        return PlainWriter(self.run.tokenizer, self.separator, self.template.after, WORDINGS[self.wording])

    @property
    def classifies(self) -> bool:
        return self.tested.task == "classify"

    def check(self) -> None:
        """What is wrong with the question is said before the model reads anything."""
        most = max(self.options.shots)
        for name in ("channel", "ensemble"):
            if getattr(self.options, name) and not self.classifies:
                raise UserError(f"--{name} is for labels, and these examples are of --task {self.tested.task}, whose "
                                "answers are written and not scored.")
        if most and self.pool is None:
            raise UserError(f"--shots {most} needs examples to draw from: --examples TRAIN.tsv. (The tested file "
                            "itself is used only if it is given there; an example is never its own shot.)")
        if most and self.pool is not None and self.pool.task != self.tested.task:
            raise UserError(f"the examples of --examples are of --task {self.pool.task}, and those to test of --task "
                            f"{self.tested.task}. Choose by --task.")
        if self.pool is not None and self.pool.texts != self.tested.texts:
            raise UserError(f"the examples of --examples have the texts {', '.join(self.pool.texts)}, and those to "
                            f"test {', '.join(self.tested.texts)}. Their columns must have the same names.")
        if self.classifies and (self.truth < 0).any():
            unlabelled = self.items[int((self.truth < 0).argmax())]
            raise UserError(f"{unlabelled.place} has no label, so it cannot be measured.")
        self._refuse_equal_words()

    def _refuse_equal_words(self) -> None:
        """Two labels that a tokenizer does not tell apart, such as two unknown words."""
        if not self.classifies:
            return
        seen: dict[bytes, str] = {}
        for word, answer in zip(self.words.values(), self.writer.encode((), "", list(self.words.values())).answers):
            if not len(answer):
                raise UserError(f"the label's word {word!r} has no token. Choose another by --labels.")
            if (other := seen.setdefault(answer.tobytes(), word)) != word:
                raise UserError(f"the words {other!r} and {word!r} are the same tokens for this tokenizer "
                                f"({self.run.tokenizer.unit}). Choose words that it knows: --labels 0=bad,1=good.")

    def encode(self, shots: Sequence[Item], texts: Mapping[str, str]) -> Prompt:
        template, words = self.template, list(self.words.values()) if self.classifies else []
        before = [(template.question(shot.texts, word), template.solution(shot.texts, word))
                  for shot in shots for word in [self._word(shot)]]
        if self.options.channel:
            return tuple(self.writer.encode(before, template.question(texts, word), [template.solution(texts, word)])
                         for word in words)
        return (self.writer.encode(before, template.question(texts), words),)

    def _word(self, shot: Item) -> str:
        return self.words[shot.answers[0]] if self.classifies else shot.answers[0]

    def questions(self, count: int, number: int) -> dict[tuple[int, ...], dict[int, Prompt]]:
        """By the shots in them: the prompts of one draw, by the place of the tested example.

        In an ensemble an example has several.
        """
        pool = self.pool.items if self.pool is not None else ()
        draw = Draw(pool, self.options.seed, number, self.options.balanced and self.classifies)
        groups: dict[tuple[int, ...], dict[int, Prompt]] = {}
        for place, item in enumerate(self.items):
            for shots, prompt in self._prompts(draw.shots(count, item) if count else (), item).items():
                groups.setdefault(shots, {})[place] = prompt
        return groups

    def _prompts(self, shots: tuple[int, ...], item: Item) -> dict[tuple[int, ...], Prompt]:
        """One with all shots, or an ensemble: one with each shot that fits."""
        members = [(shot,) for shot in shots] if self.options.ensemble and shots else [shots]
        made = dict(self._fitting(member, item.texts, item.place) for member in members)
        if len(made) > 1:
            made.pop((), None)
        return made

    def content_free(self, shots: tuple[int, ...]) -> list[Prompt]:
        """The prompts of contextual calibration: the same shots, and no content in the place of the text."""
        texts = [dict.fromkeys(self.tested.texts, text) for text in CONTENT_FREE]
        return [self._fitting(shots, one, "a text without content")[1] for one in texts]

    def domain(self) -> Prompt:
        """The prompt of PMI: the end of the template alone."""
        return (self.writer.encode((), self.template.domain, list(self.words.values())),)

    def _fitting(
        self, shots: tuple[int, ...], texts: Mapping[str, str], place: object
    ) -> tuple[tuple[int, ...], Prompt]:
        """The prompt with as many of the last shots as the context holds; `place`: of the example, for messages."""
        pool = self.pool.items if self.pool is not None else ()
        room = self.model.context
        if room is not None and not self.classifies:
            room -= min(self.options.beam.limit, room // 4)
        while True:
            prompt = self.encode([pool[at] for at in shots], texts)
            size = max(question.size for question in prompt)
            if room is None or size <= room:
                return shots, prompt
            if not shots:
                raise UserError(f"{place}: its prompt has {size} tokens without any example, and the context "
                                f"of the model has room for {room}. Shorten the text, or evaluate a model with a "
                                "larger model.context.")
            shots = shots[1:]
