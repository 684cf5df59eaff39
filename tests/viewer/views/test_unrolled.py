"""A tiny network with every number: each can be made again by its rule, and the last are what the model says."""

import json
import math

import pytest
import torch
from viewer.address import address
from viewer.subjects import subject

from chainrule.text.synthetic import language
from chainrule.viewer.network import Network
from chainrule.viewer.views.unrolled import LIMIT, VIEW

LETTERS = "a b c\nb c a\n" * 4
TEXT = "a c b a\nb"
RECURRENT = [
    ("rnn", {"hidden": 3, "embedding": 2, "tied": False}),
    ("rnn", {"hidden": 3, "embedding": 2, "nonlinearity": "relu"}),
    ("rnn", {"hidden": 3, "nonlinearity": "sigmoid", "layers": 2, "start": "learned"}),
    ("gru", {"hidden": 3, "embedding": 2}),
    ("gru", {"hidden": 3, "layers": 2, "start": "learned"}),
    ("lstm", {"hidden": 3, "embedding": 2, "layers": 1}),
    ("lstm", {"hidden": 3, "layers": 2, "start": "learned"}),
]
TINY = {"layers": 1, "width": 4, "heads": 1, "context": 12, "hidden": 6, "zero_init": False}
LECTURED = {"positions": "learned", "norm": "layer", "qk_norm": False, "norm_embedding": False, "activation": "relu"}
TRANSFORMERS = [
    {}, LECTURED, {"heads": 2}, {"heads": 4, "kv_heads": 2, "head_size": 2, "layers": 2},
    {"positions": "sinusoidal", "norm_scale": True}, {"positions": "relative", "heads": 2}, {"window": 2},
    {"attention": ("local",), "block": 3}, {"qkv": False, "heads": 2}, {"qkv": False, "scaled": False, **LECTURED},
    {"norm_first": False, "norm": "layer", "norm_scale": True},
    {"activation": "swiglu", "biases": True, "norm": "layer", "norm_scale": True}, {"activation": "gelu", "tied": True},
    {"activation": "geglu"}, {"activation": "gelu-tanh", "logit_softcap": 2.0}, {"positions": "none", "biases": True},
]


def tiny(kind, **settings):
    return subject(kind, LETTERS, unit="words", **({**TINY, **settings} if kind == "gpt" else settings))


EVERY = [*RECURRENT, *(("gpt", settings) for settings in TRANSFORMERS)]


def as_tensor(rows):
    return torch.tensor([[-math.inf if value is None else value for value in row] for row in rows], dtype=torch.float64)


