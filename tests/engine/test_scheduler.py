"""Whatever comes in whatever order, requests end with the tokens they would have alone.

The executor is a fake whose pages hold hashes of tokens and which checks every block that a query
sees (tests/engine/fake.py), so a page that is reused too early fails here.
"""

import random
from dataclasses import dataclass, field

import pytest
import torch

from gossamer.engine.engine import Engine
from gossamer.engine.outputs import RequestOutput
from gossamer.engine.sampling_params import SamplingParams
from gossamer.engine.sequence import Status
from gossamer.kv import KVConfig
from gossamer.kv.rule import CacheRule
from tests.engine.fake import PLAIN, VOCAB, check_pages, fake_engine, random_prompt

# spec -> stored pages of a pool that a few sequences fill; the longest have 224 tokens. Dense pages
# are sometimes just as many as one sequence needs.
LONGEST = 224
POOLS = {
    PLAIN: 10,
    "sparse:k=8,v=8,window=0": 8,
    "sparse:k=8,v=8": 7,
    "sparse:k=8,v=8,window=64": 5,
    "sparse:k=8,v=8,window=32,sink=32": 5,
    "sparse:k=8,v=8,window=0,sink=64": 5,
    "sparse:k=8,v=8,prefill=dense": 7,
}
REQUESTS, ROUNDS = 48, 6  # for each of the seven: 2,016 in all, in each of two ways


@dataclass
class Wanted:
    """A request that a test sends, when, and when it gives it up."""

    name: str
    prompt: list[int]
    params: SamplingParams
    arrival: int
    abort: int | None
    output: RequestOutput | None = field(default=None)


def least_dense(spec: str) -> int:
    """Dense pages without which one sequence could not go on."""
    return CacheRule.of(KVConfig.parse(spec), torch.float32).most_dense_pages


def random_requests(rng: random.Random, count: int) -> list[Wanted]:
    templates = [[rng.randrange(VOCAB) for _ in range(180)] for _ in range(3)]
    wanted = []
    for number in range(count):
        prompt = random_prompt(rng, templates, LONGEST - 24)
        params = SamplingParams(
            temperature=rng.choice([0, 0, 1]),
            seed=number,
            n=rng.choice([1, 1, 1, 3]),
            max_tokens=rng.randrange(1, 48),
        )
        arrival = rng.randrange(0, 3 * count)
        abort = arrival + rng.randrange(0, 60) if rng.random() < 0.15 else None
        wanted.append(Wanted(f"r{number}", prompt, params, arrival, abort))
    return sorted(wanted, key=lambda request: request.arrival)


def serve(engine: Engine, wanted: list[Wanted], aborts: bool) -> dict[str, RequestOutput]:
    """Steps until everything that was sent is finished, with a check of all pages after each."""
    waiting, outputs, now = list(wanted), {}, 0
    giving_up = [request for request in wanted if aborts and request.abort is not None]
    while waiting or engine.busy:
        while waiting and waiting[0].arrival <= now:
            request = waiting.pop(0)
            engine.add_request(request.prompt, request.params, request_id=request.name)
        for request in [r for r in giving_up if r.abort is not None and r.abort <= now]:
            giving_up.remove(request)
            for delta in engine.abort(request.name):
                outputs[request.name] = delta.request
        deltas = engine.step()
        stuck = engine.busy and not deltas and not engine.scheduler.running
        assert not stuck or engine.handoff is not None, "nothing can start"  # else looked up
        for delta in deltas:
            outputs[delta.request_id] = delta.request
        check_pages(engine)
        now += 1
    return outputs


def alone(
    spec: str, wanted: list[Wanted], eos_ids: tuple[int, ...] = ()
) -> dict[str, RequestOutput]:
    """The same requests one after the other, each with all the memory and in one piece."""
    engine = fake_engine(spec, 64, 64, 1, 512, LONGEST, prefix_caching=False, eos_ids=eos_ids)
    outputs = {}
    for request in wanted:
        engine.add_request(request.prompt, request.params, request_id=request.name)
        while engine.busy:
            for delta in engine.step():
                outputs[delta.request_id] = delta.request
    assert engine.stats.preemptions == engine.stats.cached_tokens == 0
    return outputs


