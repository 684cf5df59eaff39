"""Bugs in chainrule/chat."""

from mutations.bugs.bug import Bug

TURNS = "tests/chat/test_conversation.py"

BUGS = [
    Bug(
        "an answer goes on from a state that another answer has used",
        "chainrule/chat/conversation.py",
        "            return known.copy()\n",
        "            return known\n",
        (f"{TURNS}::test_a_kept_state_is_not_changed_by_the_answers_that_are_drawn_from_it",),
    ),
    Bug(
        "a state is kept under more tokens than it has read",
        "chainrule/chat/conversation.py",
        "self.cache.wrote(np.append(prompt, drawn[:-1]), loop",
        "self.cache.wrote(np.append(prompt, drawn), loop",
        (f"{TURNS}::test_the_tokens_of_an_answer_are_not_read_again",),
    ),
]
