"""Models written by hand: every number is the one in the file, the answers are sums by hand, and mistakes are named."""

import itertools
import json
import math
import tomllib

import pytest
import torch

from chainrule import cli
from chainrule.errors import UserError
from chainrule.formats.hand_written import built_in_models, find_hand_written, read_hand_written
from chainrule.model import Batch

WEATHER = built_in_models()["weather"].read_text()
RHYTHM = built_in_models()["rhythm"].read_text()
SUMMATION = built_in_models()["summation"].read_text()


@pytest.fixture
def read(tmp_path):
    def of(text):
        path = tmp_path / "model.toml"
        path.write_text(text)
        return read_hand_written(path)

    return of


def test_the_built_in_models_are_those_that_the_help_names():
    parser = cli.Parser("import")
    cli.COMMANDS["import"].arguments(parser)
    (help_of,) = (action.help for action in parser._actions if action.dest == "path")
    assert help_of.endswith(f"a built-in one: {', '.join(built_in_models())}")
    assert {read_hand_written(path).recipe.kind for path in built_in_models().values()} == {"hmm", "rnn"}
    assert find_hand_written("weather") == built_in_models()["weather"]
    assert find_hand_written("nothing") is None


def test_the_tables_of_an_hmm_are_those_of_the_file():
    made = read_hand_written(built_in_models()["weather"])
    umbrella, none = made.tokenizer.encode("umbrella none").tolist()
    assert made.labels == ("rainy", "sunny")
    assert made.model.initial.tolist() == [0.6, 0.4]
    assert made.model.transition.tolist() == [[0.7, 0.3], [0.4, 0.6]]
    assert made.model.emission[:, [umbrella, none]].tolist() == [[0.9, 0.1], [0.2, 0.8]]
    assert float(made.model.emission.sum()) == 2                         # no state emits the boundary or <unk>


def test_tables_may_be_lists_and_numbers_fractions(read):
    made = read('kind = "hmm"\nstates = ["a", "b", "c"]\nsymbols = ["x", "y"]\npi = ["1/3", "1/3", "1/3"]\n'
                'A = [[1, 0, 0], {b = 0.5, c = 0.5}, ["1/4", "1/4", "1/2"]]\n'
                "B = { a = [1, 0], b = [0, 1], c = {x = 1} }")
    assert made.model.initial.tolist() == pytest.approx([1 / 3] * 3)
    assert made.model.transition.tolist() == [[1, 0, 0], [0, 0.5, 0.5], [0.25, 0.25, 0.5]]
    assert made.model.emission[:, 2:].tolist() == [[1, 0], [0, 1], [1, 0]]


def test_the_rhythm_of_three_units_counts_beats():
    made = read_hand_written(built_in_models()["rhythm"])
    tokens = torch.tensor([[0, *made.tokenizer.encode("1000101").tolist()]])
    p = made.model.step(tokens, made.model.start(1))[0][0].softmax(-1)[:, 1]
    assert p.tolist() == pytest.approx([1, 0, 0.5, 0] * 2, abs=1e-8)


def test_a_network_of_symbols_computes_the_lectures_formula(read):
    given = {"W": [[0.5, -1], [0.25, 2]], "U": [[1, 0, -1], [0.5, 2, 1]], "b_h": [0.1, -0.2],
             "V": [[1, 2], [-1, 0.5], [0, 1]], "b_y": [0, 0.3, -0.3]}
    made = read('kind = "rnn"\nsymbols = ["a", "b", "c"]\nactivation = "sigmoid"\n' +
                "\n".join(f"{name} = {value}" for name, value in given.items()))
    W, U, b_h, V, b_y = (torch.tensor(given[name]) for name in ("W", "U", "b_h", "V", "b_y"))
    h, wanted = torch.zeros(2), []
    for token in (1, 0, 2):
        h = torch.sigmoid(W @ h + U @ torch.eye(3)[token] + b_h)
        wanted.append(V @ h + b_y)
    found, _ = made.model.step(torch.tensor([[1, 0, 2]]), made.model.start(1))
    torch.testing.assert_close(found[0], torch.stack(wanted))


def test_the_summation_network_adds_and_the_comparison_network_compares():
    sums, compares = (read_hand_written(built_in_models()[name]) for name in ("summation", "comparison"))
    frames, none = torch.tensor([[[2.0], [-0.5], [1.0], [1.0]]]), torch.zeros(1, 4)
    assert sums.model.eval()(Batch(frames, none))[0, :, 0].tolist() == [2, 1.5, 2.5, 3.5]
    frames = torch.tensor([[[2, -2], [0, 3.5], [1, 2.2]]])
    p = compares.model.eval()(Batch(frames, none[:, :3]))[0].softmax(-1)[:, 1]
    assert p.tolist() == pytest.approx([1 / (1 + math.exp(-5 * h)) for h in (4, 0.5, -0.7)], abs=1e-6)


