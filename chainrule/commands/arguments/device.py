"""The device that a model runs on, and the precision of its weights or of its matrix products."""

from argparse import ArgumentParser

DEVICES = ("auto", "cpu", "cuda")


def add_device(parser: ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", choices=DEVICES, help="auto: a GPU if there is one")


def add_precision(parser: ArgumentParser) -> None:
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16", "int8"], default="auto",
                        help="of the weights; int8: faster on a CPU, and not quite the same probabilities; auto: "
                             "bfloat16 on GPUs that have it, else float32")


def add_products(parser: ArgumentParser) -> None:
    parser.add_argument("--precision", choices=["auto", "float32"], default="auto",
                        help="of matrix products on a GPU; auto: TF32, float32 rounded to 10 bits of mantissa and "
                             "summed in float32, which is several times as fast")
