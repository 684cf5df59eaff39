"""Views of tasks: every number against the model's own answer to a direct call, or against a sum over all paths."""

import base64
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from models.hmm.test_tagger import EDGE, NUMBERS, TAGS, WORDS, ByHand
from viewer.tasks import task_subject

from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.model import Batch
from chainrule.models.hmm.word_features import tagging_batch, word_features
from chainrule.run import Run, save
from chainrule.tasks import build_for, recipe_for
from chainrule.tasks.classify import EXTRACT
from chainrule.tasks.denoise import MASK
from chainrule.viewer.coverage import tiny_subject
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.hidden_word import hidden_logits
from chainrule.viewer.task_views.tagged_words import read_sentence
from chainrule.viewer.views import find_view

SENTENCE = ["the", "frog", "saw"]
CONLLU = ("1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tfrog\tfrog\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
          "1\tx\tx\tVERB\t_\t_\t_\t_\t_\t_")


def unpack(packed):
    kind = {"float32": "<f4", "int32": "<i4"}[packed["dtype"]]
    return np.frombuffer(base64.b64decode(packed["data"]), kind).reshape(packed["shape"])


def make(name, one, text, **options):
    return find_view(name).make([one], text, options)


@pytest.fixture(scope="module")
def tagger():
    """An HMM tagger that has counted five sentences."""
    recipe = recipe_for("hmm", {}, "tag")
    model = build_for(recipe, 0, tuple(TAGS))
    model.update(model.collect(tagging_batch(WORDS, NUMBERS)))
    tokenizer = tiny_subject("hmm", "tag").run.tokenizer
    return Subject("tagger", Run(Path("tagger"), recipe, tokenizer, model.eval(), {}, tuple(TAGS)))


# Taggers


def test_the_trellis_of_a_tagger_is_a_sum_over_all_sequences_of_tags(tagger):
    data = make("trellis", tagger, " ".join(SENTENCE))
    every = ByHand(tagger.model).every(SENTENCE)
    total, best = sum(every.values()), max(every, key=every.get)
    gamma, delta, terms, pairs = (unpack(data[name]) for name in ("gamma", "delta", "delta_terms", "gamma_terms"))
    assert data["path"] == list(best)
    for t in range(3):
        for s in range(EDGE):
            through = sum(p for path, p in every.items() if path[t] == s)
            assert gamma[t, s] == pytest.approx(through / total, abs=1e-5)
            for after in range(EDGE if t < 2 else 0):
                both = sum(p for path, p in every.items() if path[t : t + 2] == (s, after))
                assert pairs[t, s, after] == pytest.approx(both / total, abs=1e-5)
    assert delta.max(1) == pytest.approx(1)
    assert terms[1:].max(2) == pytest.approx(delta[1:])


def test_messages_of_a_tagger_are_sums_of_their_terms_and_end_in_the_posterior(tagger):
    data = make("trellis", tagger, " ".join(SENTENCE))
    alpha, gamma = unpack(data["alpha"]), unpack(data["gamma"])
    assert alpha.sum(1) == pytest.approx(1)
    assert unpack(data["alpha_terms"])[1:].sum(2) == pytest.approx(alpha[1:], abs=1e-6)
    assert unpack(data["gamma_terms"])[:-1].sum(2) == pytest.approx(gamma[:-1], abs=1e-5)
    assert data["modes"] == ["gamma", "alpha", "delta"]


def test_true_tags_are_read_from_slashes_columns_and_conllu(tagger):
    known = read_sentence(tagger, "the/DET frog/NOUN saw/VERB")
    assert (known.words, known.truth) == (SENTENCE, [TAGS["DET"], TAGS["NOUN"], TAGS["VERB"]])
    assert read_sentence(tagger, "the\tDET\nfrog\tNOUN\nsaw\tVERB\n") == known
    assert read_sentence(tagger, CONLLU).truth == [TAGS["DET"], TAGS["NOUN"]]
    plain = read_sentence(tagger, "and/or the frog")
    assert (plain.words, plain.truth) == (["and/or", "the", "frog"], None)
    assert make("trellis", tagger, "the/DET frog/NOUN saw/VERB")["truth"] == [0, 1, 2]
    assert "truth" not in make("trellis", tagger, "the frog")