# Ends of text come as a surprise: a token more is on its way by then, and must leave no trace.
@pytest.mark.parametrize(
    ("asynchronous", "eos_ids"), [(False, ()), (True, tuple(range(0, VOCAB, 25)))]
)
@pytest.mark.parametrize("spec", POOLS)
def test_any_traffic_gives_what_each_request_would_get_alone(spec, asynchronous, eos_ids):
    # The same traffic every time: with other seeds, now and then one has no preemption to show.
    rng = random.Random(spec)
    whole_prompts = "prefill=dense" in spec
    preemptions = cached = aborted = ends = 0
    for _ in range(ROUNDS):
        engine = fake_engine(
            spec,
            POOLS[spec],
            least_dense(spec) + rng.choice([0, 1, 3, 6, 12]) * (spec != PLAIN),
            max_num_seqs=rng.choice([3, 4, 6]),
            budget=256 if whole_prompts else rng.choice([32, 64, 100, 256]),
            longest=LONGEST,
            asynchronous=asynchronous,
            eos_ids=eos_ids,
        )
        wanted = random_requests(rng, REQUESTS)
        outputs, expected = serve(engine, wanted, aborts=True), alone(spec, wanted, eos_ids)
        for request in wanted:
            got, want = outputs[request.name].outputs, expected[request.name].outputs
            assert len(got) == request.params.n
            for mine, theirs in zip(got, want, strict=True):
                room = LONGEST - len(request.prompt)
                if theirs.finish_reason == "length":
                    assert len(theirs.token_ids) == min(request.params.max_tokens, room)
                if mine.finish_reason == "abort":
                    aborted += 1
                    assert request.abort is not None
                    assert mine.token_ids == theirs.token_ids[: len(mine.token_ids)]
                else:
                    assert mine.finish_reason == theirs.finish_reason
                    assert mine.token_ids == theirs.token_ids
                    ends += mine.finish_reason == "stop"
        for pool in (engine.manager.stored, engine.manager.dense):
            assert pool.in_use == 0
            assert pool.available == pool.size
        assert not engine.requests
        assert len(engine.scheduler) == 0
        preemptions += engine.stats.preemptions
        cached += engine.stats.cached_tokens
    assert preemptions > 0
    assert aborted > 0
    assert (ends > 0) is bool(eos_ids)
    assert (cached > 0) is not whole_prompts


GREEDY = SamplingParams(temperature=0, max_tokens=4)


def finish(engine: Engine) -> dict[str, RequestOutput]:
    """Steps until nothing is left to do."""
    outputs = {}
    while engine.busy:
        for delta in engine.step():
            outputs[delta.request_id] = delta.request
        check_pages(engine)
    return outputs


def random_ids(tokens: int) -> list[int]:
    return torch.randint(0, VOCAB, (tokens,)).tolist()


@pytest.mark.parametrize("budget", [32, 100, 4096])
def test_who_comes_first_starts_first(budget):
    """Sequences run in the order they came, and none waits while a later one runs."""
    rng = random.Random(torch.initial_seed())
    engine = fake_engine(PLAIN, 400, 0, max_num_seqs=5, budget=budget)
    wanted = random_requests(rng, 60)
    place = {request.name: place for place, request in enumerate(wanted)}
    first_tokens: dict[str, int] = {}
    waiting, now = list(wanted), 0
    while waiting or engine.busy:
        while waiting and waiting[0].arrival <= now:
            request = waiting.pop(0)
            engine.add_request(request.prompt, request.params, request_id=request.name)
        for delta in engine.step():
            first_tokens.setdefault(delta.request_id, now)
        order = [(place[seq.request_id], seq.index) for seq in engine.scheduler]
        assert order == sorted(order)
        now += 1
    assert engine.stats.preemptions == 0
    assert len(first_tokens) == len(wanted)
    if budget == 4096:  # a prompt is computed in one step: first tokens are in order, too
        times = [first_tokens[request.name] for request in wanted]
        assert times == sorted(times)


def test_prompts_in_chunks_do_not_stop_others():
    """While a long prompt is computed, everyone who runs gets a token in every step."""
    engine = fake_engine(PLAIN, 64, 0, budget=64)
    short = engine.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=30))
    engine.step()
    engine.add_request(random_ids(300), GREEDY)
    for _ in range(8):
        assert short in [delta.request_id for delta in engine.step()]
    assert len(finish(engine)) == 2


