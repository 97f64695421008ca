"""Outputs that must match a schema, a regex, one of some strings or a grammar."""

import json
import re
import threading
import time

import pytest
import torch

from gossamer.engine import LLM, SamplingParams, StructuredOutputs
from gossamer.engine import grammars as grammars_module
from gossamer.engine.grammars import CACHED, GrammarError, Grammars
from gossamer.engine.sampler import choose, log_weights
from gossamer.engine.sampling_row import SamplingRow
from gossamer.engine.schema_places import finite
from gossamer.engine.structured_outputs import MAX_CHOICES, MAX_DEPTH, MAX_REGEX, MAX_SCHEMA
from tests.engine.serving import CHARACTERS, assert_empty, cpu_llm

pytest.importorskip("llguidance", reason="pip install 'gossamer[structured]'")

EOS = 2
PROMPT = "The quick brown fox jumps over the lazy dog. "
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", 7]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def is_person(text):
    found = json.loads(text)
    assert list(found) == ["name", "age", "tags"]
    assert re.fullmatch("[a-z]{1,8}", found["name"])
    assert 0 <= found["age"] <= 120
    assert len(found["tags"]) <= 3
    assert all(tag in ("a", "bc", 7) for tag in found["tags"])


def is_number(text):
    assert re.fullmatch(r"\d{3}-[x-z]{2,4}", text)


def is_choice(text):
    assert text in ("yes", "no", "may be")


def is_sum(text):
    assert re.fullmatch(r"\d(\+\d){0,8}", text)


KINDS = {
    "schema": ({"json": PERSON}, is_person),
    "schema as text": ({"json": json.dumps(PERSON)}, is_person),
    "regex": ({"regex": r"\d{3}-[x-z]{2,4}"}, is_number),
    "choice": ({"choice": ["yes", "no", "may be"]}, is_choice),
    "Lark": ({"grammar": 'start: D ("+" D){0,8}\nD: /[0-9]/'}, is_sum),
    "GBNF": ({"grammar": 'root ::= [0-9] ("+" [0-9])?'}, is_sum),
}
HOW = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.3, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    "several": {"n": 3},
    "penalties": {"repetition_penalty": 1.5, "frequency_penalty": 1, "presence_penalty": -1},
    "logprobs": {"logprobs": 2, "temperature": 0},
    "biased": {"logit_bias": {20: -100.0, 70: 5.0}},
    "min_tokens": {"min_tokens": 60},  # more than the grammar has room for
}


def params(kind, max_tokens=80, **more):
    settings = {"temperature": 1.0, "seed": 3, "max_tokens": max_tokens, **more}
    return SamplingParams(structured_outputs=StructuredOutputs(**KINDS[kind][0]), **settings)


def check(kind, output):
    assert output.finish_reason == "stop"
    assert output.token_ids[-1] == EOS
    KINDS[kind][1](output.text)


@pytest.mark.parametrize("kv", ["dense", "sparse:k=8,v=8,window=32"])
def test_every_kind_in_one_batch(tiny, kv):
    """With everything else that changes logits, beside requests that are free, in each schedule."""
    wanted = [params(kind, **how) for kind in KINDS for how in HOW.values()]
    free = SamplingParams(temperature=1, seed=1, max_tokens=30)
    found = []
    for asynchronous in (False, True):
        with cpu_llm(tiny[0], kv=kv, async_scheduling=asynchronous) as llm:
            alone = llm.generate(PROMPT, free)[0].outputs[0].token_ids
            outputs = llm.generate([PROMPT] * (len(wanted) + 1), [*wanted, free])
            assert outputs[-1].outputs[0].token_ids == alone
            assert_empty(llm)
        kinds = [kind for kind in KINDS for _ in HOW]
        for kind, request in zip(kinds, outputs, strict=False):
            for output in request.outputs:
                check(kind, output)
        found.append([output.token_ids for request in outputs for output in request.outputs])
    assert found[0] == found[1]


def test_preempted_outputs_go_on_where_they_were(tiny):
    prompts = [f"{i} {PROMPT * 3}" for i in range(6)]
    long = StructuredOutputs(regex="([a-z] ){50}")
    wanted = SamplingParams(seed=1, max_tokens=120, structured_outputs=long)
    with cpu_llm(tiny[0]) as llm:
        expected = llm.generate(prompts, wanted)
    with cpu_llm(tiny[0], kv_memory="300kB", max_num_seqs=6) as llm:
        got = llm.generate(prompts, wanted)
        assert llm.engine.stats.preemptions
        assert_empty(llm)
    assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in expected]
    assert all(re.fullmatch("([a-z] ){50}", request.outputs[0].text) for request in got)


