"""One colour for a model on every page: that of its kind, or the next that is free where two of a kind are shown."""

from collections.abc import Mapping

HUES = 8    # colours of web/styles/page.css that everyone can distinguish, by number
OF_KIND = {
    "gpt": 0, "lstm": 1, "ngram": 2, "hmm": 3, "rnn": 4, "gru": 5, "feedforward": 6, "bigram": 7,
    "transformer": 0, "seq2seq": 1, "word2vec": 2, "glove": 3, "encoder": 4, "uniform": 5, "unigram": 6,
}


def hues_of(kinds: Mapping[str, str]) -> dict[str, int]:
    """The colour of each model, by its name; `kinds`: the kind of each. After HUES models the colours begin again."""
    made, taken = dict[str, int](), list[int]()
    for name, kind in sorted(kinds.items(), key=lambda item: item[1] not in OF_KIND):    # stable: known kinds first
        wanted = OF_KIND.get(kind, 0)
        free = [(wanted + place) % HUES for place in range(HUES)]
        made[name] = min(free, key=lambda hue: (taken.count(hue), free.index(hue)))
        taken.append(made[name])
    return {name: made[name] for name in kinds}


def hue_style(hues: Mapping[str, int]) -> str:
    """CSS: `--model` is a model's colour in every element with `data-model` and its name."""
    return "".join(f'[data-model="{css_string(name)}"] {{ --model: var(--hue{hue}); }}\n' for name, hue in hues.items())


def css_string(text: str) -> str:
    """The text as it stands within quotes in CSS; whatever could end them, or the style element, is escaped."""
    return "".join(one if one.isalnum() or one in "-_. " else f"\\{ord(one):x} " for one in text)

