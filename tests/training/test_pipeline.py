from types import SimpleNamespace

from chainrule.recipe import Counting
from chainrule.run import Done
from chainrule.tasks import find_task
from chainrule.training import pipeline as module
from chainrule.training.distributed import ALONE
from chainrule.training.log import Log


def test_how_a_model_learns_is_its_own_declaration(monkeypatch):
    asked = []
    monkeypatch.setitem(module.TRAINERS, "by heart", lambda *words: asked.append(words) or Done(3, True))
    settings, log = Counting(), Log()
    model, corpus = SimpleNamespace(learns_by="by heart"), object()
    assert module.train_model(model, corpus, SimpleNamespace(train=settings, task="lm"), log, Done(1)) == Done(3, True)
    assert asked == [(model, corpus, settings, log, Done(1), None, ALONE, find_task("lm"))]
