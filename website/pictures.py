"""Pictures of the views in docs/figures: trains small runs, opens the live page in chromium, and photographs it.

    python website/pictures.py [NAME …] [--runs FOLDER] [--data FOLDER]

NAME: a picture (default: all below). The runs are in FOLDER (default: runs/pictures), where finished ones are used
again; picture_runs.py says how they are trained. --data has the public texts (default: $CHAINRULE_DATA).
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from picture_runs import train, write_texts
from small_png import shrink

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
LARGEST = 120_000   # bytes of a picture with all its colours
CHROMIUM = ["--no-sandbox", "--disable-background-networking"]
MARGIN = 12     # pixels around a section
DRAWN = 120_000  # milliseconds in which a view is to be drawn
ANSWERED = "document.querySelector('.chat-log').getAttribute('aria-busy') === 'false'"

ROMEO = "ROMEO:\nO fair maid, my l"
FAIR = ROMEO + "ove, so early and so late?"
WINDOW = "ROMEO:\nBut, soft! what light through yonder window breaks?\nIt is the east, and Juliet is the sun."
LIGHT = "But, soft! what light through yonder window breaks?"
SPEECH = f"""{WINDOW}

JULIET:
O Romeo, Romeo! wherefore art thou Romeo?
Deny thy father and refuse thy name;
Or, if thou wilt not, be but sworn my love.

