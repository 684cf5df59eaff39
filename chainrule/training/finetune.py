"""Fine-tuning: a recipe on top of a pretrained run, and a model initialised with the run's weights or word vectors.

The body's settings and weights are the run's, and so is its tokenizer, with the task's own tokens after the others. An
encoder may begin from a GPT, whose weights it takes without the causal mask (BehnamGhader et al. 2024: LLM2Vec). The
head is new, unless the run had the same labels and the same task. What the recipe freezes is not trained; LoRA adapters
are added from outside. `model.vectors` instead sets only the embeddings, from a file of word vectors or from a run.
How far fine-tuning has moved the weights θ from those of the run, θ̂, is measured by layer: ‖θ - θ̂‖ / ‖θ̂‖.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from chainrule import models, run
from chainrule.device import shapes_only
from chainrule.errors import UserError
from chainrule.formats.vector_files import read_vectors
from chainrule.inference.vectors import Vectors, vectors_of
from chainrule.layers.lora import (
    LoRA,
    NewTokenRows,
    add_parametrization,
    body_of,
    head_parameters,
    load_body,
    load_head,
    merged_state_dict,
)
from chainrule.layers.parameters import group_parameters, layer_count, parameter_depths
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import Embeddings, Model
from chainrule.progress import short
from chainrule.recipe import Base, Gradient, Recipe
from chainrule.settings import make
from chainrule.tasks import build_for, find_task, recipe_for
from chainrule.text.chat_template import ChatTemplate
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.training.log import Log
from chainrule.training.param_groups import freeze

TOKENIZER = ("tokenizer", "vocab", "min_count")
"""`text.*` settings from which a tokenizer is made."""

OF_VECTORS = ("vectors_frozen", "vectors_normalised")
NO_VECTORS = {"vectors": None, **dict.fromkeys(OF_VECTORS, False)}
"""Whatever embeddings the run was initialised with, here the run's own are taken."""

NAMED = 4    # new parameters that are listed by name; of more, only the number is given


def initialise_embeddings(
    model: Model, tokenizer: Tokenizer, settings: Any, log: Log, *, predicts: bool = True
) -> None:
    """From `model.vectors`, if it is set; a token without a vector there keeps its random one. `predicts`: it predicts
    tokens, and is not the body of a head."""
    path: str | None = getattr(settings, "vectors", None)
    frozen, normalised = (getattr(settings, name, False) for name in OF_VECTORS)
    if path is None:
        for name in (name for name in OF_VECTORS if getattr(settings, name, False)):
            raise UserError(f"model.{name}=true is of the vectors of model.vectors; give both, or neither.")
        return
    vectors, matrix = load_vectors(Path(path)), cast(Embeddings, model).embeddings    # (V, E)
    given, needed = vectors.matrix.shape[1], matrix.shape[1]
    if given != needed:
        raise UserError(f"model.vectors={path} has vectors of {given} numbers, and this model's are of {needed}. "
                        "Set model.embedding, or model.width of a Transformer, to fit.")
    found = [(id, place) for id in range(len(tokenizer)) if (place := vectors.find(tokenizer.token(id))) is not None]
    if not found:
        raise UserError(f"model.vectors={path} has no vector for any token of this vocabulary; "
                        "its tokens are words, as those of text.tokenizer=words.")
    ids, places = map(list, zip(*found))
    with torch.no_grad():
        rows = torch.from_numpy(vectors.matrix[places]).to(matrix)
        if normalised:
            rows = normalize(rows, dim=1) * math.sqrt(needed)
        length = float(matrix[ids].norm(dim=1).mean())
        scale = length / max(1e-9, float(rows.norm(dim=1).mean())) if predicts and _tied(model) else 1.0
        matrix[ids] = scale * rows
    matrix.requires_grad_(not frozen)
    share = len(found) / len(tokenizer)
    line = f"{path}: vectors for {len(found):,} of {len(tokenizer):,} tokens ({share:.1%})"
    line += "" if scale == 1 else f", times {scale:.3g}, which makes them as long as random ones (tied output)"
    log("vectors", f"{line}, {'frozen' if frozen else 'trained further'}",
        path=str(path), covered=len(found), share=share, frozen=frozen, scale=scale)


