"""`chainrule chat`: talk with a run in the terminal, or by a script."""

import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from chainrule.chat.conversation import Conversation
from chainrule.chat.terminal import Terminal, typed_lines
from chainrule.commands.query import load_run, set_precision
from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.inference.sampling import Sampling
from chainrule.progress import say
from chainrule.run import Run
from chainrule.text.chat_template import find_template


def chat_command(args: Namespace) -> dict[str, Any]:
    sampling = Sampling(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p,
                        repetition_penalty=args.repetition_penalty, seed=args.seed)
    template = None if args.chat_template is None else find_template(args.chat_template)
    run, others = load_run(args)
    for name in others:
        raise UserError(f"{name} cannot be set here: a conversation reads no text. Leave it out.")
    set_precision(run, args.precision, choose_device(args.device))
    conversation = Conversation(run, sampling, template=template, system=args.system, tokens=args.tokens)
    if args.system:
        conversation.template.check_roles({"system"})
    person = not args.prompt and sys.stdin.isatty()
    say(greeting(run, conversation, person))
    terminal = Terminal(conversation, (lambda piece: None) if args.json else show)
    lines: Iterable[str] = args.prompt or (typed_lines() if person else sys.stdin)
    terminal.run(lines, forgiving=person)
    return {"run": args.run, "messages": conversation.messages, "answers": terminal.answers,
            "sampling": conversation.sampling.as_dict(), "plain": conversation.plain}


def greeting(run: Run, conversation: Conversation, person: bool) -> str:
    lines = [f"{run.path}: {run.recipe.kind}, --task {run.recipe.task}"]
    if conversation.plain:
        lines.append("it has no chat template, so messages are written as plain text (--chat-template plain); "
                     "--task chat would teach it to answer")
    return "; ".join(lines) + ("\n/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves" if person else "")


def show(piece: str) -> None:
    print(piece, end="", flush=True)
