"""Few-shot evaluation: a classifier or translator out of any language model, by K examples in its prompt (in-context).

    p(y | x) ∝ p(word of y | K examples, x)                    zero-shot: K = 0 (Brown et al. 2020)
    p(y | x) ∝ p(x | K examples, word of y)                    --channel (Min et al. 2022)
    log p(y | x) = 1/K Σ over k of log p(y | x, example k)     --ensemble, up to a constant

No weight changes. A label is right where its word is the most probable one; a tie is a mistake, as in BLiMP. For a
translation the model continues the prompt up to the end of the line, and BLEU is measured. Where a prompt is longer
than the context, its first examples are dropped, and the result says how many were kept.

Shapes: N examples, D draws, C labels.
"""

import hashlib
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.exams.answers import LogProbs, score_answers, write_answers
from chainrule.exams.blimp import ROUNDING
from chainrule.exams.calibration import calibrate, contextual_baseline
from chainrule.exams.prompt_set import FewShot, PromptSet
from chainrule.exams.prompts import ChatWriter, Prompt
from chainrule.exams.shots import read_items, read_pool
from chainrule.exams.wording import sign_exam
from chainrule.inference.evaluate import DIVERGED
from chainrule.inference.metrics import measure_overlap
from chainrule.inference.statistics import Score, bootstrap_mean, bootstrap_two_way
from chainrule.progress import bar, say
from chainrule.run import Run

Right = NDArray[np.bool_]


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
            dropped = "those that are too long" if options.ensemble else "the first ones"
            say(f"{result['shots']} shots: {result['kept']:.1f} of them fit in the context of {exam.model.context} "
                f"tokens, on average; {dropped} were dropped.")
    return {
        "exam": "few-shot", "task": exam.tested.task, "results": results, "examples": len(exam.items),
        **exam.facts(), "seconds": time.perf_counter() - began, "signature": exam.sign(),
    }


class Exam(PromptSet):
    """A test: the model's answers to its prompts, measured."""

    def measure(self, count: int) -> dict[str, Any]:
        draws = self.options.draws if count else 1                  # without shots all draws are the same
        title = "zero-shot" if not count else f"{count} shot{'s' * (count > 1)}"
        every = [self.questions(count, number) for number in range(draws)]
        kept = sum(len(shots) * len(some) for groups in every for shots, some in groups.items())
        result = {"shots": count, "draws": draws, "kept": kept / (draws * len(self.items))}
        asked = sum(len(prompt) for groups in every for some in groups.values() for prompt in some.values())
        with bar(title, asked, "prompts") as advance:
            if self.classifies:
                return result | self._classes([self._scores(groups, advance) for groups in every])
            return result | self._texts([self._written(groups, advance) for groups in every])

    def _scores(self, groups: dict[tuple[int, ...], dict[int, Prompt]], advance: Any) -> LogProbs:
        """(N, C): the score of each label, normalised and calibrated; the mean over the prompts of an ensemble."""
        total, prompts = np.zeros((len(self.items), len(self.labels))), np.zeros((len(self.items), 1))
        for shots, asked in groups.items():
            free = self.content_free(shots) if self.options.calibration == "contextual" else []
            every = self._normalised([*asked.values(), *free], advance)
            found, baseline = every[: len(asked)], every[len(asked) :]
            if self.options.calibration == "contextual":
                found = calibrate(found, contextual_baseline(baseline))
            total[list(asked)] += found
            prompts[list(asked)] += 1
        scores: LogProbs = total / prompts
        if self.options.calibration == "pmi":
            scores = calibrate(scores, self._normalised([self.domain()])[0])
        if np.isnan(scores).any():
            raise UserError(f"{self.run.path}: {DIVERGED}.")
        return scores

    def _normalised(self, prompts: Sequence[Prompt], advance: Any = lambda _: None) -> LogProbs:
        """(N, C): log p of each label's word, over its tokens or bytes where that is asked for; or of the text."""
        questions = [question for prompt in prompts for question in prompt]
        scores = score_answers(self.model, questions, advance).reshape(len(prompts), len(self.labels))
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

    def _written(self, groups: dict[tuple[int, ...], dict[int, Prompt]], advance: Any) -> list[str]:
        texts = [""] * len(self.items)
        for prompts in groups.values():
            questions = [question for prompt in prompts.values() for question in prompt]
            found = write_answers(self.model, questions, self.options.beam, self._ends, advance)
            for place, tokens in zip(prompts, found):
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
                        "normalise": self.options.normalise, **self._way()}

    def _way(self) -> dict[str, str]:
        return {"direction": "channel" if self.options.channel else "direct",
                "demonstrations": "ensemble" if self.options.ensemble else "concatenated"}

    def sign(self) -> str:
        options, texts = self.options, [text for item in self.items for text in (*item.about, *item.answers)]
        written = repr((str(self.template), self.separator, self.words if self.classifies else options.beam.as_dict()))
        pool = "" if self.pool is None else repr([(item.about, item.answers) for item in self.pool.items])
        parts = {
            "task": self.tested.task, "shots": ",".join(map(str, options.shots)), "draws": options.draws,
            "seed": options.seed, "drawn": "balanced" if options.balanced and self.classifies else "plain",
            "prompt": _digest(written), "pool": _digest(pool), "chat": "yes" if options.chat else "no",
            "calibration": options.calibration, "normalise": options.normalise, **self._way(),
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