def test_stop_strings_and_limits_still_end_it(llm):
    cut = llm.generate(PROMPT, params("schema", stop='"age'))[0].outputs[0]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", '"age')
    assert re.fullmatch(r'\{"name": "[a-z]+", ', cut.text)
    short = llm.generate(PROMPT, params("schema", max_tokens=5))[0].outputs[0]
    assert (short.finish_reason, len(short.token_ids)) == ("length", 5)
    name = llm.add_request(PROMPT, params("schema"))
    llm.step()
    assert llm.abort(name)[0].finish_reason == "abort"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_masks_by_hand(device):
    """Of the weights that are sampled from, exactly those that the grammar allows are left."""
    grammars = Grammars(_Characters(), 10, [0])
    one, two = (grammars.matcher(StructuredOutputs(regex="a(b|c)?")) for _ in range(2))
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(1)).to(device)
    rows = [
        SamplingRow(SamplingParams(temperature=2), 1, (1,), []),
        SamplingRow(SamplingParams(temperature=2), 2, (1,), [], (0,), one),
        SamplingRow(SamplingParams(temperature=0, logprobs=0), 3, (1,), [], (0,), two),
    ]
    for allowed in ({1}, {0, 2, 3}, {0}):
        weights = log_weights(logits, rows)
        assert weights[0].isfinite().all()
        for row in (1, 2):
            assert {i for i in range(10) if weights[row, i] > -torch.inf} == allowed
        _, held, greedy = choose(logits, rows).read()
        assert {held.token, greedy.token} <= allowed
        best = max(allowed, key=lambda token: float(logits[2, token]))
        assert greedy.token == best
        # Of the model, not of what the grammar leaves.
        assert greedy.logprob == pytest.approx(float(logits[2].log_softmax(-1)[best]), abs=1e-5)
        for matcher in (one, two):
            matcher.take(max(allowed), ends=max(allowed) == 0)
    assert one.complete
    assert one.error is two.error is None


class _Characters:
    """A tokenizer of a few characters, of which 0 ends a text, for a vocabulary that is larger."""

    all_special_ids = (0,)
    names = ("<end>", "a", "b", "c", "\ufffd")

    def __len__(self):
        return len(self.names)

    def convert_ids_to_tokens(self, token):
        return self.names[token]

    def decode(self, ids):
        return "".join(self.names[token] for token in ids)

    def __call__(self, text, **_):
        return {"input_ids": [self.names.index(c) for c in text]}


class _Ones(_Characters):
    names = ("<end>", "1", "11", "\ufffd")


@pytest.mark.parametrize(
    "fields",
    [
        *({"json": {"const": 111}}, {"regex": "111"}, {"choice": ["111"]}),
        *({"grammar": 'start: "111"'}, {"grammar": 'root ::= "111"'}),
        {"grammar": '%llguidance {}\nstart: "111"'},
    ],
    ids=str,
)
def test_text_without_a_choice_is_spelt_in_any_way(fields):
    """No tokens are forced: to know them, all of such text would be cut into tokens each time."""
    matcher = Grammars(_Ones(), 4, [0]).matcher(StructuredOutputs(**fields))
    for token, allowed in ((1, {1, 2}), (2, {1, 2}), (0, {0})):
        [bits] = grammars_module.fill([matcher], 4)
        assert {i for i in range(4) if bits[0] >> i & 1} == allowed
        matcher.take(token, ends=token == 0)
    assert matcher.error is None


