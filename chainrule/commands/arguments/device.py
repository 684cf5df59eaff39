"""The device that a model runs on, and the precision of its weights."""

from argparse import ArgumentParser

DEVICES = ("auto", "cpu", "cuda")


def add_device(parser: ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", choices=DEVICES, help="auto: a GPU if there is one")


def add_precision(parser: ArgumentParser) -> None:
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16", "int8"], default="auto",
                        help="of the weights; int8: faster on a CPU, and not quite the same probabilities; auto: "
                             "bfloat16 on GPUs that have it, else float32")
