"""Bugs in chainrule/defaults."""

from mutations.bugs.bug import Bug

EXAMPLES, OF_EXAMPLES = "chainrule/defaults/example_defaults.py", "tests/defaults/test_example_defaults.py"

BUGS = [
    Bug(
        "pairs of texts are learned by their n-grams",
        EXAMPLES,
        "return fits and len(written) == len(train) and",
        "return fits and",
        (f"{OF_EXAMPLES}::test_pairs_vectors_and_what_does_not_fit_into_memory_are_learned_by_a_network",),
    ),
    Bug(
        "names are learned by the n-grams of their letters",
        EXAMPLES,
        "len(written) == len(train) and not _is_spelled(written)",
        "len(written) == len(train)",
        (f"{OF_EXAMPLES}::test_names_are_read_as_characters_and_a_step_counts_them",),
    ),
    Bug(
        "few steps of a classifier have the rate and the dropout of many",
        EXAMPLES,
        "        chosen |= OF_FEW\n",
        "        pass\n",
        (f"{OF_EXAMPLES}::test_few_steps_of_a_classifier_are_longer_and_drop_less[given0-True]",),
    ),
    Bug(
        "the only example of a class is held out",
        "chainrule/tasks/examples.py",
        "if not known.issuperset(labels[place]):",
        "if False:",
        ("tests/tasks/test_examples.py::test_a_class_of_one_example_stays_to_train_on",),
    ),
    Bug(
        "a budget in steps gets another learning rate than one in minutes",
        "chainrule/defaults/choose.py",
        "chosen |= self._rates(chosen, epochs * self.size.tokens, budget.parameters)",
        "chosen |= self._rates(chosen, epochs * self.size.tokens, budget.parameters) if self.seconds else {}",
        ("tests/defaults/test_choose.py::test_the_same_choice_however_the_budget_is_given[lstm]",),
    ),
    Bug(
        "few steps have the learning rate of many",
        "chainrule/defaults/rates.py",
        "max(1.0, min(MOST, math.sqrt(MANY / max(1.0, steps))))",
        "1.0",
        ("tests/defaults/test_choose.py::test_the_rate_falls_with_the_size_and_with_the_steps",),
    ),
    Bug(
        "dropout forgets how many parameters there are for each token",
        "chainrule/defaults/rates.py",
        "if epochs * per_token <= most",
        "if epochs <= most",
        ("tests/defaults/test_choose.py::"
         "test_dropout_rises_with_the_epochs_and_with_the_parameters_for_each_token",),
    ),
    Bug(
        "the batch is not shortened on a slow machine",
        "chainrule/defaults/choose.py",
        'tokens = min(chosen["train.tokens"], int(clock.tokens / STEPS))',
        'tokens = max(chosen["train.tokens"], int(clock.tokens / STEPS))',
        ("tests/defaults/test_choose.py::test_a_slow_machine_gets_short_steps_and_a_small_network",),
    ),
    Bug(
        "a slow machine chooses an evaluation of 0 tokens, which is refused",
        "chainrule/defaults/choose.py",
        "max(FEWEST_TOKENS, evaluate_share(self._made(chosen).train) * clock.tokens)",
        "evaluate_share(self._made(chosen).train) * clock.tokens",
        ("tests/defaults/test_choose.py::"
         "test_the_slowest_machine_and_the_shortest_time_give_a_run_that_can_be_made[lstm]",),
    ),
    Bug(
        "a classifier reads names as words, which are all unknown to it",
        "chainrule/defaults/example_defaults.py",
        'return once > RARE["short" if total <= SHORT * len(some) else "long"] * total',
        "return False",
        ("tests/defaults/test_example_defaults.py::test_names_are_read_as_characters_and_a_step_counts_them",),
    ),
    Bug(
        "a few sentences are read as characters",
        "chainrule/defaults/example_defaults.py",
        'RARE["short" if total <= SHORT * len(some) else "long"]',
        'RARE["short"]',
        ("tests/defaults/test_example_defaults.py::"
         "test_few_sentences_are_read_as_words_though_many_words_come_once",),
    ),
]