NURSE:
Madam! Your lady mother comes; be wary."""
STREET = """A man is on the street .
The street is full of people .
Two dogs play in the street .
A street in the city at night .
A street vendor sells fruit .
A street performer plays the guitar .
Three men cross the street .
A woman walks down the street ."""
FLIES = "Fruit/NOUN flies/NOUN like/VERB a/DET banana/NOUN ./PUNCT"
CHARMING = "it 's a charming and often affecting journey , never dull"
LADDER = "A man in a blue shirt is standing on a ladder"
REVIEW = "the film is not bad , but the plot is dull and the ending a mess\t0"
PAIRS = "\n".join(["g:x", "q:k", "b:d", "g:x", "m:t", "q:k", "q:k", "b:d", "m:t", "g:x", "b:d", "m:t", "q:k"])
TASKS = "task-views"
SAID = ("My name is Emma.", "What is the capital of Italy?", "What is my name?")


@dataclass(frozen=True)
class Picture:
    view: str
    runs: tuple[str, ...]
    text: str = ROMEO
    choices: Mapping[str, str] = field(default_factory=dict)    # of the view, as in the page's address
    said: tuple[str, ...] = ()                                  # to the model, in a chat
    page: bool = False                                          # the whole page, and not the view's section alone
    width: int = 1280
    height: int = 1400                                          # at most
    folder: str = "views"                                       # of docs/figures


PICTURES = {
    "die": Picture("die", ("ngram", "lstm", "gpt"), choices={"temperature": "0.7", "top-k": "8"}, page=True),
    "surprise": Picture("surprise", ("ngram", "lstm", "gpt"), FAIR),
    "backoff": Picture("backoff", ("ngram",), ROMEO),
    "trellis": Picture("trellis", ("hmm",), "my fair love", {"at": "6.6"}),
    "tagger": Picture("trellis", ("tagger",), FLIES, {"at": "1.7"}, folder=TASKS),
    "votes": Picture("votes", ("reviews",), REVIEW, folder=TASKS),
    "contributions": Picture("contributions", ("loglinear",), CHARMING, folder=TASKS),
    "class-ngrams": Picture("class_ngrams", ("loglinear",), CHARMING, height=860, folder=TASKS),
    "ratios": Picture("ratios", ("loglinear",), CHARMING, folder=TASKS),
    "hidden-word": Picture("hidden_word", ("captions",), LADDER, {"word": "7"}, folder=TASKS),
    "neurons": Picture("neurons", ("lstm",), SPEECH),
    "attention": Picture("attention", ("gpt",), LIGHT[:43], {"words": "whole", "layer": "2"}),
    "alignment": Picture("alignment", ("english-french",), "the black cat sees the small cow", width=1400),
    "lens": Picture("lens", ("gpt",), LIGHT, {"token": "12", "layer": "2"}),
    "unrolled": Picture("unrolled", ("brackets",), "( [ ] )", {"step": "7", "at": "4.1"}, width=1560),
    "unrolled-rnn": Picture("unrolled", ("rhythm",), "1001", {"step": "5", "at": "1.0"}),
    "gradient": Picture("gradient", ("rnn", "lstm", "gpt"), f"{WINDOW}\n{FAIR}"),
    "vectors": Picture("vectors", ("royal",), choices={"mode": "analogy"} | dict(zip("abc", ("king", "man", "woman")))),
    "contextual": Picture("contextual", ("captions",), STREET, {"word": "street"}),
    "in-context": Picture("in_context", ("copying",), PAIRS, height=1500),
    "cost": Picture("cost", ("lstm", "gpt")),
    "preferences": Picture("preferences", ("dpo",)),
    "chat": Picture("chat", ("small",), choices={"temperature": "0.3"}, said=SAID, page=True),
}


def address(picture: Picture) -> str:
    chosen = {"page.runs": ",".join(picture.runs), "page.view": picture.view, "page.text": picture.text}
    return urlencode(chosen | {f"{picture.view}.{name}": value for name, value in picture.choices.items()})


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        found = driver.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield found
        found.close()


def say(page: Any, messages: tuple[str, ...]) -> None:
    """One after the other; each is answered before the next."""
    for number, message in enumerate(messages):
        page.get_by_label("Your message").fill(message)
        page.get_by_label("Your message").press("Enter")
        page.locator(".chat-assistant .chat-text:not(:empty)").nth(number).wait_for()
        page.wait_for_function(ANSWERED)


def clip(page: Any, picture: Picture) -> dict[str, float]:
    """The part of the page that is photographed."""
    box = page.locator("main section").first.bounding_box()
    below = min(box["y"] + box["height"] + MARGIN, picture.height)
    if picture.page:
        return {"x": 0, "y": 0, "width": picture.width, "height": below}
    left, top = box["x"] - MARGIN, box["y"] - MARGIN
    return {"x": left, "y": top, "width": min(box["width"] + 2 * MARGIN, picture.width - left), "height": below - top}


def photograph(url: str, name: str, window: Any) -> bytes:
    picture = PICTURES[name]
    size = {"width": picture.width, "height": picture.height}
    page = window.new_page(viewport=size, color_scheme="light", bypass_csp=True)
    page.goto(f"{url}#{address(picture)}")
    page.wait_for_selector(f"html[data-drawn] #{picture.view}", timeout=DRAWN)
    say(page, picture.said)
    page.wait_for_timeout(1_000)
    if not picture.page:
        page.add_style_tag(content=".top { visibility: hidden }")       # it would be in the margin
    taken: bytes = page.screenshot(clip=clip(page, picture))
    page.close()
    return taken if len(taken) <= LARGEST else shrink(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="*", choices=[[], *PICTURES], help="pictures (default: all)")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "pictures")
    parser.add_argument("--data", type=Path, default=os.environ.get("CHAINRULE_DATA"))
    parser.add_argument("--out", type=Path, default=FIGURES)
    args = parser.parse_args()
    if not args.data:
        parser.error("the public texts are needed: --data FOLDER, or $CHAINRULE_DATA")
    sys.path.insert(0, str(ROOT / "benchmarks" / "pages"))
    from look import served

    out, data = args.out.resolve(), Path(args.data).resolve()
    args.runs.mkdir(parents=True, exist_ok=True)
    with chdir(args.runs), browser() as window:
        write_texts(Path(), data)
        for name in args.name or PICTURES:
            runs = PICTURES[name].runs
            for run in runs:
                train(run)
            with served([Path(run) for run in runs]) as connection:
                taken = photograph(f"http://{connection.host}:{connection.port}/", name, window)
            path = out / PICTURES[name].folder / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(taken)
            print(f"{path} {len(taken) / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
