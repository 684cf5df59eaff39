"""word2vec against its formula written out pair by pair, and against what autograd makes of that."""

import math

import pytest
import torch
from torch.nn.functional import logsigmoid

from chainrule.errors import UserError
from chainrule.models.word2vec import SHARED, Word2Vec, Word2VecSettings, damped_update

VOCAB = 40
ALGORITHMS = ("skip-gram", "cbow")
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def made(algorithm="skip-gram", **settings):
    """In float64, with vectors as they are in the midst of learning."""
    settings = Word2VecSettings(**{"algorithm": algorithm, "embedding": 6, "window": 3, **settings})
    model = Word2Vec(settings, VOCAB).double()
    model.initialise(counts(), generator())
    for table in (model.vectors, model.outputs):
        table.copy_(torch.randn(table.shape, generator=generator(2), dtype=torch.double))
    return model


def counts():
    return torch.cat([torch.zeros(2), torch.arange(2, VOCAB) ** 2]).long()


def some_text(size=100, lines=7):
    tokens = torch.randint(2, VOCAB, (size,), generator=generator(3))
    return tokens, torch.arange(size) * lines // size


def pairs_of(blocks, window, algorithm):
    """(block, word, place it reads or predicts): every pair, found one by one."""
    tokens, texts, reach = (blocks[name].tolist() for name in ("tokens", "texts", "windows"))
    for block in range(len(tokens)):
        for word in range(window, len(tokens[0]) - window):
            for near in range(word - window, word + window + 1):
                predicted = near if algorithm == "skip-gram" else word
                together = texts[block][word] == texts[block][near] != -1
                if near != word and together and abs(near - word) <= reach[block][predicted]:
                    yield block, word, near


def formula(model, blocks, vectors, outputs):
    """-log likelihood as the papers have it, and the number of pairs; every noise word stands for several."""
    settings, tokens, noise = model.settings, blocks["tokens"], blocks["negatives"]
    share, total, pairs = settings.negatives / noise.shape[1], torch.zeros((), dtype=torch.double), 0
    windows = {}
    for block, word, near in pairs_of(blocks, settings.window, settings.algorithm):
        windows.setdefault((block, word), []).append(near)
    for (block, word), near in windows.items():
        if settings.algorithm == "skip-gram":
            reads = [(vectors[tokens[block, word]], tokens[block, place]) for place in near]
        else:
            rows = vectors[tokens[block, near]]
            whole = rows.sum(0)
            reads = [(whole + (rows.mean(0) - whole).detach(), tokens[block, word])]    # all take the whole push
        for v, answer in reads:
            total = total - logsigmoid(outputs[answer] @ v) - share * logsigmoid(-outputs[noise[block]] @ v).sum()
            pairs += 1
    return total, pairs


@every_algorithm
def test_the_loss_is_the_formula(algorithm):
    model = made(algorithm)
    blocks = model.collect_pairs(*some_text(), generator())
    total, pairs = formula(model, blocks, model.vectors, model.outputs)
    loss, count = model.pair_loss(blocks)
    assert count == pairs > 30
    assert loss.item() == pytest.approx(total.item(), rel=1e-9)


@every_algorithm
def test_a_small_step_is_the_gradient_of_the_formula(algorithm):
    model, lr = made(algorithm), 1e-7
    blocks = model.collect_pairs(*some_text(), generator())
    before = [table.clone().requires_grad_() for table in (model.vectors, model.outputs)]
    formula(model, blocks, *before)[0].backward()
    model.train_step(blocks, lr)
    for table, was in zip((model.vectors, model.outputs), before):
        torch.testing.assert_close((table - was.detach()) / lr, -was.grad, rtol=1e-4, atol=1e-5)


