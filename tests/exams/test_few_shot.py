"""Few-shot prompts: against texts read one by one, for every kind; bigrams by hand; draws; calibration."""

import json
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from contract.cases import CASES

import chainrule
from chainrule.errors import UserError
from chainrule.exams.answers import LineEnds, score_answers, write_answers
from chainrule.exams.calibration import calibrate, contextual_baseline, log_normalised
from chainrule.exams.few_shot import Exam, examine_shots, spread
from chainrule.exams.prompt_set import FewShot
from chainrule.exams.prompts import ChatWriter, Item, PlainWriter, Question, Template, read_labels
from chainrule.exams.shots import Draw, read_items, read_pool
from chainrule.inference.beam import Beam, beam_search
from chainrule.model import BOUNDARY
from chainrule.recipe import Text
from chainrule.text.chat_template import CHATML
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import train_tokenizer

KINDS = [case for case in CASES if case.source is None and case.network is None]
SOME = [next(case for case in KINDS if case.kind == kind and (kind != "gpt" or "attention" not in case.settings))
        for kind in ("uniform", "unigram", "bigram", "ngram", "hmm", "feedforward", "rnn", "lstm", "gpt")]
PLAIN = FewShot(shots=(0,), template="{text} {label}", draws=1)


def ids(*tokens):
    return np.array(tokens, np.int64)


def questions(seed=1):
    """Prompts of several lengths that begin with the same examples; answers of one to three tokens."""
    random = np.random.default_rng(seed)
    shots = random.integers(1, 5, 5)
    return [Question(np.concatenate([[BOUNDARY], shots, random.integers(1, 5, size)]),
                     tuple(random.integers(1, 5, length) for length in (1, 3, 2)))
            for size in (1, 4, 2, 4, 4, 1)]


