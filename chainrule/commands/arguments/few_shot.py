"""Options of `chainrule eval --shots`: prompts with examples."""

from argparse import ArgumentParser


def add_shots(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("prompts with examples")
    group.add_argument("--shots", metavar="K,…",
                       help="classify or translate with a language model, by K examples in its prompt; 0: none")
    group.add_argument("--examples", action="append", default=[], metavar="F",
                       help="file that the examples are drawn from (default: the training split of a known corpus)")
    group.add_argument("--template", metavar="T",
                       help=r'an example, as "Review: {text}\nSentiment: {label}" (default: by the columns)')
    group.add_argument("--separator", metavar="S",
                       help="text between two examples (default: an empty line, or a line end)")
    group.add_argument("--labels", metavar="L=WORD,…", help="words of the labels, as 0=negative,1=positive")
    group.add_argument("--draws", type=int, metavar="N", help="draws of the examples (default: 3)")
    group.add_argument("--seed", type=int, metavar="N", help="random seed of the draws (default: 1)")
    group.add_argument("--unbalanced", action="store_true",
                       help="draw examples whatever their label (default: as many of each)")
    group.add_argument("--calibration", metavar="C",
                       help="none (default); contextual: against a text without content; pmi: against the end of the "
                            "template alone")
    group.add_argument("--normalise", metavar="N",
                       help="divide log p of a label's word by its tokens or bytes (default: none)")
    group.add_argument("--channel", action="store_true",
                       help="noisy channel: score the text after each label, p(text | label); the template has the "
                            r'label first, as "Sentiment: {label}\nReview: {text}"')
    group.add_argument("--ensemble", action="store_true",
                       help="ensemble of demonstrations: each example in a prompt of its own, and the mean of log p")
    group.add_argument("--chat", action="store_true", help="examples as turns of a chat, by the run's chat template")
    group.add_argument("--task", metavar="T", help="classify or translate (default: by the columns)")
