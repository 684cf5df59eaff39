"""The weighted die on a page: its faces are the model's, and its dials weigh them as inference/sampling.py does."""

import base64
import math

import numpy as np
import pytest
import torch
from viewer.address import address
from viewer.live import save_run, served
from viewer.subjects import subject

from chainrule.inference.generate import generate
from chainrule.inference.sampling import Sampling, distribution
from chainrule.run import load
from chainrule.viewer.page import Panel, make_page, pack_array, script_json
from chainrule.viewer.views import LIVE
from chainrule.viewer.views.die import FILE_CHARACTERS, LETTERS, PREFIXES, VIEW, next_logits, read_beginning

ODD = ["", "🙂", "\0", "\n", "the cat ", "the cat\n", "é" * 100_000]
SETTINGS = [
    {}, {"temperature": 0.0}, {"temperature": 0.3}, {"temperature": 2.5}, {"temperature": math.inf},
    {"top_k": 1}, {"top_k": 7}, {"top_p": 0.01}, {"top_p": 0.5}, {"top_p": 0.999}, {"min_p": 0.2}, {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.6, "min_p": 0.05}, {"temperature": 0.0, "top_k": 3, "top_p": 0.2},
    {"temperature": math.inf, "top_k": 5}, {"temperature": 1.7, "top_p": 0.9, "top_k": 4},
]


@pytest.fixture(scope="module")
def pair():
    return [subject("ngram"), subject("gpt")]


def logits_after(one, text):
    """(V,) by the model itself."""
    tokens = torch.tensor([[0, *one.run.tokenizer.encode(text).tolist()]])[:, -(one.model.context or 10**6) :]
    with torch.no_grad():
        return one.model.step(tokens, one.model.start(1))[0][0, -1]


def unpacked(die):
    return np.frombuffer(base64.b64decode(die["log_probs"]["data"]), "<f4")


def live_die(one, text):
    (die,) = VIEW.make([one], text, {LIVE: "true"})["dice"]["0:"]
    return die


@pytest.mark.parametrize("kind", ["ngram", "gpt", "lstm", "hmm"])
def test_the_faces_are_the_models_probabilities_the_greatest_first(kind):
    one = subject(kind)
    die = live_die(one, "the c")
    expected = logits_after(one, "the c").log_softmax(-1)
    assert unpacked(die) == pytest.approx(expected.sort(descending=True).values.numpy(), abs=1e-5)
    best = int(expected.argmax())
    assert die["faces"][0][0] == one.run.tokenizer.show(best)
    assert len(die["faces"]) == min(512, len(one.run.tokenizer))


@pytest.mark.parametrize("unit", ["characters", "bytes", "bpe", "words"])
def test_a_face_adds_to_the_text_what_its_token_spells(unit):
    one = subject("ngram", unit=unit)
    tokenizer = one.run.tokenizer
    for text in ("the cat", "the cat ", "the cat said\n", ""):
        for shown, spelled in live_die(one, text)["faces"]:
            if spelled is None:
                assert shown == tokenizer.show(0) or "\\x" in shown
            elif spelled.strip() not in ("", "<unk>"):
                ends = tokenizer.encode(text + spelled)[-1]
                assert tokenizer.show(int(ends)) == shown or unit == "bpe"    # which may join letters otherwise


def test_a_word_follows_a_space_and_a_line_begins_with_none():
    one = subject("ngram", unit="words")
    spelled = {text: dict(live_die(one, text)["faces"])["cat"] for text in ("the", "the ", "the\n", "")}
    assert spelled == {"the": " cat", "the ": "cat", "the\n": "cat", "": "cat"}
    assert dict(live_die(one, "the")["faces"])["</s>"] == "\n"


def test_a_line_that_has_ended_is_read_as_ended():
    one = subject("ngram", unit="words")
    assert live_die(one, "the cat\n")["faces"][0][0] == live_die(one, "")["faces"][0][0] == "the"


@pytest.mark.parametrize("text", ODD)
def test_any_text_has_a_die(pair, text):
    file, live = VIEW.make(pair, text, {}), VIEW.make(pair, text, {LIVE: "true"})
    assert len(live["dice"]["0:"]) == len(file["models"]) == 2
    end = len(file["pieces"])
    assert f"{end}:" in file["dice"]
    assert "".join(file["pieces"]) == text[len(text) - sum(map(len, file["pieces"])) :]
    assert file["left_out"] == max(0, len(text) - LETTERS)


