import numpy as np
import pytest
import torch
from contract.toy import Attentive, Recurrent, ToySettings
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.inference import forward
from chainrule.inference.decoding import SYNC_EVERY
from chainrule.inference.generate import generate, sample, stream_text
from chainrule.inference.sampling import Sampling
from chainrule.model import LanguageModel
from chainrule.recipe import Text
from chainrule.text.tokenizers.tokenizer import train_tokenizer

VOCAB = 7
GREEDY = Sampling(temperature=0)


class Recite(LanguageModel):
    """Knows one text by heart, as a table of which token follows which place. State: the place."""

    def __init__(self, tokens: list[int], vocab: int):
        super().__init__()
        self.register_buffer("text", torch.tensor(tokens))
        self.vocab = vocab

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        return torch.zeros(rows, dtype=torch.long)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        place = state[:, None] + torch.arange(tokens.shape[1])
        logits = nn.functional.one_hot(self.text[place % len(self.text)], self.vocab) * 50.0
        return logits, state + tokens.shape[1]


@pytest.fixture
def recurrent() -> Recurrent:
    torch.manual_seed(3)
    return Recurrent(ToySettings(), VOCAB)


@pytest.fixture
def attentive() -> Attentive:
    torch.manual_seed(3)
    model = Attentive(ToySettings(context=8), VOCAB)
    with torch.no_grad():
        model.position.weight *= 3
        model.out.weight *= 5
    return model


def prompts_of(*sizes: int) -> list[np.ndarray]:
    random = np.random.default_rng(4)
    return [random.integers(1, VOCAB, size=size, dtype=np.uint32) for size in sizes]


def rows_of(columns) -> list[list[int]]:
    return torch.stack(list(columns), 1).tolist()


def test_prompts_of_any_length_go_on_together_as_they_would_alone(recurrent) -> None:
    prompts = prompts_of(5, 0, 3, 5, 9)
    together = rows_of(sample(recurrent, prompts, 12, GREEDY, ends=False))
    assert together == [rows_of(sample(recurrent, [prompt], 12, GREEDY, ends=False))[0] for prompt in prompts]
    assert len({tuple(row) for row in together}) > 1


def test_a_long_prompt_is_read_in_pieces(recurrent, monkeypatch) -> None:
    whole = rows_of(sample(recurrent, prompts_of(40), 12, GREEDY, ends=False))
    monkeypatch.setattr(forward, "LOGITS", 3 * VOCAB)
    assert rows_of(sample(recurrent, prompts_of(40), 12, GREEDY, ends=False)) == whole


def test_every_row_has_its_own_random_numbers(recurrent) -> None:
    rows = rows_of(sample(recurrent, prompts_of(3) * 6, 20, ends=False))
    assert len({tuple(row) for row in rows}) == 6