@every_algorithm
@pytest.mark.parametrize("lr", [0.025, 0.5])
@pytest.mark.parametrize(("words", "embedding"), [(2, 6), (5, 6), (5, 50)])
def test_many_words_at_once_never_overshoot(algorithm, lr, words, embedding):
    """A few words, each met hundreds of times in one step: plain SGD would go hundreds of times too far."""
    model = made(algorithm, sample=0.0, embedding=embedding)
    tokens = torch.randint(2, 2 + words, (1000,), generator=generator(5))
    tokens[1::2] = (tokens[::2] - 1) % words + 2
    model.initialise(torch.bincount(tokens, minlength=VOCAB), generator())
    blocks, losses = model.collect_pairs(tokens, torch.arange(len(tokens)) // 2, generator()), []
    for _ in range(30):
        total, count = model.pair_loss(blocks)
        losses.append(float(total / count))
        model.train_step(blocks, lr)
    assert max(losses) <= losses[0] * 1.001
    assert losses[-1] < 0.55 * losses[0]


def test_a_lone_row_moves_as_many_small_steps_would():
    """Against one direction with curvature h: n pushes at once come to g/h (1 - exp(-lr n h))."""
    table, common = torch.zeros(3, 2, dtype=torch.double), torch.tensor([1.0, 0.0], dtype=torch.double)
    n, g, h, lr = 50, 0.3, 0.8, 0.1
    pushes = torch.tensor([g, 0.0], dtype=torch.double).repeat(1, n, 1)
    slopes = torch.tensor([h, 0.0], dtype=torch.double).repeat(1, n, 1)
    damped_update(table, torch.ones(1, n, dtype=torch.long), pushes, slopes, common, lr)
    by_one = 0.0
    for _ in range(n):
        by_one += lr * (g - h * by_one)
    assert table[1, 0].item() == pytest.approx(g / h * (1 - math.exp(-lr * n * h)), rel=1e-9)
    assert table[1, 0].item() == pytest.approx(by_one, rel=0.02)
    assert not table[[0, 2]].any()


def test_texts_never_meet():
    model = made(sample=0.0, window=3)
    blocks = model.collect_pairs(torch.arange(2, 38), torch.arange(36) // 4, generator())
    met = {(int(blocks["tokens"][block, word]), int(blocks["tokens"][block, near]))
           for block, word, near in pairs_of(blocks, 3, "skip-gram")}
    assert met
    assert all((one - 2) // 4 == (other - 2) // 4 for one, other in met)
    lone = model.collect_pairs(torch.arange(2, 38), torch.arange(36), generator())
    assert model.pair_loss(lone)[1] == 0


def test_every_reach_up_to_the_window_is_drawn_alike():
    model = made(sample=0.0, window=4)
    reach = model.collect_pairs(*some_text(20_000, 1), generator())["windows"].long()
    assert torch.bincount(reach.flatten()).tolist()[0] == 0
    shares = torch.bincount(reach.flatten(), minlength=5)[1:] / reach.numel()
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.02, rtol=0)


def test_noise_is_drawn_by_counts_to_the_power():
    model = made()
    noise = model.collect_pairs(*some_text(100_000), generator())["negatives"].flatten()
    shares = torch.bincount(noise, minlength=VOCAB) / len(noise)
    wanted = counts().double() ** 0.75
    torch.testing.assert_close(shares.double(), wanted / wanted.sum(), atol=0.005, rtol=0)
    assert noise.min() >= 2


def test_frequent_words_are_passed_over_as_often_as_said():
    model = Word2Vec(Word2VecSettings(sample=0.05), 4)
    often = torch.tensor([0, 0, 900, 100])
    model.initialise(often, generator())
    tokens = torch.tensor([2] * 9 + [3]).repeat(2000)
    blocks = model.collect_pairs(tokens, torch.zeros_like(tokens), generator())
    here = (blocks["tokens"] > 0) & (blocks["texts"] >= 0)
    inside = here[:, 5:-5]
    kept = torch.bincount(blocks["tokens"][:, 5:-5][inside], minlength=4)
    for word, count in ((2, 18_000), (3, 2000)):
        surplus = float(often[word]) / (0.05 * 1000)
        assert float(kept[word]) / count == pytest.approx(min(1.0, (math.sqrt(surplus) + 1) / surplus), abs=0.03)


def test_a_word_that_never_occurs_has_no_vector():
    model = Word2Vec(Word2VecSettings(embedding=8), VOCAB)
    model.initialise(counts(), generator())
    assert not model.embeddings[:2].any()
    assert model.embeddings[2:].any(1).all()


def test_a_text_without_words_gives_no_pairs():
    model = made()
    empty = torch.empty(0, dtype=torch.long)
    blocks = model.collect_pairs(empty, empty, generator())
    assert model.pair_loss(blocks)[1] == 0
    before = model.vectors.clone()
    model.train_step(blocks, 0.1)
    assert torch.equal(model.vectors, before)


def test_the_last_words_of_a_text_that_fills_no_block_count_too():
    model = made(sample=0.0, window=1)
    model.kept.fill_(1)
    blocks = model.collect_pairs(*some_text(45, 1), generator())
    assert blocks["tokens"].shape == (2, model.block + 2)
    assert blocks["negatives"].shape == (2, SHARED)
    assert model.pair_loss(blocks)[1] == 2 * 44


@pytest.mark.parametrize("name", ["embedding", "window", "negatives"])
def test_settings_that_cannot_be_are_refused(name):
    with pytest.raises(UserError, match=f"^model.{name}=0: it must be (1 or more|from 1 to 10000)"):
        Word2VecSettings(**{name: 0})
    with pytest.raises(UserError, match=r"^model.sample=-1: it must be 0 or more"):
        Word2VecSettings(sample=-1.0)


@pytest.mark.parametrize("window", [255, 300])
def test_a_wide_window_reaches_as_far(window):
    model = made(window=window)
    tokens, texts = some_text(2000, 1)
    reach = model.collect_pairs(tokens, texts, generator())["windows"]
    assert reach.min() >= 1
    assert window - 20 < reach.max() <= window
