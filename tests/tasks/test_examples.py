"""Labelled data in every form people keep it, and one line on what is wrong with it."""

import gzip
import json
import lzma
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard

from chainrule.errors import UserError
from chainrule.tasks import TASKS, find_task
from chainrule.tasks.caption import Captioned, CaptionText
from chainrule.tasks.classify import ClassifyText, Labelled, read_labelled
from chainrule.tasks.conllu import Tagged, TagText
from chainrule.tasks.examples import draw_validation, gather_examples, held_out_examples, written
from chainrule.tasks.translate import Translated, TranslateText
from chainrule.text.sources import Source
from chainrule.text.tables import Place

CONLLU = """\
# newdoc
# text = I don't.
1-2\tIdont\t_\t_\t_\t_\t_\t_\t_\t_
1\tI\tI\tPRON\tPRP\t_\t0\troot\t_\t_
2\t#\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# newdoc
1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text) if isinstance(text, str) else path.write_bytes(text)
        return str(path)

    return write


def read(task, *paths, **settings):
    found = find_task(task)
    return tuple(found.read([Source(Path(path)) for path in paths], found.text(**settings)))


# classes

@pytest.mark.parametrize(("name", "text"), [
    ("a.tsv", 'sentence\tlabel\nso "good"\t1\n\nbad, very\t0\n'),
    ("a.tsv", 'index\tlabel\tsentence\r\n7\t1\tso "good"\r\n8\t0\tbad, very\r\n'),
    ("a.csv", 'Text,Class\n"so ""good""",1\n"bad, very",0\n'),
    ("a.csv", 'review;sentiment\n"so ""good""";1\nbad, very;0\n'),
    ("a.jsonl", '{"id": 1, "text": "so \\"good\\"", "label": 1}\n\n{"label": 0, "text": "bad, very"}\n'),
    ("a.txt", 'text\tpolarity\nso "good"\t1\nbad, very\t0'),
    ("a.txt", '{"text": "so \\"good\\"", "label": 1}\n{"text": "bad, very", "label": 0}'),
    ("a.tsv", '\ufefftext\tverdict\n so "good" \t1\nbad, very\t0'),
])
def test_columns_are_found_by_their_names(write, name, text):
    assert [(one.texts, one.label) for one in read("classify", write(name, text))] == [
        (('so "good"',), "1"), (("bad, very",), "0"),
    ]


@pytest.mark.parametrize("header", [
    "index\tsentence1\tsentence2\tlabel", "x\tpremise\thypothesis\tgold_label", "y\ttext_a\ttext_b\tclass",
    "idx\tQuestion\tAnswer\tlabel",
])
def test_pairs_are_found_by_their_names(write, header):
    found = read("classify", write("a.tsv", header + "\n0\tall men\tone man\tyes\n"))
    assert [(one.texts, one.label) for one in found] == [(("all men", "one man"), "yes")]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress], ids=["gz", "xz", "zst"])
def test_packed_tables_are_read(write, pack):
    suffix = {gzip.compress: "gz", lzma.compress: "xz", zstandard.compress: "zst"}[pack]
    assert len(read("classify", write(f"a.csv.{suffix}", pack(b"text,label\na,1\nb,0\n")))) == 2


def test_columns_can_be_chosen_by_name_or_number(write):
    path = write("a.tsv", "text\tbody\tlabel\tstars\nt\tb\tl\t5\n")
    chosen = read("classify", path, column="body", label="stars")
    assert (chosen[0].texts, chosen[0].label) == (("b",), "5")
    pair = read("classify", path, column="2", second="1", label="4")
    assert (pair[0].texts, pair[0].label) == (("b", "t"), "5")
    plain = write("b.tsv", "good\t1\nbad\t0\n")
    assert [one.label for one in read("classify", plain, header=False, column="1", label="2")] == ["1", "0"]


def test_a_line_is_that_on_which_a_row_begins(write):
    table = read("classify", write("a.csv", '\n\ntext,label\n"two\nlines",1\n\nnext,0\n'))
    assert [one.place.line for one in table] == [4, 7]
    assert table[0].texts == ("two\nlines",)
    lines = read("classify", write("a.jsonl", '\n{"text": "a", "label": 1}\n\n{"text": "b", "label": 1}\n'))
    assert [str(one.place).split("/")[-1] for one in lines] == ["a.jsonl line 2", "a.jsonl line 4"]


