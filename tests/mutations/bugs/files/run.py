"""Bugs in chainrule/run."""

from mutations.bugs.bug import Bug
from mutations.bugs.suites import TUNED

BUGS = [
    Bug(
        "a run of an older format is read",
        "chainrule/run/about.py",
        "if written < FORMAT:",
        "if written < 1:",
        ("tests/test_run.py::test_an_older_run_is_refused_with_what_to_do",),
    ),
    Bug(
        "a run that began elsewhere is taken for the same",
        "chainrule/run/earlier.py",
        'and name != "base.path"',
        'and not name.startswith("base.")',
        (f"{TUNED}::test_a_run_is_taken_for_the_same_only_if_it_began_from_the_same",),
    ),
]
