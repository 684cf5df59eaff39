"""ARPA files: what we write KenLM reads and agrees with; what others write we read; what is broken we name."""

import math
import os
from pathlib import Path

import kenlm
import numpy as np
import pytest
import torch

from chainrule.errors import UserError
from chainrule.formats import arpa
from chainrule.formats.arpa import read_arpa, write_arpa
from chainrule.model import Batch
from chainrule.models.ngram.ngram import NGram, NGramSettings
from chainrule.models.uniform import Uniform, UniformSettings
from chainrule.recipe import Text
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

TEXT = """the cat sat on the mat
the dog sat on the log

a cat and a dog met on the mat
the log sat
"""
SMALL = r"""
\data\
ngram 1=5
ngram 2=3

\1-grams:
-99	<s>	-0.5
-0.6	</s>
-1.2	<unk>
-0.4	a	-0.3
-0.7	b	-0.2

\2-grams:
-0.1	<s> a
-0.2	a b
-0.3	b </s>

\end\
"""


def trained(text: str, unit: str = "words", **given) -> tuple[NGram, Tokenizer]:
    tokenizer = train_tokenizer(Text(tokenizer=unit, min_count=1), [text])
    stream = torch.tensor([[0, *map(int, tokenizer.encode(text)), 0]])
    model = NGram(NGramSettings(**given), len(tokenizer))
    model.update(model.collect(Batch(stream[:, :-1], stream[:, 1:])))
    return model, tokenizer


def log10_score(model: NGram, tokenizer: Tokenizer, sentence: str) -> float:
    stream = torch.tensor([[0, *map(int, tokenizer.encode(sentence)), 0]])
    scores, _ = model.score(stream[:, :-1], stream[:, 1:], model.start(1))
    return float(scores.double().sum()) / math.log(10)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_kenlm_reads_what_we_write_and_gives_the_same_scores(order, tmp_path):
    model, tokenizer = trained(TEXT, order=order)
    write_arpa(model, tokenizer, tmp_path / "m.arpa")
    judge = kenlm.Model(str(tmp_path / "m.arpa"))
    for sentence in ["the cat sat on the mat", "a log met a zebra", "", "sat sat sat", "on the log the dog and a cat"]:
        assert log10_score(model, tokenizer, sentence) == pytest.approx(judge.score(sentence), abs=1e-4)


WAYS = [{"order": 1}, {"order": 3}, {"order": 4, "estimator": "mle"}, {"order": 3, "cutoffs": (0, 1)}]


@pytest.mark.parametrize("unit", ["words", "characters", "bytes"])
@pytest.mark.parametrize("given", WAYS, ids=str)
def test_what_we_write_we_read(unit, given, tmp_path):
    model, tokenizer = trained(TEXT, unit, **given)
    write_arpa(model, tokenizer, tmp_path / "m.arpa")
    again, words = read_arpa(tmp_path / "m.arpa")
    ours = [words.id(tokenizer.token(id)) if id else 0 for id in range(len(tokenizer))]
    history = torch.tensor([[0, *map(int, tokenizer.encode("the cat sat"))]])
    translated = torch.tensor([[ours[id] for id in history[0].tolist()]])
    wanted, _ = model.step(history, model.start(1))
    found, _ = again.step(translated, again.start(1))
    np.testing.assert_allclose(found[0][:, ours].exp(), wanted[0].exp(), rtol=1e-5, atol=1e-12)


def test_a_word_may_hold_what_is_white_space_elsewhere(tmp_path):
    text = "prix 10\u00a0000 euros\n10\u00a0000 \u3000 a\u2028b c\x1cd e\x85f\n"
    model, tokenizer = trained(text, order=2)
    write_arpa(model, tokenizer, tmp_path / "a.arpa")
    read, again = read_arpa(tmp_path / "a.arpa")
    for line in text.split("\n"):
        assert log10_score(read, again, line) == pytest.approx(log10_score(model, tokenizer, line), abs=1e-4)
    assert all(again.id(word) is not None for word in ("10\u00a0000", "\u3000", "a\u2028b", "c\x1cd", "e\x85f"))


def test_the_file_is_laid_out_as_kenlm_wants_it(tmp_path):
    model, tokenizer = trained("a b\na\n", order=2)
    write_arpa(model, tokenizer, tmp_path / "m.arpa")
    lines = (tmp_path / "m.arpa").read_text().split("\n")
    assert lines[:6] == ["\\data\\", "ngram 1=5", "ngram 2=4", "", "\\1-grams:", lines[5]]
    assert lines[5].startswith("-99\t<s>\t-")
    assert lines[6].split("\t")[1:] == ["</s>", "0.0"]
    assert [line.split("\t")[1] for line in lines[12:16]] == ["<s> a", "a </s>", "a b", "b </s>"]
    assert all(line.count("\t") == 1 for line in lines[12:16])
    assert lines[16:] == ["", "\\end\\", ""]


def test_a_hand_written_file_gives_the_numbers_in_it(tmp_path):
    (tmp_path / "m.arpa").write_text(SMALL)
    model, tokenizer = read_arpa(tmp_path / "m.arpa")
    assert log10_score(model, tokenizer, "a b") == pytest.approx(-0.1 - 0.2 - 0.3, abs=1e-6)
    assert log10_score(model, tokenizer, "b") == pytest.approx(-0.5 - 0.7 - 0.3, abs=1e-6)
    assert log10_score(model, tokenizer, "a zebra") == pytest.approx(-0.1 - 0.3 - 1.2 - 0.6, abs=1e-6)


