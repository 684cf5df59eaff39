"""Hugging Face folders as runs: the logits of transformers, for each architecture; and what cannot be read is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.testing import assert_close

from chainrule import run
from chainrule.cli import main
from chainrule.errors import UserError
from chainrule.formats.boundary import ends_of, original_rows
from chainrule.formats.hugging_face_config import READERS
from chainrule.formats.hugging_face_folder import write_folder
from chainrule.formats.hugging_face_import import read_folder
from chainrule.model import Batch
from tests.formats.test_hugging_face_export import CASES, TEXT, VARIANTS, made

VOCAB = 300
LLAMA = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": 32, "tie_word_embeddings": False}
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32}
ROPE = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.02}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {    # name of a case: class, config
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 of one's own activation": ("GPT2LMHeadModel", {**GPT2, "activation_function": "relu", "n_inner": 30}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama tied": ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True, "head_dim": 6}),
    "llama with biases": ("LlamaForCausalLM", {**LLAMA, "attention_bias": True}),
    "llama 3": ("LlamaForCausalLM", {**LLAMA, "head_dim": 8, "rope_parameters": ROPE}),
    "llama with yarn": ("LlamaForCausalLM", {**LLAMA, "head_dim": 8, "rope_parameters": YARN}),
    "llama interpolated": ("LlamaForCausalLM", {**LLAMA, "rope_parameters": LINEAR}),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 5}),
    "mistral without a window": ("MistralForCausalLM", {**LLAMA, "sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2ForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "qwen2 with windows": ("Qwen2ForCausalLM", {**LLAMA, "use_sliding_window": True, "sliding_window": 4,
                                                "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}),
    "nanochat": ("NanoChatForCausalLM", LLAMA),
    "mixtral": ("MixtralForCausalLM", {**LLAMA, **EXPERTS, "num_local_experts": 4}),
    "olmoe": ("OlmoeForCausalLM", {**LLAMA, **EXPERTS, "num_experts": 4, "num_attention_heads": 1,
                                   "num_key_value_heads": 1}),
    "qwen3 moe": ("Qwen3MoeForCausalLM", {**LLAMA, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 20,
                                          "head_dim": 8}),
}  # fmt: skip


def write_tokenizer(path: Path, special: list[str]) -> Tokenizer:
    """Byte-level BPE, as GPT-2 and Llama 3 have it; the special tokens come last."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([TEXT] * 3, trainer)
    made.add_special_tokens(special)
    first = (special[0], made.token_to_id(special[0]))
    made.post_processor = processors.TemplateProcessing(single=f"{special[0]} $A", special_tokens=[first])
    made.save(str(path))
    return made


def write_theirs(
    folder: Path, case: str, special: tuple[str, ...] = ("<|begin|>", "<|stop|>"), shard: str = "10GB"
) -> tuple[Any, Tokenizer]:
    name, given = OTHERS[case]
    folder.mkdir()
    tokenizer = write_tokenizer(folder / "tokenizer.json", list(special))
    kind = getattr(transformers, name)
    begin, end = tokenizer.token_to_id(special[0]), tokenizer.token_to_id(special[-1])
    torch.manual_seed(3)
    model = kind(kind.config_class(vocab_size=VOCAB, bos_token_id=begin, eos_token_id=end, pad_token_id=None, **given))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.tie_weights()
    model.eval().save_pretrained(folder, max_shard_size=shard)
    return model, tokenizer


def swapped(x: Tensor, one: int, other: int) -> Tensor:
    """(…, V): the last axis with two places exchanged."""
    order = torch.arange(x.shape[-1])
    order[[one, other]] = order[[other, one]]
    return x[..., order]


@torch.no_grad()
def assert_same(folder: Path, theirs: Any, begin: int, end: int) -> run.Run:
    """After import by command: log-probabilities of tokens after BOS, and of EOS as the boundary."""
    out = folder.parent / "run"
    assert main(["import", str(folder), str(out)]) == 0
    ours = run.load(out)
    tokens = torch.randint(1, 250, (3, 20), generator=torch.Generator().manual_seed(2))
    tokens[:, 0] = begin
    there = tokens.masked_fill(tokens == begin, 0)
    wanted = swapped(swapped(theirs(tokens).logits, 0, begin), 0, end)
    assert_close(ours.model(Batch(there, there)), wanted, atol=1e-5, rtol=1e-4)
    return ours


