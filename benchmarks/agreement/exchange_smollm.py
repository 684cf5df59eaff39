"""A GGUF file of Llama's architecture (SmolLM2-135M-Instruct) in and out, against transformers and llama.cpp.

    python benchmarks/agreement/exchange_smollm.py FILE.gguf TEXT FOLDER [--llama-python PYTHON] [--tokens 500]
                                                   [--greedy 100]

FOLDER gets the imported run and the exported files. Prints a line of JSON for each of:

    import     seconds; log-probabilities of all next tokens in TEXT, the largest difference to transformers' loader
    greedy     texts of the exported Hugging Face folder in transformers, of the GGUF files in llama.cpp, and ours
    tiny       tiny runs of characters and BPE as f32, f16 and Q8_0: llama.cpp's tokens, texts and logits against ours

PYTHON has llama-cpp-python; without it the parts that need it are left out.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chainrule import run
from chainrule.cli import main as chainrule
from chainrule.errors import UserError
from chainrule.formats.boundary import ends_of, original_rows
from chainrule.model import Batch
from chainrule.models import build, model_class
from chainrule.recipe import Text, make_recipe
from chainrule.text.tokenizers.tokenizer import train_tokenizer

READER = Path(__file__).parent / "llama_cpp_reader.py"
CHATS = ["What is the capital of France?", "Write two sentences about the sea.", "Name three prime numbers."]
PLAIN = ["The history of the steam engine begins", "def fibonacci(n):\n"]
HARD = "¿Qué? 日本 it's the cow's\tjump, over 12345 the moon.\n\n  the moon is out. naïve DON'T"


def ask(python: str, **request: Any) -> dict[str, Any]:
    done = subprocess.run([python, str(READER)], input=json.dumps(request), capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"llama.cpp could not read {request['file']}: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def command(*words: str) -> float:
    """Seconds of a chainrule command."""
    began = time.perf_counter()
    if chainrule(list(words)) != 0:
        raise UserError(f"chainrule {' '.join(words)} failed.")
    return round(time.perf_counter() - began, 1)


def transformers_gguf(file: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()


@torch.no_grad()
def compare_import(file: Path, text: Path, folder: Path, count: int) -> dict[str, Any]:
    seconds = None if (folder / "run").exists() else command("import", str(file), str(folder / "run"))
    ours = run.load(folder / "run")
    ends = ends_of(ours)
    ids = ours.tokenizer.encode(text.read_text(encoding="utf-8")[: 20 * count])[: count - 1].astype("int64")
    here = torch.cat([torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(ids)[None]], 1)
    there = exchanged(here, ends.begin)
    wanted = transformers_gguf(file)(there).logits.log_softmax(-1)
    wanted = exchange_columns(exchange_columns(wanted, ends.begin), ends.begin if ends.end == 0 else ends.end)
    found = ours.model(Batch(here, here)).log_softmax(-1)
    text_alone = (found - wanted)[0, :-1].gather(1, here[0, 1:, None])
    return {"part": "import", "file": file.name, "import_seconds": seconds, "tokens": here.shape[1],
            "bos": ends.begin, "eos": ends.end, "max_difference": float((found - wanted).abs().max()),
            "max_difference_of_the_text": float(text_alone.abs().max()),
            "mean_difference": float((found - wanted).abs().mean()),
            "bits_per_token": float(-found[0, :-1].gather(1, here[0, 1:, None]).mean() / torch.log(torch.tensor(2.0)))}


def exchanged(tokens: Tensor, id: int) -> Tensor:
    """With id 0 and another exchanged."""
    return torch.where(tokens == 0, id, torch.where(tokens == id, 0, tokens))


def exchange_columns(x: Tensor, id: int) -> Tensor:
    order = torch.arange(x.shape[-1])
    order[[0, id]] = order[[id, 0]]
    return x[..., order]


@torch.no_grad()
def compare_greedy(folder: Path, count: int, python: str | None) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    seconds = {"huggingface": command("export", str(folder / "run"), str(folder / "hf"), "--to", "huggingface",
                                      "--overwrite")}
    tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32).eval()
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": chat}], add_generation_prompt=True,
                                           tokenize=False) for chat in CHATS]
    texts = [*chats, *PLAIN]
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    answers = {"transformers": [in_transformers(theirs, prompt, count) for prompt in prompts]}
    ours = run.load(folder / "run")
    with original_rows(ours.model, ends_of(ours)):
        answers["ours"] = [in_chainrule(ours, prompt, count) for prompt in prompts]
    facts: dict[str, Any] = {"part": "greedy", "prompts": len(texts), "count": count}
    for precision in ("f32", "f16", "q8_0") if python else ():
        file = folder / f"{precision}.gguf"
        seconds[precision] = command("export", str(folder / "run"), str(file), "--to", "gguf", "--precision",
                                     precision, "--overwrite")
        found = ask(python, file=str(file), texts=texts, special=True, greedy=prompts, count=count)
        answers[f"llama.cpp {precision}"] = found["greedy"]
        facts[f"tokens equal, {precision}"] = found["tokens"] == prompts
        facts[f"bos, eos, {precision}"] = [found["bos"], found["eos"]]
    for name, tokens in answers.items():
        facts[f"equal to transformers: {name}"] = [one == other for one, other in zip(tokens, answers["transformers"])]
    text = [tokenizer.decode(tokens) for tokens in answers["transformers"]]
    return facts | {"lengths": list(map(len, answers["transformers"])), "export_seconds": seconds, "texts": text}


def in_transformers(model: Any, prompt: list[int], count: int) -> list[int]:
    tokens = torch.tensor([prompt])
    made = model.generate(tokens, max_new_tokens=count, do_sample=False, attention_mask=torch.ones_like(tokens))
    found: list[int] = made[0, len(prompt) :].tolist()
    end = model.config.eos_token_id
    return found[: found.index(end)] if end in found else found


def in_chainrule(made: run.Run, prompt: list[int], count: int) -> list[int]:
    """With the rows of BOS and EOS where the file has them, so ids are those of the file."""
    end, found = ends_of(made).end, list[int]()
    logits, state = made.model.step(torch.tensor([prompt]), made.model.start(1))
    while len(found) < count and (token := int(logits[0, -1].argmax())) != end:
        found.append(token)
        logits, state = made.model.step(torch.tensor([[token]]), state)
    return found


@torch.no_grad()
def compare_tiny(folder: Path, python: str, unit: str, precision: str) -> dict[str, Any]:
    """A random model of the default shape with SwiGLU (talkie)."""
    settings = {"layers": 2, "width": 64, "heads": 4, "context": 128, "activation": "swiglu"}
    given = {f"model.{name}": value for name, value in settings.items()}
    recipe = make_recipe("gpt", model_class("gpt"), {**given, "text.tokenizer": unit})
    tokenizer = train_tokenizer(Text(tokenizer=unit), [HARD.replace("DON'T", "") * 9])
    torch.manual_seed(1)
    model = build("gpt", recipe.model, len(tokenizer))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    place = folder / f"tiny-{unit}"
    run.save(place, model, tokenizer, recipe)
    file = folder / f"tiny-{unit}-{precision}.gguf"
    command("export", str(place), str(file), "--to", "gguf", "--precision", precision, "--overwrite")
    tokens = [0, *tokenizer.encode(HARD).tolist()]
    found = ask(python, file=str(file), texts=[HARD], ids=tokens)
    wanted = model(Batch(torch.tensor([tokens]), torch.tensor([tokens])))[0]
    return {"part": "tiny", "tokenizer": unit, "precision": precision, "llama_cpp": found["llama_cpp"],
            "tokens equal": found["tokens"][0] == tokens[1:], "text equal": found["texts"][0] == HARD,
            "max_difference": float((torch.tensor(found["logits"]) - wanted).abs().max()),
            "largest_logit": float(wanted.abs().max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a GGUF file")
    parser.add_argument("text", type=Path, help="a text for the log-probabilities")
    parser.add_argument("folder", type=Path, help="where the run and the exported files go")
    parser.add_argument("--llama-python", metavar="PYTHON", help="a Python with llama-cpp-python")
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--greedy", type=int, default=100)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        print(json.dumps(compare_import(given.file, given.text, given.folder, given.tokens)), flush=True)
        greedy = compare_greedy(given.folder, given.greedy, given.llama_python)
        print(json.dumps(greedy, ensure_ascii=False), flush=True)
        for unit in ("characters", "bpe") if given.llama_python else ():
            for precision in ("f32", "f16", "q8_0"):
                print(json.dumps(compare_tiny(given.folder, given.llama_python, unit, precision)), flush=True)
    except UserError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
