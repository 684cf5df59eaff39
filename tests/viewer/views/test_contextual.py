"""One word in several sentences: an embedding is always the same, and vectors after a layer are the model's own."""

import base64
import json

import numpy as np
import pytest
import torch
from viewer.address import address
from viewer.subjects import subject
from viewer.tasks import task_subject

from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.model import BOUNDARY, watch
from chainrule.run import save
from chainrule.viewer.views.contextual import VIEW, known_words, occurrences

SENTENCES = "The movie was good .\nI saw a movie and a dog .\nno dog saw the movie , movie stars did .\n"
TEXT = SENTENCES * 4


def unpacked(packed):
    return np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])


def by_hand(one, word):
    """The cosines after the last layer, sentence by sentence, from the model's tap."""
    (*_, tap), vectors = one.taps("hidden"), []
    for line in SENTENCES.splitlines():
        words = line.split()
        tokens = torch.tensor([[BOUNDARY, *one.run.tokenizer.encode(line).tolist()]])
        with torch.no_grad(), watch(one.model, tap) as seen:
            one.model.step(tokens, one.model.start(1)) if one.continues_text else one.body.encode(tokens)
        hidden = seen[tap][0][0] if seen[tap][0].dim() == 3 else seen[tap][0][0, :, -1]
        vectors += [hidden[1 + place].numpy() for place, other in enumerate(words) if other == word]
    units = np.stack([vector / np.linalg.norm(vector) for vector in vectors])
    return units @ units.T


@pytest.mark.parametrize("make", [
    lambda: subject("gpt", TEXT, unit="words"), lambda: subject("lstm", TEXT, unit="words"),
    lambda: task_subject("encoder", "tag", "words", TEXT),
], ids=["gpt", "lstm", "encoder"])
def test_vectors_are_those_of_the_model_and_embeddings_are_equal(make):
    one = make()
    data = VIEW.make([one], SENTENCES, {"word": "movie"})
    assert len(data["occurrences"]) == 4
    assert data["occurrences"][1] == {"before": "I saw a ", "word": "movie", "after": " and a dog ."}
    assert [layer["name"] for layer in data["layers"]] == ["embedding", "layer 1", "layer 2"]
    np.testing.assert_allclose(unpacked(data["layers"][0]["cosines"]), np.ones((4, 4)), atol=1e-6)
    last = data["layers"][-1]
    np.testing.assert_allclose(unpacked(last["cosines"]), by_hand(one, "movie"), atol=1e-5)
    assert last["mean"] == pytest.approx((unpacked(last["cosines"]).sum() - 4) / 12, abs=1e-5)
    assert last["mean"] < 0.999
    assert unpacked(last["map"]).shape == (4, 2)


def test_word_vectors_are_one_whatever_the_sentence():
    one = subject("word2vec", TEXT, unit="words", embedding=8)
    one.model.vectors.normal_()
    data = VIEW.make([one], SENTENCES, {"word": "movie"})
    assert [(layer["name"], layer["mean"]) for layer in data["layers"]] == [("embedding", pytest.approx(1))]
    assert VIEW.fits(one)
    assert not VIEW.fits(subject("ngram"))


def test_a_word_of_several_tokens_has_the_mean_of_their_vectors():
    one = subject("gpt", TEXT)                                          # of characters
    found = VIEW.make([one], "a dog\nno dog", {"word": "dog"})["layers"][0]
    assert found["mean"] == pytest.approx(1)
    cut = VIEW.make([one], "x " * 200 + "dog\n" + "dog " + "y " * 200, {"word": "dog"})    # longer than the context
    assert len(cut["occurrences"]) == 2


def test_words_are_found_whole_and_in_any_case():
    found = occurrences("Movie movies\nthe MOVIE's a movie", "movie")
    assert [one.word for one in found] == ["Movie", "MOVIE", "movie"]
    assert occurrences("", "movie") == occurrences("the cat", "") == []
    one = subject("gpt", TEXT, unit="words")
    assert known_words(SENTENCES + "zebra zebra", one.run.tokenizer)[0] == "movie"
    assert "zebra" not in known_words("zebra", one.run.tokenizer)


@pytest.mark.parametrize("text", ["", "\0", "👩‍🚀", "the cat " * 500])
def test_any_text_is_shown(text):
    json.dumps(VIEW.make([subject("gpt")], text, {}), allow_nan=False)


def test_a_word_that_is_not_in_the_vocabulary_is_refused():
    with pytest.raises(UserError, match="'zebra' is not in the vocabulary of gpt"):
        VIEW.make([subject("gpt", TEXT, unit="words")], "a zebra\nzebra", {"word": "zebra"})


def test_the_table_has_the_same_numbers(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = subject("lstm", TEXT, unit="words")
    save("lstm", one.run.model, one.run.tokenizer, one.run.recipe)
    (tmp_path / "lines.txt").write_text(SENTENCES)
    asked = ["look", "lstm", "--view", "contextual", "--word", "movie", "--file", "lines.txt", "--table"]
    assert main([*asked, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["runs"]["lstm"]
    np.testing.assert_allclose(values["layers"][-1]["cosines"], by_hand(one, "movie"), atol=1e-5)
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["movie: 4 occurrences", "embedding: mean cosine 1.000"]
    assert lines[-1].split()[1] == f"{values['layers'][-1]['cosines'][3][0]:.3f}"
    for words, said in ((["--word", "zebra"], "no word 'zebra'"), (["--view", "die"], "--view contextual")):
        assert main([*asked, *words]) == 2
        assert said in capsys.readouterr().err


# In a browser


def test_a_cell_of_the_matrix_says_its_cosine_and_a_layer_can_be_chosen(open_view):
    one = subject("gpt", TEXT, unit="words")
    page, data = open_view(VIEW, [one], SENTENCES, {"word": "movie"})
    assert "4 occurrences of “movie”" in page.locator("#contextual").inner_text()
    assert page.locator("#contextual [data-marked]").count() == 4
    page.locator("#contextual .heat canvas").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    shown = page.locator("#contextual [data-cosine]")
    wanted = unpacked(data["layers"][-1]["cosines"])
    assert float(shown.get_attribute("data-cosine")) == pytest.approx(wanted[1, 0], abs=1e-6)
    page.locator("#contextual input[value='0']").check()
    assert "all cosines are 1" in page.locator("#contextual").inner_text()
    assert "contextual.layer=0" in address(page)


@pytest.mark.parametrize("width", [360, 1920])
def test_the_page_fits_a_phone_and_a_projector(open_view, width):
    page, _ = open_view(VIEW, [subject("lstm")], TEXT, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