def test_dotted_names_reach_into_objects(write):
    path = write("a.jsonl", '{"data": {"words": "a b"}, "label": true}\n')
    assert read("classify", path, column="data.words")[0] == Labelled(("a b",), "true", Place(path, 1))


def test_a_field_may_be_long(write):
    path = write("a.csv", "text,label\n" + "word " * 60_000 + ",1\n")
    assert len(read("classify", path)[0].texts[0]) == 5 * 60_000 - 1


@pytest.mark.parametrize(("name", "text", "match"), [
    ("a.tsv", "good movie\t1\nbad\t0\n", "has the columns good movie, 1, and none is known as the text.*"
                                          "text.header=false text.column=1 text.label=2"),
    ("a.tsv", "index\tsentence\n0\tno label here\n", "the columns index, sentence, and none is known as the label"),
    ("a.tsv", "text\tbody\tlabel\na\tb\t1\n", "more than one column that could be the text: text and body. Choose by"),
    ("a.tsv", "text\tlabel\tclass\na\tb\t1\n", "more than one column that could be the label: label and class"),
    ("a.tsv", "text\tlabel\na\t1\nb\n", "line 3 has 1 columns; its first line has 2: text, label"),
    ("a.csv", "text,label\na,1\nb,1,2\n", "line 3 has 3 columns; its first line has 2"),
    ("a.csv", 'text,label\n"a"b,1\n', "line 2 is not CSV"),
    ("a.csv", 'text,label\na,1\n"never closed,1\nx,0\n', "line 3 is not CSV: unexpected end of data"),
    ("a.tsv", "text\ttext\na\t1\n", "names a column twice in its first line: 'text'"),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "a"\n', "line 2 is not JSON"),
    ("a.jsonl", '{"text": "a", "label": 1}\n[1]\n', "line 2 is JSON but not an object"),
    ("a.json", '[\n {"text": "a", "label": 1}\n]\n', "a.json is a JSON array.*jq -c"),
    ("a.json", '[{"text": "a", "label": 1}]\n', "a.json is a JSON array.*jq -c"),
    ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "a"}\n', "line 2 has no value where the label should be"),
    ("a.jsonl", '{"text": ["a"], "label": 1}\n', "line 1 has a list where the text should be"),
    ("a.tsv", "text\tlabel\na\t \n", "line 2 is empty where the label should be"),
    ("a.tsv", "text\tlabel\n\t1\n", "line 2 is empty where the text should be"),
    ("a.tsv", "\n\n", "is empty: there are no rows"),
    ("a.tsv", b"text\tlabel\nna\xefve\t1\n", "is not UTF-8: byte 0xef at offset 13"),
])
def test_what_is_wrong_with_a_table_is_said_in_one_line(write, name, text, match):
    with pytest.raises(UserError, match=match) as error:
        read("classify", write(name, text))
    assert "\n" not in str(error.value)


def test_a_column_that_is_not_there_is_named(write):
    path = write("a.tsv", "review\tlabel\na\t1\n")
    with pytest.raises(UserError, match=r"no column revue, which text.column asks for. Did you mean review\?"):
        read("classify", path, column="revue")
    with pytest.raises(UserError, match=r"no column 3, which text.label asks for. It has the columns review, label"):
        read("classify", path, label="3")
    with pytest.raises(UserError, match=r"name the first one too, by text.column"):
        read("classify", path, second="label")


def test_bytes_that_are_not_utf8_can_be_replaced(write):
    path = write("a.tsv", b"text\tlabel\nna\xefve\t1\n")
    assert read("classify", path, errors="replace")[0].texts == ("na\ufffdve",)


def test_many_columns_are_not_all_listed(write):
    header = "\t".join(f"column{number}" + "x" * 40 for number in range(30))
    with pytest.raises(UserError, match="…, …, and none") as error:
        read("classify", write("a.tsv", header + "\n"))
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(("name", "text", "settings"), [
    ("a.tsv", "index\tsentence\n0\ta b\n", {}),
    ("a.tsv", "label\tsentence\n0\ta b\n", {}),
    ("a.tsv", "label\tclass\tsentence\n0\t1\ta b\n", {}),             # which of them it is need not be clear
    ("a.csv", "sentence,label\na b,\n", {}),
    ("a.jsonl", '{"sentence": "a b", "label": null}\n', {}),
    ("a.tsv", "sentence\na b\n", {"label": "stars"}),
])
def test_labels_that_are_not_wanted_are_not_looked_at(write, name, text, settings):
    path = Path(write(name, text))
    found = list(read_labelled(Source(path), ClassifyText(**settings), labels=False))
    assert [(one.texts, one.label) for one in found] == [(("a b",), None)]


