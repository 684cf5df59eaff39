"""Bugs in chainrule/prefer."""

from mutations.bugs.bug import Bug

BUGS = [
    Bug(
        "rows that ended are dropped, and the others take their random numbers",
        "chainrule/prefer/batch_drawing.py",
        "torch.from_numpy(random[alive, step])",
        "torch.from_numpy(random[: len(alive), step])",
        ("tests/prefer/test_batch_drawing.py::test_a_batch_draws_the_engines_pairs_whenever_rows_are_dropped[0.0]",),
    ),
    Bug(
        "two processes write clicks at the same time",
        "chainrule/prefer/clicks.py",
        "            fcntl.flock(self.handle, fcntl.LOCK_EX)",
        "            pass",
        ("tests/prefer/test_clicks.py::test_only_one_process_writes_at_a_time",),
    ),
    Bug(
        "a click counts as saved before it is on disk",
        "chainrule/prefer/clicks.py",
        "            self.write(line)\n            os.fsync(self.handle)\n",
        "            self.write(line)\n",
        ("tests/prefer/test_clicks.py::"
         "test_a_click_is_on_disk_in_the_journal_before_the_pairs_and_there_before_it_is_saved",),
    ),
    Bug(
        "left and right are exchanged in the file of pairs",
        "chainrule/prefer/clicks.py",
        '"left" if chosen == event["left"] else "right"',
        '"right" if chosen == event["left"] else "left"',
        ("tests/prefer/test_clicks.py::test_the_position_is_where_the_chosen_answer_stood",),
    ),
    Bug(
        "a pair may have equal answers",
        "chainrule/prefer/drawing.py",
        "if answer.text.strip() and all(answer.text != other.text for other in kept):",
        "if answer.text.strip():",
        ("tests/prefer/test_judge.py::test_no_pair_has_equal_or_empty_answers",),
    ),
]
