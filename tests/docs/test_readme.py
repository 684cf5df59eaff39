"""The README's file map and its index of mechanisms are true and complete."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "chainrule", ROOT / "tests"
README = (ROOT / "README.md").read_text(encoding="utf-8")

ROW = re.compile(r"^\| (?P<mechanism>[^|]+) \| `(?P<file>[\w/.]+)`: `(?P<name>[\w.]+)` \|", re.MULTILINE)
LECTURED = (
    "hidden Markov model", "Viterbi", "Baum–Welch", "n-gram", "Kneser–Ney", "sampling", "temperature",
    "word2vec", "GloVe", "byte-pair encoding", "feed-forward", "Elman", "bidirectional", "LSTM", "GRU",
    "cross-entropy", "SGD", "momentum", "gradient clipping", "vanishing gradient", "truncated backpropagation",
    "sequence to sequence", "teacher forcing", "attention", "causal mask", "multi-head", "positional",
    "residual", "layer normalisation", "post-norm", "cross-attention", "beam search", "BLEU", "ROUGE-L",
    "fine-tuning", "LoRA", "masked", "span corruption", "KV cache", "weight tying", "dropout", "perplexity",
    "embedding", "softmax",
)
"""What the lectures describe: each is in the index."""


def rows():
    return [match.groupdict() for match in ROW.finditer(README)]


def defined(path):
    """Names of classes, functions and constants of a module, and those of methods as Class.method."""
    tree, names = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def test_every_row_of_the_index_points_to_something_that_exists():
    for row in rows():
        path = PACKAGE / row["file"]
        assert path.is_file(), row
        assert row["name"] in defined(path), row


def test_the_index_has_forty_mechanisms_each_once():
    mechanisms = [row["mechanism"] for row in rows()]
    assert len(mechanisms) >= 40
    assert len(mechanisms) == len(set(mechanisms))


def test_every_mechanism_of_the_lectures_is_in_the_index():
    every = "\n".join(row["mechanism"] for row in rows()).lower()
    assert [word for word in LECTURED if word.lower() not in every] == []


def file_map():
    """Paths in the README's file map, where the files of a folder are indented below its name."""
    block = re.search(r"^```\nchainrule/\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[1]
    folders, found = {2: ""}, set()
    for line in block.splitlines():
        indent = len(line) - len(line.lstrip())
        if folder := re.match(r" +(\w+)/", line):
            folders[indent + 2] = f"{folders[indent]}{folder[1]}/"
        else:
            found |= {folders[indent] + name for name in line.split()}
    return found


def test_the_file_map_is_complete():
    files = {str(path.relative_to(PACKAGE)) for kind in ("py", "toml", "cpp") for path in PACKAGE.rglob(f"*.{kind}")}
    assert file_map() == {path for path in files if not path.endswith("__init__.py")}


def test_no_folder_lists_more_names_than_a_reader_can_hold():
    roots = PACKAGE, TESTS, ROOT / "benchmarks", ROOT / "docs"
    folders = {path.parent for root in roots for path in root.rglob("*.*") if path.parent.name != "__pycache__"}
    tops = {PACKAGE, TESTS}    # the tests of each folder of the package have a folder too
    folders -= tops | {ROOT / "docs/pages", ROOT / "docs/lessons/texts"}    # commands of lessons read these texts
    sizes = {str(folder.relative_to(ROOT)): len(listed(folder)) for folder in folders}
    sizes |= {f"files in {top.name}": sum(path.is_file() for path in listed(top)) for top in tops}
    assert {folder: size for folder, size in sizes.items() if size > 18} == {}


def listed(folder):
    """Files and folders, without those that programs make."""
    made = {ROOT / "docs/pages"}    # by `make site`
    return [path for path in folder.iterdir() if path.name != "__pycache__" and path not in made]
