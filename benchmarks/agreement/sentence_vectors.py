"""Sentence vectors of an imported BERT encoder against transformers: largest difference, and texts per second.

    python benchmarks/agreement/sentence_vectors.py MODEL TEXT [--lines 200]

MODEL is a Hugging Face folder (all-MiniLM-L6-v2), TEXT a file with a sentence on each line. Both read one sentence at a
time, as `/v1/embeddings` does on a CPU. Prints a JSON line.
"""

import json
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn.functional import normalize
from transformers import BertModel

from chainrule.formats.hugging_face_import import read_folder
from chainrule.run import Run
from chainrule.serve.endpoints.embeddings import embed_inputs


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--lines", type=int, default=200)
    args = parser.parse_args()
    lines = (line.strip() for line in args.text.read_text(encoding="utf-8").splitlines())
    texts = [line for line in lines if line][: args.lines]
    made = read_folder(args.model)
    run = Run(args.model, made.recipe, made.tokenizer, made.model, {})
    tokenizer, theirs = Tokenizer.from_file(str(args.model / "tokenizer.json")), BertModel.from_pretrained(args.model)
    tokenizer.no_padding()
    theirs.eval()

    @torch.inference_mode()
    def by_transformers(text: str) -> np.ndarray:
        hidden = theirs(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state
        return normalize(hidden[0].mean(0), dim=0).numpy()

    by_transformers(texts[0])
    embed_inputs(run, texts[:1])
    begin = time.perf_counter()
    wanted = np.stack([by_transformers(text) for text in texts])
    middle = time.perf_counter()
    found, _ = embed_inputs(run, texts)
    end = time.perf_counter()
    print(json.dumps({
        "texts": len(texts), "largest_difference": float(np.abs(found - wanted).max()),
        "texts_per_second": round(len(texts) / (end - middle), 1),
        "transformers_texts_per_second": round(len(texts) / (middle - begin), 1), "threads": torch.get_num_threads(),
    }))


if __name__ == "__main__":
    main()