# tags

def test_ranges_empty_nodes_and_comments_are_passed_over(write):
    path = write("a.conllu", CONLLU)
    assert read("tag", path) == (
        Tagged(("I", "#"), ("PRON", "PART"), Place(path, 3)), Tagged(("Go",), ("VERB",), Place(path, 9)),
    )
    assert [one.place.line for one in read("tag", path)] == [3, 9]
    assert [one.tags for one in read("tag", path, tag="XPOS")] == [("PRP", "RB"), ("VB",)]
    assert [one.words for one in read("tag", path, tag="lemma")] == [("I", "#"), ("Go",)]


@pytest.mark.parametrize(("text", "settings"), [
    ("the\tD\ncat\tN\n\n\n#\tSYM\n", {}),
    ("# a comment\nthe\tD\ncat\tN\n\n#\tSYM", {}),
    ("the D\ncat N\n\n# SYM\n", {}),
    ("the\tD\tx\ncat\tN\tx\n\n#\tSYM\tx\n", {"tag": "2"}),
    ("the x D\ncat x N\r\n\r\n# x SYM\n", {"tag": "3"}),
])
def test_two_columns_are_a_word_and_its_tag(write, text, settings):
    found = read("tag", write("a.tsv", text), **settings)
    assert [(one.words, one.tags) for one in found] == [(("the", "cat"), ("D", "N")), (("#",), ("SYM",))]


@pytest.mark.parametrize(("text", "settings", "match"), [
    ("the cat sat\non the mat\n", {}, "line 1 has 3 columns, of which the first is the word.*text.tag=2 to text.tag=3"),
    ("word\nword\n", {}, "line 1 has one column; tagged text has two.*Did you mean --task classify"),
    ("a\tX\nb\tX\tY\n", {}, "line 2 has 3 columns, where the lines before it have 2"),
    ("a\tX\n\nb\tX\tY\n", {}, "line 3 has 3 columns, where the lines before it have 2"),
    ("the/D cat/N\na/D dog/N runs/V\n", {}, "line 2 has 3 columns.*each line is a word and its tag"),
    ("a\tX\nb\t\n", {}, r"line 2 has no tag \(upos\)"),
    ("a\tX\n\tX\n", {}, "line 2 has no word"),
    ("a\tX\n", {"tag": "xpos"}, "has 2 columns, of which the first is the word"),
    ("the cat sat\non the mat\n", {"tag": "9" * 5000}, "line 1 has 3 columns"),
    (CONLLU, {"tag": "pos"}, r"text.tag=pos is no column of CoNLL-U: id, form.*Did you mean"),
    (CONLLU, {"tag": "feats"}, r"line 4 has no tag \(feats\): 1 I"),
    ("# only\n# comments\n", {}, "there are no tagged words"),
    ("", {}, "there are no tagged words"),
])
def test_what_is_wrong_with_tagged_text_is_said_in_one_line(write, text, settings, match):
    with pytest.raises(UserError, match=match) as error:
        read("tag", write("a.conllu", text), **settings)
    assert "\n" not in str(error.value)


# texts that become texts

def test_parallel_files_are_read_line_by_line(write):
    english, german = write("train.en", "one\ntwo\n"), write("train.de", "eins\nzwei")
    assert read("translate", english, german) == (
        Translated("one", ("eins",), Place(english, 1)), Translated("two", ("zwei",), Place(english, 2)),
    )
    assert read("translate", german, english)[1] == Translated("zwei", ("two",), Place(german, 2))
    assert read("translate", english, german, source="de")[0].source == "eins"
    assert read("translate", english, german, target="en")[0].source == "eins"
    named = write("quelle.txt", "x\n"), write("ziel.txt", "y\n")
    assert read("translate", *named)[0] == Translated("x", ("y",), Place(named[0], 1))


def test_many_files_are_pairs_by_their_suffix(write):
    packed = write("a.de.gz", gzip.compress(b"eins"))
    paths = [write("a.en", "1\n"), write("b.en", "2\n"), write("b.de", "zwei\n"), packed]
    assert [(one.source, one.targets) for one in read("translate", *paths)] == [("1", ("eins",)), ("2", ("zwei",))]


