"""Chats to learn from: which tokens count, rows packed without leaking, lines that are refused."""

import json

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from chainrule import models
from chainrule.errors import UserError
from chainrule.model import BOUNDARY, IGNORE
from chainrule.recipe import Text
from chainrule.settings import make
from chainrule.tasks.batching import Buckets
from chainrule.tasks.chat import Dialogue, encode_chats, pack, read_dialogue
from chainrule.text.chat_template import CHATML, PLAIN, ChatTemplate
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import train_tokenizer

HERE = Place("chats.jsonl", 1)
TEXT = "user system assistant: What is two and two? It is four, of course. Hello, who are you?\n"
TURNS = (
    ("user", "What is two and two?"), ("assistant", "It is four."), ("user", "Who are you?"), ("assistant", "four"),
)
CHATML_MARKED = CHATML.replace(
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}",
    "{{- '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{- message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{- message['content'] + '<|im_end|>' }}"
    "{% endif %}{{- '\\n' }}",
)
KINDS = {
    "gpt": {"layers": 1, "width": 16, "heads": 2, "context": 128, "dropout": 0.0},
    "lstm": {"layers": 1, "hidden": 16, "dropout": 0.0},
    "rnn": {"hidden": 16, "dropout": 0.0},
    "feedforward": {"order": 4, "hidden": 16, "dropout": 0.0},
}


def tokenizer_of(unit="bpe", special=("<|im_start|>", "<|im_end|>")):
    settings = Text(tokenizer=unit, min_count=1, **({"vocab": 300} if unit == "bpe" else {}))
    return train_tokenizer(settings, [TEXT] * 3).with_special(list(special))


def template_of(source=PLAIN, unit="bpe"):
    return ChatTemplate.of(source, tokenizer_of(unit))


def chat(*turns, place=HERE):
    return Dialogue(tuple(turns), place)


def chats_of(count, seed=1):
    random = np.random.default_rng(seed)
    words = TEXT.split()
    say = lambda: " ".join(random.choice(words, random.integers(1, 9)))  # noqa: E731
    return [chat(*((role, say()) for _ in range(random.integers(1, 3)) for role in ("user", "assistant")))
            for _ in range(count)]


def build(kind, vocab):
    torch.manual_seed(1)
    settings = make(models.model_class(kind).Settings, KINDS[kind], "model")
    made = models.build(kind, settings, vocab)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)    # so that everything that is read matters
    return made


def counted(template, *turns):
    """The text of the targets that count, answer by answer."""
    ids, answers = template.encode_answers(chat(*turns).dicts)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], answers.astype(int), [0]])))
    names = {id: name for name, id in template.tokenizer.special_tokens.items()}
    spell = lambda id: names.get(id) or template.tokenizer.decode([id])  # noqa: E731
    return ["".join(spell(id) for id in ids[begin:end].tolist()) for begin, end in edges.reshape(-1, 2)]


def losses(model, encoded, tokens=512):
    model.eval()
    with torch.no_grad():
        sums = [model.loss(batch)[:2] for _, batch in Buckets(encoded, seed=1, tokens=tokens).every()]
    return float(sum(nats.double() for nats, _ in sums)), int(sum(count for _, count in sums))


# What counts


def test_only_answers_count_with_what_ends_them():
    assert counted(template_of(PLAIN), *TURNS) == [" It is four.\n", " four\n"]
    assert counted(template_of(CHATML), *TURNS) == ["It is four.<|im_end|>\n", "four<|im_end|>\n"]


def test_a_generation_block_says_what_counts():
    assert counted(template_of(CHATML_MARKED), *TURNS) == ["It is four.<|im_end|>", "four<|im_end|>"]


@pytest.mark.parametrize("unit", ["bytes", "characters", "bpe"])
def test_the_mask_is_that_of_transformers(tmp_path, unit):
    """`return_assistant_tokens_mask`, on the tokenizer.json of the same tokenizer."""
    template = template_of(CHATML_MARKED, unit)
    spec = json.loads(template.tokenizer._file)
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special = template.tokenizer.special_tokens
    spec["added_tokens"] = [{"id": id, "content": name, **flags} for name, id in special.items()]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    found = theirs.apply_chat_template(chat(*TURNS).dicts, chat_template=CHATML_MARKED, return_dict=True,
                                       return_assistant_tokens_mask=True)
    ids, answers = template.encode_answers(chat(*TURNS).dicts)
    assert ids.tolist() == found["input_ids"]
    assert answers.astype(int).tolist() == found["assistant_masks"]


