"""Arguments of `chainrule look`."""

from argparse import ArgumentParser

from chainrule.commands.arguments.device import add_device


def look_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", nargs="+",
                        help="run directories, or a folder of runs such as one from `chainrule compare`")
    parser.add_argument("--text", metavar="T", help="text that the models read first")
    parser.add_argument("--file", metavar="F", help="the same from a file; -: stdin")
    parser.add_argument("--view", metavar="NAME", help="the first view; with --out: the only one")
    parser.add_argument("--word", metavar="W", help="the word of --view contextual (default: the most frequent one)")
    parser.add_argument("--table", action="store_true",
                        help="print the numbers of --view attention or contextual instead of a page")
    parser.add_argument("--out", metavar="PAGE.html", help="write a self-contained file instead of serving a page")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve at (default: %(default)s, this machine)")
    parser.add_argument("--port", type=int, metavar="N", help="port to serve at (default: the first free from 8000)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    add_device(parser)
