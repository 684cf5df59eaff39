"""Bugs in chainrule/inference."""

from mutations.bugs.bug import Bug
from mutations.bugs.suites import LAWS, ONE_RANK

SCORE = "tests/inference/test_score.py"
EVALUATE = "tests/inference/test_evaluate.py"
SAMPLING = "tests/inference/test_sampling.py"
GENERATE = "tests/inference/test_generate.py"
MBR = "tests/inference/test_mbr.py"

BUGS = [
    Bug(
        "a score reads no state",
        "chainrule/inference/score.py",
        "log_probs, state = model.score(",
        "log_probs, _ = model.score(",
        (f"{SCORE}::test_a_stream_cut_into_pieces_scores_as_it_does_whole[50]",),
    ),
    Bug(
        "a sliding window counts a target twice",
        "chainrule/inference/score.py",
        ">= context_only[chosen, None]",
        ">= context_only[chosen, None] - 1",
        (f"{SCORE}::test_windows_count_every_target_once_and_give_it_at_least_context_minus_stride",),
    ),
    Bug(
        "a shorter text takes the place of its neighbour",
        "chainrule/inference/score.py",
        "real = column[:-1] < lengths[:, None]",
        "real = column[:-1] <= lengths[:, None]",
        (f"{SCORE}::test_texts_together_score_as_they_do_alone[recurrent-16777216]",),
    ),
    Bug(
        "the bits per byte count tokens",
        "chainrule/inference/evaluate.py",
        "total / math.log(2) / split.bytes",
        "total / math.log(2) / tokens",
        (f"{EVALUATE}::test_a_uniform_model_needs_log2_v_bits_a_token",),
    ),
    Bug(
        "the seed is ignored",
        "chainrule/inference/sampling.py",
        "default_rng((seed, step))",
        "default_rng(step)",
        (f"{LAWS}::test_a_seed_repeats_a_sample[bigram]",),
    ),
    Bug(
        "a row's random numbers depend on how many rows there are",
        "chainrule/inference/sampling.py",
        "default_rng((seed, step))",
        "default_rng((seed, step, rows))",
        (
            f"{LAWS}::test_a_seed_repeats_a_sample[bigram]",
            f"{SAMPLING}::test_the_numbers_of_the_first_rows_do_not_depend_on_how_many_follow",
        ),
    ),
    Bug(
        "the temperature is inverted",
        "chainrule/inference/sampling.py",
        "/ max(sampling.temperature, coldest)",
        "* max(sampling.temperature, coldest)",
        (f"{SAMPLING}::test_temperature_is_the_power_1_over_t",),
    ),
    Bug(
        "top-p stops one too early",
        "chainrule/inference/sampling.py",
        "ranked.cumsum(-1) - ranked",
        "ranked.cumsum(-1)",
        (f"{SAMPLING}::test_top_p_leaves_the_fewest_that_have_p",),
    ),
    Bug(
        "a token of probability 0 is drawn",
        "chainrule/inference/sampling.py",
        ".clamp(min=0), right=True)",
        ".clamp(min=0))",
        (f"{SAMPLING}::test_a_token_of_probability_0_is_never_drawn",),
    ),
    Bug(
        "rows that are prefilled again change places",
        "chainrule/inference/decoding.py",
        "torch.cat([again, others]).argsort()",
        "torch.arange(len(full))",
        (f"{GENERATE}::test_a_sample_goes_on_past_the_context[(0, 2, 7, 8, 30, 2)]",),
    ),
    Bug(
        "the state of a hypothesis is not that of its parent",
        "chainrule/inference/decoding.py",
        'state = pick(state, values["parents"])',
        'state = pick(state, values["parents"].sort().values)',
        ("tests/inference/test_beam.py::test_a_state_follows_its_hypothesis",),
    ),
    Bug(
        "a CUDA graph reads the random numbers of its capture",
        "chainrule/inference/captured/captured_step.py",
        "return self.numbers.index_select(0, self.place)[0]",
        "return torch.full_like(self.numbers[0], 0.5)",
        ("tests/inference/test_decoding.py::test_a_sample_by_graphs_is_the_same_past_the_context_too",),
    ),
    Bug(
        "all steps of a block read the same random numbers",
        "chainrule/inference/captured/captured_step.py",
        "self.place.add_(1)",
        "self.place.zero_()",
        ("tests/inference/test_decoding.py::test_a_sample_by_graphs_is_the_same_past_the_context_too",),
    ),
    Bug(
        "a graph is used again after the weights have changed",
        "chainrule/inference/captured/kept_steps.py",
        "tensor._version, tensor.dtype",
        "tensor.dtype",
        ("tests/inference/test_captured_step.py::test_weights_that_were_changed_in_place_are_those_that_sample",),
    ),
    Bug(
        "a graph is used again with another temperature",
        "chainrule/inference/sampling.py",
        "replace(self.sampling, stop=(), seed=0)",
        "replace(self.sampling, stop=(), seed=0, temperature=1)",
        ("tests/inference/test_captured_step.py::test_other_settings_rows_or_lengths_are_captured_again",),
    ),
    Bug(
        "a text goes on from the KV cache of the one before",
        "chainrule/inference/decoding.py",
        "                kept.load(self.values)\n",
        "                pass\n",
        ("tests/inference/test_captured_step.py::test_the_kept_cache_holds_nothing_of_the_text_before",),
    ),
    Bug(
        "two calls at the same time write into the same memory",
        "chainrule/inference/captured/kept_steps.py",
        "_KEPT.pop(model, None)",
        "_KEPT.get(model)",
        ("tests/inference/test_captured_step.py::test_two_texts_that_are_drawn_in_turns_do_not_share_a_graph",),
    ),
    Bug(
        "a block of steps waits until the last one has been read",
        "chainrule/inference/generate.py",
        "AHEAD if loop.replaying else 1",
        "1",
        ("tests/inference/test_captured_step.py::test_a_block_is_ordered_before_the_one_before_it_is_read",),
    ),
    Bug(
        "rows that have ended are replaced by others",
        "chainrule/inference/mbr.py",
        "going = going[alive]",
        "going = going[: len(alive)]",
        ("tests/inference/test_decoding.py::test_samples_for_sources_by_graphs_are_the_same",),
    ),
    Bug(
        "part of a stop text is shown",
        "chainrule/inference/generate.py",
        "for size in range(len(text)) if",
        "for size in range(1) if",
        (f"{GENERATE}::test_a_stop_text_ends_the_sample_and_no_part_of_it_is_shown",),
    ),
    Bug(
        "the next-word table counts the shortest context",
        "chainrule/inference/generate.py",
        "int(seen[-1].ngram[-1]), int(seen[-1].total[-1])",
        "int(seen[0].ngram[-1]), int(seen[0].total[-1])",
        ("tests/cli/test_word_tables.py::test_the_next_word_table_of_the_eleven_sentences_has_the_lectures_fractions",),
    ),
    Bug(
        "a sample of words goes on after the end of a line",
        "chainrule/inference/generate.py",
        'return tokenizer.boundary != "none" and not past_end',
        'return tokenizer.boundary == "document" and not past_end',
        (f"{GENERATE}::test_a_line_ends_at_the_boundary_and_the_next_one_follows_where_it_is_asked_for",),
    ),
    Bug(
        "windows are looked at by two ranks",
        "chainrule/inference/score.py",
        "np.where(real, context_only[place], context)",
        "context_only[place]",
        (f"{ONE_RANK}::test_the_parts_of_an_evaluation_are_the_evaluation[3]",),
    ),
    Bug(
        "a word of an analogy answers it",
        "chainrule/inference/vectors.py",
        "        scores.scatter_(1, torch.stack([a, b, c], 1), -torch.inf)\n",
        "",
        ("tests/inference/test_vectors.py::test_with_the_inputs_among_the_answers_fewer_are_right",),
    ),
    Bug(
        "a source has the random numbers of its place in a batch",
        "chainrule/inference/mbr.py",
        "[ids].flatten()",
        "[: len(ids)].flatten()",
        (
            f"{MBR}::test_a_source_has_the_same_random_numbers_in_any_batch[gpt]",
            f"{MBR}::test_fewer_at_a_time_are_answered_the_same",
        ),
    ),
    Bug(
        "when a text ends, the others get its random numbers",
        "chainrule/inference/mbr.py",
        "uniform[: limit - first, going]",
        "uniform[: limit - first, : len(going)]",
        (
            f"{MBR}::test_what_is_drawn_is_what_a_plain_loop_draws[transformer-1.0]",
            f"{MBR}::test_a_source_has_the_same_random_numbers_in_any_batch[seq2seq]",
        ),
    ),
    Bug(
        "a text that was drawn often counts once",
        "chainrule/inference/mbr.py",
        "sum(many * subsequence_f1",
        "sum(subsequence_f1",
        (f"{MBR}::test_the_most_similar_text_comes_first_and_how_often_it_was_drawn_counts",),
    ),
    Bug(
        "the bytes by position are those of the tokens before",
        "chainrule/inference/analysis/by_position.py",
        "ends = np.append(0, byte_ends(tokenizer, split.tokens[1:]))",
        "ends = np.append(0, byte_ends(tokenizer, split.tokens[:-1]))",
        ("tests/inference/test_by_position.py::test_each_bucket_is_a_loop_over_windows",),
    ),
    Bug(
        "the blank of which a model is least certain is filled first",
        "chainrule/inference/fill_in.py",
        "chosen = max(here, key=",
        "chosen = min(here, key=",
        ("tests/inference/test_fill_in.py::test_blanks_are_filled_as_by_hand_whatever_stands_in_the_same_batch",),
    ),
    Bug(
        "an induction head attends to the same token",
        "chainrule/inference/analysis/head_scores.py",
        "places - size + 1]",
        "places - size]",
        ("tests/inference/test_head_scores.py::test_an_induction_head_attends_to_what_followed",),
    ),
    Bug(
        "the words of an answer are a set",
        "chainrule/inference/metrics.py",
        "(Counter(words) & Counter(others)).total()",
        "len(set(words) & set(others))",
        ("tests/inference/test_metrics.py::test_answers_are_compared_as_squad_does",),
    ),
    Bug(
        "a rollout goes on from the KV cache of the one before",
        "chainrule/inference/decoding.py",
        """            copy_into(self.graph.values["state"], state)
""",
        "",
        ("tests/preferences/reinforce/test_rollouts.py::test_after_an_update_a_sampler_draws_what_a_new_one_would[gpt]",),
    ),
]
