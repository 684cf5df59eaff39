"""Bugs in chainrule/exercises."""

from mutations.bugs.bug import Bug

BUGS = [
    Bug(
        "an exercise passes when one of its tests does",
        "chainrule/exercises/check.py",
        "return not any(outcome.problem for outcome in self.outcomes)",
        "return not all(outcome.problem for outcome in self.outcomes)",
        ("tests/exercises/test_commands.py::test_what_a_notebook_defines_is_checked",),
    ),
    Bug(
        "a submission that sees the future of the hidden text is ranked",
        "chainrule/exercises/submission.py",
        "        require_causal(model, split)\n",
        "",
        ("tests/exercises/test_leaderboard.py::"
         "test_a_model_that_sees_the_future_only_in_the_hidden_text_is_found",),
    ),
]