@pytest.mark.parametrize(("name", "text", "settings"), [
    ("a.tsv", "source\ttarget\none\teins\n", {}),
    ("a.tsv", "en\tde\none\teins\n", {}),
    ("a.tsv", "de\ten\neins\tone\n", {"source": "en"}),
    ("a.tsv", "de\ten\neins\tone\n", {"target": "de"}),
    ("a.tsv", "id\tde\ten\n0\teins\tone\n", {"source": "en", "target": "de"}),
    ("a.tsv", "one\teins\n", {"header": False}),
    ("a.csv", "Document,Summary\none,eins\n", {}),
    ("a.jsonl", '{"body": "one", "subject": "eins", "annotations": []}\n', {}),
    ("a.jsonl", '{"translation": {"en": "one", "de": "eins"}}\n', {}),
    ("a.txt", "source\ttarget\none\teins\n", {}),
])
def test_tables_have_a_source_and_a_target(write, name, text, settings):
    found = read("translate", write(name, text), **settings)
    assert [(one.source, one.targets) for one in found] == [("one", ("eins",))]


def test_a_target_may_be_one_of_several(write):
    path = write("a.jsonl", json.dumps({"source": "one", "target": ["eins", "ein"]}))
    assert read("translate", path)[0].targets == ("eins", "ein")


@pytest.mark.parametrize(("files", "settings", "match"), [
    ({"a.en": "1\n2\n3\n", "a.de": "eins\n"}, {}, "a.en has 3 lines and .*a.de has 1; parallel files have a line"),
    ({"a.en": "1\n", "a.de": "eins\nzwei\n"}, {}, "a.en has 1 lines and .*a.de has 2"),
    ({"a.en": "1\n\n3\n", "a.de": "eins\nzwei\ndrei\n"}, {}, "a.en line 2 is empty where the source should be"),
    ({"a.en": "1\n2\n", "a.de": "eins\n\n"}, {}, "a.de line 2 is empty where the target should be"),
    ({"a.en": "1\n", "a.de": "eins\n"}, {"source": "fr"}, "text.source=fr is the suffix of neither"),
    ({"a.en": "1\n", "a.de": "2\n", "a.fr": "3\n"}, {}, "these files are no pairs"),
    ({"a.en": "1\n", "b.de": "2\n", "c.fr": "3\n"}, {}, "these files are no pairs"),
    ({"a.en": "one, two\nthree\n"}, {}, "these files are no pairs: .*a.en. Name two"),
    ({"a.tsv": "a\tb\tc\n1\t2\t3\n"}, {}, "the columns a, b, c; which is the source, and which the target"),
    ({"a.tsv": "a\tb\tc\n1\t2\t3\n"}, {"source": "a"}, "which is the source, and which the target"),
    ({"a.tsv": "a man\tein Mann\n"}, {}, "a man, ein Mann: if that is a pair and no header, give text.header"),
    ({"a.jsonl": '{"source": "a", "target": []}\n'}, {}, "line 1 has a list where the target should be"),
])
def test_what_is_wrong_with_translations_is_said_in_one_line(write, files, settings, match):
    paths = [write(name, text) for name, text in files.items()]
    with pytest.raises(UserError, match=match) as error:
        read("translate", *paths, **settings)
    assert "\n" not in str(error.value)


# numbers that become texts

@pytest.mark.parametrize(("text", "settings"), [
    ("f1,caption,f2\n1,a cat,2.5\n3,a dog,4e1\n", {}),
    ("a\tb\tname\n1\t2.5\ta cat\n3\t40\ta dog\n", {}),
    ("1,2.5,a cat\n3,40,a dog\n", {"header": False}),
    ("text,label,x\na cat,1,2.5\na dog,3,40\n", {"target": "text"}),
])
def test_a_table_of_numbers_has_a_column_of_text(write, text, settings):
    found = read("caption", write("a.csv", text), **settings)
    assert [one.targets for one in found] == [("a cat",), ("a dog",)]
    assert [one.source.tolist() for one in found] == [[[1, 2.5]], [[3, 40]]]
    assert found[0].source.dtype == np.float32


@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 3)])
def test_an_array_has_a_line_for_each_row(write, tmp_path, shape):
    array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    np.save(tmp_path / "a.npy", array)
    found = read("caption", str(tmp_path / "a.npy"), write("a.txt", "a cat\na dog\n"))
    assert [one.targets for one in found] == [("a cat",), ("a dog",)]
    assert np.array_equal(np.stack([one.source for one in found]), array.reshape(2, -1, 3))
    assert found[0].about != found[1].about


