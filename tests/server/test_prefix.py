"""Prompts that begin alike are computed once."""

from tests.server.live import SPARSE, serving

COMMON = "The sea is everything. " * 17  # 391 tokens


def test_a_common_prefix_is_not_computed_again(tiny):
    with serving(tiny, ("dense", SPARSE)) as live:
        for kv in ("dense", SPARSE):
            live.text(COMMON, kv=kv)
            before = live.llms[kv].engine.stats.prompt_tokens
            for i in range(10):
                answer = live.complete(f"{COMMON}{i}", kv=kv).json()
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 384
            computed = live.llms[kv].engine.stats.prompt_tokens - before
            assert computed == 10 * (len(COMMON) + 1 - 384)


def test_a_prompt_that_another_server_computed(tiny, tmp_path):
    """As soon as that one has answered."""
    with serving(tiny, (SPARSE,)) as live:
        expected = live.text(COMMON)
    with serving(tiny, (SPARSE,), kv_transfer=tmp_path, kv_role="prefill") as first:
        first.text(COMMON, max_tokens=1)
        with serving(tiny, (SPARSE,), kv_transfer=tmp_path, kv_role="decode") as second:
            answer = second.complete(COMMON).json()
            assert answer["choices"][0]["text"] == expected
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 384
            bytes_moved = first.llm.engine.handoff.published_bytes
            metric = f'gossamer_kv_fetched_bytes_total{{kv="{SPARSE}"}}'
            assert f"{metric} {float(bytes_moved)}" in second.get("/metrics").text