BROKEN = {
    "not an ARPA file": ("\\data\\", "hello", r"line 2: an ARPA file begins with"),
    "too few n-grams": ("ngram 2=3", "ngram 2=4", r"line 17: order 2 ends after 3 n-grams, and the header says 4"),
    "too many n-grams": ("ngram 2=3", "ngram 2=2", r"where \\end\\ was expected; the last order has more n-grams"),
    "too many words": ("ngram 1=5", "ngram 1=4", r"where \\2-grams: was expected; the header gives order 1 4 n-grams"),
    "a strange header": ("ngram 2=3", "ngram 2=x", r"should be ngram 2="),
    "a size of 5,000 digits": ("ngram 2=3", f"ngram 2={'9' * 5000}", r"should be ngram 2="),
    "no header": ("ngram 1=5\nngram 2=3\n", "", r"where \\1-grams: was expected"),
    "an unknown word": ("a b", "a c", r"the word 'c', which is not among the 1-grams"),
    "an n-gram twice": ("a b", "<s> a", r"lists an n-gram twice"),
    "a word that is no number": ("-0.2\ta b", "x\ta b", r"is not a number"),
    "a probability above 1": ("-0.2\ta b", "0.2\ta b", r"line 15: log10 p is 0\.2, and a probability is at most 1"),
    "a probability that is nan": ("-0.2\ta b", "nan\ta b", r"line 15: log10 p is nan"),
    "too many fields": ("a b\n", "a b b b\n", r"line 15: an n-gram of order 2 is a number, 2 words"),
    "no end": ("\\end\\\n", "", r"truncated"),
    "cut short": ("-0.3\tb </s>\n\n\\end\\\n", "", r"ends after 2 n-grams, and the header says 3"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_its_line(name, tmp_path):
    was, becomes, says = BROKEN[name]
    assert was in SMALL
    (tmp_path / "m.arpa").write_text(SMALL.replace(was, becomes))
    with pytest.raises(UserError, match=says):
        read_arpa(tmp_path / "m.arpa")


def test_an_ngram_without_its_context_is_refused(tmp_path):
    text = SMALL.replace("ngram 2=3\n", "ngram 2=3\nngram 3=1\n")
    text = text.replace("\\end\\", "\\3-grams:\n-0.1\tb a b\n\n\\end\\")
    (tmp_path / "m.arpa").write_text(text)
    with pytest.raises(UserError, match="'b a b' has a context that order 2 does not list"):
        read_arpa(tmp_path / "m.arpa")


def test_a_file_that_is_not_there_or_not_text_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_arpa(tmp_path / "none.arpa")
    (tmp_path / "m.bin").write_bytes(b"mmap lm \xff\xfe\x00 binary")
    with pytest.raises(UserError, match=r"not UTF-8 text, 0xff\. Export a binary model"):
        read_arpa(tmp_path / "m.bin")


def test_bytes_that_are_not_utf_8_are_one_line(tmp_path):
    (tmp_path / "m.arpa").write_bytes(SMALL.encode().replace(b"a b", b"a \xe9"))
    with pytest.raises(UserError, match=r"a byte that is not UTF-8 text, 0xe9"):
        read_arpa(tmp_path / "m.arpa")


def test_only_n_grams_become_arpa_files(tmp_path):
    _, tokenizer = trained(TEXT, order=2)
    with pytest.raises(UserError, match="this is Uniform"):
        write_arpa(Uniform(UniformSettings(), 9), tokenizer, tmp_path / "m.arpa")
    assert not list(tmp_path.iterdir())


DATA = Path(os.environ.get("CHAINRULE_DATA") or "nowhere")


@pytest.mark.data
@pytest.mark.skipif(not (DATA / "ptb").is_dir(), reason="CHAINRULE_DATA does not hold ptb")
def test_kenlm_agrees_on_every_sentence_of_the_penn_treebank(tmp_path):
    model, tokenizer = trained((DATA / "ptb/ptb.train.txt").read_text(), order=3)
    write_arpa(model, tokenizer, tmp_path / "ptb.arpa")
    judge = kenlm.Model(str(tmp_path / "ptb.arpa"))
    for sentence in (DATA / "ptb/ptb.test.txt").read_text().splitlines()[:1000]:
        assert log10_score(model, tokenizer, sentence) == pytest.approx(judge.score(sentence), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("right", "wrong", "after"), [
    ("-0.3\n-0.7", "50\n-0.7", "after 'a'"), ("-0.2\n\n", "50\n\n", "after 'b'"),
    ("-0.4\ta", "-0.01\ta", "of the 1-grams"), ("<s>\t-0.5", "<s>\t2.5", "after '</s>'"),
])  # fmt: skip
def test_weights_that_make_no_distribution_are_refused(tmp_path, right, wrong, after):
    """The bits of a word would be negative, or the perplexity too low."""
    assert SMALL.count(right) == 1
    (tmp_path / "wrong.arpa").write_text(SMALL.replace(right, wrong).lstrip())
    with pytest.raises(UserError, match=f"the probabilities {after} sum to .*, and not to 1"):
        read_arpa(tmp_path / "wrong.arpa")


def test_every_context_is_a_distribution_as_it_is_checked(tmp_path):
    model, tokenizer = trained(TEXT * 3, order=4)
    write_arpa(model, tokenizer, tmp_path / "four.arpa")
    read, _ = read_arpa(tmp_path / "four.arpa")
    for length in (1, 2, 3):
        contexts = arpa._contexts(read, length)
        assert contexts.shape[1] == length
        for context in contexts:
            assert arpa._total(read, context) == pytest.approx(1, abs=1e-4)