def deep(levels, inner):
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "structured_outputs has nothing; must have one of json, json_object, regex"),
        ({"regex": "a", "choice": ["b"]}, "has regex and choice; must have one"),
        ({"json": 5}, "json is int; must be a JSON schema"),
        ({"json": "{"}, "json is not JSON"),
        ({"json": "[1]"}, "json is list"),
        ({"json": {"enum": [float("nan")]}}, "json is no JSON schema"),
        ({"json": {"enum": [object()]}}, "json is no JSON schema"),
        ({"json": deep(MAX_DEPTH, {})}, "json is too deep at /items/items"),
        ({"json": {"enum": ["x" * MAX_SCHEMA]}}, f"must have at most {MAX_SCHEMA}"),
        ({"json": {"enum": list(range(MAX_SCHEMA + 2))}}, "too large"),
        ({"regex": ""}, "regex has 0 characters"),
        ({"regex": "a" * (MAX_REGEX + 1)}, f"must have 1 to {MAX_REGEX}"),
        ({"regex": 5}, "regex is 5"),
        ({"choice": "yes"}, "choice is 'yes'"),
        ({"choice": []}, f"must have 1 to {MAX_CHOICES}"),
        ({"choice": ["a", ""]}, "choice 1 is empty"),
        ({"json_object": "yes"}, "json_object is 'yes'"),
    ],
)
def test_what_is_refused_before_it_is_compiled(fields, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        StructuredOutputs(**fields)
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def grammars(tiny):
    from transformers import AutoTokenizer  # noqa: PLC0415

    return Grammars(AutoTokenizer.from_pretrained(tiny[0]), 97, [EOS])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json": {"type": "strin"}}, "json: Invalid type: strin at #"),
        (
            {"json": {"properties": {"a/b": {"anyOf": [{}, {"type": "x"}]}}}},
            "Invalid type: x at #/properties/a~1b/anyOf/1",
        ),
        (
            {"json": {"$defs": {"d": {"items": {"not": {}}}}, "items": {"$ref": "#/$defs/d"}}},
            'Unimplemented keys: ["not"] at #/',
        ),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum (5) is greater"),
        (
            {"json": {"type": "object", "properties": {"a": False}, "required": ["a"]}},
            "'a' is unsatisfiable at #",
        ),
        ({"json": {"enum": []}}, "Unsatisfiable schema"),
        ({"json": {"type": "string", "pattern": "(a"}}, "unclosed group, at character 0 of the re"),
        ({"json": {"$ref": "#"}}, "nothing matches it"),
        ({"json": deep(1, {"$ref": "#"}) | {"minItems": 1}}, "no document of a finite size"),
        ({"json": {"$ref": "https://example.com/schema"}}, "example.com"),
        ({"regex": "x(?=a)"}, "look-around"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"regex": "[z-a]"}, "invalid character class range"),
        ({"regex": "é"}, "nothing matches it"),  # the tokens have no such character
        ({"grammar": "start: nowhere"}, 'unknown name: "nowhere"'),
        ({"grammar": 'start: start "a"'}, "nothing matches it"),
        ({"grammar": "?"}, "grammar: "),
    ],
)
def test_what_cannot_be_compiled_names_the_place(grammars, fields, message):
    with pytest.raises(GrammarError) as caught:
        grammars.matcher(StructuredOutputs(**fields))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600


def test_seconds_have_nine_digits(grammars):
    """The format would let a model write digits without an end."""
    time = {"type": "string", "format": "date-time"}
    schema = {"properties": {"at": time, "format": {"const": {"format": "time"}}}}
    outputs = StructuredOutputs(json={"type": "object", **schema})
    assert outputs.wanted.text.count("pattern") == 1
    for digits, fits in ((".123456789", True), (".1234567890", False), ("", True)):
        matcher = grammars.matcher(outputs)
        for character in f'{{"at": "2020-01-02T03:04:05{digits}Z"':
            matcher.take(CHARACTERS.index(character) + 3, ends=False)
        assert (matcher.error is None) == fits


