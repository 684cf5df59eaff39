"""Arguments of `chainrule compare` and `demo`."""

from argparse import ArgumentParser

from chainrule.commands.arguments.device import add_device


def compare_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="+", help="files, folders, globs, or names from `chainrule data`")
    parser.add_argument("--kinds", metavar="A,B,…", help="kinds to compare (default: the whole ladder)")
    parser.add_argument("--valid", action="append", default=[], metavar="F",
                        help="validation text (default: the last tenth)")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M",
                        help="training time of each kind (default: %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="folder for the runs and the report (default: runs/compare-TEXT)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing comparison")
    add_device(parser)


def demo_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", default="runs/demo", help="folder for the runs (default: %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace existing runs")
