"""Bugs in chainrule/commands."""

from mutations.bugs.bug import Bug

BUGS = [
    Bug(
        "the parts of a long list are not separated",
        "chainrule/commands/json_output.py",
        "        yield before + json.dumps(part, allow_nan=False)[1:-1]\n        before = \", \"",
        "        yield before + json.dumps(part, allow_nan=False)[1:-1]\n        before = \" \"",
        ("tests/cli/errors/test_mangled_input.py::test_the_json_of_a_score_is_written_in_pieces",),
    ),
]