def test_a_network_has_the_probabilities_of_its_tags_and_no_messages():
    one = task_subject("encoder", "tag", unit="words")
    data = make("trellis", one, "the cat said")
    tokens = torch.tensor([[0, *one.run.tokenizer.encode("the cat said").tolist()]])
    with torch.no_grad():
        wanted = one.model(Batch(tokens, tokens)).softmax(-1)[0, 1:]
    assert unpack(data["gamma"]) == pytest.approx(wanted.numpy(), abs=1e-6)
    assert data["path"] == wanted.argmax(-1).tolist()
    assert data["modes"] == ["gamma"]
    lens = make("lens", one, "the cat said")
    assert unpack(lens["probabilities"])[-1].max(1) == pytest.approx(wanted.amax(-1).numpy(), abs=1e-6)
    assert unpack(lens["guesses"]).shape == (2, 3, 2)


def test_surprise_of_a_tagger_is_that_of_the_true_tag_or_of_the_best(tagger):
    gamma = tagger.model(tagging_batch([SENTENCE])).exp()[0]
    for text, tags in [("the/DET frog/VERB saw/VERB", [0, 2, 2]), ("the frog saw", gamma.argmax(-1).tolist())]:
        (strip,) = make("surprise", tagger, text)["strips"]
        wanted = [-math.log2(gamma[place, tag]) for place, tag in enumerate(tags)]
        assert [bits for _, bits in strip["pieces"]] == pytest.approx(wanted, abs=1e-4)


def test_influence_is_the_change_without_a_word(tagger):
    data = make("influence", tagger, " ".join(SENTENCE))
    changes = unpack(data["changes"])
    whole = tagger.model(tagging_batch([SENTENCE])).exp()[0]
    for left_out in range(3):
        kept = [place for place in range(3) if place != left_out]
        found = tagger.model(tagging_batch([[SENTENCE[place] for place in kept]])).exp()[0]
        for row, place in enumerate(kept):
            wanted = float((found[row] - whole[place]).abs().sum()) / 2
            assert changes[place, left_out] == pytest.approx(wanted, abs=1e-5)
        assert math.isnan(changes[left_out, left_out])


def test_the_levels_of_a_word_are_the_formula_with_its_counts(tagger):
    data = make("word_features", tagger, " ".join(SENTENCE))
    by_hand, found, counts = ByHand(tagger.model), unpack(data["probabilities"]), unpack(data["counts"])
    for word, keys in enumerate(word_features([SENTENCE]).tolist()):
        for level in range(len(keys) + 1):
            assert found[word, level] == pytest.approx(by_hand.p("lexicon", keys[:level], EDGE), abs=1e-6)
        seen = [sum(by_hand.counts.get(("lexicon", level, key), {}).values()) for level, key in enumerate(keys)]
        assert counts[word].tolist() == seen
    assert counts[1, -1] == 0                            # frog was never seen,
    assert counts[1, 1] > 0                              # and words of its shape were
    assert data["contexts"][1][-1] == "frog"


# Classifiers


def direct(one, ids):
    """log p(class) of one row, by itself."""
    with torch.no_grad():
        return one.model(Batch(torch.tensor([ids]), torch.tensor([0]))).log_softmax(-1)[0].tolist()


@pytest.mark.parametrize("kind", ["gpt", "encoder"])
def test_votes_are_the_differences_of_direct_calls(kind):
    one = task_subject(kind, "classify")
    data = make("votes", one, "the cat\tgood")
    extract = one.run.tokenizer.id(EXTRACT)
    ids = [0, *one.run.tokenizer.encode("the cat").tolist(), extract]
    assert data["truth"] == "good"
    assert unpack(data["whole"]).tolist() == pytest.approx(direct(one, ids), abs=1e-5)
    for place in range(1, len(ids) - 1):
        wanted = direct(one, ids[:place] + ids[place + 1 :])
        assert unpack(data["without"])[place - 1].tolist() == pytest.approx(wanted, abs=1e-5)
        wanted = direct(one, [*ids[: place + 1], extract])
        assert unpack(data["prefixes"])[place].tolist() == pytest.approx(wanted, abs=1e-5)
    assert unpack(data["prefixes"])[0].tolist() == pytest.approx(direct(one, [0, extract]), abs=1e-5)


def test_the_gradient_of_a_class_is_how_much_an_embedding_moves_its_log_probability():
    one = task_subject("gpt", "classify")
    norms = make("votes", one, "the cat")["gradient"][1]
    ids = [0, *one.run.tokenizer.encode("the cat").tolist(), one.run.tokenizer.id(EXTRACT)]
    tokens, more = torch.tensor([ids]), torch.zeros(1, len(ids), one.body.width, requires_grad=True)
    vectors = one.body.encode(tokens, None, more)
    log_p = one.model._logits(vectors, Batch(tokens, torch.tensor([1]))).log_softmax(-1)[0, 1]
    (gradient,) = torch.autograd.grad(log_p, more)
    assert norms == pytest.approx(gradient[0, 1:-1].norm(dim=-1).tolist(), rel=1e-4)


