"""What all requests share: the runs, loaded at the start, each with its engine; limits; and metrics for Prometheus."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from chainrule import __version__
from chainrule.errors import UserError, did_you_mean
from chainrule.inference.evaluate import Signature
from chainrule.model import LanguageModel
from chainrule.run import RECIPE, Run, load, weights_file
from chainrule.serve.api_errors import RETRY, APIError, too_late
from chainrule.serve.app import Queue
from chainrule.serve.engine import Engine, Limits
from chainrule.serve.requests import Generation
from chainrule.serve.requests import Request as Generate
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.tokenizers.spelling import Spelling

T = TypeVar("T")


@dataclass(frozen=True)
class ServerLimits:
    rows: int = 64             # texts that one model generates at a time
    queue: int = 1024          # texts that may wait for one model; more are answered with 429
    choices: int = 128         # texts of one request: prompts × n
    tokens: int = 1 << 16      # tokens of a text, its prompt included, where the model has no context of its own
    logprobs: int = 20         # most probable tokens shown at each place
    seconds: float = 600.0     # time for one request, its wait included; then it is answered with 504
    body: int = 8 << 20        # bytes of a request
    grace: float = 30.0        # seconds that requests under way get when the server is stopped

    @property
    def of_engine(self) -> Limits:
        return Limits(rows=self.rows, waiting=self.queue)

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "grace" else 1
            if not value >= least:
                raise UserError(f"--{field.name} {value} is not valid: it must be {least} or more.")


@dataclass(frozen=True)
class Served:
    """A run under the name by which requests ask for it."""

    name: str
    run: Run
    engine: Engine | None    # None: its model does not continue a text
    created: int             # seconds since 1970

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.run.tokenizer)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Its `eos_token` is the token that ended a text where the run was imported from."""
        if (template := self.run.template) is None:
            raise UserError(f"{self.name} has no chat template, which makes one text of messages. Use /v1/completions, "
                            "or start the server with --chat-template FILE, chatml or plain.")
        return template

    @property
    def context(self) -> int | None:
        """How many tokens its model can hold."""
        context: int | None = getattr(self.run.model, "context", None)
        return context

    @cached_property
    def signature(self) -> str:
        """How numbers of this run are measured: an evaluation's signature without a text of its own."""
        tokenizer = self.run.tokenizer
        return str(Signature(
            unit=tokenizer.unit, tokenizer=tokenizer.sha256[:12],
            context="all" if self.context is None else str(self.context),
            stride="none", boundary=tokenizer.boundary, text="none", chainrule=__version__,
        ))

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the weights and the version."""
        about = self.run.about
        return f"chainrule-{__version__}-{about['files'][weights_file(about)]['sha256'][:12]}"

    @property
    def headers(self) -> dict[str, str]:
        return {"x-chainrule-signature": self.signature}


class Service:
    def __init__(self, served: Mapping[str, Served], limits: ServerLimits):
        self.served, self.limits = served, limits
        self.metrics = Metrics({name: one.engine for name, one in served.items() if one.engine is not None})
        self.queue = Queue(limits.queue + 1)     # of what no engine does
        self.under_way = 0                       # requests
        self.stop_by: float | None = None        # when the server ends at the latest; None: it goes on

    def find(self, name: str | None) -> Served:
        """The run that a request names; the first, if it names none."""
        if name is None:
            return next(iter(self.served.values()))
        if name not in self.served:
            hint = did_you_mean(name, self.served) or f" There are: {', '.join(self.served)}."
            raise APIError(404, f"there is no model {name!r} here.{hint}", param="model", code="model_not_found")
        return self.served[name]

    async def work(self, served: Served, work: Callable[[], T], request: Request) -> T:
        """What `work` returns, from a thread of its own; one at a time for each run.

        A thread cannot be stopped: where it takes too long, the run is free again when it ends.
        """
        if self.queue.waiting >= self.queue.limit:
            raise APIError(429, f"{self.queue.waiting} requests are waiting already. Try again in a moment.",
                           headers=RETRY)
        task = asyncio.ensure_future(self.queue.do(work, [served.name], request.is_disconnected))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())    # its request may be over
        try:
            await asyncio.wait({task}, timeout=self.limits.seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            raise too_late(self.limits.seconds)
        return task.result()

    def start(self) -> None:
        """Starts the engines before the first request, which on a GPU would wait for their graphs."""
        for one in self.served.values():
            if one.engine is not None:
                one.engine.start()

    def stop(self) -> None:
        """New requests are refused from now on; those under way get the grace period."""
        self.stop_by = time.monotonic() + self.limits.grace

    @property
    def stopped(self) -> bool:
        """Whether the server is to end now."""
        return self.stop_by is not None and (self.under_way == 0 or time.monotonic() > self.stop_by)

    def close(self) -> None:
        for one in self.served.values():
            if one.engine is not None:
                one.engine.close(drain=False)    # no request is left


def load_runs(
    paths: Mapping[str, Path], limits: ServerLimits, device: torch.device | str = "cpu",
    chat_template: str | None = None, prepare: Callable[[Run], None] = lambda run: None,
) -> dict[str, Served]:  # fmt: skip
    """`chat_template`: in the place of the runs' own; `prepare`: called with each run that continues texts."""
    given: dict[str, Any] = {} if chat_template is None else {"chat_template": chat_template}
    runs = {name: replace(load(path, device), **given) for name, path in paths.items()}
    for run in filter(continues_text, runs.values()):
        prepare(run)
    return {name: serve_run(name, run, limits) for name, run in runs.items()}


