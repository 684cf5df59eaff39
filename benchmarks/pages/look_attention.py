"""The page of attention for 12 layers of 12 heads: from the text to the page in a browser that has drawn it.

    python benchmarks/pages/look_attention.py [--tokens 256] [--repeats 5] [--json]

The model is an untrained GPT with 8 numbers a head: the time of a page does not depend on the weights.
*made*: the text read, and all that the page needs of its patterns, in Python. *drawn*: from opening the file in the
browser to the second frame after the drawing. *another*: the same page for another head, as a reader asks for it.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from chainrule.recipe import Text
from chainrule.run import Run
from chainrule.tasks import build_for, recipe_for
from chainrule.text.tokenizers.tokenizer import train_tokenizer
from chainrule.viewer.page import Panel, make_page
from chainrule.viewer.subject import Subject
from chainrule.viewer.views.attention import VIEW

LAYERS, HEADS, SIZE = 12, 12, 8
TEXT = "a page of every head of every layer is drawn while a reader waits for it. "
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def untaught(tokens: int) -> Subject:
    shape = {"model.layers": LAYERS, "model.heads": HEADS, "model.width": HEADS * SIZE, "model.context": tokens}
    recipe = recipe_for("gpt", {"text.tokenizer": "characters", **shape})
    tokenizer = train_tokenizer(Text(tokenizer="characters"), [TEXT])
    torch.manual_seed(1)
    model = build_for(recipe, len(tokenizer))
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape)
    return Subject("untaught", Run(Path("untaught"), recipe, tokenizer, model.eval(), {}))


def page_of(subject: Subject, options: dict[str, str]) -> tuple[str, float]:
    """The file, and the seconds it took to make."""
    began = time.perf_counter()
    data = VIEW.make([subject], TEXT * 100, options)
    page = make_page("attention", "", [Panel(VIEW.name, VIEW.name, VIEW.title, data)])
    return page, time.perf_counter() - began


def seconds_to_draw(browser: Any, path: Path) -> float:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    began = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]")
    page.evaluate(FRAMES)
    seconds = time.perf_counter() - began
    page.close()
    return seconds


def measure(tokens: int, repeats: int) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    subject, times = untaught(tokens), []
    page_of(subject, {})                       # warm-up
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        program = next(filter(None, map(shutil.which, CHROMIUM)))
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        path = Path(folder) / "page.html"
        for _ in range(repeats):
            page, made = page_of(subject, {})
            path.write_text(page, encoding="utf-8")
            drawn = seconds_to_draw(browser, path)
            another, again = page_of(subject, {"layer": str(LAYERS), "head": str(HEADS)})
            path.write_text(another, encoding="utf-8")
            times.append((made, drawn, again + seconds_to_draw(browser, path)))
        browser.close()
    names = ("made", "drawn", "another")
    medians = {name: statistics.median(some) for name, some in zip(names, zip(*times))}
    return {"layers": LAYERS, "heads": HEADS, "tokens": tokens, "bytes": len(page.encode()), "seconds": medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the lines")
    args = parser.parse_args()
    found = measure(args.tokens, args.repeats)
    if args.json:
        print(json.dumps(found))
        return
    print(f"{LAYERS} x {HEADS} heads, {args.tokens} tokens: a file of {found['bytes'] / 1e6:.2f} MB")
    for name, seconds in found["seconds"].items():
        print(f"{name:<10}{seconds:8.2f} s")


if __name__ == "__main__":
    main()
