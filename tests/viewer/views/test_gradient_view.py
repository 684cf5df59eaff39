"""The gradient by time step: against Wᵀ by hand, against finite differences, and on the page."""

import json
import math

import numpy as np
import pytest
import torch
from viewer.address import address
from viewer.charts import drawn_lines, label_boxes, overlaps
from viewer.subjects import TEXT, subject

from chainrule.inference.analysis.gradients import factor, gradients_by_layer, gradients_by_time, gradients_of_cells
from chainrule.model import BOUNDARY, taps, watch
from chainrule.tasks import build_for
from chainrule.viewer.views.gradient import LIMIT, VIEW, last_token

SHORT = "the cat said"


def ids(one, text):
    return torch.tensor([[BOUNDARY, *one.run.tokenizer.encode(text).tolist()]])


def some_batch(one, text=SHORT):
    return last_token(ids(one, text))


def by_hand(model, batch):
    """|∂L_T/∂h_t| of an Elman network with tanh: Wᵀ diag(1 - h²), again and again, from the last token to the first."""
    U, W, b_U, b_W = (part.detach().double() for part in model.stack.layers[0].rnn.all_weights[0])
    E, hidden = model.embedding.weight.detach().double(), [torch.zeros(W.shape[1], dtype=torch.double)]
    for token in batch.tokens[0].tolist():
        hidden.append(torch.tanh(W @ hidden[-1] + U @ E[token] + b_U + b_W))
    matrix = (E if model.embedding.output is None else model.embedding.output.weight.detach().double())
    project = model.embedding.project
    if project is not None:
        matrix = matrix @ project.weight.detach().double()
    logits = matrix @ hidden[-1] + model.embedding.bias.detach().double()
    lost = logits.softmax(0)
    lost[batch.targets[0, -1]] -= 1
    gradient, lengths = matrix.T @ lost, []
    for h in reversed(hidden[1:]):
        lengths.append(float(gradient.norm()))
        gradient = W.T @ ((1 - h * h) * gradient)
    return lengths


def test_of_an_elman_network_it_is_a_product_of_transposed_weights():
    one = subject("rnn")
    batch = some_batch(one)
    (_, hidden) = gradients_by_layer(one.model, batch)
    assert hidden == pytest.approx(by_hand(one.model, batch), rel=1e-4)


def differences(model, batch, place, at, token_by_token):
    """The same length by moving each number of one hidden vector a little, where it passes."""
    tap, target = model.get_submodule(place), batch.targets[0, -1]

    def nats(number, by):
        passed = iter(range(1000))

        def move(module, inputs, output):
            column = 0 if token_by_token else at
            moved = output.clone()
            if next(passed) == at or not token_by_token:
                moved[:, column, number] += by
            return moved

        hook = tap.register_forward_hook(move)
        with torch.no_grad(), watch(model, place, *(["hidden"] if token_by_token else [])):
            logits, _ = model.step(batch.tokens, model.start(1))
        hook.remove()
        return -float(logits[0, -1].double().log_softmax(0)[target])

    width = model.embeddings.shape[1]
    return math.sqrt(sum(((nats(number, 1e-4) - nats(number, -1e-4)) / 2e-4) ** 2 for number in range(width)))


@pytest.mark.parametrize("kind", ["gru", "lstm", "gpt"])
def test_it_is_what_finite_differences_say(kind):
    one = subject(kind, layers=2)
    model, batch = one.model.double(), some_batch(one, "the ca")
    layers = gradients_by_layer(model, batch)
    assert [len(layer) for layer in layers] == [6, 6, 6]
    place = "stack.blocks.{}.hidden" if kind == "gpt" else "stack.layers.{}.moment"
    for number, layer in enumerate(layers[1:]):
        for at in (0, 3, 5):
            expected = differences(model, batch, place.format(number), at, kind != "gpt")
            assert layer[5 - at] == pytest.approx(expected, rel=1e-4, abs=1e-7)
            assert (expected == 0) == (kind == "gpt" and number == 1 and at < 5)     # nothing looks back at the top


def test_the_gradient_of_a_cell_is_what_finite_differences_say():
    """∂L/∂c_t by every path: through h_t = o∗tanh(c_t), and through the next cell."""
    one = subject("lstm", layers=2)
    model, batch = one.model.double(), some_batch(one, "the ca")
    cells = gradients_of_cells(model, batch)
    assert [len(layer) for layer in cells] == [6, 6]
    for number, layer in enumerate(cells):
        for at in (0, 3, 5):
            expected = cell_differences(model, batch, number, at)
            assert layer[5 - at] == pytest.approx(expected, rel=1e-4)
    assert gradients_of_cells(subject("rnn").model, some_batch(subject("rnn"))) == []


