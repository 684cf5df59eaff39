"""What llama.cpp makes of a GGUF file: tokens and texts, logits, greedy continuations. Reads JSON, and writes JSON.

    echo '{"file": "my.gguf", "texts": ["The "], "ids": [0, 5], "greedy": [[0, 5]], "count": 100}' | \
        python benchmarks/agreement/llama_cpp_reader.py

Its Python needs llama-cpp-python alone, so it can be another one than chainrule's. Keys and values of the cache are
float32, so that differences come from the file.
"""

import json
import sys
from typing import Any


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """`texts`: to tokenize and back; `ids`: logits after each; `greedy`: prompts of `count` more tokens, up to EOS."""
    import llama_cpp

    ids, prompts, count = request.get("ids", []), request.get("greedy", []), request.get("count", 100)
    length = max([len(ids), *(len(prompt) + count for prompt in prompts), 1])
    model = llama_cpp.Llama(request["file"], n_ctx=length, logits_all=bool(ids), verbose=False, flash_attn=False,
                            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, n_threads=2, seed=1)
    tokens = [model.tokenize(text.encode(), add_bos=False, special=request.get("special", False))
              for text in request.get("texts", [])]
    made: dict[str, Any] = {"tokens": tokens, "texts": [model.detokenize(some).decode() for some in tokens]}
    made |= {"bos": model.token_bos(), "eos": model.token_eos(), "llama_cpp": llama_cpp.__version__}
    if ids:
        model.eval(ids)
        made["logits"] = model.scores[: len(ids)].tolist()
    made["greedy"] = [_continue(model, prompt, count) for prompt in prompts]
    made["greedy_texts"] = [model.detokenize(some).decode("utf-8", "replace") for some in made["greedy"]]
    model.close()
    return made


def _continue(model: Any, prompt: list[int], count: int) -> list[int]:
    found: list[int] = []
    model.reset()
    for token in model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
        if token == model.token_eos():
            break
        found.append(token)
        if len(found) == count:
            break
    return found


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
