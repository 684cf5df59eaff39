"""Arguments of `chainrule sample`, `score`, `eval` and `predict`."""

from argparse import ArgumentParser

from chainrule.commands.arguments.device import add_device, add_precision, add_products
from chainrule.commands.arguments.few_shot import add_shots
from chainrule.commands.arguments.sampling import add_sampling


def sample_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("--prompt", default="", help="text to continue")
    parser.add_argument("--tokens", type=int, default=200, help="number of tokens at most (default: %(default)s)")
    add_sampling(parser)
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT",
                        help="stop before this text; can be repeated")
    parser.add_argument("--past-end", action="store_true",
                        help="go on after the end of a text (for words: of a line, </s>), up to --tokens")
    parser.add_argument("--rows", type=int, default=1, help="number of texts (default: %(default)s)")
    add_precision(parser)
    add_device(parser)


def score_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("file", nargs="?", default="-", help="text to score (default: stdin)")
    add_device(parser)


def eval_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("file", nargs="+",
                        help="held-out text, or examples of the task; for word vectors: a test of words; for a "
                             "language model also an exam: blimp or lambada")
    parser.add_argument("--by-position", action="store_true",
                        help="bits per byte by the tokens of context before; several runs may come before the text, "
                             "each with settings of its own: RUN:model.rope_scaling=yarn,model.rope_factor=8")
    parser.add_argument("--positions", type=int, metavar="N",
                        help="tokens of a window of --by-position (default: the longest context of the runs)")
    parser.add_argument("--plot", metavar="F.svg", help="draw --by-position or --shots into this file")
    _add_ensemble(parser)
    _add_policy(parser)
    add_shots(parser)
    _add_beam(parser)
    add_products(parser)
    add_device(parser)


def predict_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of any task but lm, or of an hmm")
    parser.add_argument("file", nargs="?", default="-",
                        help="a table, or a text on each line, with ___ for a blank (default: stdin)")
    parser.add_argument("--top", type=int, metavar="K", help="print K alternatives for each blank")
    _add_ensemble(parser)
    _add_beam(parser)
    add_products(parser)
    add_device(parser)


def _add_ensemble(parser: ArgumentParser) -> None:
    parser.add_argument("--with", action="append", default=[], metavar="RUN[:WEIGHT]", dest="others",
                        help="an ensemble: average the probabilities of this run too, of the same task and labels; for "
                             "texts that are written, of the same tokenizer; with a weight against that of the first "
                             "run, 1, as in runs/b:0.5 (default: 1); may be repeated")


def _add_beam(parser: ArgumentParser) -> None:
    parser.add_argument("--beam", type=int, metavar="W", help="beam size of beam search; 1: greedy (default: 4)")
    parser.add_argument("--alpha", type=float, metavar="A",
                        help="length penalty: log p / ((5 + n) / 6)^alpha (default: 0.6)")
    parser.add_argument("--limit", type=int, metavar="N",
                        help="tokens in a text at most (default: 256); in an exam or with --shots: so many examples, "
                             "of blimp in each paradigm (default: all)")
    parser.add_argument("--samples", type=int, metavar="N",
                        help="minimum Bayes risk instead of a beam: of N samples, the one most like the others")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T",
                        help="temperature of these samples (default: 1)")


def _add_policy(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("answers to prompts")
    group.add_argument("--reward", metavar="R",
                       help="mean reward of the answers to prompts, and KL from a reference: RUN, RUN:LABEL of a "
                            "classifier, or python:MODULE.FUNCTION")
    group.add_argument("--reference", metavar="RUN", help="the reference (default: the run that RUN was tuned from)")
    group.add_argument("--answer-tokens", type=int, metavar="N", help="most tokens of an answer (default: 64)")
