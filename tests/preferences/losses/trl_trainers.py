"""TRL's trainers as a judge: the loss and the gradient that TRL's own code computes for a folder and a batch of rows.

    judge = Judge(folder, reference)                   folders that chainrule exported; None: no reference
    loss, gradients = judge.dpo(rows, beta=0.1)        gradients by transformers' names of parameters

Each call builds a trainer of TRL on the CPU, lets it tokenise and collate the rows, and calls its `compute_loss`.
Nothing is downloaded.
"""

import importlib
import os
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

Found = tuple[float, dict[str, Tensor]]


@contextmanager
def quiet() -> Any:
    """Without the warnings and the lines that these programs print."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    nowhere = StringIO()
    with warnings.catch_warnings(), redirect_stderr(nowhere), redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        yield


@dataclass
class Judge:
    folder: Path
    reference: Path | None = None
    dtype: torch.dtype = torch.float32

    def dpo(self, rows: list[dict[str, Any]], **settings: Any) -> Found:
        return self._collated("trl", "DPO", rows, len(rows), ref_model=self._reference(), **settings)

    def kto(self, rows: list[dict[str, Any]], **settings: Any) -> Found:
        """Pairs are two rows each, all chosen ones before all rejected ones."""
        count = len(rows) * (2 if "chosen" in rows[0] else 1)
        return self._collated("trl", "KTO", rows, count, ref_model=self._reference(), **settings)

    def orpo(self, rows: list[dict[str, Any]], **settings: Any) -> Found:
        return self._collated("trl.experimental.orpo", "ORPO", rows, len(rows), **settings)

    def cpo(self, rows: list[dict[str, Any]], **settings: Any) -> Found:
        return self._collated("trl.experimental.cpo", "CPO", rows, len(rows), **settings)

    def reward(self, rows: list[dict[str, Any]], score: Tensor, **settings: Any) -> Found:
        """`score` (1, D): the weight of the head."""
        from transformers import AutoModelForSequenceClassification

        with quiet():
            model = AutoModelForSequenceClassification.from_pretrained(self.folder, num_labels=1, dtype=self.dtype)
        model.score.weight.data.copy_(score)
        # transformers finds a row's last token as the last that is not padding, so padding is not the end token here
        return self._collated("trl", "Reward", rows, len(rows), model=model, pad="!", **settings)

    def grpo(self, rows: "Rollouts", **settings: Any) -> Found:
        return self._rolled_out("GRPO", rows, **settings)

    def rloo(self, rows: "Rollouts", **settings: Any) -> Found:
        return self._rolled_out("RLOO", rows, **settings)

    def tokenised(self, rows: list[dict[str, Any]]) -> list[dict[str, list[int]]]:
        """The prompt, chosen and rejected tokens of each row, as DPO reads them."""
        trainer = self._trainer("trl", "DPO", rows, len(rows), ref_model=self._reference())
        names = ("prompt", "chosen", "rejected")
        return [{name: row[f"{name}_ids"] for name in names} for row in trainer.train_dataset]

    def _collated(self, module: str, name: str, rows: list[dict[str, Any]], count: int, **settings: Any) -> Found:
        trainer = self._trainer(module, name, rows, count, **settings)
        with quiet():
            assert len(trainer.train_dataset) == count, "TRL left rows out"
            batch = trainer.data_collator(list(trainer.train_dataset))
            loss = trainer.compute_loss(trainer.model.train(), trainer._prepare_inputs(batch))
        return self._found(trainer, loss)

    def _found(self, trainer: Any, loss: Tensor) -> Found:
        trainer.model.zero_grad()
        loss.backward()
        gradients = {name: one.grad for name, one in trainer.model.named_parameters() if one.grad is not None}
        return loss.item(), gradients

    def _rolled_out(self, name: str, rows: "Rollouts", **settings: Any) -> Found:
        """TRL's advantages, log-probabilities and loss, of answers that are given instead of drawn."""
        prompts = [{"prompt": prompt} for prompt in rows.prompts]
        trainer = self._trainer(
            "trl", name, prompts, len(rows.answers), reward_funcs=lambda completions, **_: rows.rewards,
            num_generations=rows.group, max_completion_length=rows.answer_tokens, **settings,
        )
        trainer.current_gradient_accumulation_steps = 1    # as its training loop would set it
        trainer._generate_single_turn = lambda *_: (rows.answers, None) if name == "GRPO" else rows.answers
        if self.reference is not None and trainer.beta:
            trainer.ref_model.load_state_dict(self._reference().state_dict())
        each = [row for row in prompts for _ in range(rows.group)]
        with quiet():
            inputs = trainer._generate_and_score_completions(each)
            if rows.old is not None:     # log-probabilities under the policy that drew the answers, (B, T)
                key = "old_per_token_logps" if name == "GRPO" else "old_logps"
                inputs[key] = rows.old if name == "GRPO" else rows.old.sum(1)
            loss = trainer.compute_loss(trainer.model.train(), inputs)
        return self._found(trainer, loss)

    def _trainer(
        self, module: str, name: str, rows: list[dict[str, Any]], count: int, model: Any = None, pad: str | None = None,
        reward_funcs: Any = None, ref_model: Any = None, **settings: Any,
    ) -> Any:
        with quiet():
            from datasets import Dataset
            from transformers import AutoModelForCausalLM, AutoTokenizer

            library = importlib.import_module(module)
            config = getattr(library, f"{name}Config")(
                output_dir=str(self.folder / "trl"), report_to=[], use_cpu=True, bf16=False, disable_tqdm=True,
                gradient_checkpointing=False, per_device_train_batch_size=count, gradient_accumulation_steps=1,
                **settings,
            )
            if model is None:
                model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype)
            tokenizer = AutoTokenizer.from_pretrained(self.folder)
            tokenizer.pad_token = pad or tokenizer.eos_token
            given = {"ref_model": ref_model, "reward_funcs": reward_funcs}
            more = {key: value for key, value in given.items() if value is not None}
            return getattr(library, f"{name}Trainer")(
                model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, **more
            )

    def _reference(self) -> Any:
        from transformers import AutoModelForCausalLM

        with quiet():
            return AutoModelForCausalLM.from_pretrained(self.reference or self.folder, dtype=self.dtype)


@dataclass
class Rollouts:
    """Answers to prompts that were drawn already."""

    prompts: list[str]
    answers: list[list[int]]       # ids, `group` for each prompt
    rewards: list[float]
    group: int
    answer_tokens: int             # the most that could have been drawn
    old: Tensor | None = None      # (B, T) log p of each token when it was drawn; None: the policy as it is
