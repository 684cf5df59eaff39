"""The laws of the protocol, each once, for every kind. A new kind joins by one line in cases.py."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract.cases import CASES, TEXT, VOCAB, Case, learn
from contract.toy import Attentive
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor
from torch.testing import assert_close

from chainrule import run
from chainrule.inference.generate import sample
from chainrule.inference.sampling import Sampling
from chainrule.inference.score import score_stream, score_texts
from chainrule.model import BOUNDARY, Batch, LanguageModel, State, cross_entropy, join, pick, state_bytes, tensors
from chainrule.recipe import Text
from chainrule.text.tokenizers.tokenizer import train_tokenizer

TRAINED: dict[str, LanguageModel] = {}


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def made(case: Case) -> LanguageModel:
    """The case's model, trained once for all laws; a law must leave it as it was."""
    if str(case) not in TRAINED:
        TRAINED[str(case)] = case.train()
    return TRAINED[str(case)]


@pytest.fixture(autouse=True)
def _without_gradient() -> Any:
    with torch.no_grad():
        yield


def some_tokens(rows: int, length: int, seed: int = 2) -> Tensor:
    """Rows that begin with the boundary and may come to it again."""
    tokens = torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))
    tokens[:, 0] = BOUNDARY
    return tokens


def more_tokens(rows: int, length: int, seed: int = 3) -> Tensor:
    """What goes on from there without a boundary, at which some kinds forget all they have read."""
    return torch.randint(1, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def read(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, State]:
    return model.step(tokens, model.start(len(tokens)))


def nats(model: LanguageModel, batch: Batch) -> float:
    total, count = cross_entropy(model(batch), batch)
    return float(total / count)


class Disguise(LanguageModel):
    """The same model; its state sits in a parcel that only it can open."""

    def __init__(self, model: LanguageModel):
        super().__init__()
        self.model, self.context, self.receptive_field = model, model.context, model.receptive_field

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        return {"parcel": (self.model.start(rows, source, lengths), torch.zeros(rows, 1))}

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, inner = self.model.step(tokens, state["parcel"][0])
        return logits, {"parcel": (inner, state["parcel"][1])}


def test_only_the_model_looks_inside_its_state(made: LanguageModel) -> None:
    disguised = Disguise(made)
    stream = some_tokens(1, 50)[0].numpy()
    np.testing.assert_allclose(score_stream(disguised, stream), score_stream(made, stream), atol=1e-5)
    prompts = [np.array([1, 2]), np.array([3])]
    plain, hidden = (torch.stack(list(sample(model, prompts, 20, ends=False))) for model in (made, disguised))
    assert_close(plain, hidden)


def test_rows_come_first_in_every_tensor_of_a_state(made: LanguageModel) -> None:
    state = made.start(3)
    assert all(len(tensor) == 3 for tensor in tensors(state))
    tokens = torch.cat([some_tokens(3, 2), more_tokens(3, 4, seed=5)], 1)
    _, state = made.step(tokens, state)
    assert all(len(tensor) == 3 for tensor in tensors(state))
    rows = torch.tensor([2, 0, 0, 1])
    _, wanted = read(made, tokens[rows])
    more = more_tokens(4, 3)
    assert_close(made.step(more, pick(state, rows))[0], made.step(more, wanted)[0])


def test_a_picked_branch_outlives_the_state_it_came_from(made: LanguageModel) -> None:
    tokens, more = some_tokens(3, 5), more_tokens(3, 4, seed=3)
    _, state = read(made, tokens)
    branch = pick(state, torch.arange(3))
    made.step(more_tokens(3, 7, seed=4), state)
    _, fresh = read(made, tokens)
    assert_close(made.step(more, branch)[0], made.step(more, fresh)[0])


@pytest.mark.parametrize("cuts", [(1,) * 12, (5, 7), (1, 11), (11, 1), (3, 1, 4, 4)], ids=str)
def test_chunks_do_not_matter(made: LanguageModel, cuts: tuple[int, ...]) -> None:
    tokens = some_tokens(3, 12)
    whole, after_whole = read(made, tokens)
    state, pieces = made.start(3), []
    for piece in tokens.split(cuts, 1):
        logits, state = made.step(piece, state)
        pieces.append(logits)
    assert_close(torch.cat(pieces, 1), whole)
    more = more_tokens(3, 2, seed=3)
    assert_close(made.step(more, state)[0], made.step(more, after_whole)[0])


def test_room_changes_no_answer_and_what_is_read_into_it_no_shape(made: LanguageModel) -> None:
    grows = isinstance(made, Attentive)                     # a toy whose state is all that it has read
    _, state = read(made, torch.cat([some_tokens(3, 2), more_tokens(3, 3, seed=5)], 1))
    reserve = made.reserve(pick(state, torch.arange(3)), 6)
    shapes = [tensor.shape for tensor in tensors(reserve)]
    for token in more_tokens(3, 6).split(1, 1):
        wanted, state = made.step(token, state)
        logits, reserve = made.step(token, reserve)
        assert_close(logits, wanted)
        assert grows or [tensor.shape for tensor in tensors(reserve)] == shapes


def test_chunks_do_not_matter_to_scores(made: LanguageModel) -> None:
    tokens = some_tokens(3, 13)
    whole, _ = made.score(tokens[:, :-1], tokens[:, 1:], made.start(3))
    first, state = made.score(tokens[:, :5], tokens[:, 1:6], made.start(3))
    last, _ = made.score(tokens[:, 5:-1], tokens[:, 6:], state)
    assert_close(torch.cat([first, last], 1), whole)


@pytest.mark.parametrize("case", [case for case in CASES if case.make().receptive_field is not None], ids=str)
def test_what_is_further_back_than_the_reach_does_not_matter(made: LanguageModel) -> None:
    assert made.receptive_field is not None
    tokens = some_tokens(4, 12)
    other = tokens.clone()
    other[:, : 12 - made.receptive_field] = some_tokens(4, 12, seed=8)[:, : 12 - made.receptive_field]
    assert_close(read(made, tokens)[0][:, -1], read(made, other)[0][:, -1])


@pytest.mark.parametrize("case", [case for case in CASES if case.make().resets_at_boundary], ids=str)
def test_what_begins_afresh_at_a_boundary_answers_and_learns_so(case: Case, made: LanguageModel) -> None:
    fresh, _ = read(made, some_tokens(4, 6))
    later, _ = read(made, torch.cat([some_tokens(4, 5, seed=3), some_tokens(4, 6)], 1))
    assert_close(later[:, 5:], fresh)
    assert TEXT.lengths is not None
    pieces = [row[:length] for row, length in zip(TEXT.targets, TEXT.lengths)]
    stream = torch.cat([torch.tensor([BOUNDARY]), *pieces])[None]
    by_rows, in_one_go = case.make(), case.make()
    learn(by_rows, TEXT)
    learn(in_one_go, Batch(stream[:, :-1], stream[:, 1:]))
    assert_same_tables(by_rows, in_one_go)


def test_scores_are_what_steps_say(made: LanguageModel) -> None:
    tokens = some_tokens(4, 13)
    scores, state = made.score(tokens[:, :-1], tokens[:, 1:], made.start(4))
    logits, stepped = read(made, tokens[:, :-1])
    asked = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    assert_close(scores.double(), asked.double(), atol=1e-5, rtol=1e-5)
    more = more_tokens(4, 2, seed=3)
    assert_close(made.step(more, state)[0], made.step(more, stepped)[0])


def test_rows_never_meet(made: LanguageModel) -> None:
    tokens = some_tokens(4, 9)
    other = tokens.clone()
    other[[0, 2, 3]] = some_tokens(3, 9, seed=5)
    assert_close(read(made, tokens)[0][1], read(made, other)[0][1])
    assert_close(read(made, tokens)[0][1], read(made, tokens[1:2])[0][0])


def test_rows_of_different_lengths_go_on_together_as_they_would_alone(made: LanguageModel) -> None:
    prompts = [some_tokens(1, length, seed=length) for length in (1, 7, 3)]
    more = more_tokens(3, 4, seed=9)
    state = join([read(made, prompt)[1] for prompt in prompts])
    first, state = made.step(more[:, :1], state)
    rest, _ = made.step(more[:, 1:], state)
    for row, prompt in enumerate(prompts):
        alone, _ = made.step(more[row : row + 1], read(made, prompt)[1])
        assert_close(torch.cat([first, rest], 1)[row], alone[0])


def test_a_state_is_plain_tensors(made: LanguageModel) -> None:
    more = more_tokens(2, 3, seed=3)
    _, state = read(made, some_tokens(2, 6))
    found = list(tensors(state))
    assert all(type(tensor) is Tensor for tensor in found)
    assert state_bytes(state) == sum(tensor.nbytes for tensor in found)
    kept = load(save({str(place): tensor.contiguous() for place, tensor in enumerate(found)}))
    again = _refill(state, [kept[str(place)] for place in range(len(found))])
    assert_close(made.step(more, again)[0], made.step(more, pick(state, torch.arange(2)))[0])


def _refill(state: State, values: list[Tensor]) -> State:
    if isinstance(state, Tensor):
        return values.pop(0)
    if isinstance(state, dict):
        return {name: _refill(part, values) for name, part in state.items()}
    return tuple(_refill(part, values) for part in state)


@pytest.mark.parametrize("now", [0, 4, 8])
def test_the_future_is_not_seen(made: LanguageModel, now: int) -> None:
    tokens = some_tokens(3, 10)
    other = tokens.clone()
    other[:, now + 1 :] = some_tokens(3, 10, seed=6)[:, now + 1 :]
    assert not torch.equal(tokens, other)
    assert_close(read(made, tokens)[0][:, : now + 1], read(made, other)[0][:, : now + 1])


@pytest.mark.parametrize("begin", [(BOUNDARY,), (BOUNDARY, 1, 2), (BOUNDARY, 4, 4, BOUNDARY)], ids=str)
def test_all_texts_of_a_length_together_have_probability_1(made: LanguageModel, begin: tuple[int, ...]) -> None:
    every = torch.tensor(list(product(range(VOCAB), repeat=3)))
    tokens = torch.cat([torch.tensor(begin).expand(len(every), -1), every], 1)
    scores, _ = made.score(tokens[:, :-1], tokens[:, 1:], made.start(len(tokens)))
    together = scores[:, len(begin) - 1 :].double().sum(1).exp().sum()
    assert_close(together, torch.ones_like(together), atol=1e-5, rtol=0)


def test_padding_changes_no_loss(made: LanguageModel) -> None:
    rubbish = _with_other_padding(TEXT)
    assert not torch.equal(rubbish.tokens, TEXT.tokens)
    assert_close(cross_entropy(made(rubbish), rubbish), cross_entropy(made(TEXT), TEXT))
    assert TEXT.lengths is not None
    for row in (1, 2):
        size = int(TEXT.lengths[row])
        alone = Batch(TEXT.tokens[row : row + 1, :size], TEXT.targets[row : row + 1, :size])
        padded = Batch(TEXT.tokens[row : row + 1], TEXT.targets[row : row + 1], TEXT.lengths[row : row + 1])
        assert_close(cross_entropy(made(padded), padded), cross_entropy(made(alone), alone))


def test_padding_changes_nothing_that_is_learned(case: Case) -> None:
    clean, padded = case.make(), case.make()
    learn(clean, TEXT)
    learn(padded, _with_other_padding(TEXT))
    assert_same_tables(clean, padded)


def _with_other_padding(batch: Batch) -> Batch:
    """Padding is right-hand and said by lengths: what stands there is nobody's business."""
    width = batch.tokens.shape[1]
    whole = torch.cat([batch.tokens, batch.targets[:, -1:]], 1)
    other = torch.randint(VOCAB, whole.shape, generator=torch.Generator().manual_seed(7))
    assert batch.lengths is not None
    whole = torch.where(torch.arange(width + 1) <= batch.lengths[:, None], whole, other)
    return Batch(whole[:, :-1], whole[:, 1:], batch.lengths)


def test_padding_changes_no_score(made: LanguageModel) -> None:
    many = [np.array(text) for text in ([1, 2, 3, 4, 1, 2], [], [4], [3, 3, 1], [2, 1])]
    together = score_texts(made, many)
    for text, scores in zip(many, together):
        assert len(scores) == len(text) + 1
        np.testing.assert_allclose(scores, score_texts(made, [text])[0], atol=1e-5)


def test_a_seed_repeats_a_sample(made: LanguageModel) -> None:
    prompts = [np.array([1, 2]), np.array([], int), np.array([3, 3, 3])]
    first, again, other = (
        torch.stack(list(sample(made, prompts, 24, Sampling(seed=seed), ends=False))) for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    alone = torch.stack(list(sample(made, prompts[:1], 24, Sampling(seed=5), ends=False)))
    assert torch.equal(alone[:, 0], first[:, 0])


def test_learning_lowers_the_loss_and_counting_never_raises_it(case: Case) -> None:
    model = case.make()
    seen = [nats(model, TEXT)]
    for _ in range(6):
        learn(model, TEXT)
        seen.append(nats(model, TEXT))
    assert all(after <= before + 1e-6 for before, after in pairwise(seen)), seen
    assert seen[-1] < seen[0] - 0.01 or case.kind == "uniform", seen


def test_what_training_goes_down_is_the_loss_and_goes_on_from_a_state(made: LanguageModel) -> None:
    total, count, _ = made.loss(TEXT)
    assert_close((total, count), cross_entropy(made(TEXT), TEXT))
    row = some_tokens(1, 13)
    first, second = Batch(row[:, :6], row[:, 1:7]), Batch(row[:, 6:12], row[:, 7:13])
    whole, _, _ = made.loss(Batch(row[:, :12], row[:, 1:13]))
    begun, _, state = made.loss(first, made.start(1))
    ended, _, _ = made.loss(second, state)
    assert_close(begun + ended, whole)


def test_cutting_a_step_into_micro_batches_changes_nothing(case: Case) -> None:
    whole, parts = case.make(), case.make()
    few, many = _rows_of(TEXT, slice(0, 5)), _rows_of(TEXT, slice(5, None))
    if whole.learns_by == "counting":
        for _ in range(2):
            whole.update(whole.collect(TEXT))
            parts.update(parts.collect(few) + parts.collect(many))
        assert_same_tables(whole, parts)
    else:
        accumulate(whole, [TEXT])
        accumulate(parts, [few, many])
        for one, other in zip(whole.parameters(), parts.parameters()):
            assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4)


@torch.enable_grad()
def accumulate(model: LanguageModel, batches: list[Batch]) -> None:
    """Gradients of the mean over all the batches: sums, divided once."""
    results = [cross_entropy(model(batch), batch) for batch in batches]
    count = sum(count for _, count in results)
    for total, _ in results:
        (total / count).backward()


def _rows_of(batch: Batch, rows: slice) -> Batch:
    assert batch.lengths is not None
    return Batch(batch.tokens[rows], batch.targets[rows], batch.lengths[rows])


def test_a_saved_model_answers_the_same(case: Case, made: LanguageModel, tmp_path: Path) -> None:
    if case.network is None:
        tokenizer = train_tokenizer(Text(tokenizer="words", min_count=1), ["a b c"])
        assert len(tokenizer) == VOCAB
        run.save(tmp_path / "run", made, tokenizer, case.recipe())
        loaded = case.told(run.load(tmp_path / "run").model)
    else:
        save_file(made.state_dict(), tmp_path / "model.safetensors")
        loaded = case.make()
        loaded.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    tokens = some_tokens(3, 12)
    assert torch.equal(read(loaded.eval(), tokens)[0], read(made, tokens)[0])
    scored, wanted = (model.score(tokens[:, :-1], tokens[:, 1:], model.start(3))[0] for model in (loaded, made))
    assert torch.equal(scored, wanted)


def test_half_the_bits_make_about_the_same_answers(case: Case, made: LanguageModel) -> None:
    """A network that writes on a GPU does so in bfloat16."""
    if made.learns_by == "counting":
        pytest.skip("tables are not rounded")
    brief, tokens = case.make(), some_tokens(3, 12)
    brief.load_state_dict(made.state_dict())
    logits, state = read(brief.bfloat16().eval(), tokens)
    more, _ = brief.step(more_tokens(3, 1), state)
    wanted, state = read(made, tokens)
    assert more.dtype == logits.dtype == torch.bfloat16
    assert_close(logits.float(), wanted, atol=0.2, rtol=0.1)
    assert_close(more.float(), made.step(more_tokens(3, 1), state)[0], atol=0.2, rtol=0.1)


def assert_same_tables(one: LanguageModel, other: LanguageModel) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert_close(tensor, second[name], msg=lambda text, name=name: f"{name}: {text}")
