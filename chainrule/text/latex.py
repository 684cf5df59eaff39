"""LaTeX text made by a grammar: sections, theorems, proofs, lists and equations, with every environment closed.

What a character model must learn from it is what the LaTeX sample of the lectures shows: commands, nested
environments, brackets and dollar signs that close, and references to labels that exist.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

TOPICS = ("group", "ring", "module", "scheme", "bundle", "field", "lattice", "functor", "space", "complex")
KINDS = ("finite", "cyclic", "commutative", "noetherian", "local", "free", "flat", "smooth", "compact", "perfect")
LETTERS = ("A", "B", "F", "G", "M", "N", "R", "S", "U", "X", "Y")
SMALL = ("a", "b", "f", "g", "i", "j", "k", "n", "x", "y")
GREEK = (r"\alpha", r"\beta", r"\gamma", r"\delta", r"\lambda", r"\mu", r"\pi", r"\varphi")
RELATIONS = ("=", r"\cong", r"\subset", r"\leq", r"\to", r"\simeq")
STATEMENTS = ("theorem", "lemma", "proposition", "corollary", "definition")
ENDS = ("This proves the claim.", "The result follows.", "Hence we are done.", "This is clear.")


class LatexText:
    """Writes one text; `labels` are those that it can refer to."""

    def __init__(self, seed: int):
        self.random = Random(f"latex {seed}")
        self.labels: list[str] = []

    def text(self, characters: int) -> str:
        """Whole sections, at least `characters` long."""
        written, length = [self.preamble()], 0
        while length < characters:
            written.append(self.section())
            length += len(written[-1])
        return "".join([*written, "\\end{document}\n"])

    def preamble(self) -> str:
        title = f"{self.pick(KINDS).capitalize()} {self.pick(TOPICS)}s"
        return f"\\documentclass{{article}}\n\\title{{{title}}}\n\\begin{{document}}\n\\maketitle\n\n"

    def section(self) -> str:
        title = f"{self.pick(KINDS).capitalize()} {self.pick(TOPICS)}s and {self.pick(TOPICS)}s"
        parts = [self.part() for _ in range(self.random.randint(2, 5))]
        return "\n".join([f"\\section{{{title}}}\n{self.label('section')}\n", *parts]) + "\n"

    def part(self) -> str:
        return self.choose(self.paragraph, self.statement, self.statement, self.items)

    def statement(self) -> str:
        kind = self.pick(STATEMENTS)
        made = f"\\begin{{{kind}}}\n{self.label(kind)}\n{self.paragraph()}\\end{{{kind}}}\n"
        if kind == "definition":
            return made
        return f"{made}\n\\begin{{proof}}\n{self.paragraph()}{self.pick(ENDS)}\n\\end{{proof}}\n"

    def items(self) -> str:
        kind = self.pick(("itemize", "enumerate"))
        lines = "".join(f"\\item {self.sentence()}\n" for _ in range(self.random.randint(2, 4)))
        return f"The following are equivalent.\n\\begin{{{kind}}}\n{lines}\\end{{{kind}}}\n"

    def paragraph(self) -> str:
        lines = [f"{self.sentence()}\n" for _ in range(self.random.randint(1, 3))]
        return "".join(lines) + (self.equation() if self.random.random() < 0.4 else "")

    def equation(self) -> str:
        return f"\\begin{{equation}}\n{self.label('equation')}\n{self.formula(2)}.\n\\end{{equation}}\n"

    def sentence(self) -> str:
        topic, kind, name = self.pick(TOPICS), self.pick(KINDS), self.pick(LETTERS)
        return self.choose(
            lambda: f"Let ${name}$ be a {kind} {topic} over ${self.pick(LETTERS)}$.",
            lambda: f"Then ${self.formula(1)}$ for every {kind} {topic} ${name}$.",
            lambda: f"Assume that ${name}$ is {kind} and that ${self.formula(1)}$.",
            lambda: f"By {self.reference()} the {topic} ${name}$ is {kind}.",
            lambda: f"A {topic} is called \\emph{{{kind}}} if ${self.formula(1)}$.",
        )

    def formula(self, depth: int) -> str:
        return f"{self.term(depth)} {self.pick(RELATIONS)} {self.term(depth)}"

    def term(self, depth: int) -> str:
        if depth == 0:
            return self.pick(self.pick((LETTERS, SMALL, GREEK)))
        return self.choose(
            lambda: self.term(0),
            lambda: f"{self.pick(LETTERS)}_{{{self.pick(SMALL)}}}",
            lambda: f"{self.pick(SMALL)}^{{{self.random.randint(2, 9)}}}",
            lambda: f"\\mathcal{{{self.pick(LETTERS)}}}({self.term(depth - 1)})",
            lambda: f"\\frac{{{self.term(depth - 1)}}}{{{self.term(depth - 1)}}}",
            lambda: f"\\sum_{{{self.pick(SMALL)} = 1}}^{{n}} {self.term(depth - 1)}",
            lambda: f"{self.pick(SMALL)}({self.term(depth - 1)}, {self.term(depth - 1)})",
        )

    def label(self, kind: str) -> str:
        self.labels.append(f"{kind}-{self.pick(TOPICS)}-{len(self.labels) + 1}")
        return f"\\label{{{self.labels[-1]}}}"

    def reference(self) -> str:
        recent = self.labels[-12:]
        return f"\\ref{{{self.pick(recent)}}}" if recent else "assumption"

    def pick(self, options: Sequence[T]) -> T:
        return self.random.choice(options)

    def choose(self, *ways: Callable[[], str]) -> str:
        return self.random.choice(ways)()
