"""Few-shot evaluation: a classifier or translator out of any language model, by K examples in its prompt (in-context).

    p(y | x) ∝ p(word of y | K examples, x)                    zero-shot: K = 0 (Brown et al. 2020)

No weight changes. A label is right where its word is the most probable one; a tie is a mistake, as in BLiMP. For a
translation the model continues the prompt up to the end of the line, and BLEU is measured. Where a prompt is longer
than the context, its first examples are dropped, and the result says how many were kept.

Shapes: N examples, D draws, C labels.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.exams.answers import LogProbs, score_answers, write_answers
from chainrule.exams.blimp import ROUNDING
from chainrule.exams.calibration import (
    CONTENT_FREE,
    METHODS,
    NORMALISATIONS,
    calibrate,
    contextual_baseline,
)
from chainrule.exams.prompts import ChatWriter, Item, PlainWriter, Question, Template, Writer, read_labels
from chainrule.exams.shots import Draw, ItemSet, read_items, read_pool
from chainrule.exams.wording import WORDINGS, choose_wording, sign_exam
from chainrule.inference.beam import Beam
from chainrule.inference.evaluate import DIVERGED
from chainrule.inference.metrics import measure_overlap
from chainrule.inference.statistics import Score, bootstrap_mean, bootstrap_two_way
from chainrule.model import LanguageModel
from chainrule.progress import bar, say
from chainrule.run import Run
from chainrule.tasks.examples import label_ids, label_names

WRITTEN = 128          # tokens of a translation at most; a quarter of the context is kept free for them

Right = NDArray[np.bool_]


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


def examine_shots(
    run: Run, files: Sequence[str], options: FewShot, settings: dict[str, str] | None = None
) -> dict[str, Any]:
    """The results for each number of shots, with intervals over examples and over draws; plain values for JSON."""
    began = time.perf_counter()
    exam = Exam(run, run.language_model, read_items(files, settings or {}, options.task),
                read_pool(options.examples, files, settings or {}, options.task), options)
    exam.check()
    results = [exam.measure(count) for count in options.shots]
    for result in results:
        if result["kept"] < result["shots"]:
            say(f"{result['shots']} shots: {result['kept']:.1f} of them fit in the context of {exam.model.context} "
                "tokens, on average; the first ones were dropped.")
    return {
        "exam": "few-shot", "task": exam.tested.task, "results": results, "examples": len(exam.items),
        **exam.facts(), "seconds": time.perf_counter() - began, "signature": exam.sign(),
    }


@dataclass(frozen=True)
class Exam:
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
            return Template.parse(given, self.tested.texts, self.tested.labels)
        *texts, label = self.tested.columns
        return Template.by_names(texts, label)

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
        for word, answer in zip(self.words.values(), self._encode((), "", self.words.values()).answers):
            if not len(answer):
                raise UserError(f"the label's word {word!r} has no token. Choose another by --labels.")
            if (other := seen.setdefault(answer.tobytes(), word)) != word:
                raise UserError(f"the words {other!r} and {word!r} are the same tokens for this tokenizer "
                                f"({self.run.tokenizer.unit}). Choose words that it knows: --labels 0=bad,1=good.")

    def _encode(self, shots: Sequence[Item], question: str, answers: Any = ()) -> Question:
        before = [(self.template.question(shot.texts), self._word(shot)) for shot in shots]
        return self.writer.encode(before, question, list(answers))

    def _word(self, shot: Item) -> str:
        return self.words[shot.answers[0]] if self.classifies else shot.answers[0]

    # Prompts

    def questions(self, count: int, number: int) -> dict[tuple[int, ...], dict[int, Question]]:
        """By the shots of their prompts: the questions of one draw, by the place of the tested example."""
        pool = self.pool.items if self.pool is not None else ()
        draw = Draw(pool, self.options.seed, number, self.options.balanced and self.classifies)
        groups: dict[tuple[int, ...], dict[int, Question]] = {}
        for place, item in enumerate(self.items):
            shots = draw.shots(count, item) if count else ()
            shots, question = self._fitting(shots, pool, item)
            groups.setdefault(shots, {})[place] = question
        return groups

    def _fitting(self, shots: tuple[int, ...], pool: Sequence[Item], item: Item) -> tuple[tuple[int, ...], Question]:
        """The prompt with as many of the last shots as the context holds."""
        answers = self.words.values() if self.classifies else ()
        room = self.model.context
        if room is not None and not self.classifies:
            room -= min(self.options.beam.limit, room // 4)
        while True:
            question = self._encode([pool[at] for at in shots], self.template.question(item.texts), answers)
            if room is None or question.size <= room:
                return shots, question
            if not shots:
                raise UserError(f"{item.place}: its prompt has {question.size} tokens without any example, and the "
                                f"context of the model has room for {room}. Shorten the text, or evaluate a model with "
                                "a larger model.context.")
            shots = shots[1:]

    # Results

    def measure(self, count: int) -> dict[str, Any]:
        draws = self.options.draws if count else 1                  # without shots all draws are the same
        title = "zero-shot" if not count else f"{count} shot{'s' * (count > 1)}"
        with bar(title, draws * len(self.items), "prompts") as advance:
            every = [self.questions(count, number) for number in range(draws)]
            kept = np.mean([len(shots) for groups in every for shots, some in groups.items() for _ in some])
            result = {"shots": count, "draws": draws, "kept": float(kept)}
            if self.classifies:
                return result | self._classes([self._scores(groups, advance) for groups in every])
            return result | self._texts([self._written(groups, advance) for groups in every])

    def _scores(self, groups: dict[tuple[int, ...], dict[int, Question]], advance: Any) -> LogProbs:
        """(N, C): the score of each label, normalised and calibrated."""
        scores = np.empty((len(self.items), len(self.labels)))
        for shots, questions in groups.items():
            free = self._content_free(shots)
            every = self._normalised([*questions.values(), *free], advance)
            found, baseline = every[: len(questions)], every[len(questions) :]
            if self.options.calibration == "contextual":
                found = calibrate(found, contextual_baseline(baseline))
            scores[list(questions)] = found
        if self.options.calibration == "pmi":
            domain = self._encode((), self.template.domain, self.words.values())
            scores = calibrate(scores, self._normalised([domain])[0])
        if np.isnan(scores).any():
            raise UserError(f"{self.run.path}: {DIVERGED}.")
        return scores

    def _content_free(self, shots: tuple[int, ...]) -> list[Question]:
        if self.options.calibration != "contextual":
            return []
        pool = self.pool.items if self.pool is not None else ()
        empty = [self.template.question(dict.fromkeys(self.tested.texts, text)) for text in CONTENT_FREE]
        return [self._encode([pool[at] for at in shots], text, self.words.values()) for text in empty]

    def _normalised(self, questions: Sequence[Question], advance: Any = lambda _: None) -> LogProbs:
        """(N, C): log p of each label's word, over its tokens or bytes where that is asked for."""
        scores = score_answers(self.model, questions, advance)
        if self.options.normalise == "tokens":
            scores /= np.array([[len(answer) for answer in one.answers] for one in questions])
        if self.options.normalise == "bytes":
            scores /= np.array([len(word.encode()) for word in self.words.values()])
        return scores

    def _classes(self, draws: Sequence[LogProbs]) -> dict[str, Any]:
        """Accuracy over (D, N), and how often each label was answered."""
        scores = np.stack(draws)                                                   # (D, N, C)
        best = np.sort(scores, -1)
        with np.errstate(invalid="ignore"):
            ties = ~(best[..., -1] - best[..., -2] > ROUNDING)                     # also where all are -inf
        predicted = scores.argmax(-1)
        right = (predicted == self.truth) & ~ties
        shares = [float((predicted == label).mean()) for label in range(len(self.labels))]
        return {**spread(right, "accuracy"), "ties": int(ties.sum()), "answered": dict(zip(self.labels, shares))}

    def _written(self, groups: dict[tuple[int, ...], dict[int, Question]], advance: Any) -> list[str]:
        texts = [""] * len(self.items)
        for questions in groups.values():
            found = write_answers(self.model, list(questions.values()), self.options.beam, self._ends, advance)
            for place, tokens in zip(questions, found):
                texts[place] = self.run.tokenizer.decode(tokens).strip().partition("\n")[0].strip()
        return texts

    @cached_property
    def _ends(self) -> list[int]:
        """Tokens that begin with a line end, and the one that ends a turn of a chat."""
        tokenizer = self.run.tokenizer
        ends = [id for id in range(len(tokenizer)) if (tokenizer.bytes_of(id) or b"").startswith(b"\n")]
        turn = self.writer.template.end_of_turn if isinstance(self.writer, ChatWriter) else None
        return ends if turn is None else [*ends, turn]

    def _texts(self, draws: Sequence[list[str]]) -> dict[str, Any]:
        """BLEU of each draw; its interval is the mean of the draws' intervals over texts."""
        references = [list(item.answers) for item in self.items]
        scores = [measure_overlap(texts, references) for texts in draws]
        every = [score.bleu.value for score in scores]
        return {
            "bleu": float(np.mean(every)),
            "bleu_interval": [float(np.mean([score.bleu.low for score in scores])),
                              float(np.mean([score.bleu.high for score in scores]))],
            "over_draws": over_draws(np.array(every)),
            "each_draw": every,
            "chrf": float(np.mean([score.chrf.value for score in scores])),
            "first_text": draws[0][0],
            "overlap": scores[0].signature,
        }

    def facts(self) -> dict[str, Any]:
        shown = {"template": str(self.template), "separator": self.separator, "seed": self.options.seed}
        if not self.classifies:
            return shown | self.options.beam.as_dict()
        majority = float(np.bincount(self.truth).max() / len(self.truth))
        return shown | {"words": self.words, "majority": majority, "calibration": self.options.calibration,
                        "normalise": self.options.normalise}

    def sign(self) -> str:
        options, texts = self.options, [text for item in self.items for text in (*item.about, *item.answers)]
        written = repr((str(self.template), self.separator, self.words if self.classifies else options.beam.as_dict()))
        pool = "" if self.pool is None else repr([(item.about, item.answers) for item in self.pool.items])
        parts = {
            "task": self.tested.task, "shots": ",".join(map(str, options.shots)), "draws": options.draws,
            "seed": options.seed, "drawn": "balanced" if options.balanced and self.classifies else "plain",
            "prompt": _digest(written), "pool": _digest(pool), "chat": "yes" if options.chat else "no",
            "calibration": options.calibration, "normalise": options.normalise,
        }
        more = "|".join(f"{name}:{value}" for name, value in parts.items())
        base = sign_exam("few-shot", len(self.items), self.model, self.run.tokenizer, self.wording, texts)
        return f"{base}|{more}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def over_draws(values: NDArray[np.float64]) -> list[float] | None:
    """The interval of a mean over draws; None: one draw has none."""
    if len(values) < 2:
        return None
    score = bootstrap_mean(values)
    return [score.low, score.high]


def spread(right: Right, name: str) -> dict[str, Any]:
    """(D, N): the share of True, with intervals: draws and examples both drawn again, and each alone."""
    each, whole = right.mean(1), right.mean(0)
    examples = bootstrap_mean(whole)
    both = bootstrap_two_way(right) if len(right) > 1 else examples
    return {
        **Score(float(right.mean()), both.low, both.high).as_dict(name),
        "over_examples": [examples.low, examples.high], "over_draws": over_draws(each), "each_draw": each.tolist(),
    }

