"""GloVe against a loop over all pairs of places, and against its formula with autograd."""

from collections import defaultdict

import pytest
import torch

from chainrule.errors import UserError
from chainrule.models.glove import GloVe, GloVeSettings

VOCAB, WINDOW = 12, 4


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def made(**settings):
    """In float64, with tables as they are in the midst of learning."""
    model = GloVe(GloVeSettings(**{"embedding": 5, "window": WINDOW, "cap": 3.0, **settings}), VOCAB).double()
    for table in (model.words, model.contexts):
        table.copy_(torch.randn(table.shape, generator=generator(2), dtype=torch.double))
    return model


def some_text(size=200, lines=9):
    return torch.randint(2, VOCAB, (size,), generator=generator(3)), torch.arange(size) * lines // size


def table_of(tokens, texts, window=WINDOW):
    """X, by looking at every two places."""
    table = defaultdict(float)
    for i in range(len(tokens)):
        for j in range(len(tokens)):
            if i != j and abs(i - j) <= window and texts[i] == texts[j]:
                table[int(tokens[i]), int(tokens[j])] += 1 / abs(i - j)
    return table


def both_triangles(examples):
    found = {}
    for row, column, count in zip(*(examples[name].tolist() for name in ("rows", "columns", "counts"))):
        found[row, column] = found[column, row] = count
    return found


def test_cells_are_what_a_loop_over_all_places_counts():
    model, text = made(), some_text()
    cells = model.collect_pairs(*text, generator())
    assert both_triangles(model.shuffled(cells, generator())) == pytest.approx(dict(table_of(*text)), rel=1e-5)
    assert len(cells["pairs"].unique()) == len(cells["pairs"])


def test_cells_of_two_texts_add_up_to_those_of_both():
    model, (tokens, texts) = made(), some_text()
    here = texts < 4
    parts = [model.collect_pairs(tokens[part], texts[part], generator()) for part in (here, ~here)]
    added, whole = model.add(*parts), model.collect_pairs(tokens, texts, generator())
    assert torch.equal(added["pairs"], whole["pairs"])
    torch.testing.assert_close(added["counts"], whole["counts"])


def test_examples_come_in_another_order_with_another_seed():
    model = made()
    cells = model.collect_pairs(*some_text(), generator())
    one, other = (model.shuffled(cells, generator(seed)) for seed in (1, 2))
    assert not torch.equal(one["rows"], other["rows"])
    assert both_triangles(one) == both_triangles(other)


def formula(model, table, words, contexts):
    """J / 2, whose gradient the program by the authors follows."""
    total = torch.zeros((), dtype=torch.double)
    for (i, j), x in table.items():
        weight = min(1.0, x / model.settings.cap) ** model.settings.power
        error = words[i, :-1] @ contexts[j, :-1] + words[i, -1] + contexts[j, -1] - torch.tensor(x).log()
        total = total + weight * error**2
    return total / 2


def test_the_loss_is_the_formula():
    model, text = made(), some_text()
    table = table_of(*text)
    loss, count = model.pair_loss(model.shuffled(model.collect_pairs(*text, generator()), generator()))
    assert loss.item() / 2 == pytest.approx(formula(model, table, model.words, model.contexts).item(), rel=1e-5)
    assert count == len(table)


def test_a_step_is_adagrad_on_the_gradient_of_the_formula():
    """A row's squares are those of each of its cells, added up before it moves."""
    model, text, lr = made(), some_text(40, 1), 0.05
    table = table_of(*text)
    before = [part.clone() for part in (model.words, model.contexts)]
    gradients, squares = [torch.zeros_like(part) for part in before], [torch.ones_like(part) for part in before]
    for cell, x in table.items():
        leaves = [part.clone().requires_grad_() for part in before]
        formula(model, {cell: x}, *leaves).backward()
        for place, leaf in enumerate(leaves):
            gradients[place] += leaf.grad
            squares[place] += leaf.grad**2
    model.train_step(model.shuffled(model.collect_pairs(*text, generator()), generator()), lr)
    for place, part in enumerate((model.words, model.contexts)):
        wanted = before[place] - lr * gradients[place] / squares[place].sqrt()
        torch.testing.assert_close(part, wanted, rtol=1e-4, atol=1e-6)


def test_learning_lowers_the_loss():
    model = GloVe(GloVeSettings(embedding=8, window=WINDOW), VOCAB)
    tokens, texts = some_text(2000, 20)
    model.initialise(torch.bincount(tokens, minlength=VOCAB), generator())
    examples = model.shuffled(model.collect_pairs(tokens, texts, generator()), generator())
    losses = []
    for _ in range(50):
        losses.append(float(model.pair_loss(examples)[0]))
        model.train_step(examples, 0.05)
    assert losses[-1] < 0.05 * losses[0]
    assert not model.embeddings[:2].any()


def test_words_that_never_meet_have_no_cells():
    model = made()
    lone = model.collect_pairs(torch.arange(2, 10), torch.arange(8), generator())
    empty = model.collect_pairs(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long), generator())
    assert len(lone["pairs"]) == len(empty["pairs"]) == 0


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(UserError, match=r"^model.window=0: it must be from 1 to"):
        GloVeSettings(window=0)
    with pytest.raises(UserError, match=r"^model.cap=0: it must be more than 0"):
        GloVeSettings(cap=0.0)
