"""Instruction tuning on chats: the loss is on the assistant's tokens only (`--task chat`).

    0 user: What is 2 + 2? assistant:  ->  It is 4. and the token that ends the turn

Examples are lines of JSON with `messages`, or with `prompt` and `completion`: texts, or lists of messages. A chat
template makes one row of tokens of each: the base's own, one that is given, or `plain`; the run keeps it. Where the
model keeps the documents of a row apart (`Model.packs`), rows hold several chats, which do not see each other.

Shapes: N chats or packed rows, B rows, T tokens.
"""

import bisect
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.inference.forward import device_of, logits_at_once
from chainrule.inference.row_scores import score_rows, summarise_rows
from chainrule.model import BOUNDARY, IGNORE, Batch, LanguageModel, Model
from chainrule.progress import bar
from chainrule.recipe import BUDGETS, Base, Epochs, Gradient, Recipe, Text
from chainrule.settings import NonNegative, Settings, Size
from chainrule.tasks.batching import Buckets, Ids, Ragged, RowsWithTargets, positions, ragged, to_tensor
from chainrule.tasks.example_task import ExampleCorpus, ExampleSplit, ExampleTask, example_split, refuse_none
from chainrule.tasks.examples import gather_examples, held_out_examples
from chainrule.tasks.task import Search, Trained
from chainrule.text.chat_template import PLAIN, ChatTemplate, find_template
from chainrule.text.corpus import Corpus
from chainrule.text.sources import Source
from chainrule.text.tables import Place, numbered_lines, read_object
from chainrule.text.template_sandbox import render
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer
from chainrule.text.tokenizers.unit import SPECIAL

ROLES = ("system", "user", "assistant")
PACKED = 1024            # tokens of a packed row, if the context holds as many; more where a chat is longer
LR = {"scratch": 1e-3, "full": 5e-5, "lora": 5e-4}    # peak learning rates, by what is trained
EPOCHS = {"scratch": 10.0, "full": 3.0, "lora": 3.0}
LINES = 'a line is {"messages": [{"role": "user", "content": …}, …]}, or {"prompt": …, "completion": …}'


@dataclass(frozen=True)
class ChatText(Text):
    """`text.*` of chats."""

    chat_template: str | None = None    # template of the messages: chatml, plain, or a file of Jinja; none: the base's,
                                        # or plain where it has none
    truncate: bool = True               # chats longer than the model's context: keep the beginning; false: refuse