def test_a_reward_model_votes_with_its_reward():
    one = tiny_subject("rnn", "reward")
    data = make("votes", one, "the cow eats")
    ids = [0, *one.run.tokenizer.encode("the cow eats").tolist(), 0]
    with torch.no_grad():
        wanted = float(one.model(Batch(torch.tensor([ids]), torch.tensor([0]))))
    assert (data["classes"], data["reward"], data["gradient"]) == (["reward"], True, None)
    assert float(unpack(data["whole"])[0]) == pytest.approx(wanted, abs=1e-5)


def test_a_generative_classifier_shows_the_language_model_of_each_class():
    one = tiny_subject("bigram", "classify")
    good, text = one.model.models[1], "the cow eats"
    one.model.models[1].update(good.collect(as_rows(one, "the dog eats the dog")))
    tokens = torch.tensor([[0, *one.run.tokenizer.encode(text).tolist()]])
    with torch.no_grad():
        wanted = (-good.score(tokens[:, :-1], tokens[:, 1:], good.start(1))[0][0] / math.log(2)).tolist()
    data = make("surprise", one, text)
    assert [strip["kind"] for strip in data["strips"]] == ["bigram-classify: bad", "bigram-classify: good"]
    assert [bits for _, bits in data["strips"][1]["pieces"]] == pytest.approx(wanted, abs=1e-4)
    assert make("die", one, text)["models"] == ["bigram-classify: bad", "bigram-classify: good"]
    ladder = make("backoff", one, text, **{"class": "good"})
    assert ladder["input"] == {"classes": ["bad", "good"], "class": "good"}
    assert [token["bits"] for token in ladder["tokens"]] == pytest.approx(wanted, abs=1e-4)
    with pytest.raises(UserError, match=r"class=fair is not a class of bigram-classify; it has bad, good\."):
        make("backoff", one, text, **{"class": "fair"})


def as_rows(one, text):
    tokens = torch.tensor([[0, *one.run.tokenizer.encode(text).tolist()]])
    return Batch(tokens[:, :-1], tokens[:, 1:])


# A source


@pytest.mark.parametrize("kind", ["seq2seq", "transformer", "gpt"])
def test_what_is_written_from_a_source_is_predicted_after_it(kind):
    one = task_subject(kind, "translate")
    encode = one.run.tokenizer.encode
    source = torch.tensor([[*encode("the cat").tolist(), 0]])
    target = torch.tensor([[0, *encode("dog").tolist()]])
    with torch.no_grad():
        logits = one.model.step(target, one.model.start(1, source))[0][0].log_softmax(-1)
    data = make("die", one, "the cat\tdog", live="1")
    log_probs = unpack(data["dice"]["0:"][0]["log_probs"])
    assert log_probs == pytest.approx(logits[-1].sort(descending=True).values.numpy(), abs=1e-5)
    assert data["input"]["source"] == ["the cat"]
    (strip,) = make("surprise", one, "the cat\tdog")["strips"]
    wanted = -logits[:-1].gather(1, target[0, 1:, None])[:, 0] / math.log(2)
    assert [bits for _, bits in strip["pieces"]] == pytest.approx(wanted.tolist(), abs=1e-4)
    if kind != "seq2seq":
        lens = make("lens", one, "the cat\tdog")
        assert unpack(lens["probabilities"])[-1, :, 0] == pytest.approx(logits.amax(-1).exp().numpy(), abs=1e-5)
        assert lens["guesses"]["shape"][0] == 2          # layers of the decoder, without those of the encoder


def test_a_face_of_the_first_word_brings_the_tab_and_the_next_do_not():
    one = task_subject("seq2seq", "translate")
    first = [added for _, added in make("die", one, "the cat", live="1")["dice"]["0:"][0]["faces"] if added]
    next_ones = [added for _, added in make("die", one, "the cat\td", live="1")["dice"]["0:"][0]["faces"] if added]
    assert all(added.startswith("\t") for added in first)
    assert not any(len(added) > 1 and added.startswith("\t") for added in next_ones)


def test_without_a_target_the_models_own_answer_is_read():
    one = task_subject("seq2seq", "translate")
    own = make("neurons", one, "the cat")
    assert own["input"]["own"]
    again = make("neurons", one, f"the cat\t{own['input']['text']}")
    assert again["tokens"] == own["tokens"] or not own["input"]["text"].strip()
    assert not make("neurons", one, "the cat\tdog")["input"]["own"]


