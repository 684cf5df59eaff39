"""Arguments of `chainrule next` and `analogy`."""

from argparse import ArgumentParser

from chainrule.commands.arguments.device import add_device


def next_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of a language model")
    parser.add_argument("--prompt", default="", help="the context (default: the beginning of a text)")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="tokens in the table (default: %(default)s)")
    add_device(parser)


def analogy_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of word vectors, or of a model with embeddings")
    parser.add_argument("words", nargs="+", help="three words a b c, for a − b + c; or one, for its neighbours")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="words in the list (default: %(default)s)")
    add_device(parser)