def test_chunks_end_with_blocks():
    """So each block is computed in one step, however much of the budget is left."""
    engine, spans = fake_engine("sparse:k=8,v=8", 64, 32, budget=100), []
    run = engine.executor.run

    def watch(step):
        assert len(step.ids) <= 100
        spans.extend((span.start, span.end, span.sample) for span in step.spans)
        return run(step)

    engine.executor.run = watch
    engine.add_request(random_ids(200), SamplingParams(temperature=0, max_tokens=2))
    finish(engine)
    assert spans == [(0, 96, False), (96, 192, False), (192, 200, True), (200, 201, True)]


def test_dense_pages_that_a_chunk_still_sees_are_not_given_away():
    """The first queries of a chunk see the window before it, whose blocks leave it in this step.

    There are no other pages for the second sequence, so it must wait for them: the first computes
    tokens 128 to 191 in the second step, of which the earlier ones see block 3 dense.
    """
    engine = fake_engine("sparse:k=8,v=8", 64, 4, budget=128, prefix_caching=False)
    engine.add_request(random_ids(192), GREEDY)
    engine.add_request(random_ids(64), GREEDY)
    engine.step()
    engine.step()
    assert [seq.status for seq in engine.scheduler] == [Status.RUNNING, Status.WAITING]
    assert len(finish(engine)) == 2


def test_room_for_a_shared_prefix_with_sinks():
    """The sinks of a prefix take no stored pages, and must not count as such."""
    engine = fake_engine("sparse:k=8,v=8,window=0,sink=32", 4, 16, max_num_seqs=2)
    prefix = random_ids(96)
    engine.add_request([*prefix, *random_ids(4)], GREEDY)
    finish(engine)
    engine.add_request([1] * 100, SamplingParams(temperature=0, max_tokens=20))
    engine.step()
    assert engine.manager.stored.available == 2  # the prefix without its sink
    engine.add_request([*prefix, *random_ids(60)], GREEDY)
    engine.step()
    assert [seq.status for seq in engine.scheduler] == [Status.RUNNING, Status.WAITING]
    assert len(finish(engine)) == 2
    assert engine.stats.cached_tokens == 96


def test_preempted_sequences_come_back_in_their_order():
    engine = fake_engine(PLAIN, 12, 0, max_num_seqs=4)
    names = [
        engine.add_request(random_ids(90), SamplingParams(temperature=0, max_tokens=100))
        for _ in range(4)
    ]
    done: list[str] = []
    while engine.busy:
        done += [delta.request_id for delta in engine.step() if delta.request.finished]
        order = [seq.request_id for seq in engine.scheduler]
        assert order == [name for name in names if name in order]
    assert done == names
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("spec", POOLS)
def test_a_step_that_fails_ends_its_requests_only(spec, asynchronous):
    """Pages return, sequences that wait or were preempted go on, and nothing wrong is found."""
    engine = fake_engine(
        *(spec, POOLS[spec], least_dense(spec) + 2),
        max_num_seqs=3,
        longest=LONGEST,
        asynchronous=asynchronous,
    )
    rng = random.Random(spec)  # steps do fail
    wanted = random_requests(rng, 30)
    expected = {name: output.outputs for name, output in alone(spec, wanted).items()}
    run = engine.executor.run

    def sometimes(step):
        if rng.random() < 0.03:
            raise MemoryError("no more")
        return run(step)

    engine.executor.run = sometimes
    for request in wanted:
        engine.add_request(request.prompt, request.params, request_id=request.name)
    sent = {name: request.output for name, request in engine.requests.items()}
    failures = 0
    while engine.busy:
        try:
            engine.step()
        except MemoryError:
            failures += 1
        check_pages(engine)
    reasons = [o.finish_reason for output in sent.values() for o in output.outputs]
    assert failures > 0
    assert set(reasons) == {"error", "length"}
    for name, output in sent.items():
        for mine, theirs in zip(output.outputs, expected[name], strict=True):
            assert mine.token_ids == theirs.token_ids[: len(mine.token_ids)]
            if mine.finish_reason == "error":
                assert mine.error == "MemoryError: no more"
            else:
                assert mine.token_ids == theirs.token_ids
    for pool in (engine.manager.stored, engine.manager.dense):
        assert pool.in_use == 0