def _tied(model: Model) -> bool:
    """Whether the embedding is also the output matrix, where long vectors make all first predictions certain."""
    holders: tuple[Any, ...] = (model, getattr(model, "embedding", None))
    output = next((holder.output_matrix for holder in holders if hasattr(holder, "output_matrix")), None)
    return output is cast(Embeddings, model).embeddings


def load_vectors(path: Path) -> Vectors:
    """The word vectors of a run, or those in a file."""
    if path.is_dir():
        made = run.load(path)
        return vectors_of(made.model, made.tokenizer)
    if not path.exists():
        raise UserError(f"model.vectors={path}: there is no such file or run.")
    return read_vectors(path)


def finetune_recipe(
    base: str | Path, settings: Mapping[str, Any] = {}, task: str = "lm", kind: str | None = None
) -> Recipe:
    """A recipe for fine-tuning the run at `base`: it has the run's kind, `model.*` and tokenizer."""
    path = Path(base)
    about = run.read_about(path)
    there = run.recipe_of(path, about)
    if not (path / run.TOKENIZER).is_file():
        raise UserError(f"--from {path} has no {run.TOKENIZER}, so it cannot read a text. Restore the file, or train "
                        "the run again.")
    how = find_task(there.task).model_class(there.kind).learns_by
    if how != "gradient":
        cure = " Its vectors can be used in any network by model.vectors." if how == "pairs" else ""
        raise UserError(f"--from {path}: a {there.kind} has no layers to fine-tune: it learns by {how}.{cure}")
    where = models.kind(there.kind).where
    if kind is None or models.kind(kind).where == where:
        preset = {} if kind in (None, there.kind) else models.kind(kind).preset    # a published size is one of model.*
        kind = there.kind
    elif where in models.model_class(kind).begins_from:
        preset = {}
    else:
        raise UserError(f"--from {path}: its kind is {there.kind}, and --kind {kind} has another body. Leave --kind "
                        "out.")
    given = {**_own_model(path, there, kind, {**preset, **settings}), **_own_text(path, there, settings)}
    came_from = Base(str(path.resolve()), about["files"][run.weights_file(about)]["sha256"])
    return recipe_for(kind, {**settings, **given}, task, came_from)


