"""Options of sampling, of `chainrule sample` and `chat`."""

from argparse import ArgumentParser


def add_sampling(parser: ArgumentParser, temperature: float = 1.0) -> None:
    parser.add_argument("--temperature", type=float, default=temperature,
                        help="0: greedy; inf: uniform (default: %(default)g)")
    parser.add_argument("--top-k", type=int, help="sample from the k most probable tokens only")
    parser.add_argument("--top-p", type=float, default=1.0,
                        help="sample from the most probable tokens with this total probability")
    parser.add_argument("--min-p", type=float, default=0.0,
                        help="only tokens with this fraction of the highest probability")
    parser.add_argument("--repetition-penalty", type=float, default=1.0,
                        help="divides the probability of tokens that the text already has")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: %(default)s)")