SQUASH = {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "relu2": lambda x: torch.relu(x) ** 2,
    "gelu": torch.nn.functional.gelu, "gelu-tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
EACH = {
    "add": lambda node, a, b: node["factor"] * a + b,
    "candidate": lambda node, u, r, w: torch.tanh(u + r * w),
    "blend": lambda node, z, n, h: (1 - z) * n + z * h,
    "cell": lambda node, f, C, i, candidate: f * C + i * candidate,
    "shown": lambda node, o, C: o * torch.tanh(C),
    "swiglu": lambda node, gate, value: gate * torch.sigmoid(gate) * value,
    "geglu": lambda node, gate, value: SQUASH["gelu-tanh"](gate) * value,
    "cap": lambda node, y: node["factor"] * torch.tanh(y / node["factor"]),
}


def linear(data, node, *inputs):
    sums = sum(x @ as_tensor(matrix).T for x, matrix in zip(inputs, node["matrices"]))
    sums = sums + torch.tensor(node.get("bias", 0.0), dtype=torch.float64)
    if "squash" not in node:
        return sums
    assert sums.numpy() == pytest.approx(as_tensor(node["sums"]).numpy(), abs=1e-5)
    return SQUASH[node["squash"]](sums)


def norm(data, node, x):
    x = x - x.mean(-1, keepdim=True) if node["how"] == "layer" else x
    normed = x / (x.pow(2).mean(-1, keepdim=True) + node["epsilon"]).sqrt()
    return normed * torch.tensor(node.get("gain", 1.0)) + torch.tensor(node.get("bias", 0.0))


def rotate(data, node, x):
    cos, sin = as_tensor(node["cos"]), as_tensor(node["sin"])
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def scores(data, node, query, key):
    found = query @ key.T / math.sqrt(node["size"]) + (as_tensor(node["added"]) if "added" in node else 0)
    return found.masked_fill(torch.tensor(node["sees"]) == 0, -math.inf)


RULES = {
    "lookup": lambda data, node: as_tensor(node["matrix"])[data["ids"]],
    "given": lambda data, node: as_tensor(node["values"]),
    "linear": linear, "norm": norm, "rotate": rotate, "scores": scores,
    "each": lambda data, node, *inputs: EACH[node["how"]](node, *inputs),
    "softmax": lambda data, node, s: s.softmax(-1),
    "mix": lambda data, node, a, v: a @ v,
    "join": lambda data, node, *inputs: torch.cat(inputs, -1),
}


def made_again(data, node):
    """All numbers of a node by its rule, from the numbers of its inputs."""
    nodes, inputs = {one["id"]: one for one in data["nodes"]}, []
    for source in node["of"]:
        values = as_tensor(nodes[source["id"]]["values"])
        if source["when"] == "before":
            values = torch.cat([as_tensor([nodes[source["id"]]["first"]]), values[:-1]])
        inputs.append(values)
    return RULES[node["rule"]](data, node, *inputs)


@pytest.mark.parametrize(("kind", "settings"), EVERY, ids=str)
def test_every_number_can_be_made_again_by_its_rule_and_the_last_are_the_models(kind, settings):
    one = tiny(kind, **settings)
    data = VIEW.make([one], TEXT, {})
    for node in data["nodes"]:
        wanted = as_tensor(node["values"])
        again = made_again(data, node)
        finite = wanted.isfinite()
        assert torch.equal(finite, again.isfinite()), node["id"]
        assert again[finite].numpy() == pytest.approx(wanted[finite].numpy(), abs=2e-6), node["id"]
    tokens = one.read(TEXT, LIMIT).tokens
    logits = one.model.step(tokens, one.model.start(1))[0][0].detach()
    *_, y, p = (as_tensor(node["values"]) for node in data["nodes"])
    assert y.numpy() == pytest.approx(logits.numpy(), abs=1e-6)
    assert p.numpy() == pytest.approx(logits.softmax(-1).numpy(), abs=1e-6)


def test_what_attention_shows_is_what_its_taps_tell():
    one = tiny("gpt", heads=2, layers=2)
    data = VIEW.make([one], TEXT, {})
    taps = ("attention.pattern", "feed_forward.neurons", "hidden")
    where = [f"stack.blocks.{layer}.{tap}" for layer in (0, 1) for tap in taps]
    _, seen = one.trace(one.read(TEXT, LIMIT).tokens, *where)
    patterns = [as_tensor(node["values"]) for node in data["nodes"] if "attention weights" in node["name"]]
    assert len(patterns) == 4
    for layer in (0, 1):
        watched = seen[f"stack.blocks.{layer}.attention.pattern"][0]
        assert torch.stack(patterns[2 * layer :][:2]).numpy() == pytest.approx(watched.numpy(), abs=1e-6)
        named = {node["name"]: node for node in data["nodes"] if node["name"].endswith(f"of layer {layer + 1}")}
        neurons = as_tensor(named[f"neurons of layer {layer + 1}"]["values"])
        assert neurons.numpy() == pytest.approx(seen[f"stack.blocks.{layer}.feed_forward.neurons"][0].numpy(), abs=1e-6)
        last = as_tensor(named[f"residual of layer {layer + 1}"]["values"])      # the second of two, which has the name
        assert last.numpy() == pytest.approx(seen[f"stack.blocks.{layer}.hidden"][0].numpy(), abs=1e-6)


def test_the_formulas_are_those_of_the_lecture():
    data = VIEW.make([tiny("rnn", hidden=3, embedding=2, tied=False)], TEXT, {})
    assert [node["formula"] for node in data["nodes"]] == [
        "x_t = E[w_t]", "h_t = tanh(W h_{t-1} + U x_t + b_h)", "y_t = V h_t + b_y", "p_t = softmax(y_t)"]
    data = VIEW.make([tiny("gpt", **LECTURED)], TEXT, {})
    formulas = [node["formula"] for node in data["nodes"]]
    assert formulas[2:11] == [
        "x_t = e_t + pos_t", "n_t = (x_t − μ) / σ", "q_t = W_Qᵀ n_t", "k_t = W_Kᵀ n_t", "v_t = W_Vᵀ n_t",
        "s_{t,j} = k_jᵀ q_t / √d_k, and −∞ where the causal mask hides j from t", "a_t = softmax(s_t)",
        "x′_t = Σ_{j≤t} a_{t,j} v_j", "o_t = W_Oᵀ x′_t"]


@pytest.mark.parametrize("kind", ["rnn", "gpt"])
@pytest.mark.parametrize("text", ["", "\n\n", "🦎", "a\0b", "a b " * 25_000], ids=lambda text: ascii(text)[:9])
def test_any_text_is_unrolled(kind, text):
    one = tiny(kind, **({} if kind == "gpt" else {"hidden": 3}))
    data = VIEW.make([one], text, {})
    json.dumps(data, allow_nan=False)
    assert len(data["tokens"]) == one.read(text, LIMIT).tokens.shape[1] <= LIMIT
    assert data["left_out"] == one.read(text, LIMIT).left_out


def test_it_is_for_tiny_networks():
    assert VIEW.fits(tiny("rnn", hidden=3))
    assert VIEW.fits(tiny("gpt"))
    assert not VIEW.fits(tiny("gpt", width=32))                                   # too many parameters
    assert not VIEW.fits(subject("rnn", hidden=3))                                # too many characters
    assert not VIEW.fits(tiny("ngram"))
    assert not VIEW.fits(tiny("feedforward", embedding=2, hidden=2, order=2))     # neither in time nor in depth


@pytest.mark.parametrize(("name", "size"), [("rhythm", 4), ("brackets", 8)])
def test_small_languages_written_apart_have_a_tiny_vocabulary(name, size):
    lines = language(name).text(2000).split()
    one = subject("rnn", "\n".join(" ".join(line) for line in lines), unit="words", hidden=3, embedding=2)
    assert len(one.run.tokenizer) == size
    assert VIEW.fits(one)


def test_nodes_of_one_symbol_have_names_of_their_own():
    network = Network("depth")
    names = [network.add("x", "", "", "given", [], torch.zeros(1, 1)) for _ in range(3)]
    assert names == ["x.0", "x.1", "x.2"]


# As a person sees it


def drawn(page, selector):
    return [float(value) for value in page.locator(selector).evaluate_all("all => all.map(one => one.dataset.value)")]


def stand(page):
    return page.locator(".unrolled-count").inner_text()


WALK = """steps => Array.from({ length: steps }, () => {
  const text = (selector) => document.querySelector(selector).textContent;
  const last = [...document.querySelectorAll(".unrolled-step .unrolled-sum > [data-value]")].at(-1);
  const terms = [...document.querySelectorAll(".unrolled-product")].map((product) =>
    [...product.querySelectorAll("[data-value]")].reduce((so_far, factor) => so_far * factor.dataset.value, 1));
  const seen = { terms: terms.reduce((sum, term) => sum + term, 0), sum: last && last.dataset.value,
    stand: text(".unrolled-count"), told: text(".unrolled-step"),
    answer: document.querySelector(".unrolled-answer .result").dataset.value };
  document.querySelector("button[data-by='1']").click();
  return seen;
})"""


@pytest.mark.parametrize(("kind", "settings"), [
    RECURRENT[0], RECURRENT[3], RECURRENT[5], ("gpt", LECTURED), *(("gpt", TRANSFORMERS[at]) for at in (2, 5, 8, 10)),
], ids=str)
def test_every_step_is_written_out_with_its_numbers(open_view, kind, settings):
    page, data = open_view(VIEW, [tiny(kind, **settings)], "a c", address="#unrolled.at=2.1")
    steps = len(data["nodes"]) * (len(data["tokens"]) if data["order"] == "time" else 1)
    for step, seen in enumerate(page.evaluate(WALK, steps)):
        node = data["nodes"][step % len(data["nodes"])]
        time = step // len(data["nodes"]) if data["order"] == "time" else len(data["tokens"]) - 1
        assert seen["stand"] == f"step {step + 1} of {steps}"
        assert "undefined" not in seen["told"]
        assert "NaN" not in seen["told"]
        assert float(seen["answer"]) == node["values"][time][1]
        if node["rule"] not in ("lookup", "given", "join"):
            assert float(seen["sum"]) == pytest.approx(node["values"][time][1], abs=1e-6)
        if node["rule"] == "linear":
            sums = node.get("sums", node["values"])
            assert seen["terms"] + node.get("bias", [0, 0])[1] == pytest.approx(sums[time][1], abs=2e-6)
        if node["rule"] == "mix":
            assert seen["terms"] == pytest.approx(node["values"][time][1], abs=2e-6)
    assert stand(page) == f"step {steps} of {steps}"


def test_all_numbers_are_on_the_page_and_the_die_is_the_models(open_view):
    one = tiny("rnn", hidden=3, embedding=2, tied=False)
    page, data = open_view(VIEW, [one], TEXT)
    tokens = one.read(TEXT, LIMIT).tokens
    wanted = one.model.step(tokens, one.model.start(1))[0][0].softmax(-1).detach().flatten().tolist()
    assert drawn(page, "[data-node='p.0'] .unrolled-cell") == pytest.approx(wanted, abs=1e-6)
    assert len(drawn(page, ".unrolled-cell")) == sum(as_tensor(node["values"]).numel() for node in data["nodes"])
    page.locator("[data-node='h.0'][data-time='2'] .unrolled-cell").nth(1).click()
    weights = one.model.stack.layers[0].weights()[0]
    shown = drawn(page, ".unrolled-matrix td")
    for numbers in (weights.W, weights.U):
        flat = numbers.detach().flatten().tolist()
        assert any(shown[at : at + len(flat)] == flat for at in range(len(shown)))


def test_keys_and_clicks_walk_through_the_steps_and_the_address_remembers(open_view):
    one = tiny("gpt", **LECTURED)
    page, data = open_view(VIEW, [one], "a c b", address="#unrolled.step=7&unrolled.at=2.1")
    assert drawn(page, ".unrolled-answer .result") == [data["nodes"][7]["values"][2][1]]
    assert page.evaluate("scrollY") == 0                                           # only the drawing is scrolled
    assert page.locator(".unrolled-vector.used").count() == 2                      # one query, one key
    page.locator(".unrolled-drawing").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert drawn(page, ".unrolled-answer .result") == [-math.inf]
    assert "the mask sets −∞" in page.locator(".unrolled-step").inner_text()
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("ArrowRight")
    assert drawn(page, ".unrolled-answer .result") == [data["nodes"][8]["values"][3][3]]
    assert "unrolled.step=8" in address(page)
    assert page.locator(".unrolled-vector.later").count() == 4 * (len(data["nodes"]) - 9)
    page.keyboard.press("End")
    assert stand(page) == f"step {len(data['nodes'])} of {len(data['nodes'])}"
    page.keyboard.press("Home")
    page.locator("button[data-by='-1']").click()
    assert stand(page).startswith("step 1 of")


def test_in_time_what_comes_later_is_faint(open_view):
    one = tiny("rnn", hidden=3, embedding=2, tied=False)
    page, _ = open_view(VIEW, [one], "a c b", address="#unrolled.step=5")
    named = "all => all.map(one => one.dataset.node + ' ' + one.dataset.time).sort()"
    made = page.locator(".unrolled-vector:not(.later)").evaluate_all(named)
    assert made == ["h.0 0", "h.0 1", "p.0 0", "x.0 0", "x.0 1", "y.0 0"]
    assert page.locator(".unrolled-vector.used").evaluate_all(named) == ["h.0 0", "x.0 1"]


@pytest.mark.parametrize("kind", ["rnn", "gpt"])
def test_a_phone_shows_it(open_view, kind):
    page, _ = open_view(VIEW, [tiny(kind, **({} if kind == "gpt" else {"hidden": 3}))], "a c b a b c",
                        viewport={"width": 360, "height": 700}, address="#unrolled.step=9")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