def test_what_counts_is_what_trl_counts_of_a_prompt_and_its_completion():
    """TRL's rule, as its SFTTrainer has it: the tokens of the whole from where they differ from those of the prompt."""
    trl = pytest.importorskip("trl.data_utils", reason="trl is not installed")
    common = getattr(trl, "common_prefix_length", None) or pytest.importorskip("trl.trainer.utils").common_prefix_length
    for source in (PLAIN, CHATML):
        template, messages = template_of(source), chat(*TURNS[:2]).dicts
        prompt, whole = template.encode(messages[:1]).tolist(), template.encode(messages, continues=False).tolist()
        ids, answers = template.encode_answers(messages)
        assert ids.tolist() == whole
        assert answers.tolist() == [place >= common(prompt, whole) for place in range(len(whole))]


def test_targets_follow_the_tokens_that_are_read():
    encoded = encode_chats([chat(*TURNS[:2])], template_of(), None, True)
    read, targets = encoded.rows[0], encoded.targets[0]
    known = targets != IGNORE
    assert read[0] == BOUNDARY
    assert targets[-1] == BOUNDARY
    assert (read[1:][known[:-1]] == targets[:-1][known[:-1]]).all()
    assert 0 < known.sum() < len(known)


def test_without_a_token_for_it_the_boundary_ends_every_answer():
    """Also one that another turn follows, which the model reads instead of the boundary."""
    template = template_of()
    encoded = encode_chats([chat(*TURNS)], template, None, True)
    read, targets = encoded.rows[0].tolist(), encoded.targets[0].tolist()
    ends = [place for place, target in enumerate(targets) if target == BOUNDARY]
    assert len(ends) == 2
    assert all(template.tokenizer.decode([read[place]]).endswith("\n") for place in ends)
    assert template.tokenizer.decode(read[ends[0] + 1 :]).startswith("user: Who")


def test_eos_of_an_imported_model_is_predicted_as_the_boundary():
    """Import moves BOS (here <|im_start|>) to id 0, and predicts EOS (<|im_end|>) in the row of id 0."""
    tokenizer = tokenizer_of(special=("<|im_start|>", "<|im_end|>"))
    end = tokenizer.special_tokens["<|im_end|>"]
    template = ChatTemplate(CHATML_MARKED, tokenizer, "<|im_start|>", "<|im_end|>")
    encoded = encode_chats([chat(*TURNS[:2])], template, None, True)
    assert encoded.targets[0].tolist()[-2:] == [BOUNDARY, IGNORE]    # and the newline after it does not count
    assert end in encoded.rows[0].tolist()
    assert end not in encoded.targets[0].tolist()


def test_special_tokens_in_messages_stay_text():
    template = template_of(CHATML)
    rude = (("user", "a<|im_end|>b"), ("assistant", "c<|im_start|>d"))
    ids, _ = template.encode_answers(chat(*rude).dicts)
    special = template.tokenizer.special_tokens
    assert ids.tolist().count(special["<|im_end|>"]) == 2
    assert ids.tolist().count(special["<|im_start|>"]) == 2


def test_words_count_the_end_of_each_answer():
    template = ChatTemplate.of(PLAIN, tokenizer_of("words", ()))
    encoded = encode_chats([chat(*TURNS)], template, None, True)
    targets = encoded.targets[0]
    assert (targets[targets != IGNORE] == BOUNDARY).sum() == 2


# Templates that cannot be learned from


@pytest.mark.parametrize(("source", "line"), [
    (PLAIN.replace("message['content']", "(message['content'] if loop.last else '…')"), "rewrites earlier turns"),
    (PLAIN.replace("'assistant:'", "'model:'"), "writes an answer otherwise than it asks for one"),
])  # fmt: skip
def test_a_template_that_changes_its_mind_is_refused(source, line):
    with pytest.raises(UserError, match=rf"chats.jsonl line 1: the chat template {line}"):
        encode_chats([chat(*TURNS)], template_of(source), None, True)


@pytest.mark.parametrize("role", ["user", "system"])
def test_a_template_that_drops_a_role_is_refused(role):
    source = PLAIN.replace("{{ message['role']", "{{ '' if message['role'] == '%s' else message['role']" % role)  # noqa: UP031
    template_of(source).check_roles({"user", "system", "assistant"} - {role})
    with pytest.raises(UserError, match=f"drops what the {role} says"):
        template_of(source).check_roles({role})


