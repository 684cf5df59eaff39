"""Tests of the exercise bpe, against merges that chainrule's tokenizer learned."""

import adapters

from chainrule.exercises.expect import same_list, snapshot

LEARN = "the most frequent pair, weighted by how often its word occurs; ties by order in the vocabulary"


def merges_of(s):
    return [tuple(pair) for pair in s["merges"].tolist()]


def test_merges_of_a_text():
    s = snapshot(__file__)
    counts = dict(zip(s["words"].tolist(), s["counts"].tolist()))
    found = adapters.learn_merges(dict(counts), len(s["merges"]))
    same_list(map(tuple, found), merges_of(s), "learn_merges(counts, number)", LEARN)


def test_words_count_as_often_as_they_occur():
    found = adapters.learn_merges({"ab": 1, "cd": 3}, 2)
    same_list(map(tuple, found), [("c", "d"), ("a", "b")], "learn_merges({'ab': 1, 'cd': 3}, 2)", LEARN)


def test_learning_stops_where_no_pair_is_left():
    found = adapters.learn_merges({"ab": 2, "c": 1}, 10)
    same_list(
        map(tuple, found), [("a", "b")], "learn_merges({'ab': 2, 'c': 1}, 10)", "stop when all words are one symbol"
    )


def test_overlapping_pairs_merge_from_the_left():
    same_list(adapters.encode("aaaaa", [("a", "a")]), ["aa", "aa", "a"], "encode('aaaaa', [('a', 'a')])", "aa aa a")


def test_merges_learned_first_are_applied_first():
    merges = [("b", "c"), ("a", "b"), ("a", "bc")]
    same_list(adapters.encode("abc", merges), ["abc"], "encode('abc', …)", "first b c, then a bc")
    same_list(adapters.encode("abab", merges), ["ab", "ab"], "encode('abab', …)", "no b c here: a b, everywhere")


def test_encoding_of_new_words():
    s = snapshot(__file__)
    merges = merges_of(s)
    for word, expected in zip(s["new"].tolist(), s["encoded"].tolist()):
        same_list(
            adapters.encode(word, merges), expected.split(" "), f"encode({word!r}, merges)", "by order of learning"
        )