def test_a_file_knows_the_die_after_every_prefix_and_after_the_likeliest_faces(pair):
    text = 'the cat said "who'
    data = VIEW.make(pair, text, {})
    assert "".join(data["pieces"]) == text
    for count in (0, 5, len(text)):
        for one, die in zip(pair, data["dice"][f"{count}:"]):
            expected = logits_after(one, text[:count]).log_softmax(-1).sort(descending=True).values
            assert unpacked(die) == pytest.approx(expected.numpy(), abs=1e-5)
    for die in data["dice"][f"{len(text)}:"]:
        first = next(spelled for _, spelled in die["faces"] if spelled)
        assert f"{len(text)}:{first}" in data["dice"]
        after = data["dice"][f"{len(text)}:{first}"][0]
        assert unpacked(after) == pytest.approx(unpacked(live_die(pair[0], text + first)), abs=1e-6)


@pytest.mark.parametrize(("kind", "unit"), [
    ("ngram", "characters"), ("gpt", "characters"), ("gpt", "bpe"), ("lstm", "bytes"), ("hmm", "words"),
])
def test_a_long_text_is_begun_once_and_every_die_is_the_same(kind, unit):
    one, text = subject(kind, unit=unit), 'the cat said "who (me)?"\nthe dog said ' * 4
    data = VIEW.make([one], text, {})
    begin = text[: len(text) - len("".join(data["pieces"]))]
    assert len(begin) > 20 or unit == "words"
    for key in list(data["dice"])[::9]:
        count, _, taken = key.partition(":")
        prefix = begin + "".join(data["pieces"][: int(count)]) + taken
        expected = unpacked(live_die(one, prefix))
        assert unpacked(data["dice"][key][0]) == pytest.approx(expected, abs=2e-5)


def test_only_a_text_that_begins_alike_goes_on_from_it():
    one = subject("lstm")
    beginning = read_beginning(one, "the cat said who (me)", 100)
    for text in ("the cat said who are you", "the dog said who are you", "the", ""):
        logits, reading = next_logits(one, text, 100, beginning)
        assert torch.allclose(logits, logits_after(one, text), atol=1e-5)
        assert reading.left_out == 0
    assert read_beginning(one, "", 100) is None


def test_a_file_has_room_for_large_vocabularies(monkeypatch, pair):
    monkeypatch.setattr("chainrule.viewer.views.die.FILE_CHARACTERS", 20_000)
    data = VIEW.make(pair, "the cat said " * 10, {})
    assert len(script_json(data)) < 40_000
    assert next(iter(data["dice"])) == f"{PREFIXES}:"
    assert len(script_json(VIEW.make([pair[0]] * 6, "the cat said " * 10, {}))) < 1.5 * FILE_CHARACTERS


def test_dials_weigh_as_sampling_does(open_file, pair):
    """The page's arithmetic against that of inference/sampling.py, on random dice and on a model's own."""
    data = VIEW.make(pair, "the", {})
    page = open_file(make_page("t", "", [Panel("die", "die", "Die", data)]))
    torch.manual_seed(5)
    logits = [torch.randn(300) * 3, torch.randn(1000), logits_after(pair[0], "the c"), logits_after(pair[1], "the c"),
              torch.tensor([0.0, -math.inf, 1.0, -math.inf])]
    for one in logits:
        ranked = one.float().log_softmax(-1).sort(descending=True).values
        for setting in SETTINGS:
            expected = distribution(one[None], Sampling(**setting))[0].sort(descending=True).values
            dials = {"temperature": setting.get("temperature", 1), "top-k": setting.get("top_k", math.inf),
                     "top-p": setting.get("top_p", 1), "min-p": setting.get("min_p", 0)}
            found = page.evaluate(
                "async ([logProbs, dials]) => (await import('chainrule/die')).weigh(logProbs, dials)",
                [ranked.tolist(), dials],
            )
            assert found == pytest.approx(expected.tolist(), abs=1e-6), setting


def shares(page, model="gpt"):
    return page.locator(f"[data-model={model}] .die-face").evaluate_all("all => all.map(one => +one.dataset.p)")


def slide(page, name, value):
    """Moves a dial to a stop, as a hand would."""
    dial = page.locator(f"input[name={name}]")
    dial.evaluate("(one, value) => { one.value = value; one.dispatchEvent(new Event('input')); }", str(value))


