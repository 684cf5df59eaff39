"""Models with a source or a head on a GPU: they answer as on the CPU, and can be captured."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from chainrule.layers.embedding import CharCNN
from chainrule.model import IGNORE, Batch
from chainrule.models.encoder import EncoderSettings, TransformerEncoder
from chainrule.models.gpt import GPT, GPTSettings
from chainrule.models.heads import Classifier, TokenClassifier
from chainrule.models.rnn import LSTM, RecurrentSettings
from chainrule.models.seq2seq import Seq2Seq, Seq2SeqSettings
from chainrule.models.transformer import EncoderDecoder, EncoderDecoderSettings
from chainrule.tasks.tag import word_bytes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

VOCAB, ROWS, LENGTH, SIZE = 50, 4, 12, 9
TRANSFORMER = {"layers": 2, "width": 32, "heads": 4, "context": 16, "zero_init": False}
BOTH_WAYS = RecurrentSettings(hidden=32, bidirectional=True)

MODELS = {
    "seq2seq": lambda: Seq2Seq(Seq2SeqSettings(hidden=32), VOCAB),
    "seq2seq none": lambda: Seq2Seq(Seq2SeqSettings(hidden=32, attention="none", cell="gru"), VOCAB),
    "seq2seq additive": lambda: Seq2Seq(Seq2SeqSettings(hidden=32, attention="additive", cell="tanh"), VOCAB),
    "transformer": lambda: EncoderDecoder(EncoderDecoderSettings(**TRANSFORMER), VOCAB),
    "encoder": lambda: TransformerEncoder(EncoderSettings(**TRANSFORMER, transform=True), VOCAB),
    "classifier": lambda: Classifier(GPT(GPTSettings(**TRANSFORMER), VOCAB), 3, "mean", auxiliary=0.5),
    "tagger": lambda: TokenClassifier(LSTM(BOTH_WAYS, VOCAB), 7, char_cnn=CharCNN(32)),
}

def made(name):
    torch.manual_seed(1)
    return MODELS[name]()


def batch_for(name):
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=generator)
    lengths = torch.tensor([LENGTH, 1, 5, 8])
    if name == "classifier":
        return Batch(text[:, :-1], torch.tensor([0, 1, 2, 1]), lengths)
    if name == "tagger":
        letters = word_bytes([["some", "words", "here", "now"] * 3] * ROWS)
        return Batch(text[:, :-1], text[:, 1:] % 7, lengths, source=letters)
    if name == "encoder":
        return Batch(text[:, :-1], text[:, 1:].masked_fill(text[:, 1:] % 3 > 0, IGNORE), lengths)
    source = torch.randint(VOCAB, (ROWS, SIZE), generator=generator)
    return Batch(text[:, :-1], text[:, 1:], lengths, None, source, torch.tensor([SIZE, 2, 1, 5]))


@pytest.mark.parametrize("name", MODELS)
def test_it_gives_the_logits_and_gradients_of_the_cpu(name):
    here, batch = made(name), batch_for(name)
    there = deepcopy(here).cuda()
    results = [here.loss(batch)[:2], there.loss(batch.to("cuda"))[:2]]
    assert_close(results[1][0].cpu(), results[0][0], atol=1e-3, rtol=1e-4)
    assert int(results[1][1]) == int(results[0][1])
    for nats, _ in results:
        nats.backward()
    for (where, one), other in zip(here.named_parameters(), there.parameters()):
        if one.grad is not None:
            said = partial("{}: {}".format, where)
            assert_close(other.grad.cpu(), one.grad, atol=1e-3, rtol=1e-3, msg=said)


@pytest.mark.parametrize("name", MODELS)
def test_it_trains_in_bfloat16(name):
    model, batch = made(name).cuda(), batch_for(name).to("cuda")
    wanted, _, _ = model.loss(batch)
    with torch.autocast("cuda", torch.bfloat16):
        nats, _, _ = model.loss(batch)
        nats.backward()
    assert_close(nats.float(), wanted, rtol=0.05, atol=0.1)
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["seq2seq", "seq2seq none", "seq2seq additive", "transformer"])
def test_decoding_step_by_step_gives_the_same(name):
    model, batch = made(name).cuda().eval(), batch_for(name).to("cuda")
    with torch.no_grad():
        whole, state, columns = model(batch), model.begin(batch), []
        for column in batch.tokens.split(1, 1):
            logits, state = model.step(column, state)
            columns.append(logits)
    assert_close(torch.cat(columns, 1), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_can_be_captured(name):
    model, batch = made(name).cuda(), batch_for(name).to("cuda")

    def learn():
        model.zero_grad(set_to_none=True)
        nats, _, _ = model.loss(batch)
        nats.backward()
        return nats

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        wanted = learn().detach().clone()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        nats = learn()
    graph.replay()
    assert_close(nats.detach(), wanted, atol=1e-3, rtol=1e-4)
