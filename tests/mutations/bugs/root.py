"""Bugs in the files directly under chainrule/."""

from mutations.bugs.bug import Bug
from mutations.bugs.suites import LAWS

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
        "a CPU with AVX512-BF16 is taken for one that has no fast bfloat16",
        "chainrule/device.py",
        "torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()",
        "torch.cpu._is_amx_tile_supported()",
        ("tests/training/test_trainer.py::"
         "test_a_cpu_multiplies_bfloat16_only_where_that_is_fast[False-True-False-wanted1]",),
    ),
    Bug(
        "attention is left out of the plan",
        "chainrule/flops.py",
        "+ attention_flops(model, length, source or length)",
        "",
        ("tests/test_plan.py::test_a_token_costs_six_flops_a_weight_and_the_keys_it_sees",),
    ),
    Bug(
        "an encoder is as cheap as if it read only the past",
        "chainrule/flops.py",
        "causal=not model.bidirectional)",
        "causal=True)",
        ("tests/test_plan.py::test_flops_are_those_that_torch_counts[encoder]",),
    ),
    Bug(
        "a source costs what the text costs, however long it is",
        "chainrule/flops.py",
        "1.0 if source is None else source / length",
        "1.0",
        ("tests/test_plan.py::test_the_source_costs_by_its_own_length",),
    ),
    Bug(
        "a Transformer looks linear in the view of costs",
        "chainrule/flops.py",
        "return [length * (weights + attention_flops(model, length, length)) for length in lengths]",
        "return [length * (weights + attention_flops(model, 16, 16)) for length in lengths]",
        ("tests/viewer/views/test_cost_view.py::test_counted_flops_are_a_polynomial_of_the_length",),
    ),
    Bug(
        "a range includes the end that it excludes",
        "chainrule/settings.py",
        "value < self.below",
        "value <= self.below",
        ("tests/test_settings.py::test_a_range_names_itself_and_holds_its_numbers",),
    ),
    Bug(
        "what another process is writing is removed",
        "chainrule/files.py",
        "            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n            path.unlink()",
        "            path.unlink()",
        ("tests/test_files.py::"
         "test_what_a_killed_process_was_writing_is_removed_by_the_next_and_what_a_living_one_writes_is_not",),
    ),
]
