"""Write on: models continue a text side by side, as `chainrule sample` would, and each token has its own bits."""

import math

import pytest
import torch
from viewer.address import address
from viewer.live import save_run, served
from viewer.subjects import subject

from chainrule.inference.generate import generate, sample
from chainrule.inference.sampling import Sampling
from chainrule.viewer.page import script_json
from chainrule.viewer.views.write import IN_FILE, VIEW, write_on


@pytest.fixture(scope="module")
def models():
    return [subject("ngram"), subject("lstm"), subject("gpt", unit="bytes")]


def own_bits(one, prompt, sampling, count):
    """Of every token that is sampled after a prompt, by the model's own probabilities, read at once."""
    read = one.run.tokenizer.encode(prompt)
    drawn = [int(column) for column in sample(one.model, [read], count, sampling, ends=False)]
    tokens = torch.tensor([[0, *read.tolist(), *drawn]])
    with torch.no_grad():
        logits, _ = one.model.step(tokens[:, :-1], one.model.start(1))
    return -logits[0].log_softmax(-1).gather(1, tokens[0, 1:, None])[len(read):, 0] / math.log(2)


@pytest.mark.parametrize("sampling", [Sampling(seed=3), Sampling(temperature=0.5, top_p=0.8), Sampling(temperature=0)])
def test_the_text_is_that_of_sample_and_the_bits_those_before_temperature_and_cuts(models, sampling):
    for one in models:
        pieces = list(write_on(one.run, "the c", 20, sampling))
        text = "".join(piece for piece, _, _ in pieces)
        assert text == generate(one.model, one.run.tokenizer, "the c", 20, sampling)[0]
        count = sum(tokens for _, _, tokens in pieces)
        own = own_bits(one, "the c", sampling, 20)
        assert 10 < count <= 20
        assert sum(bits for _, bits, _ in pieces) == pytest.approx(float(own[:count].sum()), abs=1e-3)
        if count == len(pieces):
            assert [bits for _, bits, _ in pieces] == pytest.approx(own.tolist(), abs=1e-4)


def test_an_end_is_a_piece_without_text():
    one = subject("ngram", unit="words")
    *rest, (last, bits, _) = write_on(one.run, "the cat", 60, Sampling(temperature=0))
    text = "".join(piece for piece, _, _ in rest)
    assert text == generate(one.model, one.run.tokenizer, "the cat", 60, Sampling(temperature=0))[0]
    assert (last, bits >= 0) == ("", True)


@pytest.mark.parametrize("text", ["", "\N{SLIGHTLY SMILING FACE}", "\0", "é" * 20_000])
def test_any_text_is_continued(models, text):
    data = VIEW.make(models[:1], text, {})
    script_json(data)
    assert 0 < len(data["written"][0]) <= IN_FILE


def test_a_file_shows_a_sample_of_each_model_and_its_seed(open_view, models):
    page, data = open_view(VIEW, models[:2], "the c")
    assert "seed 1." in page.locator("#write .view").inner_text()
    for number, one in enumerate(models[:2]):
        column = page.locator(f"[data-model={one.name}]")
        found = column.locator(".token").evaluate_all("all => all.map(one => [one.dataset.text, +one.dataset.bits])")
        assert found == [[text, pytest.approx(bits)] for text, bits, _ in data["written"][number]]
        assert column.locator(".write-facts").inner_text().startswith(f"{IN_FILE} tokens, ")
    page.locator(".token").first.hover()
    assert page.locator("output.readout").inner_text().startswith("“")
    assert page.locator("button", has_text="write on").count() == 0


@pytest.fixture(scope="module")
def url(tmp_path_factory, models):
    folder = tmp_path_factory.mktemp("runs")
    with served({one.name: save_run(folder / one.name, one) for one in models[:2]}, "the c") as address:
        yield address


def texts(page):
    return page.locator(".write-text").evaluate_all(
        "all => all.map(one => [...one.querySelectorAll('.token')].map(token => token.dataset.text).join(''))")


def finished(page):
    page.wait_for_selector(".write-columns[aria-busy=false]")


def test_all_models_write_from_one_prompt_in_columns_and_a_seed_repeats(open_url, url, models):
    page = open_url(f"{url}#page.view=write&write.tokens=30&write.seed=7")
    page.get_by_role("button", name="write on").click()
    finished(page)
    own = {seed: [generate(one.model, one.run.tokenizer, "the c", 30, Sampling(seed=seed))[0] for one in models[:2]]
           for seed in (7, 8)}
    assert texts(page) == own[7]
    assert page.locator("input[name=seed]").input_value() == "7"
    heats = page.locator(".token").evaluate_all("all => all.map(one => +one.style.getPropertyValue('--heat'))")
    bits = page.locator(".token").evaluate_all("all => all.map(one => +one.dataset.bits)")
    assert heats == pytest.approx([min(1, one / 12) for one in bits], abs=1e-3)
    page.get_by_role("button", name="next seed").click()
    finished(page)
    assert texts(page) == own[8]
    assert "write.seed=8" in address(page)
    page.locator("[data-model=lstm] button").click()
    page.wait_for_function("document.getElementById('text').value.length > 5")
    assert page.locator("#text").input_value() == "the c" + own[8][1]


def test_stop_ends_all_columns_and_another_text_does_too(open_url, url):
    page = open_url(f"{url}#page.view=write&write.tokens=60000&write.temperature=0")
    page.get_by_role("button", name="write on").click()
    page.wait_for_selector("[data-model=ngram] .token")
    page.get_by_role("button", name="stop").click()
    finished(page)
    assert all("stopped" in line for line in page.locator(".write-facts").all_inner_texts())
    page.get_by_role("button", name="write on").click()
    page.wait_for_selector("[data-model=ngram] .token")
    page.locator("#text").fill("a dog")
    finished(page)
    page.wait_for_function("document.querySelector('.write-text').textContent === 'a dog'")


@pytest.mark.parametrize(("body", "says"), [
    ({"run": "nobody", "text": ""}, "nobody"), ({"run": "lstm", "tokens": 0}, "tokens"),
    ({"run": "lstm", "temperature": -1}, "temperature"), ({"run": "lstm", "text": 7}, "text"), ({}, "run"),
])
def test_wrong_requests_get_one_line(browser, url, body, says):
    context = browser.new_context()
    answer = context.request.post(f"{url}api/write", data=body)
    assert answer.status in (400, 404, 422)
    assert says in answer.json()["error"]
    context.close()