# Packing


def test_packing_loses_no_chat_and_keeps_to_the_length():
    encoded = encode_chats(chats_of(40), template_of(), 128, True)
    packed = pack(encoded, 128)
    assert sorted(packed.packs.flat.tolist()) == list(range(40))
    assert packed.lengths.max() <= 128
    assert len(packed) < 20
    assert packed.lengths.sum() == encoded.rows.lengths.sum()


@pytest.mark.parametrize("positions", ["rotary", "learned", "alibi"])
def test_packing_changes_no_loss(positions, monkeypatch):
    monkeypatch.setitem(KINDS, "gpt", {**KINDS["gpt"], "positions": positions})
    template = template_of()
    encoded = encode_chats(chats_of(24), template, 128, True)
    model = build("gpt", len(template.tokenizer))
    assert model.packs
    alone, packed = losses(model, encoded), losses(model, pack(encoded, 128))
    assert packed[1] == alone[1] == encoded.target_count
    assert packed[0] == pytest.approx(alone[0], rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_sum_of_what_each_answer_is_given(kind):
    """Against one chat at a time, one token at a time, by the protocol."""
    template = template_of()
    encoded = encode_chats(chats_of(3), template, 128, True)
    model = build(kind, len(template.tokenizer)).eval()
    total = 0.0
    with torch.inference_mode():
        for row in range(3):
            state = model.start(1)
            for token, target in zip(encoded.rows[row].tolist(), encoded.targets[row].tolist()):
                logits, state = model.step(torch.tensor([[token]]), state)
                total -= float(logits[0, -1].double().log_softmax(-1)[target]) if target != IGNORE else 0.0
    packed = pack(encoded, 128) if model.packs else encoded
    assert losses(model, packed)[0] == pytest.approx(total, rel=1e-5)


# Truncation


def test_a_long_chat_keeps_its_beginning_and_it_is_said():
    template = template_of()
    long = chat(("user", "Who?"), ("assistant", "It is four. " * 30))
    late = chat(("user", "What is two and two? " * 30), ("assistant", "four"))
    encoded = encode_chats([chat(*TURNS[:2]), long, late], template, 40, True)
    assert len(encoded) == 2
    assert encoded.rows.lengths.max() == 40
    (note,) = encoded.notes
    assert "2 of 3 chats are longer than 40 tokens: the beginning is kept" in note
    assert "1 are left out, since no answer begins there" in note
    with pytest.raises(UserError, match=r"line 1 has \d+ tokens, and the model holds 40. Take text.truncate=true"):
        encode_chats([long], template, 40, False)
    with pytest.raises(UserError, match="no chat has an answer within the 40 tokens"):
        encode_chats([late], template, 40, True)


# Lines


@pytest.mark.parametrize(("row", "turns"), [
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "ab"),
    ({"prompt": "a", "completion": "b"}, "ab"),
    ({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}, "ab"),
    ({"messages": [{"role": role, "content": content} for role, content in
                   (("user", "a"), ("assistant", "b"), ("user", "c"))]}, "ab"),
])  # fmt: skip
def test_lines_of_chats(row, turns):
    assert read_dialogue(row, HERE).messages == tuple(zip(("user", "assistant"), turns))


@pytest.mark.parametrize(("row", "line"), [
    ({"text": "a"}, 'has text; a line is {"messages"'),
    ({"messages": []}, "messages is an empty list, and must be a list of messages"),
    ({"messages": "a"}, "messages is a str"),
    ({"messages": [{"role": "user", "content": "a"}]}, "has no message of the assistant"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "the roles are system, user, assistant"),
    ({"messages": [{"role": "user"}]}, "a message without role and content"),
    ({"messages": [{"role": "user", "content": ["a"]}]}, "whose content is not a text"),
    ({"prompt": "a", "completion": " "}, "has an empty answer"),
    ({"prompt": None, "completion": "b"}, "prompt is null, and must be a list of messages or a text"),
])  # fmt: skip
def test_a_line_that_is_no_chat_is_refused(row, line):
    with pytest.raises(UserError) as error:
        read_dialogue(row, HERE)
    assert str(error.value).startswith("chats.jsonl line 1")
    assert line in str(error.value)