@dataclass(frozen=True)
class ChatTraining(Gradient):
    """`train.*` of a model that learns from chats."""

    lr: NonNegative = 0.0               # peak learning rate; 0: 0.001, with --from 0.00005, and with LoRA 0.0005
    epochs: Epochs | None = None        # budget: passes over the chats; where no budget is given 10, and 3 with --from
    length: Size | None = None          # tokens of a packed row; none: 1,024 if the context holds them, or the longest

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batching == "streams":
            raise UserError("train.batching=streams is for running text; a chat has its own beginning and end.")
        if self.gradients:
            raise UserError("train.gradients follows the loss of the last token of a running text; leave it out here.")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A chat, up to its last answer."""

    messages: tuple[tuple[str, str], ...]         # role and content
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.messages

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(content for _, content in self.messages)

    @property
    def dicts(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.messages]


@dataclass(frozen=True)
class ChatCorpus(ExampleCorpus):
    chat_template: str = PLAIN          # Jinja, which the run keeps


class Chat(ExampleTask[Dialogue]):
    name = "chat"
    generates, predicts = True, False
    text = ChatText
    train: ClassVar[Mapping[str, type[Settings]]] = {"gradient": ChatTraining}
    readable = ("errors",)
    use = "`chainrule chat {run}` talks with it"
    next_commands: ClassVar[Sequence[str]] = ("chat {run}", "eval {run} CHATS", "serve {run}")

    def suits(self, model_class: type[Model]) -> bool:
        decodes = issubclass(model_class, LanguageModel) and "lm" in model_class.tasks
        return decodes and model_class.learns_by == "gradient" and not model_class.needs_source

    def complete(self, recipe: Recipe, texts: Sequence[str]) -> Recipe:
        """The learning rate and the epochs, by what is trained."""
        train, how = recipe.train, _how(recipe.base, recipe.train)
        given = {} if train.lr else {"lr": LR[how]}
        given |= {"epochs": EPOCHS[how]} if all(getattr(train, name) is None for name in BUDGETS) else {}
        return replace(recipe, train=replace(train, **given))

    # Reading and encoding

    def read(self, sources: Sequence[Source], text: ChatText) -> Iterator[Dialogue]:
        for source in sources:
            for number, line in numbered_lines(source, text.errors):
                if line.strip():
                    yield read_dialogue(read_object(source.path, number, line), Place(str(source.path), number))

    def prepare(
        self, recipe: Recipe, texts: Sequence[str], valid: Sequence[str] = (), test: Sequence[str] = (),
        tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None,
    ) -> ChatCorpus:
        gathered = gather_examples(self.read, texts, recipe.text, valid=valid, test=test, seed=recipe.train.seed)
        given: str | None = recipe.text.chat_template    # type: ignore[attr-defined]
        source = find_template(given) if given else PLAIN if template is None else template.source
        tokenizer = tokenizer or train_tokenizer(recipe.text, _rendered(source, gathered.splits["train"]))
        if given or template is None:
            tokenizer = tokenizer.with_special(list(dict.fromkeys(found[0] for found in SPECIAL.finditer(source))))
        made = ChatTemplate.of(source, tokenizer) if template is None else replace(
            template, source=source, tokenizer=tokenizer)
        notes = list(gathered.notes)
        if template is None and not given:
            notes.append("chat template: plain, since none is given (text.chat_template)")
        splits = {}
        for name, dialogues in gathered.splits.items():
            splits[name] = _split(dialogues, recipe, made)
            notes += [f"{name}: {note}" for note in splits[name].encoded.notes]
        return ChatCorpus(splits, tokenizer, tuple(notes), (), source)

    # Batches

    def order(self, model: Model, corpus: Corpus, settings: Gradient) -> Buckets:
        chats = cast(ExampleCorpus, corpus).splits["train"].encoded
        context, longest = getattr(model, "context", None), int(chats.rows.lengths.max())
        length = settings.length or max(longest, min(context or PACKED, PACKED))
        if not longest <= length <= (context or length):
            raise UserError(f"train.length={length} is the length of packed rows: it must hold the longest chat, of "
                            f"{longest} tokens, and fit the context{f' of {context}' if context else ''}.")
        packed = pack(chats, length) if model.packs else chats
        return self.buckets(packed, settings)

    def measure(self, run: Trained, files: Sequence[str], text: Any, search: Search) -> dict[str, Any]:
        """Perplexity of the assistant's tokens, with an interval over the chats."""
        if run.template is None:
            raise UserError("the run has lost its chat template: chat_template.jinja is missing. Train it again.")
        dialogues = held_out_examples(self.read, files, text)
        split = _split(dialogues, replace(run.recipe, text=text), run.template)
        rows = np.array(list(_row_scores(run.model, split.encoded)))
        tokenizer, template = run.tokenizer, hashlib.sha256(run.template.source.encode()).hexdigest()
        signature = (f"answers|template:{template[:12]}|unit:{tokenizer.unit}|tokenizer:{tokenizer.sha256[:12]}|"
                     f"text:{split.sha256[:12]}|chainrule:{__version__}")
        return {**summarise_rows(rows, ("nats",)), "examples": len(rows), "signature": signature}


def _how(base: Base | None, train: Gradient) -> str:
    if base is None:
        return "scratch"
    return "full" if train.lora is None else "lora"


def _row_scores(model: LanguageModel, chats: "Chats") -> Iterator[tuple[float, int]]:
    with bar("scoring", len(chats), "chats") as advance:
        for ids, batch in Buckets(chats, seed=0, tokens=logits_at_once(model)).every():
            yield from score_rows(model, batch.to(device_of(model)))
            advance(len(ids))


