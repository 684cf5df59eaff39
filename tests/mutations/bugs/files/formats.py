"""Bugs in chainrule/formats."""

from mutations.bugs.bug import Bug

BY_HAND = "tests/formats/test_hand_written.py"
ONNX = "tests/formats/test_onnx.py"
GGUF = "tests/formats/test_gguf.py"

BUGS = [
    Bug(
        "queries and keys of BERT change places",
        "chainrule/formats/hugging_face.py",
        '["attention.self.query", "attention.self.key", "attention.self.value"]',
        '["attention.self.key", "attention.self.query", "attention.self.value"]',
        ("tests/models/transformer/test_encoder.py::test_it_is_bert_with_the_same_weights",),
    ),
    Bug(
        "a distribution by hand may sum to less than one",
        "chainrule/formats/hand_written.py",
        "abs(math.fsum(numbers) - 1) > ROUNDING",
        "math.fsum(numbers) - 1 > ROUNDING",
        (f"{BY_HAND}::test_a_mistake_in_the_tables_is_named",),
    ),
    Bug(
        "W by hand is transposed",
        "chainrule/formats/hand_written.py",
        '"hidden units by hidden units"))',
        '"hidden units by hidden units").T)',
        (f"{BY_HAND}::test_a_network_of_symbols_computes_the_lectures_formula",),
    ),
    Bug(
        "queries and keys of an exported model are rotated the other way",
        "chainrule/formats/hugging_face_export.py",
        "return heads.flip(1).reshape(weight.shape)",
        "return heads.reshape(weight.shape)",
        ("tests/formats/test_hugging_face_export.py::test_transformers_computes_the_same_logits[NanoChatForCausalLM]",),
    ),
    Bug(
        "ReLU² without the second factor in an exported encoder",
        "chainrule/formats/hugging_face_heads.py",
        "    if settings.activation == \"relu2\":",
        "    if settings.activation == \"none\":",
        ("tests/formats/test_hugging_face_heads.py::test_transformers_computes_the_same_logits"
         "[EuroBertForTokenClassification]",),
    ),
    Bug(
        "an exported classifier loses its bias",
        "chainrule/formats/hugging_face_heads.py",
        "    moved = body.stack.norm.bias.double() + torch.linalg.pinv(matrix) @ _bias(model).double()",
        "    moved = body.stack.norm.bias.double()",
        ("tests/formats/test_hugging_face_heads.py::test_transformers_computes_the_same_logits"
         "[GPT2ForSequenceClassification]",),
    ),
    Bug(
        "BOS of an imported model stays at id 0 when it goes out",
        "chainrule/formats/hugging_face_folder.py",
        "    with original_rows(model, ends) as tied:",
        "    with original_rows(model, NOT_MOVED) as tied:",
        ("tests/formats/test_hugging_face_import.py::test_an_imported_model_goes_out_as_it_came_in[llama]",),
    ),
    Bug(
        "an imported model ends its texts with BOS",
        "chainrule/formats/boundary.py",
        "        if begin != end:",
        "        if False:",
        ("tests/formats/test_hugging_face_import.py::test_a_text_scores_as_in_transformers_from_bos_to_eos",),
    ),
    Bug(
        "biases that Qwen2 does not have stay random",
        "chainrule/formats/hugging_face_import.py",
        "            view.zero_()",
        "            view.fill_(1)",
        ("tests/formats/test_hugging_face_import.py::test_logits_are_those_of_transformers[qwen2]",),
    ),
    Bug(
        "a tensor of another shape is not noticed before memory is taken",
        "chainrule/formats/hugging_face_import.py",
        "        if files.shapes[name] != shape:",
        "        if len(files.shapes[name]) != len(shape):",
        ("tests/formats/test_hugging_face_import.py::test_what_cannot_be_read_is_named_in_one_line[wrong shape]",),
    ),
    Bug(
        "the gates of an exported LSTM stay in torch's order",
        "chainrule/formats/onnx/recurrent.py",
        '"lstm": (0, 3, 1, 2)}',
        '"lstm": (0, 1, 2, 3)}',
        (f"{ONNX}::test_onnxruntime_computes_the_same_logits_however_the_text_is_cut[lstm]",),
    ),
    Bug(
        "an exported GPT attends to padding",
        "chainrule/formats/onnx/transformer.py",
        'graph.op("And", real, graph.op("GreaterOrEqual"',
        'graph.op("Identity", graph.op("GreaterOrEqual"',
        (f"{ONNX}::test_rows_of_different_lengths_are_masked[left-gpt]",),
    ),
    Bug(
        "an imported T5 begins a text with </s>",
        "chainrule/formats/hugging_face_t5.py",
        "start.copy_(model.embeddings[ends.begin] - model.embeddings[ends.end])",
        "start.zero_()",
        ("tests/formats/test_hugging_face_t5.py::test_the_logits_are_those_of_transformers[T5 1.1]",),
    ),
    Bug(
        "an imported BERT reads [SEP] where it should read [CLS]",
        "chainrule/formats/hugging_face_import.py",
        "+= model.embeddings[first] - model.embeddings[BOUNDARY]",
        "+= 0",
        ("tests/formats/test_hugging_face_import.py::test_bert_reads_a_text_between_cls_and_sep[BertModel]",),
    ),
    Bug(
        "queries and keys of a GGUF file keep their interleaved pairs",
        "chainrule/formats/gguf/table.py",
        "weight.view(-1, head_size // 2, 2, *weight.shape[1:])",
        "weight.view(-1, 2, head_size // 2, *weight.shape[1:])",
        (f"{GGUF}::test_another_programs_file_gives_the_logits_that_transformers_computes[Q4_1-True]",
         f"{GGUF}::test_what_was_exported_comes_back_bit_by_bit[llama tied]"),
    ),
    Bug(
        "exported rows of BOS and EOS stay where chainrule has them",
        "chainrule/formats/boundary.py",
        "    for matrix, row in reversed(_swaps(model, ends)):",
        "    for matrix, row in _swaps(model, ends)[:0]:",
        (f"{GGUF}::test_an_imported_file_goes_out_with_its_own_bos_eos_rows_and_template",),
    ),
    Bug(
        "a GGUF file is read beyond its end",
        "chainrule/formats/gguf/read.py",
        "itemsize * int(count) > len(self.data):",
        "itemsize * int(count) > len(self.data) + (1 << 40):",
        (f"{GGUF}::test_what_cannot_be_read_is_named_in_one_line[cut in the header]",),
    ),
    Bug(
        "SentencePiece merges the pair of the lowest score first",
        "chainrule/formats/gguf/tokenizer.py",
        "    merges.sort(key=lambda one: -one[0])",
        "    merges.sort(key=lambda one: one[0])",
        (f"{GGUF}::test_sentence_piece_merges_the_highest_score_first[True]",),
    ),
    Bug(
        "an ARPA file whose weights make no distribution is taken",
        "chainrule/formats/arpa.py",
        "            if not total <= MOST:\n",
        "            if total < 0:\n",
        ("tests/formats/test_arpa.py::test_weights_that_make_no_distribution_are_refused",),
    ),
]
