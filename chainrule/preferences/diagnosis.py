"""Diagnosis of preference tuning and reinforcement learning: one sentence about a curve of the log that goes wrong.

    findings = diagnose(records)              what the curves say, each finding with a sentence
    findings = new_findings(records)          without those that the log has already

A rule compares the first quarter of a curve with the last one, and asks for more than the noise between them. The KL
divergence is in nats of a whole answer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any, TypeAlias

from chainrule.preferences.curves import LOSS, Curve, read_curves
from chainrule.preferences.curves import short_number as number

FEWEST = 8                # records that a curve needs for a diagnosis
SETTLED = 40              # records after which a curve that does not move is called stuck while training runs
NOISE = 3.0               # standard errors that a curve must move by
EQUAL = 1e-6              # a number below this is 0
STUCK_MARGIN = 0.02       # a margin that moved by less has not moved
FALLEN = 0.1              # a reward that is below 0 by this has fallen
FAR = 20.0                # nats per answer: far from the reference
DETERMINISTIC = 0.3       # nats per token: nearly always the same token
EVENT = "diagnosis"       # of the log
LOG_PROB = "logps/chosen"    # what a policy has, and a reward model has not


@dataclass(frozen=True)
class Finding:
    """What a curve says."""

    trouble: str                    # its name, in a few words
    sentence: str
    curves: tuple[str, ...]         # where it is seen


@dataclass(frozen=True)
class Trend:
    """A curve by its first and its last quarter."""

    early: float
    late: float
    error: float                    # standard error of the difference of the two

    @property
    def rises(self) -> bool:
        return self.late - self.early > max(NOISE * self.error, EQUAL)

    @property
    def falls(self) -> bool:
        return self.early - self.late > max(NOISE * self.error, EQUAL)


Trends: TypeAlias = Mapping[str, Trend]
Rule: TypeAlias = Callable[["Evidence"], str | None]


@dataclass(frozen=True)
class Evidence:
    """What a rule may read."""

    curves: Mapping[str, Curve]
    held_out: Mapping[str, Curve]   # of the validation split
    trends: Trends
    settled: bool                   # long enough that what has not moved yet is stuck

    def late(self, name: str, default: float = math.nan) -> float:
        return self.trends[name].late if name in self.trends else default


def diagnose(records: Sequence[Mapping[str, Any]], *, ended: bool = False) -> list[Finding]:
    """The findings in a log, in the order of the rules; `ended`: training is over, so the curves are whole."""
    curves, held_out = read_curves(records), read_curves(records, "evaluation")
    trends = {name: trend(curve) for name, curve in curves.items() if len(curve) >= FEWEST}
    length = max((len(curve) for curve in curves.values()), default=0)
    evidence = Evidence(curves, held_out, trends, ended or length >= SETTLED)
    found = []
    for trouble, (needed, rule) in RULES.items():
        if all(name in trends for name in needed) and (sentence := rule(evidence)) is not None:
            found.append(Finding(trouble, sentence, needed))
    return found


def new_findings(records: Sequence[Mapping[str, Any]], *, ended: bool = False) -> list[Finding]:
    """Those that no earlier record of the log has: so each kind of trouble is said once."""
    said = {record["trouble"] for record in records if record.get("event") == EVENT}
    return [finding for finding in diagnose(records, ended=ended) if finding.trouble not in said]


def trend(curve: Curve) -> Trend:
    values = [value for _, value in curve]
    quarter = max(1, len(values) // 4)
    first, last = values[:quarter], values[-quarter:]
    error = math.sqrt((_scatter(first) + _scatter(last)) / quarter)
    return Trend(fmean(first), fmean(last), error)


def _scatter(values: Sequence[float]) -> float:
    return pvariance(values) if len(values) > 1 else 0.0


# Preference tuning


def _nothing_trains(seen: Evidence) -> str | None:
    rewards = [value for name in ("rewards/chosen", "rewards/rejected") for _, value in seen.curves[name]]
    if max(map(abs, rewards)) > EQUAL:
        return None
    return ("rewards/chosen and rewards/rejected are exactly 0: the policy still equals the reference, so nothing is "
            "trained; check that train.lr is not 0, that not all weights are frozen, and that the answers are not "
            "cut off by the context.")


def _stuck(seen: Evidence) -> str | None:
    margins, accuracy = seen.trends["rewards/margins"], seen.late("rewards/accuracies")
    moved = abs(margins.late - margins.early) > STUCK_MARGIN or accuracy > 0.6
    tuned = LOG_PROB in seen.curves              # a policy; else a reward model
    if not seen.settled or moved or (tuned and _nothing_trains(seen)):
        return None
    who = "policy hardly leaves the reference" if tuned else "reward model learns nothing"
    return (f"the accuracy stays at {accuracy:.2f} and the margin at {number(margins.late)} (the loss of DPO and of a "
            f"reward model at 0.693 = ln 2): the {who}; raise train.lr or train longer, and check that the chosen "
            "answers differ from the rejected ones by something that the model can see.")


def _both_fall(seen: Evidence) -> str | None:
    chosen, rejected, margins = (seen.trends[f"rewards/{name}"] for name in ("chosen", "rejected", "margins"))
    if not (chosen.falls and rejected.falls and chosen.late < -FALLEN):
        return None
    both = f"rewards/chosen ({number(chosen.late)}) and rewards/rejected ({number(rejected.late)}) both fall"
    if margins.rises:
        return (f"{both} while the margin grows: usual where only their difference is learned, as in DPO; if the "
                "answers get worse, raise train.beta, lower train.lr or take fewer steps.")
    return (f"{both}, and the margin does not grow: the policy leaves the reference without learning which answer is "
            "better; lower train.lr or raise train.beta.")


def _wrong_way(seen: Evidence) -> str | None:
    accuracy = seen.late("rewards/accuracies")
    if accuracy >= 0.4 or seen.late("rewards/margins") > -STUCK_MARGIN:
        return None
    return (f"the accuracy falls to {accuracy:.2f}, so the rejected answers win: chosen and rejected may be swapped in "
            "the file, or train.lr is too high.")


def _zero_loss(seen: Evidence) -> str | None:
    accuracy, loss = seen.late("rewards/accuracies"), seen.late(LOSS)
    if loss > 1e-3 or accuracy < 0.99:
        return None
    return (f"the loss is {number(loss)} and every pair is distinguished, with a margin of "
            f"{number(seen.late('rewards/margins'))}: nothing more is learned; either the pairs differ in something "
            "trivial, such as their length, or they are learned by heart, which the accuracy on held-out pairs shows.")


def _overfits(seen: Evidence) -> str | None:
    held_out = seen.held_out.get("rewards/accuracies", [])
    accuracy = seen.late("rewards/accuracies")
    if not held_out or accuracy < 0.9 or held_out[-1][1] > accuracy - 0.2:
        return None
    return (f"the accuracy is {accuracy:.2f} on the training pairs and {held_out[-1][1]:.2f} on held-out ones: the "
            "pairs are learned by heart; take fewer steps, raise train.beta, or collect more pairs.")


# Reinforcement learning


def _reward_hacking(seen: Evidence) -> str | None:
    reward, kl = seen.trends["reward"], seen.trends["kl"]
    values = [value for _, value in seen.curves["kl"]]
    middle = fmean(values[len(values) * 3 // 8 : len(values) * 5 // 8])
    if not (reward.rises and kl.late > FAR and kl.late > 1.5 * middle):
        return None
    return (f"the reward rises to {number(reward.late)} while the KL divergence explodes to {number(kl.late)} nats per "
            "answer: read some answers, since this is how reward hacking looks; raise train.kl, lower train.lr or stop "
            "earlier.")


def _entropy_collapse(seen: Evidence) -> str | None:
    entropy = seen.trends["entropy"]
    if not (entropy.falls and entropy.late < 0.2 * entropy.early and entropy.late < DETERMINISTIC):
        return None
    return (f"the entropy collapses from {number(entropy.early)} to {number(entropy.late)} nats per token: the policy "
            "writes nearly the same answer each time and learns no more; raise train.kl or train.temperature, or lower "
            "train.lr.")


def _length(seen: Evidence) -> str | None:
    length = seen.trends["completions/mean_length"]
    change = f"the answers {{}} from {number(length.early)} to {number(length.late)} tokens"
    if length.falls and length.late < length.early / 3:
        return (change.format("shrink") + ": the reward may simply pay for short answers, or the policy has collapsed "
                "to ending at once; read some, and add the length to the reward or raise train.kl.")
    if length.rises and length.late > 2.5 * length.early:
        return (change.format("grow") + ": the reward may simply pay for long answers; read some, and take the length "
                "out of the reward or raise train.kl.")
    return None


def _same_rewards(seen: Evidence) -> str | None:
    if seen.late("reward_std") > EQUAL or not seen.settled:
        return None
    return (f"all answers get the same reward ({number(seen.late('reward'))}), so the advantages are 0 and nothing is "
            "learned: use a reward that tells answers apart, raise train.temperature, or start from a model that "
            "sometimes succeeds.")


def _flat_reward(seen: Evidence) -> str | None:
    reward, spread = seen.trends["reward"], seen.late("reward_std", math.inf)
    moved = reward.rises or reward.falls or abs(reward.late - reward.early) > 0.2 * spread
    if not seen.settled or moved or spread <= EQUAL:
        return None
    return (f"the reward stays at {number(reward.late)}: raise train.lr or train.generations, lower train.kl, and "
            "check that the reward can be earned by answers that the model draws.")


def _falling_reward(seen: Evidence) -> str | None:
    reward = seen.trends["reward"]
    if not reward.falls or reward.early - reward.late <= 0.2 * seen.late("reward_std", 0.0):
        return None
    return (f"the reward falls from {number(reward.early)} to {number(reward.late)}: the steps are too large, or the "
            "KL penalty outweighs the reward; lower train.lr, or lower train.kl.")


def _clipped(seen: Evidence) -> str | None:
    if seen.late("clip_ratio") <= 0.5:
        return None
    return (f"{seen.late('clip_ratio'):.0%} of the ratios are clipped: each rollout is used for steps that are too "
            "large or too many; lower train.lr or train.inner_epochs.")


CHOSEN, REJECTED, MARGINS, ACCURACIES = (f"rewards/{name}" for name in ("chosen", "rejected", "margins", "accuracies"))
RULES: Mapping[str, tuple[tuple[str, ...], Rule]] = {
    "nothing trains": ((CHOSEN, REJECTED, LOG_PROB), _nothing_trains),
    "stuck": ((MARGINS, ACCURACIES, CHOSEN, REJECTED), _stuck),
    "both rewards fall": ((CHOSEN, REJECTED, MARGINS, LOG_PROB), _both_fall),
    "the rejected answers win": ((ACCURACIES, MARGINS), _wrong_way),
    "loss 0": ((LOSS, ACCURACIES, MARGINS), _zero_loss),
    "overfitting": ((ACCURACIES,), _overfits),
    "reward hacking": (("reward", "kl"), _reward_hacking),
    "entropy collapse": (("entropy",), _entropy_collapse),
    "length": (("completions/mean_length",), _length),
    "the same reward for all": (("reward_std", "reward"), _same_rewards),
    "flat reward": (("reward",), _flat_reward),
    "falling reward": (("reward",), _falling_reward),
    "clipped ratios": (("clip_ratio",), _clipped),
}
"""Each trouble: the curves that its rule reads, and the rule, which gives the sentence or None."""

