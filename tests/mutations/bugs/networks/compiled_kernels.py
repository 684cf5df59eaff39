"""Bugs in chainrule/kernels/cpu, which are there only where a compiler is."""

import os
import shutil

from mutations.bugs.bug import Bug

COMPILED = "tests/kernels/test_compiled.py"
SOURCE, CALLER = (f"chainrule/kernels/cpu/viterbi.{end}" for end in ("cpp", "py"))
VITERBI = "tests/models/hmm/test_viterbi.py"

BUGS = [
    Bug(
        "of equal states C++ takes the last",
        SOURCE,
        "for (int64_t state = model.states - 1; state >= 0; state--)",
        "for (int64_t state = 0; state < model.states; state++)",
        (f"{VITERBI}::test_of_equal_states_the_first_is_taken[C++]",),
    ),
    Bug(
        "texts that run side by side end with the shortest",
        SOURCE,
        "            forward<1>(model, texts + text, shared, texts[text].length);\n",
        "",
        (f"{VITERBI}::test_texts_of_any_length_with_boundaries_and_padding[C++-1-8]",),
    ),
    Bug(
        "the last state of a text is chosen as if a state followed",
        SOURCE,
        "path[time + 1] : model.states;",
        "path[time + 1] : 0;",
        (f"{VITERBI}::test_texts_of_any_length_with_boundaries_and_padding[C++-1-8]",),
    ),
    Bug(
        "a token outside the vocabulary is read from other memory",
        SOURCE,
        "< (uint64_t)symbols;",
        "<= (uint64_t)symbols;",
        (f"{VITERBI}::test_a_token_outside_the_vocabulary_is_refused[C++]",),
    ),
    Bug(
        "log p of texts stands in the order of their lengths",
        CALLER,
        "log_p[texts] = found",
        "log_p[: len(texts)] = found",
        (f"{VITERBI}::test_texts_of_any_length_with_boundaries_and_padding[C++-1-8]",),
    ),
    Bug(
        "a damaged library is loaded",
        "chainrule/kernels/cpu/compiled.py",
        "if path == self._path(path.read_bytes())",
        "if path.read_bytes() is not None",
        (f"{COMPILED}::test_a_damaged_library_is_made_again[empty]",),
    ),
    Bug(
        "little work waits for the compiler",
        "chainrule/kernels/cpu/compiled.py",
        "self.seconds >= WORTH and",
        "self.seconds >= 0 and",
        (f"{COMPILED}::test_work_adds_up_until_it_repays_the_compiler",),
    ),
    Bug(
        "a library that was compiled with other flags is taken",
        "chainrule/kernels/cpu/compiled.py",
        "[macros, *self.flags, self",
        "[self",
        (f"{COMPILED}::test_another_source_or_other_flags_are_compiled_again",),
    ),
] if shutil.which((os.environ.get("CXX") or "c++").split()[0]) else []