def cell_differences(model, batch, number, at):
    """Moves each number of one cell a little, right after it was computed and before h is."""
    layer = model.stack.layers[number]
    step = layer.step

    def nats(unit, by):
        passed = iter(range(1000))

        def moved(Ux, before, weights):
            now = step(Ux, before, weights)
            if next(passed) != at:
                return now
            cell = now["cell"].clone()
            cell[:, unit] += by
            output = now["gates"][:, 3]
            return {**now, "cell": cell, "hidden": output * torch.tanh(cell)}

        layer.step = moved
        try:
            with torch.no_grad(), watch(model, "hidden"):
                logits, _ = model.step(batch.tokens, model.start(1))
        finally:
            layer.step = step
        return -float(logits[0, -1].log_softmax(0)[batch.targets[0, -1]])

    return math.sqrt(sum(((nats(unit, 1e-4) - nats(unit, -1e-4)) / 2e-4) ** 2 for unit in range(layer.hidden)))


def test_what_training_records_is_the_gradient_of_what_is_read():
    for kind in ("rnn", "lstm", "gpt", "feedforward"):
        one = subject(kind)
        batch = some_batch(one)
        assert gradients_by_layer(one.model, batch)[0] == pytest.approx(gradients_by_time(one.model, batch), rel=1e-4)


def test_a_window_ends_what_comes_back():
    one = subject("feedforward")
    read, hidden = gradients_by_layer(one.model, some_batch(one))
    reach = one.model.receptive_field
    assert all(length > 0 for length in read[:reach])
    assert not any(read[reach:])
    assert hidden[0] > 0
    assert not any(hidden[1:])


def test_the_slope_is_that_of_an_exponential():
    assert factor([3 * 0.5**step for step in range(30)]) == pytest.approx(0.5)
    assert factor([1.0, 0.0, 4.0, 8.0]) == pytest.approx(2.0)
    assert factor([1.0, 0.0]) is None
    assert factor([]) is None


def test_of_a_linear_network_the_slope_is_its_largest_stretch():
    """With W = 0.7 I, no input that bends it and σ nearly a straight line, every step back multiplies by 0.7."""
    one = subject("rnn")
    held = one.model.stack.layers[0].rnn
    with torch.no_grad():
        one.model.embedding.weight.mul_(1e-3)
        held.weight_hh_l0.copy_(0.7 * torch.eye(12))
        held.bias_ih_l0.zero_(), held.bias_hh_l0.zero_()
    (model,) = VIEW.make([one], TEXT[:60], {})["models"]
    assert model["layers"][1]["after"]["factor"] == pytest.approx(0.7, abs=1e-4)


def test_before_is_the_recipe_built_anew_with_its_seed():
    one = subject("lstm")
    torch.manual_seed(5)
    (model,) = VIEW.make([one], SHORT, {})["models"]
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))                      # a view leaves the random state as it was
    torch.manual_seed(one.run.recipe.train.seed)
    fresh = build_for(one.run.recipe, len(one.run.tokenizer))
    for number, lengths in enumerate(gradients_by_layer(fresh.eval(), some_batch(one))):
        assert model["layers"][number]["before"]["lengths"][::-1] == pytest.approx(lengths, rel=1e-6)
    for number, lengths in enumerate(gradients_by_layer(one.model, some_batch(one))):
        assert model["layers"][number]["after"]["lengths"][::-1] == pytest.approx(lengths, rel=1e-6)


def test_a_model_is_left_as_it_was():
    one = subject("lstm", dropout=0.5)
    one.model.train()
    VIEW.make([one], SHORT, {})
    assert one.model.training
    assert all(weight.grad is None for weight in one.model.parameters())
    assert not any(tap.watched or tap._forward_hooks for tap in taps(one.model).values())


def test_only_networks_that_go_on_fit():
    assert all(VIEW.fits(subject(kind)) for kind in ("rnn", "gru", "lstm", "gpt", "feedforward"))
    assert not any(VIEW.fits(subject(kind)) for kind in ("ngram", "hmm"))


@pytest.mark.parametrize("text", ["", "x", "\0", "🙂", "e" * 100_000])
def test_any_text_is_survived(text):
    data = VIEW.make([subject("rnn"), subject("gpt")], text, {})
    json.dumps(data, allow_nan=False)
    for model in data["models"]:
        assert 1 <= len(model["tokens"]) < LIMIT
        assert all(len(layer["after"]["lengths"]) == len(model["tokens"]) for layer in model["layers"])
        assert (model["left_out"] > 0) == (len(text) == 100_000)


def test_what_is_not_finite_is_null():
    one = subject("rnn")
    one.model.embedding.bias.data[0] = float("inf")
    (model,) = VIEW.make([one], SHORT, {})["models"]
    assert set(model["layers"][1]["after"]["lengths"]) == {None}
    assert model["layers"][1]["after"]["factor"] is None


