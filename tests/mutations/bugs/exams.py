"""Bugs in chainrule/exams."""

from mutations.bugs.bug import Bug

BUGS = [
    Bug(
        "a tie of two sentences is right",
        "chainrule/exams/blimp.py",
        "return nats < others - ROUNDING",
        "return nats <= others + ROUNDING",
        ("tests/exams/test_blimp.py::test_differences_by_rounding_and_two_infinities_are_ties",),
    ),
    Bug(
        "the padding of a last word counts in its probability",
        "chainrule/exams/lambada.py",
        "-log_p.where(real, 0).sum(1)",
        "-log_p.sum(1)",
        ("tests/exams/test_lambada.py::test_last_words_are_scored_as_one_by_one[ngram]",),
    ),
    Bug(
        "an unknown last word is right where <unk> is the most probable",
        "chainrule/exams/lambada.py",
        "    right &= known\n",
        "",
        ("tests/exams/test_lambada.py::test_an_unknown_last_word_is_a_mistake",),
    ),
    Bug(
        "of a label only the first token is scored",
        "chainrule/exams/answers.py",
        "            scores[row, place] += more\n",
        "            scores[row, place] += 0 * more\n",
        ("tests/exams/test_few_shot.py::test_a_shared_prefix_changes_no_probability[bigram]",),
    ),
    Bug(
        "the tested example may be among its own shots",
        "chainrule/exams/shots.py",
        "[at for at in self._order if self.pool[at].about != tested.about]",
        "self._order",
        ("tests/exams/test_few_shot.py::test_the_tested_example_is_never_its_own_shot",),
    ),
    Bug(
        "the text without content counts once for each of its forms",
        "chainrule/exams/calibration.py",
        "np.log(np.exp(log_normalised(content_free)).mean(0))",
        "np.log(np.exp(content_free).mean(0))",
        ("tests/exams/test_few_shot.py::test_calibration_by_numbers",),
    ),
    Bug(
        "the channel scores each text after the same label",
        "chainrule/exams/prompt_set.py",
        "self.writer.encode(before, template.question(texts, word), [template.solution(texts, word)])",
        "self.writer.encode(before, template.question(texts, words[0]), [template.solution(texts, word)])",
        ("tests/exams/test_few_shot.py::test_the_channel_of_a_bigram_by_hand",
         "tests/exams/test_few_shot.py::test_the_channel_reads_each_label_and_then_the_text[ngram]"),
    ),
    Bug(
        "of an ensemble only the last prompt counts",
        "chainrule/exams/few_shot.py",
        "            total[list(asked)] += found\n            prompts[list(asked)] += 1\n",
        "            total[list(asked)] = found\n            prompts[list(asked)] = 1\n",
        ("tests/exams/test_few_shot.py::test_an_ensemble_is_the_mean_over_prompts_with_one_example[gpt-False]",),
    ),
]