def greedy_by_hand(model: Attentive, prompt: np.ndarray, limit: int) -> list[int]:
    """A window that holds up to `context` tokens, and when full goes on from its last half."""
    window, written = [0, *prompt.tolist()][-model.context :], []
    for _ in range(limit):
        with torch.no_grad():
            logits, _ = model.step(torch.tensor([window]), model.start(1))
        written.append(int(logits[0, -1].argmax()))
        window = [*window, written[-1]]
        if len(window) > model.context:
            window = window[-(model.context // 2) :]
    return written


@pytest.mark.parametrize("sizes", [(3,), (7,), (8,), (20,), (0, 2, 7, 8, 30, 2)], ids=str)
def test_a_sample_goes_on_past_the_context(attentive, sizes) -> None:
    prompts = prompts_of(*sizes)
    rows = rows_of(sample(attentive, prompts, 30, GREEDY, ends=False))
    assert rows == [greedy_by_hand(attentive, prompt, 30) for prompt in prompts]
    assert len({token for row in rows for token in row}) > 1


def test_a_row_stays_at_its_end_and_the_sample_ends_with_the_last() -> None:
    model = Recite([1, 2, 3, 0, 5, 5, 0, 4, 4], VOCAB)
    rows = rows_of(sample(model, prompts_of(0, 4), 50, GREEDY))
    assert rows == [[1, 2, 3, 0], [5, 5, 0, 0]]


def test_a_boundary_that_does_not_end_a_row_is_a_token_like_others() -> None:
    model = Recite([1, 0, 2], VOCAB)
    assert rows_of(sample(model, prompts_of(0), 5, GREEDY, ends=False)) == [[1, 0, 2, 1, 0]]


def test_the_limit_is_kept() -> None:
    model = Recite([1, 2], VOCAB)
    assert list(sample(model, prompts_of(0), 0)) == []
    assert len(list(sample(model, prompts_of(0), 9))) == 9
    with pytest.raises(UserError, match="-1 tokens"):
        list(sample(model, prompts_of(0), -1))


def test_repetition_is_penalised_in_prompt_and_sample_but_an_end_never() -> None:
    class Stubborn(Recite):
        def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tensor([0.0, 2.0, 1.9, 1.8, -9, -9, -9]).expand(*tokens.shape, -1), state

    model = Stubborn([1], VOCAB)
    assert rows_of(sample(model, [np.array([2])], 3, GREEDY, ends=False)) == [[1, 1, 1]]
    penalty = Sampling(temperature=0, repetition_penalty=1e3)
    assert rows_of(sample(model, [np.array([2])], 4, penalty, ends=False)) == [[1, 3, 0, 0]]


def test_sampling_leaves_gradients_and_training_alone(recurrent) -> None:
    recurrent.train()
    for _ in sample(recurrent, prompts_of(2), 3, ends=False):
        assert torch.is_grad_enabled()
    assert recurrent.training


BYTES = train_tokenizer(Text(tokenizer="bytes"), [])
WORDS = train_tokenizer(Text(tokenizer="words", min_count=1), ["the cat sat the cat the"])    # the 2, cat 3, sat 4


def reciting(text: str | bytes) -> Recite:
    data = text.encode() if isinstance(text, str) else text
    return Recite([*(byte + 1 for byte in data), 0], 257)


def both_ways(text: str | bytes, limit: int = 200, **settings) -> str:
    """Generated at once and streamed: the same, and no piece is half a character."""
    sampling = Sampling(temperature=0, **settings)
    (whole,) = generate(reciting(text), BYTES, "", limit, sampling)
    pieces = list(stream_text(reciting(text), BYTES, "", limit, sampling))
    assert "".join(pieces) == whole
    assert all(pieces)
    return whole


def test_text_comes_out_as_it_was() -> None:
    assert both_ways("Grüße, 世界 🌍!") == "Grüße, 世界 🌍!"
    assert both_ways("") == ""


def test_a_character_is_streamed_only_when_whole() -> None:
    assert list(stream_text(reciting("a🌍b"), BYTES, "", 9, GREEDY)) == ["a", "🌍", "b"]


def test_half_a_character_at_the_end_is_said_to_be_one() -> None:
    assert both_ways("ab🌍", limit=4) == "ab\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("text", "stop", "wanted"),
    [
        ("one. two", (". ",), "one"),
        ("one. two", ". ", "one"),
        ("one two", "nwo", "one two"),
        ("one two", ("tow",), "one two"),
        ("aaab!", ("aab",), "a"),
        ("a stop", ("stopped", "st"), "a "),
        ("xyz", ("yz", "xyz"), ""),
        ("ends with st", ("stop",), "ends with st"),
        ("Grüße 🌍 end", ("🌍",), "Grüße "),
        ("x" * 40 + "##" + "y" * 40, ("##",), "x" * 40),
    ],
)
def test_a_stop_text_ends_the_sample_and_no_part_of_it_is_shown(
    text: str, stop: str | tuple[str, ...], wanted: str
) -> None:
    assert both_ways(text, stop=stop) == wanted


def test_what_may_begin_a_stop_text_is_held_back_only_until_it_cannot() -> None:
    pieces = list(stream_text(reciting("a##b###c"), BYTES, "", 20, Sampling(temperature=0, stop=("###",))))
    assert pieces == ["a", "##b"]


def test_sampling_stops_soon_after_the_last_row_has_stopped() -> None:
    model = reciting("ab" * 500)
    read = []
    step = model.step
    model.step = lambda tokens, state: read.append(tokens.shape[1]) or step(tokens, state)
    assert generate(model, BYTES, "", 1000, Sampling(temperature=0, stop=("b",)), rows=3) == ["a"] * 3
    assert sum(read) <= 2 * SYNC_EVERY + 2


def test_rows_and_prompts_are_distinguished() -> None:
    model = reciting("abcdef")
    assert generate(model, BYTES, "ab", 3, GREEDY, rows=2) == ["cde", "cde"]
    assert generate(model, BYTES, ["a", "abc"], 3, GREEDY) == ["bcd", "def"]
    assert generate(model, BYTES, [], 3, GREEDY) == []
    with pytest.raises(UserError, match="0 rows"):
        generate(model, BYTES, "ab", 3, GREEDY, rows=0)


def test_a_line_ends_at_the_boundary_and_the_next_one_follows_where_it_is_asked_for() -> None:
    model = Recite([2, 3, 4, 0], len(WORDS))
    assert generate(model, WORDS, "", 6, GREEDY) == ["the cat sat"]
    assert "".join(stream_text(model, WORDS, "", 6, GREEDY)) == "the cat sat"
    assert generate(model, WORDS, "", 6, GREEDY, past_end=True) == ["the cat sat\nthe cat"]
    stopped = stream_text(model, WORDS, "", 9, Sampling(temperature=0, stop=("\n",)), past_end=True)
    assert "".join(stopped) == "the cat sat"


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("the", " cat sat\nthe"),
        ("the ", "cat sat\nthe"),
        ("the cat sat", "\nthe cat sat"),
        ("the cat sat\n", "the cat sat\n"),
    ],
)
def test_prompt_and_continuation_are_one_text(prompt: str, wanted: str) -> None:
    model = Recite([2, 3, 4, 0], len(WORDS))
    assert generate(model, WORDS, prompt, 4, GREEDY, past_end=True) == [wanted]
    assert "".join(stream_text(model, WORDS, prompt, 4, GREEDY, past_end=True)) == wanted