def serve_run(name: str, run: Run, limits: ServerLimits) -> Served:
    created = int((run.path / RECIPE).stat().st_mtime)
    return Served(name, run, Engine(run.model, limits.of_engine) if continues_text(run) else None, created)


def continues_text(run: Run) -> bool:
    return isinstance(run.model, LanguageModel) and run.task.generates and not run.model.needs_source


def engine_of(served: Served) -> Engine:
    if served.engine is None:
        recipe = served.run.recipe
        raise UserError(f"{served.name} ({recipe.kind}, --task {recipe.task}) does not continue a text. Use POST "
                        "/v1/predict or /v1/embeddings.")
    return served.engine


def submit_all(engine: Engine, requests: Iterable[Generate]) -> list[Generation]:
    """All of them or none: where one is refused, those before it are cancelled."""
    generations: list[Generation] = []
    try:
        for request in requests:
            generations.append(engine.submit(request))
    except BaseException:
        for generation in generations:
            generation.cancel()
        raise
    return generations


# Metrics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
GAUGES = {"running": "rows that are being generated", "waiting": "rows that wait"}
COUNTERS = {
    "prompt_tokens": "tokens of prompts, those from the prefix cache included",
    "cached_tokens": "tokens of prompts whose state came from the prefix cache",
    "generated_tokens": "tokens generated by the model",
    "steps": "calls of the model that generate a token for each row",
}


class Metrics:
    def __init__(self, engines: Mapping[str, Engine]):
        self.registry = CollectorRegistry()
        self.registry.register(EngineFigures(engines))
        made: Any = {"registry": self.registry, "namespace": "chainrule"}
        self.requests = Counter("requests", "requests by path and status", ["path", "status"], **made)
        self.seconds = Histogram("request_seconds", "time of a request", ["path"], buckets=SECONDS, **made)
        self.first_token = Histogram(
            "time_to_first_token_seconds", "time from a request to its first token", ["model"], buckets=SECONDS, **made)
        self.tokens_in = Counter("request_prompt_tokens", "tokens of prompts, as usage counts them", ["model"], **made)
        self.tokens_out = Counter("request_completion_tokens", "tokens answered, as usage counts them", ["model"],
                                  **made)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class EngineFigures(Collector):
    """The engines' own figures, read when they are asked for."""

    def __init__(self, engines: Mapping[str, Engine]):
        self.engines = engines

    def collect(self) -> Iterable[Any]:
        for name, help in GAUGES.items():
            yield self._family(GaugeMetricFamily(f"chainrule_rows_{name}", help, labels=["model"]), name)
        for name, help in COUNTERS.items():
            yield self._family(CounterMetricFamily(f"chainrule_engine_{name}", help, labels=["model"]), name)

    def _family(self, family: Any, name: str) -> Any:
        for model, engine in self.engines.items():
            family.add_metric([model], getattr(engine.stats, name))
        return family
