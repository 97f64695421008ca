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