# In a browser

@pytest.fixture
def three():
    return [subject("rnn"), subject("lstm", layers=1), subject("gpt")]


def numbers(page, name):
    return page.locator(f"#gradient [data-{name}]").evaluate_all(f"all => all.map(one => +one.dataset.{name})")


def test_the_lines_and_their_slopes_are_those_of_the_models(open_view, three):
    page, _ = open_view(VIEW, three, SHORT)
    lines = drawn_lines(page, "#gradient")
    assert list(lines) == [f"{kind}, {when}" for kind in ("rnn", "lstm", "gpt") for when in ("before", "after")]
    slopes = []
    for one in three:
        truth = gradients_by_layer(one.model, some_batch(one))[1]
        x, y = zip(*lines[f"{one.name}, after"])
        assert x == pytest.approx(range(1 - len(truth), 1), abs=0.01)
        assert y[::-1] == pytest.approx(truth, rel=2e-3)                # a hundredth of a pixel
        slopes.append(np.exp(np.polyfit(range(len(truth)), np.log(truth), 1)[0]))
    found = page.locator("#gradient tr td[data-line$=after]").evaluate_all("all => all.map(one => +one.dataset.factor)")
    assert found == pytest.approx(slopes, rel=1e-6)
    assert "WT" in page.locator("#gradient .gradient-formula").inner_text().replace("\n", "")


def test_the_sentence_is_written_from_the_numbers_and_the_cell_can_be_chosen(open_view, three):
    page, data = open_view(VIEW, three, SHORT)
    factors = {(model["name"], layer["name"]): f"{layer['after']['factor']:.2f} in {model['name']}"
               for model in data["models"] for layer in model["layers"] if layer["after"]["factor"]}
    said = page.locator("#gradient .gradient-said").inner_text()
    assert f"by {factors['rnn', 'h1']}, {factors['lstm', 'h1']} and {factors['gpt', 'h1']}." in said
    assert f"∂L/∂c, the factor is {factors['lstm', 'c1']}." in said
    assert "passes it on" not in page.locator("#gradient").inner_text()
    page.locator("#gradient select").select_option("c1")
    assert list(drawn_lines(page, "#gradient")) == ["lstm, before", "lstm, after"]
    truth = gradients_of_cells(three[1].model, some_batch(three[1]))[0]
    assert [y for _, y in drawn_lines(page, "#gradient")["lstm, after"]][::-1] == pytest.approx(truth, rel=2e-3)


def test_the_keyboard_moves_along_time_and_the_address_remembers(open_view, three):
    page, _ = open_view(VIEW, three, SHORT)
    page.locator("#gradient input[type=range]").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert "gradient.back=3" in address(page)
    truth = [gradients_by_layer(one.model, some_batch(one))[1][3] for one in three]
    assert numbers(page, "length")[1::2] == pytest.approx(truth, rel=1e-6)
    page.locator("#gradient select").select_option("x")
    truth = [gradients_by_layer(one.model, some_batch(one))[0][3] for one in three]
    assert numbers(page, "length")[1::2] == pytest.approx(truth, rel=1e-6)
    page.locator("#gradient svg.plot-drawing").focus()
    page.keyboard.press("ArrowRight")                                   # the chart itself, one token later
    assert "gradient.back=2" in address(page)
    assert page.evaluate("document.activeElement.matches('svg.plot-drawing')")
    again, _ = open_view(VIEW, three, SHORT, address="#gradient.of=x&gradient.back=3")
    assert numbers(again, "length")[1::2] == pytest.approx(truth, rel=1e-6)


def test_a_gradient_of_zero_is_explained(open_view, three):
    page, data = open_view(VIEW, [*three[2:], subject("gpt", name="untied", tied=False)], SHORT)
    before = [model["layers"][1]["before"]["lengths"] for model in data["models"]]
    assert [sum(length > 0 for length in lengths) for lengths in before] == [1, 0]    # its blocks begin at 0
    told = page.locator("#gradient").inner_text()
    assert "no gradient before T" in told
    assert "0: its output layer starts at zero" in told


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_runs_out_of_a_phone_or_a_projector(open_view, three, width):
    page, _ = open_view(VIEW, three, SHORT, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert overlaps(label_boxes(page, "#gradient")) == []
    lines = page.locator("#gradient .readout span").evaluate_all("all => all.map((one) => one.getClientRects().length)")
    assert lines == [1] * 6                                             # no number is broken in two
    scrolls = page.locator("#gradient .scroll")
    if scrolls.evaluate("one => one.scrollWidth > one.clientWidth"):    # then a shadow at its side says so
        assert scrolls.evaluate("one => getComputedStyle(one).backgroundAttachment") == "local, local, scroll, scroll"
    else:
        assert width > 360
