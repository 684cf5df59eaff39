"""Arguments of `chainrule export` and `import`."""

from argparse import ArgumentParser

EXPORTS = ("arpa", "word2vec", "word2vec-binary", "glove", "huggingface", "gguf", "onnx", "merged")


def export_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("out", help="file to write; for huggingface and onnx: folder; for merged: run directory")
    parser.add_argument("--to", required=True, choices=EXPORTS,
                        help="format; huggingface: a folder for transformers; gguf: a file for llama.cpp; onnx: a "
                             "folder for onnxruntime; merged: LoRA adapters merged")
    parser.add_argument("--precision", choices=("f32", "f16", "q8_0"), help="of a gguf's matrices (default: f32)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file or folder")


def import_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("path", help="Hugging Face folder; or a file: GGUF, an ARPA n-gram model, word vectors, a "
                                     "model written by hand (TOML); or a built-in one: comparison, rhythm, summation, "
                                     "weather")
    parser.add_argument("out", help="run directory to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing run")
