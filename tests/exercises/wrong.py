"""Wrong solutions: mistakes that students make, as replacements in the source of the reference solutions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    name: str  # the mistake
    right: str  # in the reference, exactly once
    wrong: str

    def __str__(self) -> str:
        return self.name


WRONG: dict[str, list[Wrong]] = {
    "bigram": [
        Wrong("joint instead of conditional", "np.maximum(c.sum(1, keepdims=True), 1)", "c.sum()"),
        Wrong("normalised by the following word", "np.maximum(c.sum(1, keepdims=True), 1)", "np.maximum(c.sum(0), 1)"),
        Wrong("times the temperature, not over it", "np.exp(beta * (y - y.max()))", "np.exp((y - y.max()) / beta)"),
        Wrong("exp overflows", "np.exp(beta * (y - y.max()))", "np.exp(beta * y)"),
        Wrong("an impossible side comes up", 'side="right"', 'side="left"'),
        Wrong("nothing is fed back", "roll(p[token], number)", "roll(p[0], number)"),
        Wrong(
            "the boundary is part of the text",
            "        if token == 0:\n            break\n        text.append(token)",
            "        text.append(token)\n        if token == 0:\n            break",
        ),
    ],
    "perplexity": [
        Wrong("a sum instead of a mean", "np.mean(log_p)", "np.sum(log_p)"),
        Wrong("a power of two of nats", "float(np.exp(cross_entropy(log_p)))", "float(2 ** cross_entropy(log_p))"),
        Wrong("a mean of perplexities", "np.exp(cross_entropy(log_p))", "np.mean(np.exp(-log_p))"),
        Wrong("nats instead of bits", " / np.log(2) /", " /"),
        Wrong("characters instead of bytes", 'np.log(2) / len(text.encode("utf-8"))', "np.log(2) / len(text)"),
        Wrong(
            "characters instead of bytes per word",
            'len(text.encode("utf-8")) / len(text.split())',
            "len(text) / len(text.split())",
        ),
        Wrong("words by spaces alone", "text.split()", 'text.split(" ")'),
    ],
    "kneser-ney": [
        Wrong("raw counts in the lower order", "(c > 0).sum(0)", "c.sum(0)"),
        Wrong("continuations counted the wrong way round", "(c > 0).sum(0)", "(c > 0).sum(1)"),
        Wrong(
            "backed off instead of interpolated",
            "(c - D) / np.maximum(total, 1) + gamma * lower",
            "np.where(c > 0, (c - D) / np.maximum(total, 1), gamma * lower)",
        ),
        Wrong("one discount for all", "D = discounts(c)[np.minimum(c, 3)]", "D = discounts(c)[np.minimum(c, 1)]"),
        Wrong("the factor of Y forgotten", "(n[1] + 2 * n[2])", "(n[1] + n[2])"),
        Wrong("no uniform distribution below", " + D.sum() / total / len(continuations)", ""),
        Wrong("zeros after an unseen word", "np.where(total > 0, p, lower)", "p"),
    ],
    "forward-backward": [
        Wrong("transitions transposed", "alpha[t] @ a", "a @ alpha[t]"),
        Wrong("a uniform start", "predicted = pi", "predicted = np.full(len(pi), 1 / len(pi))"),
        Wrong("not scaled", "alpha[t] = message / c[t]", "alpha[t] = message"),
        Wrong("the likelihood of the last symbol", "np.log(c).sum()", "np.log(c[-1])"),
        Wrong("β without emissions", "a @ (b[:, x[t + 1]] * beta[t + 1])", "a @ beta[t + 1]"),
        Wrong(
            "β with the emission of the same time",
            "a @ (b[:, x[t + 1]] * beta[t + 1]) / c[t + 1]",
            "a @ (b[:, x[t]] * beta[t + 1]) / c[t + 1]",
        ),
        Wrong("ξ without a", "alpha[t][:, None] * a * (b", "alpha[t][:, None] * (b"),
    ],
    "viterbi": [
        Wrong(
            "a sum instead of a maximum",
            "log_b[:, symbol] + scores.max(0)",
            "log_b[:, symbol] + np.log(np.exp(scores).sum(0))",
        ),
        Wrong("no backtracking", "path.append(int(pointer[path[-1]]))", "path.append(path[-1])"),
        Wrong(
            "from the state into the wrong axis", "scores = delta[:, None] + log_a", "scores = delta[:, None] + log_a.T"
        ),
        Wrong("the first emission forgotten", "log_pi + log_b[:, x[0]]", "log_pi"),
        Wrong("the path is reversed", "np.array(path[::-1])", "np.array(path)"),
        Wrong("starts from state 0", "path = [int(delta.argmax())]", "path = [0]"),
    ],
    "word2vec": [
        Wrong("no power of 0.75", "counts**0.75", "counts / 1"),
        Wrong("negatives pulled closer", "np.logaddexp(0, z_k).sum()", "np.logaddexp(0, -z_k).sum()"),
        Wrong(
            "one negative repeated lost", "np.subtract.at(outputs, negatives, lr * dn)", "outputs[negatives] -= lr * dn"
        ),
        Wrong("the sign of the gradient", "sigmoid(z) - 1, sigmoid(z_k)", "1 - sigmoid(z), -sigmoid(z_k)"),
        Wrong("exp overflows", "float(np.logaddexp(0, -z) +", "float(np.log(1 + np.exp(-z)) +"),
        Wrong("v without the negatives", "error * u + errors @ negatives", "error * u"),
        Wrong(
            "v changes before u",
            "    outputs[context] -= lr * du",
            "    du = negative_sampling(inputs[word], outputs[context], outputs[negatives])[2]\n"
            "    outputs[context] -= lr * du",
        ),
    ],
    "bpe": [
        Wrong("words count once", "pairs[pair] += counts[word]", "pairs[pair] += 1"),
        Wrong("ties by the alphabet of the symbols", "vocabulary[pair[0]], vocabulary[pair[1]])", "pair)"),
        Wrong("merges overlap", "            place += 2\n", "            place += 1\n"),
        Wrong(
            "pairs are counted only once",
            "words = {word: merge(symbols, best) for word, symbols in words.items()}",
            "counts = {word: counts[word] * (best not in pairwise(word)) for word in counts}",
        ),
        Wrong("encoding from left to right", "min(known, key=ranks.__getitem__)", "known[0]"),
        Wrong("the last merge first", "min(known, key=ranks.__getitem__)", "max(known, key=ranks.__getitem__)"),
        Wrong("no stop", "        if not pairs:\n            break\n", ""),
    ],
    "feedforward": [
        Wrong("the window ends one token early", "[:, 1:]\n", "[:, :-1]\n"),
        Wrong("the newest token first", "self.E[windows].flatten(2)", "self.E[windows.flip(2)].flatten(2)"),
        Wrong("no hidden layer", "torch.tanh(x @ self.W.T + self.b)", "(x @ self.W.T + self.b)"),
        Wrong("the state is the oldest tokens", "history[:, tokens.shape[1] :]", "history[:, : self.order - 1]"),
        Wrong("starts with another token", "(rows, self.order - 1), BOUNDARY", "(rows, self.order - 1), BOUNDARY + 1"),
        Wrong(
            "sees the next token",
            "windows = history.unfold(1, self.order - 1, 1)[:, 1:]",
            "windows = torch.cat([history, history[:, -1:]], 1).unfold(1, self.order - 1, 1)[:, 2:]",
        ),
        Wrong(
            "rows are mixed",
            "h = torch.tanh(x @ self.W.T + self.b)",
            "h = torch.tanh((x + x.mean(0)) @ self.W.T + self.b)",
        ),
    ],
    "elman": [
        Wrong("the derivative of tanh forgotten", "(1 - h[t] ** 2) * dh", "dh"),
        Wrong("no gradient from later steps", "V.T @ dy[t] + from_later", "V.T @ dy[t]"),
        Wrong("W not transposed", "from_later = W.T @ da", "from_later = W @ da"),
        Wrong("h of the same step", "h[t - 1] if t else h0", "h[t]"),
        Wrong("h0 taken from the end", "h[t - 1] if t else h0", "h[t - 1]"),
        Wrong("a mean over time", "targets].sum())", "targets].mean())"),
        Wrong("exp overflows", "    y = y - y.max(-1, keepdims=True)\n", ""),
    ],
    "lstm": [
        Wrong("no tanh of the cell", "o * np.tanh(C), C", "o * C, C"),
        Wrong("the input before the hidden vector", "np.concatenate([h, x], -1)", "np.concatenate([x, h], -1)"),
        Wrong("forget and input gates swapped", "C = f * C + i * candidate", "C = i * C + f * candidate"),
        Wrong("the candidate through a sigmoid", 'np.tanh(both @ W["C"].T', 'sigmoid(both @ W["C"].T'),
        Wrong(
            "the cell is not carried on",
            "        h, C = lstm_step(x[:, t], h, C, W, b)",
            "        h, _ = lstm_step(x[:, t], h, C, W, b)",
        ),
        Wrong("gates coupled", "C = f * C + i * candidate", "C = f * C + (1 - f) * candidate"),
    ],
    "context": [
        Wrong("W transposed", "bti,ij,bsj->bts", "bti,ji,bsj->bts"),
        Wrong(
            "padding masked after the softmax",
            "    e = np.where(real, e, -np.inf)\n    weights = np.exp(e - e.max(-1, keepdims=True))\n"
            "    return weights / weights.sum(-1, keepdims=True)",
            "    weights = np.exp(e - e.max(-1, keepdims=True))\n"
            "    return weights / weights.sum(-1, keepdims=True) * real",
        ),
        Wrong(
            "softmax over the target",
            "weights / weights.sum(-1, keepdims=True)",
            "weights / weights.sum(1, keepdims=True)",
        ),
        Wrong("padding is attended to", "    e = np.where(real, e, -np.inf)\n", ""),
        Wrong(
            "scaled",
            'return np.einsum("bth,bsh->bts", q, h)',
            'return np.einsum("bth,bsh->bts", q, h) / q.shape[-1] ** 0.5',
        ),
        Wrong("exp overflows", "np.exp(e - e.max(-1, keepdims=True))", "np.exp(e)"),
        Wrong("all lengths are the first", "lengths[:, None, None]", "lengths[0]"),
    ],
    "beam-search": [
        Wrong("no length penalty", "log_p / length_penalty(len(tokens), alpha)", "log_p"),
        Wrong(
            "the end does not count in the length",
            "length_penalty(len(tokens), alpha)",
            "length_penalty(len(tokens) - 1, alpha)",
        ),
        Wrong(
            "a beam for each hypothesis",
            "extended += [((*tokens, token), log_p + float(new[token])) for token in choices]",
            "extended += sorted([((*tokens, token), log_p + float(new[token])) for token in choices], "
            "key=lambda pair: -pair[1])[:max(1, width // len(live))]",
        ),
        Wrong("by the last token alone", "log_p + float(new[token])", "float(new[token])"),
        Wrong("stops at the first finished text", "    while live:", "    while live and not finished:"),
        Wrong(
            "a text at the limit is cut, not ended", "if len(tokens) < limit else [0]", "if len(tokens) < limit else []"
        ),
        Wrong(
            "the worst first",
            "sorted(finished, key=lambda pair: -pair[1])",
            "sorted(finished, key=lambda pair: pair[1])",
        ),
    ],
    "attention": [
        Wrong("a token does not see itself", ".triu(1)", ".triu(0)"),
        Wrong("the mask transposed", ".triu(1)", ".tril(-1)"),
        Wrong("divided by d_k", "math.sqrt(Q.shape[-1])", "Q.shape[-1]"),
        Wrong("not scaled", " / math.sqrt(Q.shape[-1])", ""),
        Wrong("softmax by columns", ".softmax(-1)", ".softmax(-2)"),
        Wrong(
            "heads cut without transposing",
            ".unflatten(-1, (heads, -1)).transpose(1, 2) for W",
            ".reshape(len(X), heads, X.shape[1], -1) for W",
        ),
        Wrong("no projection of the heads", "flatten(2) @ W_O", "flatten(2)"),
    ],
    "gpt": [
        Wrong(
            "no residual", "x = x + self.attention(self.norm1(x), heads)", "x = self.attention(self.norm1(x), heads)"
        ),
        Wrong(
            "post-norm", "x = x + self.attention(self.norm1(x), heads)", "x = self.norm1(x + self.attention(x, heads))"
        ),
        Wrong("the future is seen", ".triu(1)", ".triu(2)"),
        Wrong("the last norm forgotten", "self.norm(x) @ self.E.T", "x @ self.E.T"),
        Wrong(
            "the length is not carried on", '"length": state["length"] + tokens.shape[1]', '"length": state["length"]'
        ),
        Wrong(
            "rows are placed by the first one",
            'places = state["length"][:, None]',
            'places = state["length"][:1, None].expand(len(tokens), 1)',
        ),
        Wrong("positions start again in each chunk", "self.P[:room]", "self.P[torch.arange(room) % tokens.shape[1]]"),
    ],
    "lora": [
        Wrong("alpha without the rank", "alpha / rank", "alpha"),
        Wrong("B is random", "torch.zeros(outputs, rank)", "torch.randn(outputs, rank)"),
        Wrong("A is zero", "torch.randn(rank, inputs) / inputs**0.5", "torch.zeros(rank, inputs)"),
        Wrong("W is trained too", "linear.requires_grad_(False)", "linear"),
        Wrong(
            "merged without the scale",
            "self.linear.weight + self.scale * self.B @ self.A",
            "self.linear.weight + self.B @ self.A",
        ),
        Wrong("the bias is lost", "            merged.bias.copy_(self.linear.bias)\n", ""),
        Wrong("merged into the old weights", "merged = nn.Linear(inputs, outputs)", "merged = self.linear"),
    ],
    "dpo": [
        Wrong("no reference", "(policy_w - reference_w) - (policy_l - reference_l)", "policy_w - policy_l"),
        Wrong("the wrong answer is preferred", "np.logaddexp(0, -z).mean()", "np.logaddexp(0, z).mean()"),
        Wrong("the prompt counts", "np.where(completion, chosen, 0).sum(1)", "chosen.sum(1)"),
        Wrong(
            "a mean over tokens",
            "np.where(completion, chosen, 0).sum(1)",
            "np.where(completion, chosen, 0).sum(1) / completion.sum(1)",
        ),
        Wrong("exp overflows", "np.logaddexp(0, -z).mean()", "np.log(1 + np.exp(-z)).mean()"),
        Wrong("a sum over pairs", "np.logaddexp(0, -z).mean()", "np.logaddexp(0, -z).sum()"),
        Wrong("the gradient pulls right pairs hardest", "np.exp(-np.logaddexp(0, z))", "np.exp(-np.logaddexp(0, -z))"),
    ],
}