@pytest.mark.parametrize(("array", "lines", "match"), [
    (np.zeros((3, 2)), "a\nb\n", "has 3 rows and .* has 2 lines"),
    (np.zeros((1, 2)), "a\nb\nc\n", "has 1 rows and .* has 3 lines"),
    (np.zeros(4), "a\n", r"is an array \(4,\) of float64"),
    (np.array([["a", "b"]]), "a\n", "is an array"),
    (np.array([[1, np.nan]]), "a\n", "not finite in row 1"),
    (np.array([[1, 2]]), "\n", "line 1 is empty where the text should be"),
])
def test_an_array_that_does_not_fit_is_refused(write, tmp_path, array, lines, match):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(UserError, match=match):
        read("caption", str(tmp_path / "a.npy"), write("a.txt", lines))


@pytest.mark.parametrize(("text", "match"), [
    ("a,b\n1,2\n", "the columns a, b; which one is the text"),
    ("a,b,c\nx,y,1\n", "which one is the text"),
    ("a,caption\n1,x\ntwo,y\n", "line 3 has 'two' where a number should be"),
    ("a,caption\ninf,x\n", "line 2 has a number that is not finite"),
])
def test_a_table_that_does_not_fit_is_refused(write, text, match):
    with pytest.raises(UserError, match=match):
        read("caption", write("a.csv", text))


def test_an_array_alone_or_broken_is_refused(write, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((1, 2)))
    with pytest.raises(UserError, match="needs a file with a line of text for each"):
        read("caption", str(tmp_path / "a.npy"))
    with pytest.raises(UserError, match="is not an NPY file of numbers"):
        read("caption", write("b.npy", b"nonsense"), write("a.txt", "a\n"))


# splits

def labelled(count):
    return tuple(Labelled((f"text {number}",), str(number % 2), Place("x", number)) for number in range(count))


def test_a_share_is_held_out_by_whole_examples_and_by_seed():
    train, valid, note = draw_validation(labelled(50), 0.2, seed=3)
    assert len(valid) == 10
    assert sorted((*train, *valid), key=lambda one: one.place) == list(labelled(50))
    assert [one.place.line for one in valid] == sorted(one.place.line for one in valid)
    assert draw_validation(labelled(50), 0.2, seed=3)[1] == valid != draw_validation(labelled(50), 0.2, seed=4)[1]
    assert note == "validation: 10 of 50 examples, drawn by seed 3"


def test_nothing_is_held_out_where_nothing_can_be():
    assert draw_validation(labelled(5), 0, 1)[1:] == ((), "validation: none, since text.held_out=0")
    valid, note = draw_validation(labelled(2), 0.1, 1)[1:]
    assert (valid, note) == ((), "validation: none, since 2 examples are too few to hold out a part")
    with pytest.raises(UserError, match="is not a share"):
        draw_validation(labelled(5), 1, 1)


def test_a_class_of_one_example_stays_to_train_on():
    valid = draw_validation(labelled(50), 0.2, seed=3)[1]
    rare = tuple(replace(one, label="rare") if one == valid[4] else one for one in labelled(50))
    train, fewer, note = draw_validation(rare, 0.2, seed=3)
    assert fewer == (*valid[:4], *valid[5:])
    assert len(train) == 41
    assert note == ("validation: 9 of 50 examples, drawn by seed 3; to train on all the same, since no other has its "
                    "label: 1")
    own = tuple(replace(one, label=one.texts[0]) for one in labelled(50))
    assert draw_validation(own, 0.2, seed=3) == (
        own, (), "validation: none, since no example that was drawn shares its label with another")
    twice = tuple(replace(one, label="rare") if one in valid[:2] else one for one in labelled(50))
    assert len(draw_validation(twice, 0.2, seed=3)[1]) == 9    # one of the two is enough to learn from


