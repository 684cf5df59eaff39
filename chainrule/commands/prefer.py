"""`chainrule prefer`: a page on which people choose the better of two answers, or a judge that does so without one."""

import math
import sys
import webbrowser
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chainrule.commands.look import has_screen
from chainrule.commands.serve import NEEDED
from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.inference.sampling import Sampling
from chainrule.progress import say, set_quiet
from chainrule.run import Run, load
from chainrule.text.chat_template import find_template

if TYPE_CHECKING:
    from chainrule.prefer.prompt_file import Placed
    from chainrule.prefer.session import Session

HOST = "127.0.0.1"    # this machine only: the page has no key
MISSING = "`chainrule prefer` needs fastapi, uvicorn and others: pip install 'chainrule[serve]'."


def prefer_command(args: Namespace) -> dict[str, Any]:
    sampling = sampling_of(args)
    try:
        import chainrule.prefer.app  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        raise UserError(MISSING) from None
    session = make_session(args, sampling)
    try:
        return judge(session, args) if args.judge is not None else open_page(session, args)
    finally:
        session.close()


def sampling_of(args: Namespace) -> Sampling:
    if not 0 < args.temperature < math.inf:
        raise UserError(f"--temperature {args.temperature:g} is not valid: it must be above 0 and finite, since two "
                        "answers must be able to differ.")
    if args.tokens < 1:
        raise UserError(f"--tokens {args.tokens} is not valid: an answer has 1 token or more.")
    if args.pairs is not None and args.pairs < 1:
        raise UserError(f"--pairs {args.pairs} is not valid: it must be 1 or more.")
    if not 0 <= args.overlap <= 1:
        raise UserError(f"--overlap {args.overlap:g} is not valid: it is a share, from 0 to 1.")
    return Sampling(temperature=args.temperature, top_p=args.top_p, seed=args.seed)


def make_session(args: Namespace, sampling: Sampling) -> "Session":
    from chainrule.prefer.clicks import ClickFile
    from chainrule.prefer.drawing import Policy, require_policy
    from chainrule.prefer.judge import find_judge
    from chainrule.prefer.prompt_file import Placed, read_prompts
    from chainrule.prefer.session import Session

    if args.judge is not None:
        find_judge(args.judge)
        if args.prompts is None:
            raise UserError(f"--judge {args.judge} needs a file of prompts: chainrule prefer RUN PROMPTS --judge …")
    read = [] if args.prompts is None else read_prompts(Path(args.prompts))
    run = load(args.run, choose_device(args.device))
    require_policy(run)
    policy = Policy(with_template(run, read), sampling, args.tokens, args.plain)
    try:
        prompts = [Placed(policy.form(placed.prompt), placed.place) for placed in read]
        for placed in prompts:
            policy.check(placed)
        pairs = args.pairs or max(1, len(prompts))
        return Session(ClickFile(Path(args.out)), policy, prompts, pairs, args.seed, args.overlap)
    except BaseException:
        policy.close()
        raise


def with_template(run: Run, prompts: Sequence["Placed"]) -> Run:
    """A run without a chat template gets the plain one where prompts are messages."""
    if run.chat_template is None and any(not isinstance(placed.prompt, str) for placed in prompts):
        return replace(run, chat_template=find_template("plain"))
    return run


def judge(session: "Session", args: Namespace) -> dict[str, Any]:
    from chainrule.prefer.judge import run_judge

    counts = run_judge(session, args.judge)
    for line in dict.fromkeys(session.dropped.values()):
        say(line)
    answer = {"run": str(args.run), "out": str(args.out), "pairs": counts["choice"], "ties": counts["tie"],
              "dropped": len(session.dropped)}
    if not args.json:
        print(f"{args.out}: {counts['choice']} pairs added, {counts['tie']} ties, by --judge {args.judge}.")
    return answer


def open_page(session: "Session", args: Namespace) -> dict[str, Any]:
    """Serves until Ctrl-C, which is the normal end."""
    from chainrule.prefer.app import make_app
    from chainrule.serve.server import address, open_socket, serve

    with open_socket(HOST, args.port) as socket:
        app, url = make_app(session, args.settings, args.device), address(socket)
        print(f"{args.run}: {url} (clicks go to {args.out}; stop with Ctrl-C)", file=sys.stderr, flush=True)
        if not args.no_browser and has_screen():
            webbrowser.open(url)
        set_quiet(True)
        try:
            serve(app, socket)
        finally:
            app.state.tuning.close()
    return {"run": str(args.run), "out": str(args.out), "url": url}
