"""Where the picture of every view begins on the live page, in pixels from the top, on a projector of 1280 x 720.

    python benchmarks/pages/look_picture.py RUN … [--json]

Each view is shown for runs that it fits; one that fits none of them is left out. Needs playwright and chromium.
"""

import argparse
import json
import shutil

from look import served
from playwright.sync_api import Page, sync_playwright

from chainrule.viewer.notebook import find_runs

SIZE = {"width": 1280, "height": 720}
TOP = "one => one.getBoundingClientRect().top + scrollY"


def tops(page: Page) -> dict[str, float]:
    """By view."""
    found = {}
    for name in page.locator("#views a:not(.live-unfit)").evaluate_all("all => all.map((one) => one.dataset.view)"):
        page.locator(f"#views a[data-view={name}]").click()
        page.wait_for_selector(f"html[data-drawn] #{name} .picture", timeout=120_000)
        found[name] = round(page.locator(".picture").first.evaluate(TOP), 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with served(list(find_runs(args.run).values())) as connection, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(f"http://{connection.host}:{connection.port}/")
        page.wait_for_selector("html[data-drawn]", timeout=120_000)
        found = tops(page)
        browser.close()
    if args.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:12s} {top:6.1f}" for name, top in found.items()))


if __name__ == "__main__":
    main()
