"""Arguments of `chainrule train`."""

from argparse import ArgumentParser

from chainrule.commands.arguments.device import add_device


def train_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="+", help="files, folders, globs, names from `chainrule data`, or - for stdin")
    parser.add_argument("--kind", help="kind of model (default: that of the task; for running text ngram, with "
                                       "--minutes lstm); `chainrule settings` lists them")
    parser.add_argument("--task", help="lm (default), chat, classify, tag, translate, caption, answer, mask (BERT), "
                                       "span (T5), denoise (BART), preference (DPO …), reward or reinforce (PPO …)")
    parser.add_argument("--from", dest="base", metavar="RUN",
                        help="start from the weights of another run (fine-tuning)")
    parser.add_argument("--reward", metavar="R", help="what rewards answers (--task reinforce): RUN, RUN:LABEL of a "
                                                      "classifier, or python:MODULE.FUNCTION; the same as train.reward")
    parser.add_argument("--valid", action="append", default=[], metavar="F",
                        help="validation text (default: the last tenth)")
    parser.add_argument("--test", action="append", default=[], metavar="F",
                        help="test text, which training never reads")
    parser.add_argument("--out", metavar="RUN", help="run directory (default: runs/KIND-TEXT)")
    parser.add_argument("--overwrite", action="store_true",
                        help="replace an existing run; an unfinished run of the same recipe is resumed (to start it "
                             "again from the beginning, delete its folder)")
    parser.add_argument("--minutes", type=float, metavar="M",
                        help="training time; sizes are chosen to fit it (gradient descent)")
    parser.add_argument("--recipe", metavar="F.toml", help="file of settings; those on the command line override it")
    add_device(parser)