def test_a_picture_is_blank_and_an_answer_has_two_sources():
    caption = tiny_subject("transformer", "caption")
    prompt = caption.read_prompt("the cow", 64)
    assert prompt.source.shape == (1, 4, 4)
    assert not prompt.source.any()
    assert prompt.given["source"] == []
    answer = tiny_subject("seq2seq", "answer")
    assert answer.split_source("who?\tthe cow eats\tthe cow") == (["who?", "the cow eats"], "the cow")
    assert answer.split_source("who?") == (["who?", ""], "")
    delimiter = answer.run.tokenizer.id("<|delimiter|>")
    assert answer.read_source("the\tcow\tx", 64).tokens[0].tolist() == [
        answer.run.tokenizer.id("the"), delimiter, answer.run.tokenizer.id("cow"), 0]


# Hidden words


def test_a_hidden_word_is_predicted_by_the_model_with_a_mask_in_its_place():
    one = task_subject("encoder", "mask", special=[MASK])
    data = make("hidden_word", one, "the cat")
    ids = [0, *one.run.tokenizer.encode("the cat").tolist()]
    for place in range(1, len(ids)):
        hidden = torch.tensor([[*ids[:place], one.run.tokenizer.id(MASK), *ids[place + 1 :]]])
        with torch.no_grad():
            log_p = one.model(Batch(hidden, hidden)).log_softmax(-1)[0, place]
        assert unpack(data["log_p"])[place - 1] == pytest.approx(float(log_p[ids[place]]), abs=1e-5)
        assert data["ranks"][place - 1] == 1 + int((log_p > log_p[ids[place]]).sum())
        assert unpack(data["guess_log_p"])[place - 1] == pytest.approx(log_p.topk(12).values.numpy(), abs=1e-5)
    (strip,) = make("surprise", one, "the cat")["strips"]
    wanted = (-unpack(data["log_p"]) / math.log(2)).tolist()
    assert [bits for _, bits in strip["pieces"]] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("algorithm", ["skip-gram", "cbow"])
def test_word_vectors_predict_a_word_from_its_window(algorithm):
    one = tiny_subject("word2vec", "lm")
    object.__setattr__(one.model.settings, "algorithm", algorithm)
    object.__setattr__(one.model.settings, "window", 1)
    torch.manual_seed(3)
    v, u = one.model.vectors.normal_(), one.model.outputs.normal_()
    ids = one.run.tokenizer.encode("the cow eats").tolist()
    found = hidden_logits(one, torch.tensor([[0, *ids]]))
    for place in range(3):
        around = [ids[at] for at in (place - 1, place + 1) if 0 <= at < 3]
        if algorithm == "cbow":
            wanted = [float(torch.stack([v[c] for c in around]).mean(0) @ u[w]) for w in range(len(v))]
        else:
            wanted = [sum(float(u[c] @ v[w]) for c in around) for w in range(len(v))]
        assert found[place].tolist() == pytest.approx(wanted, abs=1e-5)


def test_glove_predicts_a_word_by_the_logarithms_of_its_counts():
    one = tiny_subject("glove", "lm")
    object.__setattr__(one.model.settings, "window", 1)
    torch.manual_seed(3)
    w, c = one.model.words.normal_(), one.model.contexts.normal_()
    ids = one.run.tokenizer.encode("the cow eats").tolist()
    found = hidden_logits(one, torch.tensor([[0, *ids]]))[1].log_softmax(-1)
    logs = [sum(float(w[word, :-1] @ c[ids[at], :-1] + w[word, -1] + c[ids[at], -1]) for at in (0, 2))
            for word in range(len(w))]
    assert found.tolist() == pytest.approx(torch.tensor(logs).log_softmax(-1).tolist(), abs=1e-4)


# The command


@pytest.mark.parametrize(("kind", "task"), [("hmm", "tag"), ("lstm", "classify"), ("bigram", "classify")])
def test_look_writes_a_file_of_a_tagger_and_of_a_classifier(kind, task, tmp_path, capsys):
    one = tiny_subject(kind, task)
    save(tmp_path / "run", one.run.model, one.run.tokenizer, one.run.recipe, labels=one.run.labels)
    out = tmp_path / "page.html"
    assert main(["look", str(tmp_path / "run"), "--text", "the cow eats", "--out", str(out)]) in (0, None)
    assert f"{out} shows run" in capsys.readouterr().out
    page = out.read_text(encoding="utf-8")
    assert ('id="trellis"' if task == "tag" else 'id="votes"') in page
    assert page.count("<section id=") >= 4