def write_bert(folder: Path, name: str) -> tuple[Any, Tokenizer]:
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*TEXT.replace(".", " .").split()})]
    tokenizer = Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(words[:5])
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(4)
    sizes = {key: LLAMA[key] for key in LLAMA if key not in ("num_key_value_heads", "tie_word_embeddings")}
    model = getattr(transformers, name)(transformers.BertConfig(vocab_size=len(words), **sizes))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.eval().save_pretrained(folder)
    return model, tokenizer


@torch.no_grad()
@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertModel"])
def test_bert_reads_a_text_between_cls_and_sep(name: str, tmp_path: Path) -> None:
    theirs, tokenizer = write_bert(tmp_path / "theirs", name)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    ours = run.load(tmp_path / "run")
    there = torch.tensor([tokenizer.encode(TEXT).ids])
    here = torch.from_numpy(ours.tokenizer.framed(TEXT).astype("int64"))[None]
    wanted = theirs(there, output_hidden_states=True).hidden_states[-1]
    assert_close(ours.model.encode(here), wanted, atol=1e-5, rtol=1e-4)
    if name == "BertForMaskedLM":
        wanted = swapped(theirs(there).logits, 0, 3)
        assert_close(ours.model(Batch(here, here)), wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_bert_fills_a_blank_as_in_transformers(tmp_path: Path) -> None:
    theirs, tokenizer = write_bert(tmp_path / "theirs", "BertForMaskedLM")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    tokens = torch.tensor([tokenizer.encode("the cow jumps over the [MASK] .").ids])
    logits = theirs(tokens).logits[0, 6, 5:]                                         # of the words
    found = run.load(tmp_path / "run").predict(["the cow jumps over the ___ ."])[0]
    assert tokenizer.id_to_token(5 + int(logits.argmax())) in found["answer"]


@pytest.mark.parametrize(("name", "value", "line"), [
    ("hidden_size", -1, "hidden_size=-1; a whole number"),
    ("hidden_act", {}, "hidden_act={}, which cannot be imported"),
    ("type_vocab_size", "two", 'type_vocab_size="two"; a whole number'),
    ("layer_norm_eps", [], "layer_norm_eps=\\[\\]; a number above 0"),
    ("initializer_range", "x", 'initializer_range="x"; a number that is 0 or more'),
    ("hidden_dropout_prob", 1.5, "hidden_dropout_prob=1.5; less than 1 is expected"),
    ("architectures", {"a": 1}, "a list with a name is expected"),
])  # fmt: skip
def test_impossible_numbers_of_a_bert_are_named(name: str, value: Any, line: str, tmp_path: Path) -> None:
    write_bert(tmp_path / "theirs", "BertModel")
    change(name, value)(tmp_path / "theirs")
    with pytest.raises(UserError, match=line) as error:
        read_folder(tmp_path / "theirs")
    assert "\n" not in str(error.value)


def test_a_bert_that_classifies_is_refused(tmp_path: Path) -> None:
    write_bert(tmp_path / "theirs", "BertForSequenceClassification")
    with pytest.raises(UserError, match="BertForSequenceClassification, which cannot be imported; of BERT these can"):
        read_folder(tmp_path / "theirs")


def test_every_architecture_is_tested() -> None:
    assert {name for name, _ in OTHERS.values()} == {reader.name for reader in READERS}


@pytest.mark.parametrize("case", OTHERS)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    theirs, tokenizer = write_theirs(tmp_path / "theirs", case)
    begin, end = tokenizer.token_to_id("<|begin|>"), tokenizer.token_to_id("<|stop|>")
    ours = assert_same(tmp_path / "theirs", theirs, begin, end)
    assert len(ours.tokenizer) == VOCAB
    ids = torch.tensor(tokenizer.encode(TEXT, add_special_tokens=False).ids)
    assert ours.tokenizer.encode(TEXT).tolist() == ids.tolist()
    assert ours.tokenizer.decode(ids.tolist()) == TEXT


def test_a_text_scores_as_in_transformers_from_bos_to_eos(tmp_path: Path) -> None:
    theirs, tokenizer = write_theirs(tmp_path / "theirs", "llama tied")
    ours = assert_same(tmp_path / "theirs", theirs, *map(tokenizer.token_to_id, ("<|begin|>", "<|stop|>")))
    text = "the moon"
    ids = torch.tensor([tokenizer.encode(text + "<|stop|>").ids])
    with torch.no_grad():
        log_p = theirs(ids).logits[0, :-1].log_softmax(-1)
    wanted = -log_p.gather(1, ids[0, 1:, None]).sum() / torch.log(torch.tensor(2.0))
    assert_close(torch.tensor(sum(ours.score(text).bits)), wanted, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("case", ["llama", "llama tied"])
def test_rows_and_ids_go_back_to_their_first_places(case: str, tmp_path: Path) -> None:
    theirs, tokenizer = write_theirs(tmp_path / "theirs", case)
    begin, end = map(tokenizer.token_to_id, ("<|begin|>", "<|stop|>"))
    ours = assert_same(tmp_path / "theirs", theirs, begin, end)
    ends, before = ends_of(ours), {name: tensor.clone() for name, tensor in ours.model.state_dict().items()}
    assert (ends.begin, ends.end) == (begin, end)
    with original_rows(ours.model, ends) as tied:
        assert tied == theirs.config.tie_word_embeddings
        assert_close(ours.model.embeddings, theirs.get_input_embeddings().weight, atol=0, rtol=0)
        assert_close(ours.model.output_matrix, theirs.lm_head.weight, atol=0, rtol=0)
    assert_close(dict(ours.model.state_dict()), before, atol=0, rtol=0)
    vocab = Tokenizer.from_str(json.dumps(ours.tokenizer.spec(begin))).get_vocab()
    assert {name: id for name, id in vocab.items() if "unused" not in name} == tokenizer.get_vocab()


@pytest.mark.parametrize("case", ["llama", "llama tied", "gpt2", "qwen3", "nanochat"])
@torch.no_grad()
def test_an_imported_model_goes_out_as_it_came_in(case: str, tmp_path: Path) -> None:
    """The same tensors under the same names, BOS and EOS with their own ids; and its chat template."""
    theirs, tokenizer = write_theirs(tmp_path / "theirs", case)
    (tmp_path / "theirs" / "chat_template.jinja").write_text("{{ messages }}")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "huggingface"]) == 0
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("out", "theirs")]
    assert_close(*files, atol=0, rtol=0)
    after, before = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("out", "theirs"))
    names = ("architectures", "model_type", "vocab_size", "bos_token_id", "eos_token_id", "tie_word_embeddings")
    assert [after.get(name) for name in names] == [before.get(name) for name in names]
    back, loaded = (getattr(transformers, name).from_pretrained(tmp_path / "out")
                    for name in ("AutoTokenizer", "AutoModelForCausalLM"))
    ids = tokenizer.encode(TEXT).ids
    assert back(TEXT)["input_ids"] == ids
    assert (back.bos_token, back.eos_token, back.chat_template) == ("<|begin|>", "<|stop|>", "{{ messages }}")
    assert_close(loaded(torch.tensor([ids])).logits, theirs(torch.tensor([ids])).logits, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertModel"])
@torch.no_grad()
def test_a_bert_goes_out_as_it_came_in(name: str, tmp_path: Path) -> None:
    theirs, tokenizer = write_bert(tmp_path / "theirs", name)
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 0
    write_folder(run.load(tmp_path / "run"), tmp_path / "out")
    after, before = (load_file(tmp_path / folder / "model.safetensors") for folder in ("out", "theirs"))
    pooler = {key for key in {*after, *before} if "pooler" in key}
    assert_close({key: after[key] for key in after if key not in pooler},
                 {key: before[key] for key in before if key not in pooler}, atol=1e-6, rtol=0)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = f"the {back.mask_token} jumps over the moon"
    assert back(text)["input_ids"] == tokenizer.encode(text).ids
    assert (back.mask_token, back.bos_token, back.eos_token) == ("[MASK]", "[CLS]", "[SEP]")
    opener = transformers.AutoModelForMaskedLM if name == "BertForMaskedLM" else transformers.AutoModel
    tokens = torch.tensor([back(text)["input_ids"]])
    assert_close(opener.from_pretrained(tmp_path / "out")(tokens)[0], theirs(tokens)[0], atol=1e-5, rtol=0)


def test_one_token_for_both_ends_keeps_the_output_tied(tmp_path: Path) -> None:
    theirs, tokenizer = write_theirs(tmp_path / "theirs", "gpt2", ("<|endoftext|>",))
    end = tokenizer.token_to_id("<|endoftext|>")
    ours = assert_same(tmp_path / "theirs", theirs, end, 0)
    assert ours.model.output is None


def test_weights_in_several_files_are_one_model(tmp_path: Path) -> None:
    theirs, tokenizer = write_theirs(tmp_path / "theirs", "llama", shard="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    assert_same(tmp_path / "theirs", theirs, tokenizer.token_to_id("<|begin|>"), tokenizer.token_to_id("<|stop|>"))
    next((tmp_path / "theirs").glob("*-00002-of-*")).unlink()
    with pytest.raises(UserError, match=r"model-00002-of-\d+\.safetensors is missing; .* names it"):
        read_folder(tmp_path / "theirs")


def test_bfloat16_and_the_names_of_the_body_alone(tmp_path: Path) -> None:
    theirs, tokenizer = write_theirs(tmp_path / "theirs", "gpt2")
    file = tmp_path / "theirs" / "model.safetensors"
    theirs.bfloat16()
    save_file({name: weight.clone() for name, weight in theirs.transformer.state_dict().items()}, file)
    begin, end = tokenizer.token_to_id("<|begin|>"), tokenizer.token_to_id("<|stop|>")
    assert_same(tmp_path / "theirs", theirs.float(), begin, end)


@pytest.mark.parametrize("name", [*CASES, *VARIANTS][::2])
@torch.no_grad()
def test_what_was_exported_comes_back(name: str, tmp_path: Path) -> None:
    ours = made(tmp_path / "run", *{**CASES, **VARIANTS}[name], "characters")
    write_folder(ours, tmp_path / "out")
    assert main(["import", str(tmp_path / "out"), str(tmp_path / "back")]) == 0
    back = run.load(tmp_path / "back")
    assert_close(dict(back.model.state_dict()), dict(ours.model.state_dict()), atol=0, rtol=0)
    assert back.tokenizer.sha256 == ours.tokenizer.sha256
    assert back.generate("the", 20, seed=1) == ours.generate("the", 20, seed=1)
    assert back.recipe.model.rope == ours.recipe.model.rope


def test_an_import_can_be_imported_exported_and_imported_again(tmp_path: Path) -> None:
    """Its tokenizer is another program's, with its boundary moved."""
    theirs, tokenizer = write_theirs(tmp_path / "theirs", "llama")
    ours = assert_same(tmp_path / "theirs", theirs, *map(tokenizer.token_to_id, ("<|begin|>", "<|stop|>")))
    write_folder(ours, tmp_path / "out")
    assert main(["import", str(tmp_path / "out"), str(tmp_path / "back")]) == 0
    back = run.load(tmp_path / "back")
    assert_close(dict(back.model.state_dict()), dict(ours.model.state_dict()), atol=0, rtol=0)
    assert back.tokenizer.encode(TEXT).tolist() == ours.tokenizer.encode(TEXT).tolist()


def test_the_run_says_where_it_came_from_and_trains_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_theirs(tmp_path / "theirs", "qwen2", ("<|endoftext|>",))
    (tmp_path / "theirs" / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "Qwen2ForCausalLM"
    source = run.load(tmp_path / "run").about["source"]
    assert (source["folder"], source["licence"]) == ("theirs", "apache-2.0")
    assert len(source["sha256"]["model.safetensors"]) == 64
    (tmp_path / "text.txt").write_text(TEXT * 20)
    tuned = [str(tmp_path / name) for name in ("text.txt", "tuned", "run")]
    settings = ["train.lora=2", "train.steps=2", "train.tokens=64"]
    assert main(["train", tuned[0], "--out", tuned[1], "--from", tuned[2], *settings]) == 0
    assert run.load(tmp_path / "tuned").about["source"] == source
    for words in (["eval", tuned[1]], ["sample", tuned[2], "--tokens", "5"], ["score", tuned[2]]):
        words += [] if words[0] == "sample" else [tuned[0]]
        assert main(words) == 0
    assert main(["import", str(tmp_path / "theirs"), str(tmp_path / "run")]) == 2
    assert "holds a run already" in capsys.readouterr().err


def change(name: str, value: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config.pop(name, None) if value is None else config.update({name: value})
        (folder / "config.json").write_text(json.dumps(config))
    return edit


def reshape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.zeros(23)
    save_file(weights, folder / "model.safetensors")


def drop(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")


def add(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.layers.0.self_attn.q_norm.weight": torch.ones(4)}, folder / "model.safetensors")


def quantise(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.zeros(24, dtype=torch.int8)
    save_file(weights, folder / "model.safetensors")


def damage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"x" * 50)


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "config that is a list": (lambda folder: (folder / "config.json").write_text("[3]"), "no readable config.json"),
    "architectures that are no list": (change("architectures", 3), "architectures=3; a list with a name is expected"),
    "activation that is no word": (change("hidden_act", [1]), r"hidden_act=\[1\], which cannot be imported"),
    "chat template that does not parse": (
        lambda folder: (folder / "chat_template.jinja").write_text("{% if %}"), "template does not parse: line 1"),
    "config that is no JSON": (lambda folder: (folder / "config.json").write_text("{"), "no readable config.json"),
    "missing number": (change("hidden_size", None), "config.json has no hidden_size; a llama needs it."),
    "impossible number": (change("num_hidden_layers", -2), "num_hidden_layers=-2; a whole number from 1 to"),
    "a number that is a word": (change("vocab_size", "many"), 'vocab_size="many"; a whole number'),
    "heads that do not divide": (change("num_key_value_heads", 5), "model.kv_heads=5 does not divide model.heads=6"),
    "too many layers": (change("num_hidden_layers", 10**6), "has 1000000 layers, and the files of .* hold only"),
    "other vocabulary": (change("vocab_size", 290), r"embed_tokens.weight is 300 × 24, and by config.json .* 290 × 24"),
    "vocabulary of millions": (change("vocab_size", 1 << 24), r"embed_tokens.weight is 300 × 24, and by"),
    "kinds of few layers": (change("layer_types", ["full_attention"] * 3), "a list, one for each layer, is expected"),
    "small vocabulary": (change("vocab_size", 100), r"tokenizer.json has 27\d tokens, and the embedding only 100 rows"),
    "unknown architecture": (change("architectures", ["Mamba"]), "the architecture Mamba, which cannot be imported"),
    "unknown activation": (change("hidden_act", "mish"), 'hidden_act="mish", which cannot be imported; silu'),
    "unknown RoPE": (change("rope_parameters", {"rope_type": "longrope"}), 'rope_type="longrope", which cannot be'),
    "wrong shape": (reshape, "model.norm.weight is 23, and by config.json it would be 24"),
    "missing tensor": (drop, "model.layers.1.mlp.up_proj.weight is missing"),
    "another tensor": (add, "hold a tensor model.layers.0.self_attn.q_norm.weight, which is no part of a Llama"),
    "whole numbers": (quantise, "model.norm.weight is of torch.int8: quantised models cannot be imported"),
    "damaged weights": (damage, "is not a safetensors file"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has neither model.safetensors nor"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "damaged tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is not a tokenizer.json"),
    "BOS that is no token": (change("bos_token_id", 299), "the token 299 begins or ends a text, and .* has only"),
}  # fmt: skip


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "theirs"
    write_theirs(folder, "llama")
    return folder


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named_in_one_line(case: str, llama_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    for file in llama_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    spoil, line = BAD[case]
    spoil(folder)
    with pytest.raises(UserError, match=line) as error:
        read_folder(folder)
    assert "\n" not in str(error.value)


def test_yarn_before_a_norm_is_refused(tmp_path: Path) -> None:
    """NanoChat norms its queries after RoPE, which undoes YaRN's factor; chainrule norms before it."""
    write_theirs(tmp_path / "theirs", "nanochat")
    change("rope_parameters", YARN)(tmp_path / "theirs")
    with pytest.raises(UserError, match='rope_type="yarn", which cannot be imported; none or linear or llama3 can'):
        read_folder(tmp_path / "theirs")


def test_a_shard_outside_the_folder_is_not_opened(llama_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((llama_folder / name).read_bytes())
    index = {"weight_map": {"model.norm.weight": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"secret\.safetensors, which is not in the folder itself"):
        read_folder(folder)
