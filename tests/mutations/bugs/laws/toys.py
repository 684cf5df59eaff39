"""Bugs in tests/contract/toy.py, the models that the laws are shown on."""

from mutations.bugs.bug import Bug
from mutations.bugs.suites import LAWS

BUGS = [
    Bug(
        "a mask is one too wide",
        "tests/contract/toy.py",
        "> here[..., None]",
        "> here[..., None] + 1",
        (f"{LAWS}::test_the_future_is_not_seen[attentive context=16-0]",),
    ),
    Bug(
        "padding is attended",
        "tests/contract/toy.py",
        "> here[..., None]",
        "> here.amax(0)[..., None]",
        (f"{LAWS}::test_rows_of_different_lengths_go_on_together_as_they_would_alone[attentive context=16]",),
    ),
    Bug(
        "rows meet",
        "tests/contract/toy.py",
        "state = self.cell(column, state)",
        "state = self.cell(column, state).roll(1, 0)",
        (f"{LAWS}::test_rows_never_meet[recurrent]",),
    ),
    Bug(
        "every chunk starts from an empty state",
        "tests/contract/toy.py",
        "return self.out(self.hidden(torch.stack(hidden, 1))), state",
        "return self.out(self.hidden(torch.stack(hidden, 1))), self.start(len(tokens))",
        (f"{LAWS}::test_chunks_do_not_matter[recurrent-(5, 7)]",),
    ),
]