def test_given_files_are_the_splits_and_what_stands_in_two_is_said(write, tmp_path):
    train = write("train.tsv", "text\tlabel\na\t1\nb\t0\nc\t1\n")
    valid, test = write("valid.tsv", "text\tlabel\na\t0\nd\t1\n"), write("test.tsv", "text\tlabel\ne\t0\n")
    read = find_task("classify").read
    found = gather_examples(read, [train], ClassifyText(), valid=[valid], test=[test], cache=tmp_path)
    assert {split: len(examples) for split, examples in found.splits.items()} == {"train": 3, "valid": 2, "test": 1}
    assert found.notes == (
        f"validation: {valid}", f"test: {test}", "1 of 2 validation examples are also among those to train on",
    )
    held = gather_examples(read, [train], ClassifyText(held_out=0.4), cache=tmp_path)
    assert {split: len(examples) for split, examples in held.splits.items()} == {"train": 2, "valid": 1}


def asked(task, path, **settings):
    found = find_task(task)
    return tuple(found.read_rows(Source(Path(path)), found.text(**settings)))


@pytest.mark.parametrize(("name", "text", "settings", "wanted"), [
    ("a.jsonl", '{"body": "one\\n\\ntwo", "annotations": []}\n{"body": "three"}\n', {}, ["one\n\ntwo", "three"]),
    ("a.jsonl", '{"id": 7, "body": "one", "subject": ["x"]}\n{"body": "two", "subject": null}\n', {}, ["one", "two"]),
    ("a.jsonl", '{"translation": {"en": "one"}}\n', {}, ["one"]),
    ("a.tsv", "source\ttarget\none\t\ntwo\tzwei\n", {}, ["one", "two"]),
    ("a.tsv", "target\tSource\nx\tone\n", {}, ["one"]),
    ("a.tsv", "en\tde\none\teins\n", {}, ["one"]),
    ("a.tsv", "message\none\n", {}, ["one"]),
    ("a.tsv", "id\tde\ten\n0\tx\tone\n", {"source": "en", "target": "de"}, ["one"]),
    ("a.tsv", "id\ten\n0\tone\n", {"source": "en", "target": "de"}, ["one"]),
    ("a.tsv", "body\tsubject\nx\tone\n", {"target": "body"}, ["one"]),       # backwards, as it was learned
    ("a.tsv", "body\tsubject\nx\tone\n", {"target": "1"}, ["one"]),
    ("a.tsv", "id\tbody\n0\tone\n", {"target": "subject"}, ["one"]),
    ("a.tsv", "one\teins\n", {"header": False}, ["one"]),
    ("a.tsv", "one\ntwo\n", {"header": False}, ["one", "two"]),
    ("a.csv", 'text,id\n"one, ""two""\nthree",0\n', {}, ['one, "two"\nthree']),
])
def test_a_text_to_translate_needs_no_target(write, name, text, settings, wanted):
    found = asked("translate", write(name, text), **settings)
    assert [one.source for one in found] == wanted
    assert {one.targets for one in found} == {()}


def test_a_text_to_classify_needs_no_label(write):
    path = write("a.jsonl", '{"text": "one\\ntwo"}\n\n{"text": "three", "label": "strange"}\n')
    assert asked("classify", path) == (
        Labelled(("one\ntwo",), None, Place(path, 1)), Labelled(("three",), None, Place(path, 3)),
    )
    pairs = asked("classify", write("a.tsv", "index\tsentence1\tsentence2\n0\tall men\tone man\n"))
    assert [(one.texts, one.label) for one in pairs] == [(("all men", "one man"), None)]
    chosen = asked("classify", write("b.tsv", "a\tb\nx\ty\n"), column="b", label="c")
    assert [one.texts for one in chosen] == [("y",)]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress], ids=["gz", "xz", "zst"])
@pytest.mark.parametrize("task", ["classify", "translate"])
def test_a_packed_table_is_answered_too(write, task, pack):
    suffix = {gzip.compress: "gz", lzma.compress: "xz", zstandard.compress: "zst"}[pack]
    assert len(asked(task, write(f"a.jsonl.{suffix}", pack(b'{"text": "a"}\n{"text": "b"}\n')))) == 2


@pytest.mark.parametrize(("task", "name", "text", "match"), [
    ("classify", "a.tsv", "good movie\nbad\n", "has the columns good movie, and none is known as the text"),
    ("classify", "a.tsv", "text\tbody\na\tb\n", "more than one column that could be the text: text and body"),
    ("classify", "a.jsonl", '{"text": "a"}\n{"label": 1}\n', "line 2 has no value where the text should be"),
    ("translate", "a.tsv", "a\tb\tc\n1\t2\t3\n", "has the columns a, b, c; which is the source"),
    ("translate", "a.tsv", "id\ttext\tdocument\n1\t2\t3\n", "has the columns id, text, document; which is the source"),
    ("translate", "a.tsv", "source\ttarget\n \teins\n", "line 2 is empty where the source should be"),
    ("translate", "a.jsonl", '{"body": "a"}\n{"subject": "b"}\n', "line 2 has no value where the source should be"),
    ("translate", "a.csv", "", "is empty: there are no rows"),
])
def test_what_cannot_be_answered_is_said_in_one_line(write, task, name, text, match):
    with pytest.raises(UserError, match=match) as error:
        asked(task, write(name, text))
    assert "\n" not in str(error.value)


