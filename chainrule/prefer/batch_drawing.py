"""Drawing many pairs at once, for a judge: one decode loop for all rows, from which rows that have ended are dropped.

The random numbers are those of the page's engine, so a prompt and a seed give the same answers, up to the rounding of
larger matrix products. The engine answers each request at once; a judge waits for all pairs, so batches can be large.

Shapes: B rows.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from chainrule.inference.decoding import DecodeLoop, Tokens, prefill_prompts
from chainrule.inference.forward import eval_mode
from chainrule.inference.generate import has_end
from chainrule.inference.sampling import SamplingStrategy, require_possible
from chainrule.model import BOUNDARY
from chainrule.prefer.drawing import Answer, NoPair, Pair, Policy
from chainrule.prefer.prompt_file import Prompt
from chainrule.serve.batching.uniform_numbers import row_uniforms
from chainrule.serve.endpoints.completions import Prompt as Encoded
from chainrule.serve.endpoints.completions import continuation

PAIRS = 64         # drawn at a time
DROPPED = 0.125    # share of the rows that have ended at which the others go on alone: their states are copied


async def draw_pairs(policy: Policy, asked: Sequence[tuple[Prompt, int]]) -> list[Pair | NoPair]:
    """A pair for each prompt and seed, or the reason why there is none."""
    answers = iter(draw_answers(policy, [(prompt, seed, row) for prompt, seed in asked for row in (0, 1)]))
    pairs: list[Pair | NoPair] = []
    for (prompt, seed), (one, other) in zip(asked, zip(answers, answers)):
        try:
            if one.text.strip() and other.text.strip() and one.text != other.text:
                pairs.append(Pair(policy.pair_id(prompt, seed), prompt, (one, other), seed, policy.source))
            else:
                pairs.append(await policy.draw_pair(prompt, seed))    # goes on to the next rows of the seed
        except NoPair as error:
            pairs.append(error)
    return pairs


@torch.inference_mode()
def draw_answers(policy: Policy, asked: Sequence[tuple[Prompt, int, int]]) -> list[Answer]:
    """An answer for each prompt, seed and row."""
    prompts = [np.array(policy.encode(prompt)) for prompt, _, _ in asked]
    ends = has_end(policy.run.tokenizer, False)
    loop = start_loop(policy, prompts, ends)
    random = np.array([row_uniforms(seed, row, 0, policy.tokens) for _, seed, row in asked])    # (B, tokens)
    drawn: list[list[int]] = [[] for _ in asked]
    alive = np.arange(len(asked))
    with eval_mode(policy.run.model):
        for step in range(policy.tokens):
            uniforms = torch.from_numpy(random[alive, step]).to(loop.values["tokens"].device)
            tokens = loop.next_token(uniforms, policy.tokens - step).tolist()
            require_possible(loop)
            for row, token in zip(alive, tokens):
                drawn[row].append(token)
            over = loop.values["ended"].cpu()
            if over.all():
                break
            if over.float().mean() > DROPPED:
                kept = torch.nonzero(~over)[:, 0]
                loop.select(kept.to(loop.values["tokens"].device))
                alive = alive[kept.numpy()]
    return [*_read(policy, asked, prompts, drawn, ends)]


def start_loop(policy: Policy, prompts: Sequence[Tokens], ends: bool) -> DecodeLoop:
    """The prompts are read, each once; their first token, the boundary, is what `prefill_prompts` begins with."""
    strategy = SamplingStrategy(policy.sampling, ends, prompts, end_of_turn(policy))
    with eval_mode(policy.run.model):
        bare = [prompt[1:] if prompt[0] == BOUNDARY else prompt for prompt in prompts]
        return DecodeLoop(policy.run.language_model, prefill_prompts(policy.run.language_model, bare), strategy)


def end_of_turn(policy: Policy) -> int | None:
    return policy.served.chat_template.end_of_turn if policy.chat else None


def _read(
    policy: Policy, asked: Sequence[tuple[Prompt, int, int]], prompts: Sequence[Tokens], drawn: list[list[int]],
    ends: bool,
) -> Iterator[Answer]:
    end = {BOUNDARY, end_of_turn(policy)} if ends else {end_of_turn(policy)}
    for (prompt, _, _), ids, tokens in zip(asked, prompts, drawn):
        length = next((place for place, token in enumerate(tokens) if token in end), None)
        text = continuation(policy.served, Encoded(ids.tolist(), prompt if isinstance(prompt, str) else None), ())
        kept = tokens if length is None else tokens[:length]
        yield Answer(text.add(kept) + text.rest(), len(tokens) if length is None else length + 1, length is not None)
