"""lm-eval 0.4, the real client, against the server: bits per byte, choices and texts are those of the run itself."""

from types import SimpleNamespace

import pytest
from programs import benchmark
from serve.serving import serving

import chainrule

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!chainrule)"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),             # sessions of requests that lm-eval leaves open
]
agrees = benchmark("lm_eval_agrees")

LENGTH = 64      # of the GPT's context, of which lm-eval keeps one for the token that is generated
TEXT = "".join(f"The {one} at the café saw a {other}, and the {other} saw the {one} — “{number} times”.\n\n"
               for number in range(12) for one, other in (("cat", "dog"), ("dog", "bird"), ("bird", "cow")))
DOCUMENTS = [TEXT[begin : begin + 110] for begin in (0, 500, 1000, 1500)]
SETTINGS = {
    "ngram": {"model.order": 3},
    "hmm": {"model.states": 4, "train.steps": 3},
    "lstm": {"model.hidden": 16, "model.layers": 1, "train.steps": 20},
    "gpt": {"model.layers": 2, "model.width": 16, "model.heads": 2, "model.context": 64, "train.steps": 20},
}


ITEMS = [agrees.Item("The dog at the café", (" saw", " bird")), agrees.Item("The cow saw a", (" dog, and", " café")),
         agrees.Item("“", ("3", "times"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """For the runs, and the tasks of lm-eval, which must not look for anything on the network."""
    folder, patch = tmp_path_factory.mktemp("lm-eval"), pytest.MonkeyPatch()
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "TQDM_DISABLE"):
        patch.setenv(name, "1")
    patch.setenv("HF_HOME", str(folder / "hub"))
    patch.setenv("CHAINRULE_CACHE", str(folder / "cache"))
    patch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)    # seconds: it calls pip
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    agrees.write_tasks(folder / "tasks", DOCUMENTS, ITEMS)
    yield folder
    patch.undo()


@pytest.fixture(scope="module", params=SETTINGS)
def judged(request, folder):
    """A run, and what lm-eval says of the server of the run."""
    kind = request.param
    settings = {**SETTINGS[kind], "text.tokenizer": "bpe", "text.vocab": 300}
    run = chainrule.train(folder / "text.txt", kind=kind, out=folder / kind, settings=settings, device="cpu")
    with serving({kind: folder / kind}) as server:
        address = server.url.rstrip("/")
        found = agrees.lm_eval_results(address, kind, folder / "tasks", LENGTH)
        difference = agrees.compare(run, folder / "tasks", ITEMS, found)
        yield SimpleNamespace(run=run, tasks=folder / "tasks", address=address, kind=kind, found=found,
                              difference=difference)


def test_bits_per_byte_are_those_of_eval(judged):
    difference = judged.difference
    assert difference["bytes"] == sum(len(document.encode()) for document in DOCUMENTS)
    assert difference["relative_difference"] < 1e-6, difference
    assert f"{difference['bits_per_byte']:.4f}" == f"{difference['chainrule_eval']:.4f}"


def test_choices_have_our_log_probabilities_and_greedy_is_exact(judged):
    assert judged.difference["largest_difference"] < 1e-4
    assert judged.difference["greedy_equal"]
    assert judged.found["accuracy"] == judged.difference["our_accuracy"]
    greedy = [flag for row in judged.found["choices"] for _, flag in row]
    assert not all(greedy)                                 # else the comparison says nothing


def test_texts_are_those_of_sampling(judged):
    assert judged.found["texts"] == agrees.our_texts(judged.run, ITEMS)


def test_the_form_of_requests_that_gguf_sends(judged):
    ours = agrees.our_choices(judged.run, ITEMS)
    found = agrees.gguf_results(judged.address, ITEMS)
    for (one, _), (other, _) in agrees.paired(found, ours):
        assert one == pytest.approx(other, abs=1e-4)


def test_many_at_once_are_bit_equal_to_one_after_another(judged):
    together = agrees.lm_eval_results(judged.address, judged.kind, judged.tasks, LENGTH, num_concurrent=6,
                                      batch_size=2)
    assert together["choices"] == judged.found["choices"]
    assert together["texts"] == judged.found["texts"]
    assert together["bits_per_byte"] == judged.found["bits_per_byte"]
