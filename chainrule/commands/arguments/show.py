"""Arguments of `chainrule settings`, `data`, `plan` and `distance`."""

from argparse import ArgumentParser


def settings_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help="kind of model (default: all)")
    parser.add_argument("--task", help="task of the model (default: the kind's own)")


def data_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("get", nargs="?", help="the word get: download a text and print its path")
    parser.add_argument("name", nargs="?", help="name of the text")


def plan_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help="kind of model, or a published one such as gpt3-175b")
    parser.add_argument("--published", action="store_true", help="the table of all published models")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (default: %(default)s)")
    parser.add_argument("--gpu", default="h200", help="h200, h100, a100, rtx4090, … (default: %(default)s)")
    parser.add_argument("--source", type=int, metavar="N",
                        help="tokens in the source of a row, for seq2seq and transformer (default: as in the row)")


def distance_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of a fine-tuned model (train --from)")
    parser.add_argument("base", nargs="?", help="run to measure from (default: the one it was trained from)")
