"""Exercise bpe: byte-pair encoding, learning merges from words and encoding a word (Sennrich et al. 2016).

A word is at first a list of its characters. A merge makes a pair of neighbours one symbol: ("l", "o") -> "lo".
"""


def learn_merges(counts: dict[str, int], number: int) -> list[tuple[str, str]]:
    """Words and how often each occurs -> the merges, in the order in which they are learned.

    Repeat `number` times: count all pairs of neighbouring symbols (a pair in a word that occurs 5 times counts 5
    times), take the most frequent one, and merge it everywhere. Within a word merge from left to right: "aaa" with
    ("a", "a") becomes "aa" "a". Of equally frequent pairs take the one whose first symbol came into the vocabulary
    first, then the one whose second did; the vocabulary begins with all characters of the words, sorted, and each merge
    adds its symbol. Stop early where no pair is left.
    """
    raise NotImplementedError


def encode(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """The symbols of a word: while it has a pair that was learned, merge the one learned first, everywhere."""
    raise NotImplementedError
