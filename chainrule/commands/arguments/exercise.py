"""Arguments of `chainrule exercise` and `leaderboard`."""

from argparse import ArgumentParser


def exercise_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="an exercise or a lesson to copy, or the word check (default: list)")
    parser.add_argument("folder", nargs="?", help="new folder to copy to; with check: the folder to check")
    parser.add_argument("--seed", type=int, metavar="N",
                        help="with check: make the tests' data again from this seed (default: as in the folder)")


def leaderboard_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("submission", nargs="+", help="run directories, or Python files with train(text, minutes)")
    parser.add_argument("--hidden", required=True, metavar="F", help="the hidden text that all are evaluated on")
    parser.add_argument("--train", required=True, metavar="F", help="the text that Python files train on")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M",
                        help="training time of each Python file (default: %(default)s)")
    parser.add_argument("--out", default="leaderboard", metavar="DIR",
                        help="folder of the table (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing table")
