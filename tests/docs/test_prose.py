"""The words of the project: none that the field does not use, and each module's first line names what it holds."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "chainrule"

BANNED = {
    r"fore(tell|told)\w*": "predict",
    r"afresh|anew": "again, reset",
    r"whoever": "the caller, the user",
    r"chance|luck": "random",
    r"told": "predicted, logged",
    r"sight": "mask",
    r"besides": "also",
    r"quick(er|est|ly)?": "fast",
    r"at rest": "in eval mode",
    r"heed\w*": "follow, obey",
    r"mend(s|ed|ing)?": "fix",
    r"whence|wherefore|hitherto|thereupon|behold|betwixt|lest": "plain words",
    r"likewise": "also",
    r"upon": "on",
    r"shelf": "runs",
    r"bent|bend(s|ing)?": "activation",
    r"surprises": "cross-entropy",
    r"for ever": "forever, without end",
    r"nobody's business": "not defined",
}
"""Words that may not come back, and what to write instead."""

PHRASES = {
    "have not what this view shows": "This view needs …",
    "as the model is": "reset",
    "words whole": "merge pieces into words",
    "tokens it goes on with": "continue for … tokens",
    "lines from 0": "hide weights below",
    "takes of": "attends to",
    "gives most to": "is attended to most by",
    "it goes by": "colour: …",
    "near each other is": "… are neighbours",
    "passes none on": "0: its output layer starts at zero",
    "fair ones": "as uncertain as a fair die with … sides",
    "different words; all": "followed … different contexts; … in all",
    "before it is learned": "measured before the model learns from it",
    "a look at": "the name of the text",
}
"""Phrases of the pages that stopped readers, and what to write instead."""


def pages():
    """Every text of the project that a person reads."""
    for folder, kinds in (("chainrule", "py js html toml"), ("docs", "md"), ("recipes", "toml")):
        for kind in kinds.split():
            yield from (ROOT / folder).rglob(f"*.{kind}")
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md"))


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path.read_text(encoding="utf-8").strip())


ANY = re.compile(rf"(?i)\b({'|'.join(BANNED)})\b")    # all at once, since most texts have none of them


def banned_words(text):
    return [(found[0], better) for word, better in BANNED.items() for found in re.finditer(rf"(?i)\b({word})\b", text)]


@pytest.mark.parametrize("path", sorted(pages()), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_words_are_those_of_the_field(path):
    text = path.read_text(encoding="utf-8")
    lines = enumerate(text.splitlines(), 1) if ANY.search(text) else ()
    assert [(number, *word) for number, line in lines for word in banned_words(line)] == []


@pytest.mark.parametrize("path", sorted(path for path in pages() if path.is_relative_to(PACKAGE / "viewer")),
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_speak_as_people_do(path):
    text = path.read_text(encoding="utf-8").lower()
    assert [(phrase, better) for phrase, better in PHRASES.items() if phrase in text] == []


def test_a_banned_word_is_found_whatever_its_case():
    for text, found in (("It Foretells the next token", [("Foretells", "predict")]), ("a predicted token", [])):
        assert banned_words(text) == found
        assert bool(ANY.search(text)) == bool(found)


def words_of(name):
    """The words of a name in snake_case or CamelCase, without their endings."""
    return {stem(word) for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def stem(word):
    return re.sub(r"(ings?|ers?|ed|es|s|e|y|ies|ion|ions)$", "", word.lower()) or word.lower()


def names_in(path, tree):
    """The words of the module's own name and of what it defines."""
    nodes = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    own = path.parent.name if path.stem in ("__init__", "__main__") else path.stem
    return set().union(words_of(own), *(words_of(node.name) for node in nodes))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_first_line_of_a_module_names_what_is_in_it(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = ast.get_docstring(tree)
    assert said, f"{path.name} has no docstring"
    first = said.splitlines()[0]
    spoken = {stem(word) for word in re.findall(r"[A-Za-z]+|\d+", first.replace("-", ""))}
    spoken |= {stem(word) for word in re.findall(r"[A-Za-z]+", first)}
    assert spoken & names_in(path, tree), f"{path.name}: {first!r} has no word of {path.stem} or of its definitions"
