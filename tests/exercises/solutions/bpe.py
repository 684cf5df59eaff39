from collections import Counter
from itertools import pairwise


def merge(symbols, pair):
    merged, place = [], 0
    while place < len(symbols):
        if tuple(symbols[place : place + 2]) == pair:
            merged.append(pair[0] + pair[1])
            place += 2
        else:
            merged.append(symbols[place])
            place += 1
    return merged


def learn_merges(counts: dict[str, int], number: int) -> list[tuple[str, str]]:
    words = {word: list(word) for word in counts}
    vocabulary = {symbol: place for place, symbol in enumerate(sorted(set("".join(counts))))}
    merges = []
    for _ in range(number):
        pairs = Counter()
        for word, symbols in words.items():
            for pair in pairwise(symbols):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], vocabulary[pair[0]], vocabulary[pair[1]]))
        merges.append(best)
        vocabulary.setdefault(best[0] + best[1], len(vocabulary))
        words = {word: merge(symbols, best) for word, symbols in words.items()}
    return merges


def encode(word: str, merges: list[tuple[str, str]]) -> list[str]:
    symbols, ranks = list(word), {pair: rank for rank, pair in enumerate(merges)}
    while known := [pair for pair in pairwise(symbols) if pair in ranks]:
        symbols = merge(symbols, min(known, key=ranks.__getitem__))
    return symbols