@pytest.mark.parametrize(("change", "says"), [
    (("sunny = 0.4 }\n\n[A]", "sunny = 0.3 }\n\n[A]"), "pi sums to 0.9, and a distribution sums to 1."),
    (("sunny = 0.3 }", "sunny = 0.25 }"), "A.rainy sums to 0.95, and"),
    (("none = 0.8 }", "none = 0.9 }"), "B.sunny sums to 1.1, and"),
    (("[A]\nrainy = { rainy", "[A]\nrainy = { snowy"), "A.rainy has 'snowy', which is not a state. The states are"),
    (("[B]\nrainy", "[B]\nsnowy"), "B has a row for 'snowy', which is not a state"),
    (("umbrella = 0.9", "hat = 0.9"), "B.rainy has 'hat', which is not a symbol. The symbols are umbrella, none."),
    (("sunny = { rainy = 0.4, sunny = 0.6 }", "sunny = [0.4]"), "A.sunny has 1 numbers, and there are 2 states"),
    (("sunny = { rainy = 0.4, sunny = 0.6 }", ""), "A.sunny is missing"),
    (("rainy = 0.6,", "rainy = -0.6, "), "pi.rainy is -0.6, and a probability is 0 or more"),
    (("rainy = 0.6,", 'rainy = "much",'), "pi.rainy is 'much', and it should be a number, or a fraction"),
    (('symbols = ["umbrella", "none"]', 'symbols = ["umbrella", "no ne"]'), "the symbol 'no ne' cannot be used"),
    (('states = ["rainy", "sunny"]', 'states = ["rainy", "rainy"]'), "states has 'rainy' twice"),
    (('states = ["rainy", "sunny"]', 'stats = ["rainy", "sunny"]'), "stats has no meaning in a model of kind hmm."),
    (('kind = "hmm"', 'kind = "gpt"'), "kind is 'gpt', and models that can be written by hand are hmm and rnn"),
    (('kind = "hmm"', ""), "kind is missing"),
    (("[A]", "[A"), "is not TOML"),
])
def test_a_mistake_in_the_tables_is_named(read, change, says):
    assert WEATHER.count(change[0]) == 1
    with pytest.raises(UserError) as error:
        read(WEATHER.replace(*change))
    assert f"model.toml: {says}" in str(error.value) or says in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(("text", "change", "says"), [
    (RHYTHM, ("[1, 0, 0], [0, 1, 0]]", "[1, 0], [0, 1, 0]]"), "W is 3 x 2 (row 2), and it should be 3 x 3"),
    (RHYTHM, ("U = [[0, 0], ", "U = ["), "U is 2 x 2, and it should be 3 x 2: hidden units by inputs"),
    (RHYTHM, ("b_y = [0, -20]", "b_y = [0]"), "b_y has 1 numbers, and it should have 2: one for each symbol"),
    (RHYTHM, ('symbols = ["0", "1"]', 'symbols = ["0", "one"]'), "the symbol 'one' has 3 characters"),
    (RHYTHM, ('symbols = ["0", "1"]', ""), "give either symbols, of which x is the one-hot vector, or inputs"),
    (RHYTHM, ("b_h = [1, 0, 0]", "b_h = [nan, 0, 0]"), "b_h is nan, and it should be a number"),
    (RHYTHM, ('activation = "relu"', 'activation = "step"'), "activation is 'step', and it should be one of tanh"),
    (SUMMATION, ("inputs = 1", "inputs = 0"), "inputs is 0, and it should be a whole number, 1 or more"),
    (SUMMATION, ("V = [[1]]", "V = [[1], [2]]\nlabels = ['a', 'b', 'c']"), "V has 2 rows, and there are 3 labels"),
])
def test_a_mistake_in_the_matrices_is_named(read, text, change, says):
    assert text.count(change[0]) == 1
    with pytest.raises(UserError) as error:
        read(text.replace(*change))
    assert says in str(error.value)


def paths_by_hand(text):
    """(p of the text with it, path) of every path of states, from the numbers of the file."""
    given = tomllib.loads(WEATHER)
    for path in itertools.product(given["states"], repeat=len(text)):
        p = given["pi"][path[0]] * given["B"][path[0]][text[0]]
        for before, state, symbol in zip(path, path[1:], text[1:]):
            p *= given["A"][before][state] * given["B"][state][symbol]
        yield p, path


@pytest.mark.parametrize("length", [1, 4, 6])
def test_path_likelihood_and_posteriors_are_the_sums_over_all_paths(length, tmp_path, monkeypatch, capsys):
    text = ["umbrella", "umbrella", "none", "none", "umbrella", "none"][:length]
    every = list(paths_by_hand(text))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(" ".join(text) + "\n")
    assert cli.main(["import", "weather", "runs/weather"]) == 0
    capsys.readouterr()
    assert cli.main(["predict", "runs/weather", "text.txt", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    best, path = max(every)
    likelihood = math.fsum(p for p, _ in every)
    assert answer["path"] == list(path)
    assert answer["answer"] == " ".join(path)
    assert math.exp(answer["path_log_prob"]) == pytest.approx(best, rel=1e-12)
    assert answer["likelihood"] == pytest.approx(likelihood, rel=1e-12)
    for t, found in enumerate(answer["posteriors"]):
        wanted = [math.fsum(p for p, path in every if path[t] == state) / likelihood for state in answer["states"]]
        assert found == pytest.approx(wanted, rel=1e-12)
    if length == 4:
        assert path == ("rainy", "rainy", "sunny", "sunny")