def test_plain_lines_are_examples_without_an_answer():
    assert find_task("classify").read_lines(["a b\n", "c\td"]) == (
        Labelled(("a b",), None, Place("stdin", 1)), Labelled(("c", "d"), None, Place("stdin", 2)),
    )
    assert find_task("tag").read_lines(["a b\n"], "f") == (Tagged(("a", "b"), (), Place("f", 1)),)
    assert find_task("translate").read_lines(["a b\n"], "f") == (Translated("a b", (), Place("f", 1)),)
    with pytest.raises(UserError, match="f line 2 is empty"):
        find_task("translate").read_lines(["a", " "], "f")


def test_what_is_written_is_what_a_tokenizer_learns_from(monkeypatch):
    place = Place("x", 1)
    captioned = Captioned(np.zeros((1, 1), np.float32), ("e",), place)
    tagged, translated = Tagged(("c", "d"), ("X", "Y"), place), Translated("s", ("t",), place)
    some = [Labelled(("a", "b"), "0", place), tagged, translated, captioned]
    assert "".join(written(some)) == "a\nb\nc d\ns\nt\ne\n"
    monkeypatch.setattr("chainrule.tasks.examples.BLOCK", 3)
    assert list(written(some)) == ["a\nb\n", "c d\n", "s\nt\n", "e\n"]


def test_an_unknown_corpus_or_split_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no file or folder sst2. Did you mean sst-2"):
        gather_examples(find_task("classify").read, ["sst2"], ClassifyText(), cache=tmp_path)
    with pytest.raises(UserError, match=r"python-docs has no split nonsense. It has train"):
        held_out_examples(find_task("classify").read, ["python-docs:nonsense"], ClassifyText(), cache=tmp_path)


def corpus(name):
    data = os.environ.get("CHAINRULE_DATA")
    if not data or not (Path(data) / name).is_dir():
        pytest.skip(f"no {name} in $CHAINRULE_DATA")


@pytest.mark.data
@pytest.mark.parametrize(("task", "settings", "name", "folder", "sizes", "test"), [
    ("classify", ClassifyText(), "sst-2", "glue/SST-2", (67349, 872), 1821),
    ("classify", ClassifyText(), "rte", "glue/RTE", (2490, 277), None),
    ("classify", ClassifyText(), "imdb", "imdb", (22500, 2500), 25000),
    ("tag", TagText(), "ewt", "ud-english-ewt", (12544, 2001), 2077),
    ("translate", TranslateText(), "multi30k", "multi30k", (29000, 1014), 1000),
    ("translate", TranslateText(), "aeslc", "aeslc", (14436, 1960), 1906),
])
def test_known_corpora_are_read_without_options(tmp_path, task, settings, name, folder, sizes, test):
    corpus(folder)
    found = gather_examples(find_task(task).read, [name], settings, cache=tmp_path)
    assert (len(found.splits["train"]), len(found.splits["valid"])) == sizes
    if test is None:
        with pytest.raises(UserError, match="none is known as the label"):
            held_out_examples(find_task(task).read, [name], settings, cache=tmp_path)
    else:
        assert len(held_out_examples(find_task(task).read, [name], settings, cache=tmp_path)) == test
    if name == "ewt":
        assert sum(len(one.words) for one in found.splits["train"]) == 204_577
        assert len({tag for one in found.splits["train"] for tag in one.tags}) == 17


def test_every_task_with_examples_has_its_settings():
    own = {name: find_task(name).text.__name__ for name in TASKS if find_task(name).examples}
    assert own == {
        "classify": "ClassifyText", "tag": "TagText", "translate": "TranslateText", "caption": "CaptionText",
        "answer": "AnswerText", "chat": "ChatText", "preference": "PreferenceText", "reward": "PreferenceText",
        "reinforce": "PromptText",
    }
    assert CaptionText().target is None
