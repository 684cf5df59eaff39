"""Bugs in chainrule/testing."""

from mutations.bugs.bug import Bug
from mutations.bugs.suites import LAWS

BUGS = [
    Bug(
        "a law is not among those that are checked",
        "chainrule/testing/contract.py",
        "    learning_laws.check_reset_at_boundary,\n",
        "",
        (f"{LAWS}::test_every_check_belongs_to_the_contract",),
    ),
]