def read_plainly(model, prompt, answer):
    """log p(answer | prompt): the whole text in one step, from its start."""
    tokens = torch.tensor([[*prompt.tolist(), *answer.tolist()]])
    logits, _ = model.step(tokens[:, :-1], model.start(1))
    log_p = logits[0].double().log_softmax(-1)[-len(answer):]
    return sum(float(row[token]) for row, token in zip(log_p, answer.tolist()))


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.kind)
def test_a_shared_prefix_changes_no_probability(case):
    model, asked = case.train(), questions()
    with torch.inference_mode():
        wanted = [[read_plainly(model, one.prompt, answer) for answer in one.answers] for one in asked]
    assert score_answers(model, asked) == pytest.approx(np.array(wanted), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("case", [SOME[3], *SOME[-2:]], ids=lambda case: case.kind)
@pytest.mark.parametrize("width", [1, 3])
def test_texts_are_written_as_after_each_prompt_alone(case, width):
    model, asked = case.train(), [Question(one.prompt, ()) for one in questions()]
    beam = Beam(width=width, alpha=0.0, limit=5)
    found = write_answers(model, asked, beam, [2], lambda _: None)
    ended = LineEnds(model, [2])
    for one, tokens in zip(asked, found):
        assert tokens == beam_search(ended, beam, prompts=[one.prompt[1:]])[0].texts[0].tokens
        assert 2 not in tokens


def test_the_ends_of_lines_are_ends_of_the_text():
    model = CASES[1].train()
    logits, _ = model.step(torch.tensor([[1]]), model.start(1))
    folded, _ = LineEnds(model, [2, 3]).step(torch.tensor([[1]]), model.start(1))
    before, after = logits.softmax(-1)[0, 0], folded.softmax(-1)[0, 0]
    assert float(after[BOUNDARY]) == pytest.approx(float(before[[BOUNDARY, 2, 3]].sum()))
    assert after[[2, 3]].tolist() == [0, 0]
    assert after[[1, 4]].tolist() == pytest.approx(before[[1, 4]].tolist())


# A bigram by hand: p(sleeps | cat) = 3 / 11, p(sleep | cat) = 1 / 11, p(sleep | cats) = 2 / 10

ROWS = [("the cat", "sleeps"), ("the cats", "sleep"), ("the dog", "sleeps"), ("the cat", "sleep")]


def write_rows(path, rows, head=("text", "label")):
    path.write_text("".join("\t".join(row) + "\n" for row in (head, *rows)))
    return str(path)


@pytest.fixture
def rows(tmp_path):
    return write_rows(tmp_path / "rows.tsv", ROWS)


def exam_of(run, file, options, examples=()):
    return Exam(run, run.language_model, read_items([file], {}), read_pool(examples, [file], {}), options)


def test_labels_of_a_bigram_by_hand(bigram, rows):
    exam = exam_of(bigram, rows, PLAIN)
    scores = exam._scores(exam.questions(0, 0), lambda _: None)
    assert exam.labels == ("sleep", "sleeps")
    assert np.exp(scores) == pytest.approx(np.array([[1, 3], [2.2, 1.1], [1.1, 2.2], [1, 3]]) / 11, rel=1e-5)
    result = examine_shots(bigram, [rows], PLAIN)
    (zero,) = result["results"]
    assert zero["accuracy"] == 0.75                                       # the last row is wrong on purpose
    assert zero["answered"] == {"sleep": 0.25, "sleeps": 0.75}
    assert (zero["ties"], zero["over_draws"], result["majority"]) == (0, None, 0.5)
    assert "exam:few-shot|examples:4|unit:words" in result["signature"]
    json.dumps(result, allow_nan=False)


def test_log_p_is_divided_by_tokens_or_bytes(bigram, rows):
    exam = exam_of(bigram, rows, PLAIN)
    plain = exam._scores(exam.questions(0, 0), lambda _: None)
    by_bytes = exam_of(bigram, rows, FewShot(template="{text} {label}", normalise="bytes"))
    assert by_bytes._scores(by_bytes.questions(0, 0), lambda _: None) == pytest.approx(plain / np.array([5, 6]))
    words = exam_of(bigram, rows, FewShot(template="{text} {label}", normalise="tokens", labels="sleep=the cat"))
    found = words._scores(words.questions(0, 0), lambda _: None)
    assert found[0, 1] == pytest.approx(plain[0, 1])
    assert found[0, 0] == pytest.approx((math.log(1 / 11) + math.log(3 / 13)) / 2, rel=1e-5)    # p(the|cat) p(cat|the)


@pytest.mark.parametrize("calibration", ["contextual", "pmi"])
def test_calibration_takes_away_what_a_unigram_prefers(tmp_path, rows, calibration):
    """It answers with the more frequent word whatever the text is; calibrated, it has no answer at all."""
    (tmp_path / "text.txt").write_text("sleeps sleeps sleeps sleep\n")
    run = chainrule.train(tmp_path / "text.txt", kind="unigram", valid=tmp_path / "text.txt", out=tmp_path / "one",
                          settings={"text.tokenizer": "words", "text.min_count": 1})
    (plain,) = examine_shots(run, [rows], PLAIN)["results"]
    assert plain["answered"] == {"sleep": 0.0, "sleeps": 1.0}
    (zero,) = examine_shots(run, [rows], FewShot(template="{text} {label}", calibration=calibration))["results"]
    assert (zero["ties"], zero["accuracy"]) == (4, 0.0)


def test_calibration_by_numbers():
    """A label with 0.7 of the probability where there is no text needs more than that."""
    baseline = contextual_baseline(np.log([[0.16, 0.04], [0.06, 0.04]]))          # 0.8 and 0.2, 0.6 and 0.4
    assert np.exp(baseline) == pytest.approx([0.7, 0.3])
    scores = np.log([[0.8, 0.2], [0.65, 0.35]])
    assert calibrate(scores, baseline).argmax(1).tolist() == [0, 1]
    with np.errstate(divide="ignore"):
        impossible = np.log([0.0, 1.0])
    assert calibrate(scores, impossible)[:, 0].tolist() == [-math.inf] * 2
    assert not np.isnan(log_normalised(np.full((1, 2), -np.inf))).any()


def test_contextual_calibration_reads_the_shots(bigram, rows):
    """Its prompts are those of the questions, with N/A, [MASK] and nothing in the place of the text."""
    exam = exam_of(bigram, rows, FewShot(shots=(2,), template="{text} . {label}", calibration="contextual",
                                         examples=(rows,)), [rows])
    (shots, *_) = exam.questions(2, 0)
    free = exam.content_free(shots)
    assert len(free) == 3
    some = [bigram.tokenizer.decode(one.prompt[1:].tolist()) for (one,) in free]
    examples = [exam.pool.items[at] for at in shots]
    for text in some:
        for example in examples:
            assert f"{example.texts['text']} . {example.answers[0]}" in text
        assert text.endswith(".")


# The channel direction, and ensembles


CHANNEL = FewShot(shots=(0,), template="{label} {text}", draws=1, channel=True)


def test_the_channel_of_a_bigram_by_hand(bigram, tmp_path):
    """p(cat | the) = 3 / 13 and p(cat | cats) = 1 / 10; then p(sleeps | cat) = 3 / 11 under both labels."""
    file = write_rows(tmp_path / "nouns.tsv", [("cat sleeps", "the"), ("dog", "the"), ("sleep", "cats")])
    exam = exam_of(bigram, file, CHANNEL)
    scores = exam._scores(exam.questions(0, 0), lambda _: None)
    assert exam.labels == ("cats", "the")
    wanted = [[1 / 10 * 3 / 11, 3 / 13 * 3 / 11], [1 / 10, 2 / 13], [2 / 10, 1 / 13]]
    assert np.exp(scores) == pytest.approx(np.array(wanted), rel=1e-5)
    result = examine_shots(bigram, [file], CHANNEL)
    assert result["results"][0]["accuracy"] == 1
    assert (result["direction"], result["demonstrations"]) == ("channel", "concatenated")
    assert "|direction:channel|demonstrations:concatenated" in result["signature"]


LETTERS = [("the cat sat", "a"), ("a dog ran off", "b"), ("the cow", "a"), ("some fox", "b")]
ASKED = [("a fox ran", "b"), ("cow", "a"), ("the dog sat", "b")]


@pytest.fixture(scope="module", params=["ngram", "lstm", "gpt"])
def characters(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "text.txt").write_text("a: the cat sat\nb: a dog ran off\na: the cow\nb: some fox\n" * 9)
    size = {"ngram": {"model.order": 4}, "lstm": {"model.layers": 1, "model.hidden": 16},
            "gpt": {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 64}}[request.param]
    steps = {} if request.param == "ngram" else {"train.steps": 30, "train.tokens": 128, "train.lr": 1e-2}
    return chainrule.train(folder / "text.txt", kind=request.param, valid=folder / "text.txt", out=folder / "run",
                           settings={"text.tokenizer": "characters", **size, **steps}, device="cpu")


def read_text(run, context, answer):
    """log p of the characters of `answer` after those of `context`, in one step from the boundary."""
    tokens = run.tokenizer.encode(context + answer)
    with torch.inference_mode():
        return read_plainly(run.language_model.eval(), np.append(BOUNDARY, tokens[: len(context)]),
                            tokens[len(context):])


def scores_of(run, tmp_path, **options):
    files = [write_rows(tmp_path / f"{name}.tsv", rows) for name, rows in (("asked", ASKED), ("pool", LETTERS))]
    exam = exam_of(run, files[0], FewShot(shots=(2,), examples=(files[1],), draws=1, **options), [files[1]])
    groups = exam.questions(2, 0)
    drawn = [[exam.pool.items[at] for shots, asked in groups.items() if place in asked for at in shots]
             for place in range(len(ASKED))]
    return exam._scores(groups, lambda _: None), drawn


def test_the_channel_reads_each_label_and_then_the_text(characters, tmp_path):
    scores, drawn = scores_of(characters, tmp_path, template="{label}: {text}.", channel=True)
    for place, (text, _) in enumerate(ASKED):
        before = "".join(f"{shot.answers[0]}: {shot.texts['text']}.\n" for shot in drawn[place])
        wanted = [read_text(characters, f"{before}{label}:", f" {text}") for label in "ab"]
        assert scores[place] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("channel", [False, True])
def test_an_ensemble_is_the_mean_over_prompts_with_one_example(characters, tmp_path, channel):
    template = "{label}: {text}" if channel else "{text}: {label}"
    scores, drawn = scores_of(characters, tmp_path, template=template, channel=channel, ensemble=True)

    def read(shot, label, text):
        one, (word,) = shot.texts["text"], shot.answers
        if channel:
            return read_text(characters, f"{word}: {one}\n{label}:", f" {text}")
        return read_text(characters, f"{one}: {word}\n{text}:", f" {label}")

    for place, (text, _) in enumerate(ASKED):
        assert len(drawn[place]) == 2
        wanted = np.array([[read(shot, label, text) for shot in drawn[place]] for label in "ab"])
        assert scores[place] == pytest.approx(wanted.mean(1), rel=1e-4)
        if characters.recipe.kind == "gpt":                         # the others hardly see the example
            assert np.ptp(wanted, 1).max() > 1e-2


def test_an_example_of_an_ensemble_that_does_not_fit_is_left_out(tmp_path, capsys):
    """The context has room for a short example before the question and not for the long one."""
    (tmp_path / "text.txt").write_text("the cat sleeps. the dog sleeps.\n" * 20)
    settings = {"text.tokenizer": "characters", "model.layers": 1, "model.width": 16, "model.heads": 2,
                "model.context": 40, "train.steps": 1}
    run = chainrule.train(tmp_path / "text.txt", kind="gpt", out=tmp_path / "gpt", settings=settings, device="cpu")
    file = write_rows(tmp_path / "rows.tsv", [("the cat", "sleeps"), ("the dog", "sleep")])
    pool = write_rows(tmp_path / "pool.tsv", [("the dogs", "sleep"), ("the cat and the dog and the cat", "sleeps")])
    options = FewShot(shots=(2,), template="{text} {label}", examples=(pool,), draws=1, ensemble=True)
    exam = exam_of(run, file, options, [pool])
    assert {shots: set(asked) for shots, asked in exam.questions(2, 0).items()} == {(0,): {0, 1}}
    (two,) = examine_shots(run, [file], options)["results"]
    assert two["kept"] == 1
    assert "1.0 of them fit in the context of 40 tokens, on average; those that are too long were dropped" in (
        capsys.readouterr().err)
    only = write_rows(tmp_path / "only.tsv", [("the cat and the dog and the cat", "sleeps"), ("the " * 9, "sleep")])
    alone = exam_of(run, file, FewShot(shots=(2,), template="{text} {label}", examples=(only,), ensemble=True), [only])
    assert {shots: set(asked) for shots, asked in alone.questions(2, 0).items()} == {(): {0, 1}}


def test_the_default_template_of_the_channel(bigram, tmp_path):
    file = write_rows(tmp_path / "pairs.tsv", [("a", "b", "yes"), ("c", "d", "no")], ("premise", "hypothesis", "label"))
    template = exam_of(bigram, file, FewShot(channel=True)).template
    assert str(template) == "Label: {label}\nPremise: {premise}\nHypothesis: {hypothesis}"
    assert template.answer == "{premise}\nHypothesis: {hypothesis}"
    own = Template.parse("{premise}? {label}, {hypothesis}.", ["premise", "hypothesis"], channel=True)
    texts = {"premise": "It rains", "hypothesis": "it is wet"}
    assert (own.question(texts, "Yes"), own.solution(texts, "Yes"), own.after) == ("It rains? Yes, ", "it is wet", ".")


@pytest.mark.parametrize(("given", "said"), [
    ("{text} {label}", r'must have {label} once, and before a text: --channel scores the text after its label, as in '
                       r'"Label: {label}\nText: {text}"'),
    ("{text}", "must have {label} once, and before a text"),
    ("{label} {label} {text}", "must have {label} once"),
    ("{label}{text}", "has nothing between {label} and {text}"),
    ("{label} is what", "has no {text}"),
])
def test_a_template_that_cannot_work_for_the_channel_is_refused(given, said):
    with pytest.raises(UserError) as error:
        Template.parse(given, ["text"], channel=True)
    assert said in str(error.value)


# Draws


def pool_of(labels):
    return [Item({"text": f"text {place}"}, (label,), Place("f", place)) for place, label in enumerate(labels)]


def test_a_seed_repeats_a_draw_and_more_shots_contain_fewer():
    pool = pool_of("aabbabababbabaaabb")
    for balanced in (True, False):
        draw = Draw(pool, 1, 0, balanced)
        assert draw.shots(8) == Draw(pool, 1, 0, balanced).shots(8)
        assert draw.shots(8)[:3] == draw.shots(3)
        assert len(set(draw.shots(18))) == 18
        assert len({Draw(pool, seed, number, balanced).shots(8) for seed in (1, 2) for number in range(3)}) == 6


def test_a_balanced_draw_has_as_many_of_each_label():
    pool = pool_of("a" * 30 + "b" * 4 + "c" * 6)
    for number in range(5):
        found = Counter(pool[at].answers[0] for at in Draw(pool, 1, number, True).shots(9))
        assert found == {"a": 3, "b": 3, "c": 3}
    found = Counter(pool[at].answers[0] for at in Draw(pool, 1, 0, True).shots(20))
    assert found == {"a": 10, "b": 4, "c": 6}                              # b and c are used up
    plain = Counter(pool[at].answers[0] for number in range(30) for at in Draw(pool, 1, number, False).shots(8))
    assert plain["a"] / plain.total() == pytest.approx(0.75, abs=0.1)


def test_the_tested_example_is_never_its_own_shot(bigram, rows):
    """Nor another with the same input: the first row and the last have the same text."""
    exam = exam_of(bigram, rows, FewShot(shots=(2,), template="{text} {label}", draws=6), [rows])
    for number in range(6):
        for shots, asked in exam.questions(2, number).items():
            assert len(shots) == 2
            for place in asked:
                assert all(exam.pool.items[at].about != exam.items[place].about for at in shots)


def test_more_shots_than_examples_are_refused():
    with pytest.raises(UserError, match="--shots 5: there are 4 examples"):
        Draw(pool_of("abab"), 1, 0, True).shots(5)
    pool = pool_of("abab")
    with pytest.raises(UserError, match="there are 3 examples"):
        Draw(pool, 1, 0, False).shots(4, pool[2])


def test_intervals_over_examples_and_over_draws():
    right = np.random.default_rng(1).random((5, 80)) < np.array([0.2, 0.4, 0.6, 0.7, 0.9])[:, None]
    found = spread(right, "accuracy")
    assert found["accuracy"] == right.mean()
    assert found["each_draw"] == right.mean(1).tolist()
    width = {name: found[name][1] - found[name][0] for name in ("accuracy_interval", "over_examples", "over_draws")}
    assert width["over_examples"] < width["over_draws"] < width["accuracy_interval"] + 0.1
    assert width["over_examples"] < width["accuracy_interval"]
    assert spread(right[:1], "accuracy")["over_draws"] is None


# Prompts


def test_a_prompt_is_the_examples_and_then_the_question():
    tokenizer = train_tokenizer(Text(tokenizer="bytes"), ["a"])
    template = Template.parse(r"Review: {text}\nSentiment: {label}.", ["text"])
    writer = PlainWriter(tokenizer, "\n\n", template.after)
    asked = writer.encode([(template.question({"text": "fine"}), "good")], template.question({"text": "so so"}),
                          ["good", "bad"])
    assert tokenizer.decode(asked.prompt[1:].tolist()) == (
        "Review: fine\nSentiment: good.\n\nReview: so so\nSentiment:")
    assert [tokenizer.decode(answer.tolist()) for answer in asked.answers] == [" good", " bad"]
    assert template.domain == "Sentiment: "


def test_answers_are_cut_off_as_lm_eval_does():
    """Its _encode_pair: the tokens of the whole text after as many as the context has."""
    texts = ["it was good . it was bad . the film was good\nthe end: good bad\n"]
    tokenizer = train_tokenizer(Text(tokenizer="bpe", vocab=290), texts)
    asked = PlainWriter(tokenizer).encode([], "the film was ", ["good", "bad"])
    for answer, word in zip(asked.answers, ["good", "bad"]):
        context, whole = tokenizer.encode("the film was"), tokenizer.encode(f"the film was {word}")
        assert answer.tolist() == whole[len(context) :].tolist()


def test_an_answer_that_melts_into_the_prompt_begins_one_token_earlier():
    tokenizer = train_tokenizer(Text(tokenizer="bpe", vocab=262), ["xy xy xy xy xy xz\n" * 4])
    assert len(tokenizer.encode("xy")) == 1
    asked = PlainWriter(tokenizer).encode([], "ax", ["y", "z"])
    assert tokenizer.decode(asked.prompt[1:].tolist()) == "a"
    assert [tokenizer.decode(answer.tolist()) for answer in asked.answers] == ["xy", "xz"]


@pytest.mark.parametrize(("given", "said"), [
    ("Label: {label}", "has no {text}"),
    ("{text} {labl}", "has {labl}, and these examples have {text}, {label}. Did you mean label"),
    ("{label}: {text}", "must have {label} once, and after the texts"),
    ("{text}", "must have {label} once"),
])
def test_a_template_that_cannot_work_is_refused(given, said):
    with pytest.raises(UserError) as error:
        Template.parse(given, ["text"])
    assert said in str(error.value)


def test_words_of_labels():
    assert read_labels("0=negative, 1=very good", ["0", "1"]) == {"0": "negative", "1": "very good"}
    assert read_labels(None, ["a", "b"]) == {"a": "a", "b": "b"}
    for given, said in (("2=x", "names the label 2, and the examples have 0, 1"), ("0", "are written"),
                        ("0=x,1=x", "two labels the same word")):
        with pytest.raises(UserError, match=said):
            read_labels(given, ["0", "1"])


def test_the_default_template_has_the_columns(bigram, tmp_path):
    file = write_rows(tmp_path / "pairs.tsv", [("a", "b", "yes"), ("c", "d", "no")], ("premise", "hypothesis", "label"))
    exam = exam_of(bigram, file, FewShot())
    assert str(exam.template) == "Premise: {premise}\nHypothesis: {hypothesis}\nLabel: {label}"
    assert exam.template.question(exam.items[0].texts) == "Premise: a\nHypothesis: b\nLabel: "
    strange = Template.by_names(["label"], "gold")
    assert (strange.question({"label": "a"}), strange.solution({"label": "a"}, "yes")) == ("Label: a\nGold: ", "yes")
    assert str(Template.parse("{text}: the label is {label}", ["text"])) == "{text}: the label is {label}"
    own = exam_of(bigram, file, FewShot(template="{text} / {second} = {label}"))
    assert own.template.question(own.items[0].texts) == "a / b = "


def test_examples_that_do_not_fit_are_dropped(tmp_path, rows, capsys):
    (tmp_path / "text.txt").write_text("the cat sleeps. the dog sleeps.\n" * 20)
    settings = {"text.tokenizer": "characters", "model.layers": 1, "model.width": 16, "model.heads": 2,
                "model.context": 40, "train.steps": 1}
    run = chainrule.train(tmp_path / "text.txt", kind="gpt", out=tmp_path / "gpt", settings=settings, device="cpu")
    options = FewShot(shots=(0, 2), template="{text} {label}", examples=(rows,), draws=2)
    result = examine_shots(run, [rows], options)
    zero, two = result["results"]
    assert (zero["kept"], two["kept"]) == (0, pytest.approx(1, abs=0.9))
    assert two["kept"] < 2
    exam = exam_of(run, rows, options, [rows])
    for shots, asked in exam.questions(2, 0).items():
        for (question,) in asked.values():
            assert question.size <= 40
            text = run.tokenizer.decode(question.prompt[1:].tolist())
            assert text.count("\n") == len(shots)                          # the last ones stay
    long = write_rows(tmp_path / "long.tsv", [("the cat " * 6, "sleeps"), ("a", "sleep")])
    with pytest.raises(UserError, match=r"long\.tsv line 2: its prompt has 54 tokens without any example"):
        examine_shots(run, [long], FewShot(template="{text} {label}"))


def test_labels_that_a_tokenizer_does_not_tell_apart(bigram, tmp_path):
    file = write_rows(tmp_path / "rows.tsv", [("the cat", "positive"), ("the dog", "negative")])
    with pytest.raises(UserError, match="'negative' and 'positive' are the same tokens"):
        examine_shots(bigram, [file], PLAIN)


def test_a_chat_has_turns_of_user_and_assistant(tmp_path):
    (tmp_path / "text.txt").write_text("a review: good or bad?\n" * 8)
    run = chainrule.train(tmp_path / "text.txt", kind="ngram", valid=tmp_path / "text.txt", out=tmp_path / "chat",
                          settings={"text.tokenizer": "characters", "model.order": 2})
    (tmp_path / "chat" / "chat_template.jinja").write_text(CHATML)
    writer = ChatWriter(chainrule.load(tmp_path / "chat").template)
    asked = writer.encode([("a? ", "good")], "b? ", ["good", "bad"])
    turns = [("user", "a?"), ("assistant", "good"), ("user", "b?")]
    wanted = writer.template.encode([{"role": role, "content": text} for role, text in turns])
    assert asked.prompt.tolist() == [BOUNDARY, *wanted.tolist()]
    assert [run.tokenizer.decode(answer.tolist()) for answer in asked.answers] == ["good", "bad"]


# Translation


@pytest.fixture
def upper(tmp_path):
    """A 6-gram of characters that has read pairs of a word and its translation."""
    pairs = [("cat", "katze"), ("dog", "hund"), ("cow", "kuh"), ("fox", "fuchs")]
    (tmp_path / "pairs.txt").write_text("".join(f"{one} > {other}\n" for one, other in pairs) * 6)
    run = chainrule.train(tmp_path / "pairs.txt", kind="ngram", valid=tmp_path / "pairs.txt", out=tmp_path / "upper",
                          settings={"text.tokenizer": "characters", "model.order": 7})
    return SimpleNamespace(run=run, file=write_rows(tmp_path / "words.tsv", pairs, ("source", "target")))


def test_a_translation_goes_up_to_the_end_of_the_line(upper):
    options = FewShot(shots=(0, 2), template="{source} > {target}", examples=(upper.file,), draws=2)
    result = examine_shots(upper.run, [upper.file], options)
    assert (result["task"], result["examples"]) == ("translate", 4)
    zero, two = result["results"]
    assert zero["first_text"] == two["first_text"] == "katze"
    assert (two["draws"], len(two["each_draw"])) == (2, 2)
    assert zero["chrf"] == pytest.approx(100)
    json.dumps(result, allow_nan=False)


def test_the_default_template_of_a_translation(upper):
    exam = exam_of(upper.run, upper.file, FewShot())
    assert str(exam.template) == "Source: {source}\nTarget: {label}"
    assert exam.items[0].answers == ("katze",)
