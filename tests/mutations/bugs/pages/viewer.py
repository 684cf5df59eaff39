"""Bugs in chainrule/viewer."""

from mutations.bugs.bug import Bug

WRITE = (
    "tests/viewer/views/test_write_view.py::"
    "test_the_text_is_that_of_sample_and_the_bits_those_before_temperature_and_cuts"
)

BUGS = [
    Bug(
        "the vector of a word is that of the token before it",
        "chainrule/viewer/views/contextual.py",
        "place = slice(span.start - first + 1, span.stop - first + 1)",
        "place = slice(span.start - first, span.stop - first)",
        ("tests/viewer/views/test_contextual.py::test_vectors_are_those_of_the_model_and_embeddings_are_equal[gpt]",),
    ),
    Bug(
        "a token's vote leaves out the one after it",
        "chainrule/viewer/task_views/votes.py",
        "row.ids[:place] + row.ids[place + 1 :]",
        "row.ids[: place + 1] + row.ids[place + 2 :]",
        ("tests/viewer/task_views/test_task_views.py::test_votes_are_the_differences_of_direct_calls[encoder]",),
    ),
    Bug(
        "the trellis of a tagger sums over the tag before a word in the place of the one after",
        "chainrule/viewer/task_views/tag_trellis.py",
        "after = pairs[1:, :, :tags].mT",
        "after = pairs[1:, :, :tags]",
        ("tests/viewer/task_views/test_task_views.py::test_the_trellis_of_a_tagger_is_a_sum_over_all_sequences_of_tags",),
    ),
    Bug(
        "a text from a source is scored without it",
        "chainrule/viewer/subject.py",
        "return self.model.start(1, prompt.source)",
        "return self.model.start(1, None if prompt.source is None else torch.zeros_like(prompt.source))",
        ("tests/viewer/task_views/test_task_views.py::test_what_is_written_from_a_source_is_predicted_after_it[transformer]",),
    ),
    Bug(
        "of an answer in the in-context view only the last token counts",
        "chainrule/viewer/views/in_context.py",
        "np.exp([-nats[span].sum() for span in spans])",
        "np.exp([-nats[span][-1] for span in spans])",
        ("tests/viewer/views/test_in_context.py::test_an_answer_is_all_its_tokens_after_the_lines_before_it[ngram]",),
    ),
    Bug(
        "the counted bytes of training are those of one token",
        "chainrule/viewer/cost_counts.py",
        "kept_bytes(model) * length + min(",
        "kept_bytes(model) + min(",
        ("tests/viewer/views/test_cost_view.py::test_counted_bytes_are_those_of_the_plan",),
    ),
    Bug(
        "the bits of what is written are those of a token before",
        "chainrule/viewer/views/write.py",
        'return {**after, "log_probs": own.gather(1, after["tokens"][:, None])[:, 0]}',
        'return {**after, "log_probs": own.gather(1, values["tokens"][:, None])[:, 0]}',
        (f"{WRITE}[sampling0]",),
    ),
    Bug(
        "what is written at a low temperature seems more certain than it is",
        "chainrule/viewer/views/write.py",
        "own = logits.float().log_softmax(-1)",
        "own = (logits.float() / self.sampling.temperature).log_softmax(-1)",
        (f"{WRITE}[sampling1]",),
    ),
    Bug(
        "states are labelled by what is frequent",
        "chainrule/viewer/views/trellis.py",
        "order = (row[frequent] / frequencies[frequent].clamp_min(1e-30)).argsort(descending=True, stable=True)",
        "order = row[frequent].argsort(descending=True, stable=True)",
        ("tests/viewer/views/test_trellis.py::"
         "test_a_state_is_labelled_by_what_is_typical_of_it_not_by_what_is_frequent",),
    ),
    Bug(
        "runs of a comparison come by the names of their kinds",
        "chainrule/viewer/notebook.py",
        "        return sorted(runs, key=lambda run: place.get(run.name, len(kinds)))",
        "        return runs",
        ("tests/viewer/pages/test_notebook.py::"
         "test_runs_of_a_comparison_come_as_it_lists_them_and_others_by_name_whatever_the_times_of_files",),
    ),
    Bug(
        "the page of a training reads itself again when training has ended, and not before",
        "chainrule/viewer/views/preferences.py",
        "return page if ended else",
        "return page if not ended else",
        ("tests/cli/train/test_curves_page.py::test_the_curves_are_drawn_in_the_terminal_and_on_a_page",),
    ),
    Bug(
        "two models of a kind have the same colour",
        "chainrule/viewer/hues.py",
        "(taken.count(hue), free.index(hue))",
        "free.index(hue)",
        ("tests/viewer/live_page/test_frame.py::test_kinds_keep_their_colours_and_two_of_a_kind_differ",),
    ),
    Bug(
        "numbers of a large file are cut off instead of rounded",
        "chainrule/viewer/compression.py",
        "astype(np.uint64) + (1 << (zeros - 1))",
        "astype(np.uint64)",
        ("tests/viewer/pages/test_page.py::test_rounded_numbers_keep_their_first_digits_and_those_that_stand_out_are_exact",),
    ),
    Bug(
        "an n-gram that occurs twice gives its tokens twice its weight",
        "chainrule/viewer/task_views/contributions.py",
        "each = weight / sum(end - begin + 1 for begin, end in spots)",
        "each = weight / (spots[0][1] - spots[0][0] + 1)",
        ("tests/viewer/task_views/test_log_linear_views.py::"
         "test_contributions_come_to_the_decision[fine fine film and a fine film-two]",),
    ),
    Bug(
        "the heaviest n-grams are those of one class without the others",
        "chainrule/viewer/task_views/ngram_features.py",
        "return (weights * classes - weights.sum(-1, keepdim=True)) / max(1, classes - 1)",
        "return weights",
        ("tests/viewer/task_views/test_log_linear_views.py::test_the_heaviest_ngrams_are_those_of_the_model[three]",),
    ),
]
