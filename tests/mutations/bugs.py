"""Bugs that a developer could make, and the tests that must catch them."""

from dataclasses import dataclass

LAWS = "tests/contract/test_laws.py"
GPT = "gpt layers=2 width=16 heads=2 context=16"
SCORE, DIE, SAMPLE, EVALUATE = (f"tests/test_{name}.py" for name in ("score", "die", "sample", "evaluate"))

DESCENT = "tests/train/test_gradient.py"
ONE_RANK = "tests/train/test_one_rank.py"
KILLED = "tests/train/test_resume.py::test_a_run_killed_at_any_step_ends_where_it_would_have_ended"


@dataclass(frozen=True)
class Bug:
    name: str                      # what is wrong
    file: str
    right: str                     # the source as it is
    wrong: str                     # and with the bug
    caught_by: tuple[str, ...]     # a test, or several of which each must catch it

    def __str__(self) -> str:
        return self.name


BUGS = [
    Bug(
        "the rows of a picked state are mixed up",
        "chainrule/model.py",
        "tensor.index_select(0, rows.to(tensor.device))",
        "tensor.index_select(0, rows.to(tensor.device).sort().values)",
        (f"{LAWS}::test_rows_come_first_in_every_tensor_of_a_state[ngram order=3]",),
    ),
    Bug(
        "the rows of joined states are mixed up",
        "chainrule/model.py",
        "torch.cat([_pad(state, shape) for state in states])",
        "torch.cat([_pad(state, shape) for state in reversed(states)])",
        (f"{LAWS}::test_rows_of_different_lengths_go_on_together_as_they_would_alone[recurrent]",),
    ),
    Bug(
        "joined states are padded on the left",
        "chainrule/model.py",
        "*(slice(size) for size in tensor.shape[1:])",
        "*(slice(most - size, most) for size, most in zip(tensor.shape[1:], shape))",
        (f"{LAWS}::test_rows_of_different_lengths_go_on_together_as_they_would_alone[attentive context=16]",),
    ),
    Bug(
        "the loss is a mean of means",
        "chainrule/model.py",
        'reduction="sum")',
        'reduction="mean")',
        (
            f"{LAWS}::test_cutting_a_step_into_micro_batches_changes_nothing[recurrent]",
            "tests/test_model.py::test_a_loss_is_a_sum_over_what_counts_and_how_much_that_is",
        ),
    ),
    Bug(
        "one token of padding counts",
        "chainrule/model.py",
        "position < self.lengths[:, None]",
        "position <= self.lengths[:, None]",
        (
            f"{LAWS}::test_padding_changes_no_loss[recurrent]",
            f"{LAWS}::test_padding_changes_nothing_that_is_learned[unigram]",
        ),
    ),
    Bug(
        "a mask is one too wide",
        "tests/contract/toy.py",
        "> here[..., None]",
        "> here[..., None] + 1",
        (f"{LAWS}::test_the_future_is_not_seen[attentive context=16-0]",),
    ),
    Bug(
        "padding is attended",
        "tests/contract/toy.py",
        "> here[..., None]",
        "> here.amax(0)[..., None]",
        (f"{LAWS}::test_rows_of_different_lengths_go_on_together_as_they_would_alone[attentive context=16]",),
    ),
    Bug(
        "rows meet",
        "tests/contract/toy.py",
        "state = self.cell(column, state)",
        "state = self.cell(column, state).roll(1, 0)",
        (f"{LAWS}::test_rows_never_meet[recurrent]",),
    ),
    Bug(
        "every chunk begins afresh",
        "tests/contract/toy.py",
        "return self.out(self.hidden(torch.stack(hidden, 1))), state",
        "return self.out(self.hidden(torch.stack(hidden, 1))), self.start(len(tokens))",
        (f"{LAWS}::test_chunks_do_not_matter[recurrent-(5, 7)]",),
    ),
    Bug(
        "a discount's mass is lost",
        "chainrule/models/smoothing.py",
        "prob += evidence.spread(left) * evidence.below",
        "prob += 0 * evidence.below",
        (f"{LAWS}::test_all_texts_of_a_length_together_have_probability_1[ngram order=3-(0,)]",),
    ),
    Bug(
        "add-k adds its k to the counts but not to their sum",
        "chainrule/models/smoothing.py",
        "evidence.per_context(counts) + evidence.k * evidence.vocab",
        "evidence.per_context(counts) + evidence.k",
        (f"{LAWS}::test_all_texts_of_a_length_together_have_probability_1[ngram order=3 estimator=add-k k=0.5-(0,)]",),
    ),
    Bug(
        "a distribution forgets to back off",
        "chainrule/models/ngram.py",
        'weight[row] += self.table("backoff", order - 1)[context]',
        'weight[row] += 0 * self.table("backoff", order - 1)[context]',
        (f"{LAWS}::test_scores_are_what_steps_say[ngram order=3]",),
    ),
    Bug(
        "a score forgets to back off",
        "chainrule/models/ngram.py",
        'result.index_add_(0, asked, self.table("backoff", order - 1)',
        'result.index_add_(0, asked, 0 * self.table("backoff", order - 1)',
        (f"{LAWS}::test_all_texts_of_a_length_together_have_probability_1[ngram order=3-(0,)]",),
    ),
    Bug(
        "a gram runs across a boundary",
        "chainrule/models/grams.py",
        "(words[ends - 1] != BOUNDARY) & (places[ends - 1] >= 0)",
        "(places[ends - 1] >= 0)",
        (f"{LAWS}::test_what_begins_afresh_at_a_boundary_answers_and_learns_so[ngram order=3]",),
    ),
    Bug(
        "a belief is not normalised",
        "chainrule/models/trellis.py",
        "        message.mul_(_inverse(scale))\n",
        "",
        (f"{LAWS}::test_all_texts_of_a_length_together_have_probability_1[hmm states=3-(0, 1, 2)]",),
    ),
    Bug(
        "a belief outlives the boundary",
        "chainrule/models/hmm.py",
        "        beliefs[tokens == BOUNDARY] = self.initial\n",
        "",
        (f"{LAWS}::test_what_begins_afresh_at_a_boundary_answers_and_learns_so[hmm states=3]",),
    ),
    Bug(
        "expected counts are not divided by their sum but by their mean",
        "chainrule/models/hmm.py",
        "smoothed / smoothed.sum(-1, keepdim=True)",
        "smoothed / smoothed.mean(-1, keepdim=True)",
        (f"{LAWS}::test_all_texts_of_a_length_together_have_probability_1[hmm states=3-(0,)]",),
    ),
    Bug(
        "a score reads no state",
        "chainrule/use/score.py",
        "log_probs, state = model.score(",
        "log_probs, _ = model.score(",
        (f"{SCORE}::test_a_stream_cut_into_pieces_scores_as_it_does_whole[50]",),
    ),
    Bug(
        "a sliding window counts a target twice",
        "chainrule/use/score.py",
        ">= skips[chosen, None]",
        ">= skips[chosen, None] - 1",
        (f"{SCORE}::test_windows_count_every_target_once_and_give_it_at_least_context_minus_stride",),
    ),
    Bug(
        "a shorter text takes the place of its neighbour",
        "chainrule/use/score.py",
        "real = column[:-1] < lengths[:, None]",
        "real = column[:-1] <= lengths[:, None]",
        (f"{SCORE}::test_texts_together_score_as_they_do_alone[recurrent-16777216]",),
    ),
    Bug(
        "the bits per byte count tokens",
        "chainrule/use/evaluate.py",
        "total / math.log(2) / split.bytes",
        "total / math.log(2) / tokens",
        (f"{EVALUATE}::test_a_uniform_model_needs_log2_v_bits_a_token",),
    ),
    Bug(
        "the seed is ignored",
        "chainrule/use/die.py",
        "default_rng((seed, step))",
        "default_rng(step)",
        (f"{LAWS}::test_a_seed_repeats_a_sample[bigram]",),
    ),
    Bug(
        "a row's luck depends on its company",
        "chainrule/use/die.py",
        "default_rng((seed, step))",
        "default_rng((seed, step, rows))",
        (
            f"{LAWS}::test_a_seed_repeats_a_sample[bigram]",
            f"{DIE}::test_the_numbers_of_the_first_rows_do_not_depend_on_how_many_follow",
        ),
    ),
    Bug(
        "the temperature is inverted",
        "chainrule/use/die.py",
        "/ max(sampling.temperature, coldest)",
        "* max(sampling.temperature, coldest)",
        (f"{DIE}::test_temperature_is_the_power_1_over_t",),
    ),
    Bug(
        "top-p stops one too early",
        "chainrule/use/die.py",
        "ranked.cumsum(-1) - ranked",
        "ranked.cumsum(-1)",
        (f"{DIE}::test_top_p_leaves_the_fewest_that_have_p",),
    ),
    Bug(
        "the die falls on probability 0",
        "chainrule/use/die.py",
        ".clamp(min=0), right=True)",
        ".clamp(min=0))",
        (f"{DIE}::test_the_die_never_falls_on_probability_0",),
    ),
    Bug(
        "rows that begin again change places",
        "chainrule/use/writing.py",
        "torch.cat([again, others]).argsort()",
        "torch.arange(len(full))",
        (f"{SAMPLE}::test_a_sample_goes_on_past_the_context[(0, 2, 7, 8, 30, 2)]",),
    ),
    Bug(
        "part of a stop text is shown",
        "chainrule/use/sample.py",
        "for size in range(len(text)) if",
        "for size in range(1) if",
        (f"{SAMPLE}::test_a_stop_text_ends_the_sample_and_no_part_of_it_is_shown",),
    ),
    Bug(
        "attention sees one token ahead",
        "chainrule/models/attention.py",
        "return distance >= 0 if window is None else (distance >= 0) & (distance < window)",
        "return distance >= -1 if window is None else (distance >= -1) & (distance < window)",
        (
            "tests/models/test_attention.py::test_a_window_is_what_a_brute_force_mask_says[3]",
            "tests/models/test_gpt.py::test_a_watched_model_says_the_same",
        ),
    ),
    Bug(
        "the pattern is not scaled where it is written out",
        "chainrule/models/attention.py",
        "/ math.sqrt(query.shape[-1])",
        "/ query.shape[-1]",
        (
            "tests/models/test_attention.py::test_fused_and_written_out_agree[causal-4]",
            "tests/models/test_attention.py::test_the_formula_by_hand",
        ),
    ),
    Bug(
        "new keys are turned as if they stood at the beginning",
        "chainrule/models/transformer.py",
        "turns(places, settings.head_size, settings.wavelength, working_dtype(x))",
        "turns(places - places[:, :1], settings.head_size, settings.wavelength, working_dtype(x))",
        (f"{LAWS}::test_chunks_do_not_matter[{GPT}-(5, 7)]",),
    ),
    Bug(
        "new keys are written one place too far",
        "chainrule/models/cache.py",
        "place = self.places[:, None, :, None]",
        "place = (self.places % (self.keys.shape[2] - 1) + 1)[:, None, :, None]",
        (
            f"{LAWS}::test_chunks_do_not_matter[{GPT}-(5, 7)]",
            "tests/models/test_attention.py::test_a_cache_keeps_each_row_at_its_own_place",
        ),
    ),
    Bug(
        "a length is forgotten after a step",
        "chainrule/models/decoder.py",
        'return hidden, {**state, "length": length}',
        "return hidden, state",
        (f"{LAWS}::test_chunks_do_not_matter[{GPT}-(3, 1, 4, 4)]",),
    ),
    Bug(
        "chunks of the output weigh the padding",
        "chainrule/models/output.py",
        "to_weight += error.T @ (some * weigh)",
        "to_weight += error.T @ some",
        ("tests/models/test_output.py::test_chunks_give_the_value_and_gradients_of_plain_cross_entropy[True-False-None-1]",),
    ),
    Bug(
        "the soft cap has no slope",
        "chainrule/models/output.py",
        "error *= 1 - (logits.float() / cap).square()",
        "error *= 1",
        (
            "tests/models/test_output.py::test_chunks_give_the_value_and_gradients_of_plain_cross_entropy[False-False-2.0-1]",
            "tests/models/test_gpt.py::test_what_training_goes_down_has_the_gradients_of_the_loss",
        ),
    ),
    Bug(
        "gates and values of SwiGLU change places",
        "chainrule/models/transformer.py",
        "gate, value = x.chunk(2, -1)",
        "value, gate = x.chunk(2, -1)",
        ("tests/models/test_gpt_and_hugging_face.py::test_the_same_weights_say_the_same[llama]",),
    ),
    Bug(
        "one token of a source's padding is looked at",
        "chainrule/models/attention.py",
        "torch.arange(keys, device=lengths.device) < lengths[:, None]",
        "torch.arange(keys, device=lengths.device) <= lengths[:, None]",
        (
            "tests/models/test_encoder_decoder.py::test_the_padding_of_a_source_changes_nothing",
            "tests/models/test_encoder.py::test_every_token_sees_all_of_its_text_and_no_padding",
            "tests/models/test_seq2seq.py::test_what_is_found_is_a_sum_written_out",
        ),
    ),
    Bug(
        "keys of the source stand in for its values",
        "chainrule/models/encoder_decoder.py",
        "[Source(keys, values, sight) for keys, values in pairs]",
        "[Source(keys, keys, sight) for keys, values in pairs]",
        ("tests/models/test_encoder_decoder.py::test_it_is_torchs_transformer_with_the_same_weights[True]",),
    ),
    Bug(
        "a decoder begins from nothing",
        "chainrule/models/seq2seq.py",
        "below, above = _cut(end, len(self.below.layers))",
        "below, above = _cut(self.encoder.start(rows), len(self.below.layers))",
        (
            "tests/models/test_seq2seq.py::test_the_whole_net_is_its_formulas_token_by_token",
            "tests/models/test_seq2seq.py::test_without_attention_all_that_passes_is_the_last_state",
        ),
    ),
    Bug(
        "an encoder of two directions reads the padding first on its way back",
        "chainrule/models/seq2seq.py",
        "self.encoder(x, self.encoder.start(rows), lengths)",
        "self.encoder(x, self.encoder.start(rows))",
        ("tests/models/test_seq2seq.py::test_the_padding_of_a_source_changes_nothing",),
    ),
    Bug(
        "a mean over padding",
        "chainrule/models/heads.py",
        "vectors.where(real, 0).sum(1) / real.sum(1)",
        "vectors.mean(1)",
        ("tests/models/test_heads.py::test_padding_changes_nothing_and_rows_never_meet[mean-gpt]",),
    ),
    Bug(
        "what was read backward is taken where it has just begun",
        "chainrule/models/heads.py",
        "vectors[:, 0, -backward:]",
        "there[:, -backward:]",
        ("tests/models/test_heads.py::test_the_last_vector_of_a_net_of_two_directions_is_where_each_has_ended",),
    ),
    Bug(
        "a long text weighs more in the auxiliary loss",
        "chainrule/models/heads.py",
        "batch.counted[:, None] / text.counted.sum(1, keepdim=True).clamp(min=1)",
        "batch.counted[:, None] / text.counted.sum().clamp(min=1)",
        (
            "tests/models/test_heads.py::test_the_auxiliary_loss_is_the_mean_of_each_rows_own_nats[gpt]",
            "tests/models/test_heads.py::test_micro_batches_change_no_gradient_of_the_auxiliary_loss[gpt]",
        ),
    ),
    Bug(
        "queries and keys of BERT change places",
        "chainrule/formats/bert.py",
        '["attention.self.query", "attention.self.key", "attention.self.value"]',
        '["attention.self.key", "attention.self.query", "attention.self.value"]',
        ("tests/models/test_encoder.py::test_it_is_bert_with_the_same_weights",),
    ),
    Bug(
        "attention is left out of the plan",
        "chainrule/plan.py",
        "flops += attention_flops(recipe.model, length)",
        "flops += 0",
        ("tests/test_plan.py::test_a_token_costs_six_flops_a_weight_and_the_keys_it_sees",),
    ),
    Bug(
        "a step is a sum of means",
        "chainrule/train/step.py",
        "            nats.backward()\n",
        "            (nats / count).backward()\n",
        (f"{DESCENT}::test_cutting_a_step_into_micro_batches_changes_nothing[3-windows]",),
    ),
    Bug(
        "rows that fill up a rank's share are counted",
        "chainrule/train/feed.py",
        "targets if self.beyond is None else targets.masked_fill(self.beyond[:, None], UNCOUNTED)",
        "targets",
        (f"{ONE_RANK}::test_the_shares_of_all_ranks_are_the_step[2-windows]",),
    ),
    Bug(
        "windows are looked at by two ranks",
        "chainrule/use/score.py",
        "np.where(real, skips[place], context)",
        "skips[place]",
        (f"{ONE_RANK}::test_the_parts_of_a_look_are_the_look[3]",),
    ),
    Bug(
        "a damaged shard is believed",
        "chainrule/train/shard_checkpoint.py",
        "seal is None or seal != seal_of(path, ranks)",
        "seal is None",
        (f"{ONE_RANK}::test_a_damaged_checkpoint_of_shards_is_passed_over[flip]",),
    ),
    Bug(
        "the gradient goes back through all streams",
        "chainrule/train/step.py",
        "states.append(changed(after, Tensor.detach))",
        "states.append(after)",
        (f"{DESCENT}::test_streams_carry_their_state_on_and_cut_the_gradient",),
    ),
    Bug(
        "a look at the validation text draws from the dropout's chance",
        "chainrule/train/validation.py",
        "        self.model.eval()\n",
        "",
        (f"{DESCENT}::test_looking_changes_nothing_that_is_learned",),
    ),
    Bug(
        "the last weights are kept, not the best",
        "chainrule/train/validation.py",
        "self.weights[name].copy_(tensor)",
        "pass",
        (f"{DESCENT}::test_the_model_that_is_left_is_the_best_that_was_looked_at",),
    ),
    Bug(
        "Muon leaves out Nesterov's step ahead",
        "chainrule/train/muon.py",
        "directions = torch._foreach_lerp(gradients, velocities, self.momentum)",
        "directions = velocities",
        ("tests/train/test_optimizers.py::test_muon_in_stacks_is_torchs_muon",),
    ),
    Bug(
        "dropout begins anew after a kill",
        "chainrule/train/resume.py",
        '    _set_chance(checkpoint.part("chance"), training.ranks.rank, device)\n',
        "",
        (f"{KILLED}[{{}}]",),
    ),
    Bug(
        "the optimizer forgets after a kill",
        "chainrule/train/resume.py",
        '    training.optimizers.load(checkpoint.part("optimizer"))\n',
        "",
        (f"{KILLED}[{{}}]",),
    ),
    Bug(
        "streams begin anew after a kill",
        "chainrule/train/resume.py",
        'training.state = _state(training, checkpoint.part("state"))',
        "training.state = None",
        (f"{KILLED}[{{'train.order': 'streams', 'train.optimizer': 'muon'}}]",),
    ),
    Bug(
        "a damaged checkpoint is believed",
        "chainrule/train/checkpoint.py",
        '"sha256": sha256(path)}:',
        '"sha256": seal["sha256"]}:',
        ("tests/train/test_resume.py::test_a_damaged_checkpoint_is_found_and_the_one_before_it_used[flip]",),
    ),
    Bug(
        "neighbours are looked for in the next text too",
        "chainrule/models/word2vec.py",
        "together = (inside == texts[:, None]) & (inside != NOWHERE)",
        "together = (inside != NOWHERE) & (texts[:, None] != NOWHERE)",
        ("tests/models/test_word2vec.py::test_the_loss_is_the_formula[skip-gram]",),
    ),
    Bug(
        "a word that is met often moves too far",
        "chainrule/models/word2vec.py",
        "short = torch.where(against > 0, -torch.expm1(-against) / against, 1.0)[rows]",
        "short = torch.ones_like(against)[rows]",
        ("tests/models/test_word2vec.py::test_many_words_at_once_never_overshoot[5-6-0.5-skip-gram]",),
    ),
    Bug(
        "a noise word counts once, however many it stands for",
        "chainrule/models/word2vec.py",
        "labels.sum(2, keepdim=True) * (self.settings.negatives / shared)",
        "labels.amax(2, keepdim=True) * (self.settings.negatives / shared)",
        ("tests/models/test_word2vec.py::test_the_loss_is_the_formula[skip-gram]",),
    ),
    Bug(
        "a pair far apart counts as much as one side by side",
        "chainrule/models/glove.py",
        "1 / (found % window + 1)",
        "1 / (found % window * 0 + 1)",
        ("tests/models/test_glove.py::test_cells_are_what_a_loop_over_all_places_counts",),
    ),
    Bug(
        "vectors that are gone on with draw other chances",
        "chainrule/train/stretches.py",
        "chance_of(self.seed, 1 + number, tokens.device)",
        "torch.default_generator",
        ("tests/train/test_pairs.py::test_a_run_stopped_by_hand_ends_where_it_would_have_ended[word2vec]",),
    ),
    Bug(
        "a word of an analogy answers it",
        "chainrule/use/vectors.py",
        "        scores.scatter_(1, torch.stack([a, b, c], 1), -torch.inf)\n",
        "",
        ("tests/test_vectors.py::test_with_the_inputs_among_the_answers_fewer_are_right",),
    ),
]
