"""Bugs in chainrule/serve."""

from mutations.bugs.bug import Bug

ENGINE = "tests/serve/test_engine.py"

BUGS = [
    Bug(
        "the rows of a client that has left are not freed",
        "chainrule/serve/streams.py",
        "            row.generation.cancel()\n        service",
        "            pass\n        service",
        ("tests/serve/test_ending.py::test_a_client_that_leaves_in_the_midst_of_a_stream_frees_its_row",
         "tests/serve/test_ending.py::test_a_client_that_leaves_frees_its_rows[False]"),
    ),
    Bug(
        "texts of a request that is refused go on",
        "chainrule/serve/service.py",
        "            generation.cancel()\n        raise",
        "            pass\n        raise",
        ("tests/serve/test_engine.py::test_of_several_requests_all_are_taken_or_none",),
    ),
    Bug(
        "the boundary that ends an answer has no entry among the log-probabilities",
        "chainrule/serve/streams.py",
        "                read.append(token)\n",
        "                if token.prompt or token.id:\n                    read.append(token)\n",
        ("tests/serve/test_scoring_clients.py::test_a_generated_boundary_has_its_entry",),
    ),
    Bug(
        "the password of the page opens the rest of the server",
        "chainrule/serve/api.py",
        'if scheme.lower() == b"basic" and page:',
        'if scheme.lower() == b"basic":',
        ("tests/serve/test_gate.py::test_a_browser_gives_the_key_as_a_password_and_only_to_the_page",),
    ),
    Bug(
        "the padding of a text is in the mean of its vectors",
        "chainrule/serve/endpoints/embeddings.py",
        "sums = vectors.float().where(real[..., None], 0).sum(1)",
        "sums = vectors.float().sum(1)",
        ("tests/serve/test_embeddings.py::test_padded_calls_of_fixed_shapes_give_the_same_vectors",),
    ),
    Bug(
        "the warm-up of a CUDA graph counts as tokens of idle rows",
        "chainrule/serve/batching/row_groups.py",
        "                write_back(self.state, states.blank(rows, capacity))\n",
        "",
        (f"{ENGINE}::test_graphs_give_the_same_texts_however_long_rows_are_idle[rotary]",),
    ),
    Bug(
        "a prefix is cached under its tokens, however they were read",
        "chainrule/serve/batching/prefix_cache.py",
        "keys.append((tuple(plan[:calls]), tokens[:end].tobytes()))",
        "keys.append(((), tokens[: end - 1].tobytes()))",
        (f"{ENGINE}::test_a_prefix_is_that_of_the_same_tokens_and_calls",),
    ),
    Bug(
        "a prompt is read to its end before others go on",
        "chainrule/serve/engine.py",
        "range(min(MOST_CALLS, max(1, in_prefill // max(1, decoding))))",
        "range(1000)",
        (f"{ENGINE}::test_a_long_prompt_does_not_stall_the_others",),
    ),
    Bug(
        "an answer goes on with the random numbers of its first row",
        "chainrule/serve/batching/phases.py",
        "row_uniforms(sampling.seed, self.request.row, self.sampled, count)",
        "row_uniforms(sampling.seed, 0, self.sampled, count)",
        (f"{ENGINE}::test_a_served_text_is_the_text_of_sample",),
    ),
    Bug(
        "a body that never comes is waited for",
        "chainrule/serve/slow_clients.py",
        "        elif self._in_headers() or self._in_body():\n",
        "        elif self._in_headers():\n",
        ("tests/serve/test_slow_clients.py::test_a_request_that_does_not_arrive_is_not_waited_for",),
    ),
    Bug(
        "the page of another site may ask the live page",
        "chainrule/serve/app.py",
        'origin.partition("//")[2] != host',
        'origin.partition("//")[2] != host and False',
        ("tests/serve/test_slow_clients.py::test_a_page_of_another_site_may_not_ask",),
    ),
]