def test_sliders_move_the_bars_and_what_is_cut_off_stays_grey(open_view, pair):
    page, _ = open_view(VIEW, pair, "the c")
    own = logits_after(pair[1], "the c").softmax(-1).sort(descending=True).values[:20].tolist()
    assert shares(page) == pytest.approx(own, abs=1e-6)
    slide(page, "temperature", 0)
    assert shares(page) == [1] + [0] * 19
    assert page.locator("[data-model=gpt] .die-cut").count() == 19
    facts = page.locator("[data-model=gpt] .die-facts").inner_text()
    assert facts == "one possible token; as uncertain as a fair die with 1.0 sides (0.00 bits)"
    assert "β = 1 / temperature = ∞" in page.locator(".die-formula").inner_text()
    page.locator(".die-reset").click()
    slide(page, "top-k", 2)
    three = torch.tensor(own[:3])
    assert shares(page)[:4] == pytest.approx([*(three / three.sum()).tolist(), 0], abs=1e-6)
    assert page.locator("[data-model=ngram] .die-face:not(.die-cut)").count() == 3
    grey = page.locator("[data-model=gpt] .die-face").nth(5)
    assert grey.is_visible()
    assert "cut off" in grey.inner_text()
    assert float(grey.get_attribute("data-own")) == pytest.approx(own[5], abs=1e-6)
    assert "die.top-k=3" in address(page)


def test_an_address_sets_the_dials(open_view, pair):
    page, _ = open_view(VIEW, pair, "the c", address="#die.temperature=0.37&die.top-p=0.5&die.min-p=nonsense")
    expected = distribution(logits_after(pair[1], "the c")[None], Sampling(temperature=0.37, top_p=0.5))[0]
    assert shares(page) == pytest.approx(expected.sort(descending=True).values[:20].tolist(), abs=1e-6)
    assert page.locator("label:has([name=temperature]) output").inner_text() == "0.37"


def test_in_a_file_a_face_can_be_taken_and_then_the_live_page_is_named(open_view, pair):
    page, data = open_view(VIEW, pair, "the c")
    face = page.locator("[data-model=ngram] .die-face").first
    assert face.inner_text().startswith("a")
    face.click()
    assert page.locator(".die-taken").inner_text() == "a"
    ngram = logits_after(pair[0], "the ca").softmax(-1).sort(descending=True).values[:20].tolist()
    assert shares(page, "ngram") == pytest.approx(ngram, abs=1e-6)
    for _ in range(6):
        if "not in this file" in page.locator("output.readout").inner_text():
            break
        page.locator("[data-model=ngram] .die-face").first.click()
    assert "chainrule look RUN" in page.locator("output.readout").inner_text()
    page.locator(".die-text").press("ArrowLeft")
    assert page.locator(".die-unread").count() == 1
    before = logits_after(pair[0], "the ").softmax(-1).sort(descending=True).values[:20].tolist()
    assert shares(page, "ngram") == pytest.approx(before, abs=1e-6)
    page.locator(".die-piece").nth(1).click()
    assert page.locator(".die-unread").count() == len(data["pieces"]) - 2


def test_the_arrow_keys_move_over_the_faces_and_more_can_be_seen(open_view, pair):
    page, _ = open_view(VIEW, pair, "the c")
    page.locator("[data-model=gpt] .die-face").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    second = page.locator("[data-model=gpt] .die-face").nth(1)
    assert second.evaluate("one => one === document.activeElement")
    assert "cut off" not in second.inner_text()
    page.locator("[data-model=gpt] .die-more").click()
    assert page.locator("[data-model=gpt] .die-face").count() == 40


def test_a_die_without_a_possible_face_is_told_of(open_file, pair):
    data = VIEW.make(pair[:1], "the", {LIVE: "true"})
    data["dice"]["0:"][0]["log_probs"] = pack_array(np.full(5, np.nan))
    page = open_file(make_page("t", "", [Panel("die", "die", "Die", data)]))
    assert "gives no token a probability" in page.locator(".die-facts").inner_text()
    page.locator(".die-roll").click()


@pytest.fixture(scope="module")
def url(tmp_path_factory, pair):
    folder = tmp_path_factory.mktemp("runs")
    with served({one.name: save_run(folder / one.name, one) for one in pair}, "the c") as address:
        yield address


