"""Arguments of `chainrule prefer`."""

from argparse import ArgumentParser

from chainrule.commands.arguments.device import add_device


def prefer_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="run directory of a language model")
    parser.add_argument("prompts", nargs="?",
                        help="file with a prompt on each line, or JSON lines with `prompt` (a text, or messages); "
                             "without it, and at any time, prompts can be typed on the page")
    parser.add_argument("--out", default="pairs.jsonl", metavar="F.jsonl",
                        help="file of pairs that clicks are appended to (default: %(default)s)")
    parser.add_argument("--judge", metavar="J",
                        help="rate without a page: shorter, longer, or python:module.function, which scores answers")
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs to rate (default: one for each prompt)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer at most (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the sampling (default: 1)")
    parser.add_argument("--top-p", type=float, default=1.0,
                        help="sample from the most probable tokens with this total probability")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: %(default)s)")
    parser.add_argument("--overlap", type=float, default=0.25, metavar="S",
                        help="share of the pairs that every rater sees, to measure agreement (default: %(default)s)")
    parser.add_argument("--plain", action="store_true", help="prompts are texts to continue, even with a chat template")
    parser.add_argument("--port", type=int, metavar="N", help="port of the page (default: the first free from 8000)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    add_device(parser)
