"""Bugs in chainrule/tasks."""

from mutations.bugs.bug import Bug
from mutations.bugs.suites import CHATS

BUGS = [
    Bug(
        "an ensemble answers as its first run",
        "chainrule/tasks/example_task.py",
        "means.append(np.average(rows, axis=0, weights=ensemble_weights(run)))",
        "means.append(rows[0])",
        ("tests/cli/tasks/test_ensembles.py::test_taggers_of_other_kinds_are_averaged",),
    ),
    Bug(
        "the weights of an ensemble are left out",
        "chainrule/tasks/example_task.py",
        "means.append(np.average(rows, axis=0, weights=ensemble_weights(run)))",
        "means.append(np.mean(rows, axis=0))",
        ("tests/cli/tasks/test_ensembles.py::test_a_run_of_an_ensemble_may_have_a_weight",),
    ),
    Bug(
        "an ensemble writes as its first run",
        "chainrule/tasks/translate.py",
        "*(one.model for one in run.others)",
        "*(run.model for one in run.others)",
        ("tests/cli/tasks/test_ensembles.py::test_writers_of_other_kinds_write_together",),
    ),
    Bug(
        "no row of a stream is ever reset",
        "chainrule/tasks/lm.py",
        "RESET_SHARE = 0.01 ",
        "RESET_SHARE = 0.0 ",
        ("tests/training/batches/test_loader.py::test_one_in_a_hundred_rows_of_a_stream_is_reset",),
    ),
    Bug(
        "what was learned as the target is read as the source",
        "chainrule/tasks/translate.py",
        " if settings.target not in (name, str(at + 1))]",
        "]",
        ("tests/tasks/test_examples.py::test_a_text_to_translate_needs_no_target",),
    ),
    Bug(
        "an infilled span is never empty",
        "chainrule/tasks/corruption.py",
        "lengths = random.poisson(mean, total)",
        "lengths = np.maximum(random.poisson(mean, total), 1)",
        ("tests/tasks/test_corruption.py::test_lengths_of_infilled_spans_are_poisson",),
    ),
    Bug(
        "deleted tokens leave a mask",
        "chainrule/tasks/corruption.py",
        "return row[~self._chosen(row, random)]",
        "return np.where(self._chosen(row, random), self.mask, row)",
        ("tests/tasks/test_corruption.py::test_deleted_tokens_leave_no_sign",),
    ),
    Bug(
        "the padding of frames counts as a label",
        "chainrule/tasks/frames.py",
        "self.targets.padded(rows, widths[0], IGNORE) if each",
        "self.targets.padded(rows, widths[0]) if each",
        ("tests/tasks/test_frames.py::test_a_batch_pads_frames_with_zeros_and_ignores_their_labels",),
    ),
    Bug(
        "frames of another width are read on",
        "chainrule/tasks/frames.py",
        "        if len(vector) != wide:",
        "        if len(vector) > wide:",
        ("tests/tasks/test_frames.py::test_wrong_frames_are_refused_in_a_line",),
    ),
    Bug(
        "an entity goes on where another of its type begins",
        "chainrule/tasks/entities.py",
        'return other or before in ("E", "S") or mark in ("B", "S", OUTSIDE)',
        'return other or before in ("E", "S") or mark in ("S", OUTSIDE)',
        ("tests/tasks/test_entities.py::test_spans_by_hand",
         "tests/tasks/test_entities.py::test_f1_is_that_of_the_sets_of_spans"),
    ),
    Bug(
        "the prompt of a chat counts in the loss, too",
        "chainrule/tasks/chat.py",
        "targets = np.where(answers, template.as_targets(ids), IGNORE)",
        "targets = template.as_targets(ids)",
        (f"{CHATS}::test_targets_follow_the_tokens_that_are_read",),
    ),
    Bug(
        "packed chats see each other",
        "chainrule/tasks/chat.py",
        "documents = Ragged(np.repeat(positions(packs.lengths), chats), ends)",
        "documents = Ragged(np.repeat(positions(packs.lengths) * 0, chats), ends)",
        (f"{CHATS}::test_packing_changes_no_loss[rotary]",),
    ),
    Bug(
        "rows that pad a batch count in the loss",
        "chainrule/tasks/batching.py",
        "        padded.targets[given:] = IGNORE",
        "        pass",
        ("tests/training/batches/test_batch_shapes.py::test_padding_changes_neither_the_loss_nor_the_gradients[seq2seq]",),
    ),
    Bug(
        "characters disturb a pretrained body at first",
        "chainrule/tasks/tag.py",
        "zero_init=pretrained",
        "zero_init=False",
        ("tests/training/finetune/test_finetune.py::test_characters_add_nothing_at_first_to_a_pretrained_body",),
    ),
]