def test_on_the_live_page_a_face_and_a_roll_write_and_the_dials_ask_nobody(open_url, url, pair):
    page = open_url(f"{url}#page.view=die")
    page.locator("[data-model=ngram] .die-face").first.press("Enter")
    page.wait_for_function("document.getElementById('text').value === 'the ca'")
    expected = logits_after(pair[1], "the ca").softmax(-1).sort(descending=True).values[:20].tolist()
    page.wait_for_function("p => Math.abs(document.querySelector('[data-model=gpt] .die-face').dataset.p - p) < 1e-6",
                           arg=expected[0])
    assert shares(page) == pytest.approx(expected, abs=1e-6)
    assert page.evaluate("document.activeElement.className") == "die-face"
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    slide(page, "temperature", 0)
    assert shares(page)[:2] == [1, 0]
    assert asked == []
    page.locator("[data-model=ngram] .die-roll").click()    # at temperature 0 the likeliest, as sampling would
    follows = generate(pair[0].model, pair[0].run.tokenizer, "the ca", 1, Sampling(temperature=0))[0]
    page.wait_for_function("text => document.getElementById('text').value === text", arg=f"the ca{follows}")
    assert "page.text=the+ca" in address(page)


def test_a_roll_follows_the_weights(open_url, url, pair):
    page = open_url(f"{url}#page.view=die&page.text=the&die.top-k=4")
    p, faces = shares(page, "ngram")[:4], page.locator("[data-model=ngram] .die-name").all_text_contents()[:4]
    rolled = page.evaluate("""async () => {
      const counts = {}, roll = document.querySelector('[data-model=ngram] .die-roll');
      const random = Math.random;
      for (let number = 0; number < 200; number++) {
        Math.random = () => (number + 0.5) / 200;
        roll.click();
        const text = document.getElementById('text');
        counts[text.value.slice(3)] = (counts[text.value.slice(3)] ?? 0) + 1;
        text.value = 'the';
      }
      Math.random = random;
      return counts;
    }""")
    spelled = [face.replace("·", " ").replace("↵", "\n") for face in faces]
    assert [rolled.get(face, 0) / 200 for face in spelled] == pytest.approx(p, abs=0.011)


def test_a_run_that_is_loaded_has_the_same_die(tmp_path, pair):
    run = load(save_run(tmp_path / "run", pair[1]))
    assert live_die(type(pair[1])("again", run), "the")["faces"] == live_die(pair[1], "the")["faces"]


def greedy(one, text, count):
    """What the model itself writes at temperature 0."""
    return text + generate(one.model, one.run.tokenizer, text, count, Sampling(temperature=0))[0]


def written(page):
    return page.evaluate("document.getElementById('text').value")


def test_fast_clicks_and_a_face_between_them_never_use_an_older_die(open_url, url, pair):
    page = open_url(f"{url}#page.view=die&die.temperature=0")
    page.evaluate("""() => {
      const find = (name) => document.querySelector(`[data-model=ngram] .die-${name}`);
      const [roll, face] = [find('roll'), find('face')];
      for (let number = 0; number < 4; number++) roll.click();
      face.click();    // the “a” that is seen while the rolls wait
      roll.click();
    }""")
    expected = greedy(pair[0], f"{greedy(pair[0], 'the c', 4)}a", 1)
    assert len(set(expected[5:9])) > 2                     # an older die would repeat its own letter
    page.wait_for_function("text => document.getElementById('text').value === text", arg=expected)
    page.wait_for_selector("html[data-drawn]")
    assert written(page) == expected
    assert "page.text" in address(page)


def test_enter_that_is_held_rolls_as_fast_as_dice_come_and_stops_when_it_is_let_go(open_url, url, pair):
    page = open_url(f"{url}#page.view=die&die.temperature=0")
    page.locator("[data-model=ngram] .die-roll").focus()
    for _ in range(12):
        page.keyboard.down("Enter")    # after the first one it repeats
    page.keyboard.up("Enter")
    page.wait_for_selector("html[data-drawn]")
    rolled = len(written(page)) - len("the c")
    assert 1 <= rolled <= 12
    assert written(page) == greedy(pair[0], "the c", rolled)
    assert page.evaluate("document.activeElement.className") == "die-roll"


def test_what_was_rolled_is_seen_and_white_space_too(open_url, url, pair):
    page = open_url(f"{url}#page.view=die&page.text=the+cat&die.temperature=0")
    assert page.locator(".die-text").is_hidden()
    page.locator("[data-model=ngram] .die-roll").click()
    page.wait_for_selector(".die-last:visible")
    assert greedy(pair[0], "the cat", 1) == "the cat "
    assert page.locator(".die-last").inner_text() == "·"
    assert page.locator(".die-text").inner_text().startswith("the·cat·")
    assert page.locator("output.readout").inner_text() == "ngram rolled “·”, which had 100.00 %."
    page.locator("#text").fill("a dog")
    page.wait_for_function("document.querySelector('.die-text').hidden")
