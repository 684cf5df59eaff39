"""Small models for the tasks, as settings by kind; and words with their translations."""

NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}

SMALL = ("train.epochs=40", "train.lr=0.01", "train.tokens=128")

CLASSIFIERS = {
    "unigram": [], "ngram": ["model.order=2"], "loglinear": [],
    "lstm": ["model.hidden=16", "model.layers=1", "model.bidirectional=true", "model.dropout=0", *SMALL],
    "gpt": ["model.layers=1", "model.width=16", "model.heads=2", "model.context=16", "head.auxiliary=0.5", *SMALL],
    "encoder": ["model.layers=1", "model.width=16", "model.heads=2", "model.context=16", *SMALL],
}

TAGGERS = {
    "hmm": [],
    "gru": ["model.hidden=16", "model.layers=1", "model.bidirectional=true", "head.char_cnn=true", *SMALL],
    "encoder": ["model.layers=1", "model.width=16", "model.heads=2", "model.context=16", *SMALL],
}

WRITERS = {
    "seq2seq": ["model.hidden=32", "model.layers=1", "model.dropout=0", "model.bidirectional=true", "train.lr=0.02"],
    "transformer": ["model.layers=1", "model.width=32", "model.heads=2", "model.context=16", "train.lr=0.01"],
    "gpt": ["model.layers=2", "model.width=32", "model.heads=2", "model.context=32", "train.lr=0.01"],
}