def test_documents_that_never_end():
    """A reference that must lead to itself, over any number of others."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    assert finite({"$ref": "#/$defs/node", "$defs": {"node": node}})
    must = node | {"required": ["next"]}
    assert not finite({"$ref": "#/$defs/node", "$defs": {"node": must}})
    either = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
    must = {"type": "object", "properties": {"next": either}, "required": ["next"]}
    assert finite({"$ref": "#/$defs/node", "$defs": {"node": must}})
    chain = {
        f"d{i}": {"type": "array", "minItems": 1, "items": {"$ref": f"#/$defs/d{i + 1}"}}
        for i in range(500)
    }
    assert finite({"$ref": "#/$defs/d0", "$defs": {**chain, "d500": {"type": "null"}}})
    assert not finite({"$ref": "#/$defs/d0", "$defs": {**chain, "d500": {"$ref": "#/$defs/d0"}}})


def test_what_explodes_on_the_way_ends_alone(llm):
    """Fuel bounds a step of any grammar; the request is to blame, and nobody else notices."""
    bomb = StructuredOutputs(regex="((a{1,100}){1,100}){1,100}b")
    bad = SamplingParams(max_tokens=200, logit_bias={68: 100}, structured_outputs=bomb)  # a
    good = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    alone = llm.generate(PROMPT, good)[0].outputs[0].text
    ended, other = llm.generate([PROMPT, PROMPT], [bad, good])
    [output] = ended.outputs
    assert (output.finish_reason, output.refused) == ("error", True)
    assert output.error.startswith("structured_outputs: ")
    assert other.outputs[0].text == alone


def test_compiled_once_and_not_for_ever(grammars, monkeypatch):
    compiled = []
    compile_one = Grammars._compile
    monkeypatch.setattr(
        Grammars, "_compile", lambda self, w: compiled.append(w.text) or compile_one(self, w)
    )
    for i in range(CACHED + 1):
        outputs = StructuredOutputs(regex=f"c{i}")
        assert not grammars.knows(outputs)
        grammars.matcher(outputs)
        grammars.matcher(StructuredOutputs(regex=f"c{i}"))
    assert compiled == [f"c{i}" for i in range(CACHED + 1)]
    assert not grammars.knows(StructuredOutputs(regex="c0"))
    assert grammars.knows(StructuredOutputs(regex=f"c{CACHED}"))


def test_compiling_in_another_thread_has_a_time_limit(grammars, monkeypatch):
    fine = StructuredOutputs(regex="in a thread")
    assert grammars.compile(fine).result(10) is None
    assert grammars.knows(fine)
    with pytest.raises(GrammarError, match="look-around"):
        grammars.compile(StructuredOutputs(regex="(?=a)")).result(10)
    monkeypatch.setattr(grammars_module, "SECONDS", 0.05)
    gate = threading.Event()
    monkeypatch.setattr(Grammars, "_compile", lambda *_: gate.wait(10))
    begun = time.monotonic()
    with pytest.raises(GrammarError, match=r"more than 0.05 seconds"):
        grammars.compile(StructuredOutputs(regex="slow")).result(10)
    assert time.monotonic() - begun < 5
    gate.set()


def test_models_that_have_no_text_or_no_end(tiny):
    with pytest.raises(GrammarError, match="token that ends a text"):
        Grammars(_Characters(), 10, []).matcher(StructuredOutputs(regex="a"))
    elsewhere = Grammars(_Characters(), 10, [7])
    elsewhere.prepare()
    with pytest.raises(ValueError, match=r"has no token \[7\], which ends a text"):
        elsewhere.matcher(StructuredOutputs(regex="a"))
    with pytest.raises(GrammarError, match="need a tokenizer"):
        Grammars(None, 10, [0]).matcher(StructuredOutputs(regex="a"))


def test_without_the_package(grammars, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(ImportError, match=r"pip install 'gossamer\[structured\]'"):
        grammars.matcher(StructuredOutputs(regex="without it"))
    Grammars(_Characters(), 10, [0]).prepare()  # nothing to prepare


def test_bad_params(llm):
    outputs = StructuredOutputs(regex="a")
    with pytest.raises(ValueError, match="ignore_eos is True"):
        SamplingParams(ignore_eos=True, structured_outputs=outputs)
    with pytest.raises(TypeError, match="structured_outputs is dict"):
        SamplingParams(structured_outputs={"regex": "a"})
    with pytest.raises(GrammarError, match="prompt 1: regex: look-around"):
        llm.generate(
            ["x", "y"],
            [SamplingParams(), SamplingParams(structured_outputs=StructuredOutputs(regex="(?=a)"))],
        )
    assert_empty(llm)


def test_logit_bias(llm: LLM):
    free = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=5, logprobs=1))
    likeliest = free[0].outputs[0].token_ids[0]
    banned = SamplingParams(temperature=0, max_tokens=5, logprobs=1, logit_bias={likeliest: -100})
    held = llm.generate(PROMPT, banned)[0].outputs[0]
    assert likeliest not in held.token_ids
    assert held.logprobs[0].top[0][0] == likeliest  # of the model
    wanted = SamplingParams(temperature=0, max_tokens=5, logit_bias={40: 100})
    assert llm.generate(PROMPT, wanted)[0].outputs[0].token_ids == [40] * 5
    with pytest.raises(ValueError, match="logit_bias has token 97; must be 0 to 96"):
        llm.generate(PROMPT, SamplingParams(logit_bias={97: 1}))
    for value, message in (({1: 101}, "1 is 101.0; must be -100"), ({-1: 0}, "has token -1")):
        with pytest.raises(ValueError, match=message):
            SamplingParams(logit_bias=value)
    for value in ({"1": 1}, [1], {1: "x"}, {True: 1}):
        with pytest.raises(TypeError, match="logit_bias"):
            SamplingParams(logit_bias=value)


def test_on_two_ranks(tiny):
    """Rank 0 samples, so it alone has grammars."""
    wanted = [params(kind) for kind in KINDS]
    with cpu_llm(tiny[0]) as llm:
        expected = llm.generate([PROMPT] * len(wanted), wanted)
    with cpu_llm(tiny[0], tensor_parallel_size=2) as llm:
        got = llm.generate([PROMPT] * len(wanted), wanted)
    for kind, mine, theirs in zip(KINDS, got, expected, strict=True):
        check(kind, mine.outputs[0])
        assert mine.outputs[0].text == theirs.outputs[0].text