def _rendered(source: str, dialogues: Iterable[Dialogue]) -> Iterator[str]:
    """Chats as the template writes them, without special tokens: what a tokenizer is learned from."""
    for dialogue in dialogues:
        text = render(source, {"messages": dialogue.dicts, "add_generation_prompt": False, "bos_token": "",
                               "eos_token": "", "tools": None, "documents": None})
        yield SPECIAL.sub("", text).rstrip("\n") + "\n"


# Lines of JSON


def read_dialogue(row: Mapping[str, Any], place: Place) -> Dialogue:
    """The chat in a line; what follows its last answer is left out."""
    if "messages" in row:
        messages = messages_in(row["messages"], place, "messages")
    elif "prompt" in row and "completion" in row:
        messages = (*messages_in(row["prompt"], place, "prompt", "user"),
                    *messages_in(row["completion"], place, "completion", "assistant"))
    else:
        has = ", ".join(map(str, list(row)[:8])) or "nothing"
        raise UserError(f"{place} has {has}; {LINES}.")
    last = max((number for number, (role, _) in enumerate(messages) if role == "assistant"), default=None)
    if last is None:
        raise UserError(f"{place} has no message of the assistant, so there is no answer to learn.")
    for role, content in messages:
        if role == "assistant" and not content.strip():
            raise UserError(f"{place} has an empty answer. Fill it in, or remove the line.")
    return Dialogue(messages[: last + 1], place)


def messages_in(value: Any, place: Place, name: str, role: str | None = None) -> tuple[tuple[str, str], ...]:
    """Role and content of each message of a list; a text, where `role` says whose, is one message."""
    if role is not None and isinstance(value, str):
        return ((role, value),)
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else "null" if value is None else f"a {type(value).__name__}"
        raise UserError(f"{place}: {name} is {found}, and must be a list of messages{' or a text' if role else ''}.")
    return tuple(_message(message, place) for message in value)


def _message(message: Any, place: Place) -> tuple[str, str]:
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise UserError(f'{place} has a message without role and content; one is {{"role": "user", "content": "…"}}.')
    role, content = message["role"], message["content"]
    if role not in ROLES:
        raise UserError(f"{place} has a message of the role {str(role)[:50]!r}; the roles are {', '.join(ROLES)}.")
    if not isinstance(content, str):
        raise UserError(f"{place} has a message of the {role} whose content is not a text.")
    return role, content


# Rows of tokens


@dataclass(frozen=True)
class Chats(RowsWithTargets):
    """Encoded chats, one in each row: what is read, and what is predicted, IGNORE but for the answers."""

    rows: Ragged
    targets: Ragged
    notes: tuple[str, ...] = ()

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        tokens, targets = self.rows.padded(rows, widths[0], BOUNDARY), self.targets.padded(rows, widths[0], IGNORE)
        return Batch(to_tensor(tokens), to_tensor(targets), to_tensor(self.rows.lengths[rows]))


@dataclass(frozen=True)
class PackedChats:
    """Rows of several chats each, which batches number as documents, so that they do not see each other."""

    chats: Chats
    packs: Ragged                                    # the numbers of the chats of each row
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.packs)

    @cached_property
    def lengths(self) -> Ids:
        return np.add.reduceat(self.chats.rows.lengths[self.packs.flat], self.packs.begins)

    @property
    def sizes(self) -> tuple[Ids, ...]:
        return (self.lengths,)

    @property
    def tokens(self) -> NDArray[Any]:
        return self.chats.tokens

    @property
    def target_count(self) -> int:
        return self.chats.target_count

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        packs = self.packs.take(rows)
        ends = np.cumsum(self.lengths[rows])
        chats, every = self.chats.rows.lengths[packs.flat], np.arange(len(rows))
        documents = Ragged(np.repeat(positions(packs.lengths), chats), ends)
        tokens, targets = (Ragged(part.take(packs.flat).flat, ends) for part in (self.chats.rows, self.chats.targets))
        return Batch(
            to_tensor(tokens.padded(every, widths[0], BOUNDARY)), to_tensor(targets.padded(every, widths[0], IGNORE)),
            to_tensor(self.lengths[rows]), documents=to_tensor(documents.padded(every, widths[0], -1)),
        )


