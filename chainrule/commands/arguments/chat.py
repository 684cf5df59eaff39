"""Arguments of `chainrule chat`."""

from argparse import ArgumentParser

from chainrule.commands.arguments.device import add_device, add_precision
from chainrule.commands.arguments.sampling import add_sampling


def chat_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT",
                        help="a message, answered without a terminal; can be repeated (default: type, or pipe lines)")
    parser.add_argument("--system", default="", metavar="TEXT", help="instruction to the model, before all messages")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of an answer at most (default: %(default)s)")
    parser.add_argument("--chat-template", metavar="FILE",
                        help="Jinja template by which the messages are read, or chatml or plain (default: that of the "
                             "run; plain where it has none)")
    add_sampling(parser, 0.7)
    add_precision(parser)
    add_device(parser)
