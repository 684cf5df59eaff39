"""A judge in the place of a person: `--judge shorter`, `longer`, or a function of Python that scores answers.

    python:module.function    function(prompts, answers) -> a number for each answer; the higher one is chosen

It has the form of a reward function, so that one can be used. Equal numbers are a tie.
"""

import asyncio
import math
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TypeAlias

from chainrule.errors import UserError, did_you_mean
from chainrule.prefer.batch_drawing import PAIRS, draw_pairs
from chainrule.prefer.drawing import NoPair, Pair, digest, shown
from chainrule.prefer.prompt_file import Prompt
from chainrule.prefer.session import Session, left_answer
from chainrule.progress import bar

Scores: TypeAlias = Sequence[float]
Judge: TypeAlias = Callable[[Sequence[Prompt], Sequence[str]], Scores]

JUDGES: dict[str, Judge] = {
    "shorter": lambda prompts, answers: [-len(answer) for answer in answers],
    "longer": lambda prompts, answers: [len(answer) for answer in answers],
}


def find_judge(name: str) -> Judge:
    if name in JUDGES:
        return JUDGES[name]
    kind, _, path = name.partition(":")
    if kind != "python":
        raise UserError(f"there is no judge {name}.{did_you_mean(name, JUDGES)} Known: {', '.join(JUDGES)}, "
                        "python:module.function.")
    module, _, function = path.rpartition(".")
    if not module or not function:
        raise UserError(f"--judge {name} does not name a function: write python:module.function.")
    if "" not in sys.path:
        sys.path.insert(0, "")               # a module in the folder in which the command is given
    try:
        found = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        raise UserError(f"--judge {name}: there is no module {error.name} here.") from None
    except AttributeError:
        raise UserError(f"--judge {name}: {module} has no function {function}.") from None
    if not callable(found):
        raise UserError(f"--judge {name}: {function} of {module} is not a function.")
    judge: Judge = found
    return judge


def choose(judge: Judge, name: str, pair: Pair) -> int | None:
    """The number of the better answer; None: a tie."""
    answers = [answer.text for answer in pair.answers]
    if name in JUDGES and not all(answer.ended for answer in pair.answers):
        return by_end(name, pair)
    try:
        scores = [float(score) for score in judge([pair.prompt] * 2, answers)]
    except Exception as error:
        raise UserError(f"--judge {name} failed on {shown(pair.prompt)!r}: {type(error).__name__}: {error}") from error
    if len(scores) != 2 or not all(map(math.isfinite, scores)):
        raise UserError(f"--judge {name} gave {scores} for two answers to {shown(pair.prompt)!r}: it must give a "
                        "finite number for each.")
    return None if scores[0] == scores[1] else int(scores[1] > scores[0])


def by_end(name: str, pair: Pair) -> int | None:
    """How long an answer would be that was cut at the limit is not known: it is longer than one that ended."""
    ended = [answer.ended for answer in pair.answers]
    return None if ended[0] == ended[1] else ended.index(name == "shorter")


async def judge_all(session: Session, name: str) -> dict[str, int]:
    """Rates every pair of the session that this judge has not rated yet. Returns how many were what."""
    judge, rater, counts = find_judge(name), f"judge:{name}", {"choice": 0, "tie": 0}
    waiting = list(session.waiting_for(rater))
    with bar("judging", len(waiting), "pairs") as advance:
        for first in range(0, len(waiting), PAIRS):
            items = waiting[first : first + PAIRS]
            pairs = await draw_pairs(session.policy, [(item.prompt, item.seed) for item in items])
            for item, pair in zip(items, pairs):
                advance()
                if isinstance(pair, NoPair):
                    session.dropped[item.id] = str(pair)
                    continue
                better, left = choose(judge, name, pair), left_answer(pair, rater)
                side = "tie" if better is None else "left" if better == left else "right"
                counts[session.click(pair, rater, side, digest([pair.id, rater, "click"]))["event"]] += 1
    return counts


def run_judge(session: Session, name: str) -> dict[str, int]:
    return asyncio.run(judge_all(session, name))
