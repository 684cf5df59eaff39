"""Every kind has enough views for every task, the table of the docs says which, and each of them can be made."""

import json
from pathlib import Path

import pytest

from chainrule.models import KINDS
from chainrule.models.published import PUBLISHED
from chainrule.tasks import TASKS
from chainrule.viewer.coverage import ENOUGH, coverage_table, fitting_views, tiny_subject, views_by_kind
from chainrule.viewer.views import every_view

DOCS = Path(__file__).parents[2] / "docs" / "tools" / "look.md"
SLOW = {"cost", "chat", "alignment"}    # measured, empty without a server, and a beam search of its own


def test_every_kind_and_every_task_has_at_least_four_views():
    found = views_by_kind()
    assert {pair: views for pair, views in found.items() if len(views) < ENOUGH} == {}
    assert {kind for kind, _ in found} == set(KINDS) - set(PUBLISHED)
    assert {task for _, task in found} == set(TASKS)
    assert ENOUGH >= 4


def test_the_table_of_the_docs_is_that_of_the_code():
    assert coverage_table() in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize(("kind", "task"), [
    ("hmm", "tag"), ("lstm", "tag"), ("encoder", "tag"), ("bigram", "classify"), ("hmm", "classify"),
    ("loglinear", "classify"), ("lstm", "classify"), ("gpt", "translate"), ("seq2seq", "translate"),
    ("transformer", "caption"),
    ("seq2seq", "answer"), ("transformer", "span"), ("encoder", "mask"), ("word2vec", "lm"), ("glove", "lm"),
    ("rnn", "reward"),
])
def test_every_view_that_fits_can_be_made_of_any_text(kind, task):
    one = tiny_subject(kind, task)
    texts = ("the cow eats\tthe dog", "", "🦎 x\n\ny")
    for text in texts[:1] if one.writes_from_source and kind != "seq2seq" else texts:
        for name in fitting_views(one):
            empty = text == "" and name in ("influence", "lens", "contextual") and task == "tag"
            if name not in SLOW and not empty:
                json.dumps(every_view()[name].make([one], text, {}), allow_nan=False)
