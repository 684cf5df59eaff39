"""Bugs in chainrule/text."""

from mutations.bugs.bug import Bug
from mutations.bugs.suites import CHATS

BUGS = [
    Bug(
        "places of tokens are counted in bytes",
        "chainrule/text/tokenizers/spelling.py",
        "        self.length += len(text)\n        return text\n\n    def finish",
        "        self.length += len(text.encode())\n        return text\n\n    def finish",
        ("tests/serve/test_scoring_clients.py::test_places_are_counted_in_characters[ngram]",),
    ),
    Bug(
        "a mix ignores its weights",
        "chainrule/text/mixing.py",
        "self.shares = np.cumsum(weights) / sum(weights)",
        "self.shares = np.arange(1, len(weights) + 1) / len(weights)",
        ("tests/text/test_mixing.py::test_texts_are_drawn_as_often_as_their_weights_say[1000]",),
    ),
    Bug(
        "a text of a mix is read from its beginning again and again",
        "chainrule/text/mixing.py",
        "numbers.append(rank[begin:end] + self._before(block)[of_text[begin:end]])",
        "numbers.append(rank[begin:end])",
        ("tests/text/test_mixing.py::test_a_row_knows_how_many_of_its_text_were_before_it",),
    ),
    Bug(
        "the score of a text leaves out its end",
        "chainrule/text/tokenizers/tokenizer.py",
        'np.concatenate([[BOUNDARY], ids, [BOUNDARY] * (self.boundary != "none")])',
        "np.concatenate([[BOUNDARY], ids])",
        ("tests/test_api.py::test_a_score_is_that_of_the_command_line",),
    ),
    Bug(
        "a closed alphabet ends its texts",
        "chainrule/text/corpus.py",
        'file.write(boundary if tokenizer.boundary != "none" else b"")',
        "file.write(boundary)",
        ("tests/text/test_symbols.py::test_a_corpus_has_as_many_targets_as_characters",),
    ),
    Bug(
        "the last document of an unpacked window is cut short",
        "chainrule/text/batches.py",
        "ends[last] = starts + length",
        "ends[last] = starts + length - 1",
        ("tests/text/test_packed.py::test_unpacked_rows_hold_each_target_once",),
    ),
    Bug(
        "the Paeth filter of PNG measures from the wrong corner",
        "chainrule/text/pictures.py",
        "abs(a + b - 2 * c)",
        "abs(a + b - c)",
        ("tests/text/test_picture_files.py::test_png_with_every_filter",),
    ),
    Bug(
        "a message that ends with half of a special token is not changed",
        "chainrule/text/chat_template.py",
        "        if text[place:end] in begins:",
        "        if text[place:end] in begins and place == 0:",
        ("tests/text/test_chat_template.py::test_a_message_and_the_template_cannot_spell_a_special_token_together",),
    ),
    Bug(
        "a chat's eos_token is always the boundary",
        "chainrule/text/chat_template.py",
        "names.get(BOUNDARY, \"\"), names.get(here, \"\"))",
        "names.get(BOUNDARY, \"\"), names.get(BOUNDARY, \"\"))",
        ("tests/serve/test_chat.py::test_llama_2_ends_at_its_eos",),
    ),
    Bug(
        "the token that ends an answer of an imported model is predicted where it is read",
        "chainrule/text/chat_template.py",
        "return np.where(ids == end, BOUNDARY, ids).astype(np.int64)",
        "return np.asarray(ids).astype(np.int64)",
        (f"{CHATS}::test_eos_of_an_imported_model_is_predicted_as_the_boundary",),
    ),
    Bug(
        "a table of any size is read",
        "chainrule/text/tables.py",
        "            if done > most:\n",
        "            if done < 0:\n",
        ("tests/cli/test_mangled_input.py::test_a_table_that_is_larger_than_the_limit",),
    ),
    Bug(
        "the bytes of a sample are those of the whole split",
        "chainrule/text/corpus.py",
        "sample = SampledSplit(drawn, length,",
        "sample = SampledSplit(drawn, split.bytes,",
        ("tests/text/test_sampled_split.py::test_a_sample_is_blocks_of_the_split_in_order",),
    ),
    Bug(
        "long words are counted by their first sixteen bytes",
        "chainrule/text/tokenizers/words.py",
        "    same[long] = False\n",
        "",
        ("tests/text/test_word_lookup.py::test_long_words_are_counted_apart_from_words_that_begin_alike",),
    ),
    Bug(
        "a word is found by its bytes without its length",
        "chainrule/text/tokenizers/words.py",
        "size.astype(np.uint64) << np.uint64(56)",
        "np.zeros(len(size), np.uint64)",
        ("tests/text/test_word_lookup.py::test_words_of_any_length_are_told_from_longer_and_shorter_ones",),
    ),
    Bug(
        "a newline sticks to the word before it",
        "chainrule/text/tokenizers/words.py",
        'text.replace(b"\\n", b" \\n ")',
        'text.replace(b"\\n", b"\\n ")',
        ("tests/text/test_tokenizer.py::test_lines_are_texts",),
    ),
    Bug(
        "a text with <unk> loses its rare words",
        "chainrule/text/tokenizers/words.py",
        "(1 if counts[UNKNOWN.encode()] else MIN_COUNT)",
        "MIN_COUNT",
        ("tests/text/test_tokenizer.py::test_a_text_that_holds_unk_keeps_its_rare_words",),
    ),
]