def _own_model(path: Path, there: Recipe, kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run's `model.*` as its model was built; settings that change no weight may be changed."""
    settings_class = models.model_class(kind).Settings
    names = {field.name for field in fields(settings_class)}
    was = {name: value for name, value in asdict(there.model).items() if name in names}
    was |= {name: value for name, value in NO_VECTORS.items() if name in was}
    if was.get("tied", False) is None:    # decided by the size of the vocabulary, which may grow now
        vocab = len(Tokenizer.load(path / run.TOKENIZER))
        with shapes_only():
            was["tied"] = models.build(there.kind, there.model, vocab).output is None
    given = {name.removeprefix("model."): value for name, value in settings.items() if name.startswith("model.")}
    changed = {name: given[name] for name in there.model.adjustable if name in given}
    if changed.keys() - {"context"}:    # what stretches RoPE sets the context too
        stretched = there.model.adjusted(changed)
        given |= {name: getattr(stretched, name) for name in stretched.adjustable}
    here = asdict(make(settings_class, was | given, "model"))
    differing = [name for name in was if here[name] != was[name] and not _may_differ(name, was)]
    if differing:
        lines = "; ".join(f"model.{name} is {was[name]} there and {here[name]} here" for name in differing)
        raise UserError(f"--from {path} takes the run's weights, and with them these settings: {lines}.")
    return {f"model.{name}": value for name, value in here.items()}


def _may_differ(name: str, was: Mapping[str, Any]) -> bool:
    """Settings that change no weight: dropout, smoothing, losses, the context with its RoPE, unless it is learned."""
    stretches = name in TransformerSettings.adjustable and was.get("positions") != "learned"
    return name.endswith(("dropout", "smoothing", "_loss")) or stretches


def _own_text(path: Path, there: Recipe, settings: Mapping[str, Any]) -> dict[str, Any]:
    own = {f"text.{name}": getattr(there.text, name) for name in TOKENIZER}
    for name, value in own.items():
        if name in settings and str(settings[name]) != str(value):
            raise UserError(f"--from {path} takes the run's tokenizer: {name} is {value} there and {settings[name]} "
                            "here. Leave it out.")
    return own


def refuse_itself(recipe: Recipe, out: Path) -> None:
    if recipe.base is not None and out.resolve() == Path(recipe.base.path):
        raise UserError(f"--from {out} is the folder that would be written to. Choose another one by --out.")


def tokenizer_of(recipe: Recipe, out: Path) -> Tokenizer | None:
    """The base run's; None: it is made from the text."""
    return None if recipe.base is None else Tokenizer.load(run.find_base(recipe.base, out) / run.TOKENIZER)


def chat_template_of(recipe: Recipe, out: Path, tokenizer: Tokenizer | None) -> ChatTemplate | None:
    """The base run's; None: it has none."""
    if recipe.base is None or tokenizer is None:
        return None
    base = run.find_base(recipe.base, out)
    source = run.read_chat_template(base)
    return None if source is None else run.make_template(source, tokenizer, run.read_about(base))


def source_of(recipe: Recipe, out: Path) -> Mapping[str, Any] | None:
    """The files of another program that the base run was made of, with their licence; None: there are none."""
    return None if recipe.base is None else run.read_about(run.find_base(recipe.base, out)).get("source")


def initialise(
    model: Model, recipe: Recipe, vocab: int, out: Path, log: Log, labels: Sequence[str] = ()
) -> None:
    """Prepares a new model over `vocab` tokens: it takes the base run's weights, freezes some, and adds adapters."""
    if not isinstance(recipe.train, Gradient):
        return
    settings, body, grown, before = recipe.train, body_of(model), list[str](), vocab
    if recipe.base is not None:
        base = run.load(run.find_base(recipe.base, out))
        before = len(base.tokenizer)
        grown = load_body(model, base.model, before)
        same = bool(labels) and base.recipe.task == recipe.task and base.labels == tuple(labels)
        head = same and load_head(model, base.model)
        _log_taken(model, base.path, grown, vocab - before, head, log)
    freeze(body, settings.freeze)
    matrices = 0 if settings.lora is None else _adapt(body, settings)
    for name in grown:
        if not (weight := body.get_parameter(name)).requires_grad:
            if settings.shard:
                raise UserError(f"train.shard=true shards {name} as a whole, so its {vocab - before} new rows "
                                "cannot be trained while the others are frozen. Leave it out of train.freeze.")
            add_parametrization(body, name, NewTokenRows(weight, before))
    _log_trained(model, settings, matrices, log)


def _adapt(body: Any, settings: Gradient) -> int:
    """LoRA adapters on all hidden matrices that are not frozen; returns how many. The rest of the body is frozen."""
    hidden = [name for name, _ in group_parameters(body)[0]]
    if not hidden or settings.lora is None:
        raise UserError("train.lora has no matrix to adapt: train.freeze freezes them all.")
    body.requires_grad_(False)
    for name in hidden:
        add_parametrization(body, name, LoRA(body.get_parameter(name), settings.lora, settings.lora_scale))
    return len(hidden)


def _log_taken(model: Model, path: Path, grown: list[str], rows: int, head: bool, log: Log) -> None:
    taken, new = list((model if head else body_of(model)).parameters()), [] if head else list(head_parameters(model))
    facts = [f"{len(taken)} weights taken, {short(sum(parameter.numel() for parameter in taken))} parameters"]
    facts += [f"{rows} new rows in {' and '.join(grown)}"] if grown else []
    facts += ["the head is taken too, since its labels are the same"] if head else []
    facts += [f"the head is new: {', '.join(new) if len(new) <= NAMED else f'{len(new)} weights'}"] if new else []
    log("from", f"{path}: {'; '.join(facts)}", path=str(path), taken=len(taken), grown=grown, rows=rows, new=new)


def _log_trained(model: Model, settings: Gradient, matrices: int, log: Log) -> None:
    """The number of trained parameters, if not all of them are."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    every, trained = sum(size for size, _ in sizes), sum(size for size, learns in sizes if learns)
    if not trained:
        raise UserError(f"train.freeze={','.join(settings.freeze)} leaves no parameter to train.")
    if trained < every:
        line = f"{short(trained)} of {short(every)} parameters are trained, the others are frozen"
        line += f"; adapters of rank {settings.lora} on {matrices} matrices" if matrices else ""
        log("frozen", line, trained=trained, parameters=every, adapters=matrices)


# The distance of fine-tuned weights from where they began


@dataclass(frozen=True)
class WeightDistance:
    """Of some weights θ that began as θ̂."""

    name: str                       # of a layer
    parameters: int
    distance: float                 # ‖θ - θ̂‖
    norm: float                     # ‖θ̂‖
    from_random: float              # ‖θ - θ0‖, where θ0 is a random initialisation

    @property
    def relative(self) -> float:
        """‖θ - θ̂‖ / ‖θ̂‖; of weights that were all 0, the distance."""
        return self.distance / (self.norm or 1.0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"relative": self.relative}


@torch.no_grad()
def weight_distances(model: Model, base: Model, random: Model) -> list[WeightDistance]:
    """By layer of the body, and last of all of it. Rows of tokens that the base does not have are left out."""
    body, depths = body_of(base), parameter_depths(body_of(base))
    here, there, other = merged_state_dict(body_of(model)), dict(body.named_parameters()), body_of(random).state_dict()
    sums: dict[int, list[float]] = {depth: [0.0] * 4 for depth in sorted(set(depths.values()))}
    for name, old in there.items():
        if name not in here or here[name][: len(old)].shape != old.shape:
            raise UserError(f"the two runs have different bodies: their {name} differs in shape, or one lacks it.")
        new, start = (weights[name][: len(old)].to(old.device) for weights in (here, other))
        parts = (old.numel(), _square(new - old), _square(old), _square(new - start))
        sums[depths[name]] = [total + part for total, part in zip(sums[depths[name]], parts)]
    top = 1 + layer_count(body)
    names = {0: "embeddings", top: "above the layers"}
    every = [_distance(names.get(depth, f"layer {depth}"), total) for depth, total in sums.items()]
    return [*every, _distance("all", [sum(column) for column in zip(*sums.values())])]


def _square(weight: Tensor) -> float:
    return float(weight.double().square().sum())


def _distance(name: str, sums: Sequence[float]) -> WeightDistance:
    count, *squares = sums
    return WeightDistance(name, int(count), *map(math.sqrt, squares))


def distances_of_run(made: run.Run, base: str | Path | None = None) -> list[WeightDistance]:
    """Of a fine-tuned run from the run it began from, or from another of the same body."""
    if base is None:
        if made.recipe.base is None:
            raise UserError(f"{made.path} was not trained --from another run. Name the run to compare it with: "
                            f"chainrule distance {made.path} BASE.")
        base = run.find_base(made.recipe.base, made.path)
    random = random_model(made.recipe, len(made.tokenizer), made.labels)
    return weight_distances(made.model, run.load(base).model, random)


def random_model(recipe: Recipe, vocab: int, labels: Sequence[str] = ()) -> Any:
    """The model as it would begin without --from, by the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        return build_for(recipe, vocab, labels)


def log_distance(model: Model, recipe: Recipe, vocab: int, out: Path, log: Log, labels: Sequence[str] = ()) -> None:
    """At the end of fine-tuning: how far the body has moved."""
    if recipe.base is None:
        return
    base = run.load(run.find_base(recipe.base, out)).model
    *layers, every = weight_distances(model, base, random_model(recipe, vocab, labels))
    line = (f"the body moved by {every.relative:.2%} of its norm: {every.distance:.3g} from where it began, "
            f"{every.from_random:.3g} from a random initialisation")
    log("distance", line, layers=[one.as_dict() for one in layers], **every.as_dict())
