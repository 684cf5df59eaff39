"""A comparison small enough to be read, as `chainrule compare` would answer it. Nothing is trained."""

from chainrule.inference.text_score import ExcerptBits

SIGNATURE = "unit:characters|tokenizer:t|context:all|stride:none|boundary:document|text:x|chainrule:0"


def row(kind, bits, **facts):
    return {
        "kind": kind, "idea": f"what {kind} is",
        "bits_per_byte": bits, "bits_per_byte_interval": [bits - 0.05, bits + 0.05],
        "perplexity": 2**bits, "nats": bits * 0.6931, "signature": SIGNATURE, "run": f"runs/{kind}",
        "settings": ["text.tokenizer=characters"], "parameters": 12345, "train_tokens": 5000, "train_seconds": 2.5,
        "tokens_per_second": 2000, "read_tokens_per_second": 90000, "flops": None, "flops_per_token": None,
        "state_bytes": 48, "state_bytes_per_token": 0.0, "prompt": "to be ", "sample": f"or not, says {kind} <b>&amp;",
    } | facts


def difference(better, worse, gap, real=True):
    interval = [gap - 0.01, gap + 0.01] if real else [gap - 0.5, gap + 0.5]
    return {"better": better, "worse": worse, "bits_per_byte": gap, "bits_per_byte_interval": interval, "real": real}


ANSWER = {
    "texts": ["hamlet.txt"], "valid": [], "device": "cpu",
    "by": "minutes", "seconds": 24.0, "flops": 4.8e11, "gpu": False,
    "out": "runs/x", "report": "runs/x/report.html", "chainrule": "0",
    "held_out": {"split": "valid", "bytes": 1000, "documents": 1, "sha256": "ab"},
    "train_bytes": 9000, "notes": ["validation: the last 10 % of the text"], "blocks": 100,
    "entropy": None, "text_entropy": None,
    "rows": [
        row("unigram", 4.5),
        row("ngram", 2.125),
        row("lstm", 2.25, flops=1e9, flops_per_token=2e5),
        row("gpt", 2.0625, flops=2e9, flops_per_token=4e5, state_bytes=4096, state_bytes_per_token=512.0),
    ],
    "differences": [
        difference("gpt", "ngram", 0.0625, real=False), difference("gpt", "lstm", 0.1875),
        difference("gpt", "unigram", 2.4375),
        difference("ngram", "lstm", 0.125), difference("ngram", "unigram", 2.375), difference("lstm", "unigram", 2.25),
    ],
}


def points(end, tokens=5000, count=40):
    """A curve that falls, and one look at held-out text half-way."""
    shares = [(place + 1) / count for place in range(count)]
    steps = [
        {"tokens": round(tokens * part), "seconds": 2.5 * part, "bits_per_byte": end + 0.2 / part, "held_out": False}
        for part in shares
    ]
    return [*steps[:20], {**steps[19], "bits_per_byte": end + 0.5, "held_out": True}, *steps[20:]]


POINTS = {"unigram": [], "ngram": [], "lstm": points(2.2), "gpt": points(2.0)}
STRIPS = {
    "unigram": ExcerptBits(6, [("t", 3.0), ("h", 5.0), ("é", 12.0), ("\n", 4.0)]),
    "ngram": ExcerptBits(6, [("t", 2.0), ("h", 1.0), ("é", float("inf")), ("\n", 1.5)]),
    "lstm": ExcerptBits(6, [("t", 2.5), ("h", 0.5), ("é", 6.0), ("\n", 1.0)]),
    "gpt": ExcerptBits(6, [("th", 2.25), ("é\n", 9.5)]),       # of larger units
}
