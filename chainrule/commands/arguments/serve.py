"""Arguments of `chainrule serve`."""

from argparse import ArgumentParser

from chainrule.commands.arguments.device import add_device, add_precision


def serve_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", nargs="+",
                        help="run directories, or a folder of runs; a run's name is that of its folder, and a request "
                             "that names no model gets the first")
    parser.add_argument("--host", default="127.0.0.1",
                        help="address to serve at (default: %(default)s, this machine); any other needs --key")
    parser.add_argument("--port", type=int, metavar="N", help="port to serve at (default: the first free from 8000)")
    parser.add_argument("--key", metavar="K",
                        help="bearer token that clients must send (default: the environment's CHAINRULE_KEY); a "
                             "browser asks for it as a password")
    parser.add_argument("--cors", action="append", default=[], metavar="ORIGIN",
                        help="web pages from here may use the server, as https://example.org; can be repeated")
    parser.add_argument("--chat-template", metavar="FILE",
                        help="Jinja template by which the messages of a chat are read, or chatml or plain (default: "
                             "that of the run)")
    parser.add_argument("--rows", type=int, default=64, metavar="N",
                        help="texts that a model generates at a time (default: %(default)s)")
    parser.add_argument("--queue", type=int, default=1024, metavar="N",
                        help="texts that may wait for a model; more are answered with 429 (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="S",
                        help="time limit of a request, then it is answered with 504 (default: %(default)g)")
    parser.add_argument("--grace", type=float, default=30.0, metavar="S",
                        help="time for requests under way after SIGTERM or Ctrl-C (default: %(default)g)")
    add_precision(parser)
    add_device(parser)