def pack(chats: Chats, length: int) -> PackedChats:
    """Rows of at most `length` tokens: each chat, the longest first, goes where the least space is left (best fit)."""
    spaces: list[tuple[int, int]] = []               # what is left in each row, ascending, and the row
    rows: list[list[int]] = []
    lengths = chats.rows.lengths
    for chat in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[chat])
        place = bisect.bisect_left(spaces, (size, -1))
        left, row = spaces.pop(place) if place < len(spaces) else (length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(chat)
        bisect.insort(spaces, (left - size, row))
    return PackedChats(chats, ragged((np.array(row) for row in rows), np.int64))


def _split(dialogues: Sequence[Dialogue], recipe: Recipe, template: ChatTemplate) -> ExampleSplit:
    refuse_none(dialogues)
    template.check_roles({role for dialogue in dialogues for role, _ in dialogue.messages})
    text, context = cast(ChatText, recipe.text), getattr(recipe.model, "context", None)
    chats = encode_chats(dialogues, template, context, text.truncate)
    return example_split(dialogues, chats)


def encode_chats(dialogues: Sequence[Dialogue], template: ChatTemplate, limit: int | None, truncate: bool) -> Chats:
    """Chats as rows of at most `limit` tokens. What is cut is said in the notes."""
    rows = [_encode(dialogue, template) for dialogue in dialogues]
    sizes = np.array([len(read) for read, _ in rows])
    if limit is None or sizes.max() <= limit:
        return _chats(rows)
    if not truncate:
        worst = int(sizes.argmax())
        raise UserError(f"{dialogues[worst].place} has {sizes[worst]} tokens, and the model holds {limit}. Take "
                        "text.truncate=true to keep the beginning of long chats.")
    cut = [(read[:limit], targets[:limit]) for read, targets in rows]
    kept = [row for row in cut if (row[1] != IGNORE).any()]
    if not kept:
        raise UserError(f"no chat has an answer within the {limit} tokens that the model holds: raise model.context.")
    long, lost = int((sizes > limit).sum()), np.maximum(sizes - limit, 0).sum() / sizes.sum()
    note = f"{long:,} of {len(rows):,} chats are longer than {limit} tokens: the beginning is kept, {lost:.1%} is lost"
    note += f"; {len(rows) - len(kept):,} are left out, since no answer begins there" if len(kept) < len(rows) else ""
    return _chats(kept, (note,))


def _chats(rows: Sequence[tuple[NDArray[Any], NDArray[Any]]], notes: tuple[str, ...] = ()) -> Chats:
    read, targets = zip(*rows)
    return Chats(ragged(read), ragged(targets), notes)


def _encode(dialogue: Dialogue, template: ChatTemplate) -> tuple[NDArray[Any], NDArray[Any]]:
    """The tokens that are read, from the boundary on, and after each of them the target."""
    try:
        ids, answers = template.encode_answers(dialogue.dicts)
    except UserError as error:
        raise UserError(f"{dialogue.place}: {error}") from None
    if not answers.any():
        raise UserError(f"{dialogue.place}: the chat template marks no token of this chat as an answer.")
    targets = np.where(answers, template.as_targets(ids), IGNORE)
    if not template.ends_answers:                    # then the boundary does, whatever is read next
        ids, targets = np.append(ids, BOUNDARY), np.append(targets, BOUNDARY)
        after = np.flatnonzero(answers[:-1] & ~answers[1:]) + 1
        targets[after[ids[after - 1] != BOUNDARY]] = BOUNDARY
    if ids[0] == BOUNDARY and len(ids) > 1:          # the template has written it
        return ids[:-1], targets[1:]
    return np.append(BOUNDARY, ids[:-1]), targets
