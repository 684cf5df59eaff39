"""T5 as a run: the logits and greedy texts of transformers, for tiny models that transformers itself makes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from torch.testing import assert_close
from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration

from chainrule.cli import main
from chainrule.formats.hugging_face_import import ImportedFolder, read_folder
from chainrule.model import Batch

TEXTS = ["the house is small .", "das haus ist klein .", "a dog sees the moon .", "ein hund sieht den mond ."]
CASES: dict[str, dict[str, Any]] = {
    "T5 1.0": {"feed_forward_proj": "relu"},
    "T5 1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "mT5": {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False},
}
VOCAB = 70


def made(folder: Path, case: str = "T5 1.0", **more: Any) -> T5ForConditionalGeneration:
    """A tiny model with its tokenizer in a folder; more rows in the embedding than tokens, as T5 has."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(1)
    size = {"vocab_size": VOCAB, "d_model": 20, "d_kv": 6, "d_ff": 28, "num_layers": 2, "num_heads": 3}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    multi = case == "mT5"
    config = (MT5Config if multi else T5Config)(**size, **ids, **{**CASES[case], **more})
    model = (MT5ForConditionalGeneration if multi else T5ForConditionalGeneration)(config).eval()
    if CASES[case].get("tie_word_embeddings") is False:
        model.lm_head.weight = nn.Parameter(torch.randn(VOCAB, 20))
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=1.0 if "bias" in name else 0.4)
    units = tokenizer()
    units.save(str(folder / "tokenizer.json"))
    named = units.get_vocab_size() - 2
    model.shared.weight.data[named:] = model.lm_head.weight.data[named:] = 0    # these are hardly ever predicted
    model.save_pretrained(folder)
    return model


def tokenizer() -> Tokenizer:
    """SentencePiece's Unigram, as T5's tokenizer.json has it."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(TEXTS * 20, trainer)
    made.add_special_tokens([f"<extra_id_{number}>" for number in range(2)])
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return made


def ours(theirs: torch.Tensor) -> torch.Tensor:
    """Their ids as ours: </s> is id 0, and padding is where </s> was."""
    return torch.where(theirs == 0, 1, torch.where(theirs == 1, 0, theirs))


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ImportedFolder, Path]:
    folder = tmp_path_factory.mktemp("t5")
    theirs = made(folder, request.param)
    return theirs, read_folder(folder), folder


@torch.no_grad()
def test_the_logits_are_those_of_transformers(both: tuple[Any, ImportedFolder, Path]) -> None:
    theirs, imported, _ = both
    random = torch.Generator().manual_seed(2)
    source, text = (torch.randint(3, VOCAB, (3, size), generator=random) for size in (150, 9))
    lengths = torch.tensor([150, 4, 1])
    source[torch.arange(3), lengths - 1] = 1
    mask = torch.arange(150) < lengths[:, None]
    source, text[:, 0] = source.where(mask, 0), 0
    expected = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=text).logits
    read = torch.cat([torch.zeros_like(text[:, :1]), text[:, 1:]], 1)
    batch = Batch(read, read, source=ours(source), source_lengths=lengths)
    assert_close(imported.model(batch), ours_columns(expected), atol=1e-5, rtol=1e-5)
    _, state = imported.model.step(read[:, :4], imported.model.start(3, ours(source), lengths))
    assert_close(imported.model.step(read[:, 4:], state)[0], ours_columns(expected)[:, 4:], atol=1e-5, rtol=1e-5)


def ours_columns(logits: torch.Tensor) -> torch.Tensor:
    return logits[..., [1, 0, *range(2, VOCAB)]]


def test_greedy_translations_are_those_of_transformers(
    both: tuple[Any, ImportedFolder, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, _, folder = both
    assert main(["import", str(folder), str(tmp_path / "run")]) == 0
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS) + "\n")
    capsys.readouterr()
    options = ["--beam", "1", "--limit", "12", "--json"]
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "lines.txt"), *options]) == 0
    answers = [each["answer"] for each in json.loads(capsys.readouterr().out)["answers"]]
    units = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text, answer in zip(TEXTS, answers, strict=True):
        source = torch.tensor([units.encode(text).ids])
        written = theirs.generate(source, max_new_tokens=12, do_sample=False, num_beams=1)[0, 1:].tolist()
        written = written[: written.index(1)] if 1 in written else written
        assert answer == units.decode(written, skip_special_tokens=False)


def test_ids_of_a_text_are_those_of_its_tokenizer(both: tuple[Any, ImportedFolder, Path]) -> None:
    _, imported, folder = both
    units = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in [*TEXTS, "the  moon?", ""]:
        assert [*imported.tokenizer.encode(text).tolist(), 0] == ours(torch.tensor(units.encode(text).ids)).tolist()
    assert imported.tokenizer.decode(imported.tokenizer.encode(TEXTS[0])) == TEXTS[0]
    assert imported.tokenizer.id("<|span1|>") == units.token_to_id("<extra_id_1>")
    assert (imported.recipe.kind, imported.recipe.task) == ("transformer", "translate")
    assert imported.source["boundary"] == {"begin": 0, "end": 1}


@pytest.mark.parametrize(("given", "line"), [
    ({"relative_attention_num_buckets": 16}, "config.json has relative_attention_num_buckets=16, which cannot be "
                                             "imported; 32 can."),
    ({"num_decoder_layers": 1}, "config.json has num_layers=2 and num_decoder_layers=1; a transformer has as many "
                                "layers in its encoder as in its decoder."),
    ({"feed_forward_proj": "tanh"}, 'config.json has feed_forward_proj="tanh", which cannot be imported; relu or gelu '
                                    "or gelu_new or gated-gelu or gated-silu can."),
    ({"d_kv": 7}, "the tensor decoder.block.0.layer.0.SelfAttention.q.weight is 18 × 20, and by config.json it would "
                  "be 21 × 20."),
    ({"d_ff": None}, "config.json has d_ff=null; a whole number from 1 to 16,777,216 is expected."),
    ({"architectures": ["T5EncoderModel"]}, "config.json has the architecture T5EncoderModel, which cannot be "
                                            "imported; of T5 these can: T5ForConditionalGeneration, "
                                            "MT5ForConditionalGeneration."),
])  # fmt: skip
def test_what_cannot_be_represented_is_named_in_one_line(
    given: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "t5")
    config = json.loads((tmp_path / "t5" / "config.json").read_text())
    (tmp_path / "t5" / "config.json").write_text(json.dumps({**config, **given}))
    capsys.readouterr()
    assert main(["import", str(tmp_path / "t5"), str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.strip() == f"chainrule: {line}"
    assert not (tmp_path / "run").exists()
