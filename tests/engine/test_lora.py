"""LoRA adapters: unmerged is merged, in any batch, cache and order; names, slots and prefixes."""

import pytest
import torch

from gossamer.engine import LLM, SamplingParams
from gossamer.integrations.calibrating import calibrate
from gossamer.models.lora import NO_ADAPTER
from tests.engine.serving import assert_empty, cpu_llm, greedy, record, tokens_of, worst
from tests.engine.test_pieces import ReplayedPieces
from tests.models.adapters import load, rewrite, save_adapter, save_merged
from tests.models.tiny import random_ids, tiny_directory

pytest.importorskip("transformers")
pytest.importorskip("safetensors")

KINDS = {
    "all": {"r": 4},
    "attention": {"r": 8, "targets": ("q_proj", "v_proj"), "lora_alpha": 32},
    "mixed": {
        "r": 2,
        "targets": ("k_proj", "o_proj", "up_proj", "down_proj"),
        "use_rslora": True,
        "rank_pattern": {"up_proj": 5},
        "alpha_pattern": {"k_proj": 9},
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, its adapters by name, and the model with each of them merged."""
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("lora")
    model = tiny_directory("qwen2", path / "base", tie_word_embeddings=False)
    adapters, merged = {}, {None: path / "base"}
    for seed, (name, settings) in enumerate(KINDS.items()):
        adapters[name] = save_adapter(path / name, model, seed=seed, **settings)
        merged[name] = save_merged(model, adapters[name], path / "base", path / f"merged-{name}")
    return path / "base", adapters, merged


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 90, (n,), generator=generator).tolist() for n in (70, 5, 40, 33)]


def logits_of(llm, prompts, lora=None):
    """What is sampled from, for each prompt."""
    seen = record(llm)
    outputs = llm.generate(prompts, greedy(6), lora=lora)
    assert_empty(llm)
    return [seen[output.request_id] for output in outputs], tokens_of(outputs)


@pytest.fixture(scope="module")
def expected(made, prompts):
    """Logits and tokens of the merged models."""
    found = {}
    for name, folder in made[2].items():
        with cpu_llm(folder, max_num_batched_tokens=64) as llm:
            found[name] = logits_of(llm, prompts)
    assert len({str(tokens) for _, tokens in found.values()}) == len(found), "adapters are strong"
    return found


def assert_same(found, expected, names):
    """Of prompt i, what the model with adapter names[i] merged says."""
    for i, name in enumerate(names):
        logits, tokens = expected[name]
        assert found[1][i] == tokens[i]
        assert worst(found[0][i], logits[i]) < 1e-4


NAMES = ["all", "attention", None, "mixed"]


@pytest.mark.parametrize("options", [{}, {"async_scheduling": True}, {"max_num_seqs": 2}])
def test_unmerged_is_merged(made, prompts, expected, options):
    """One adapter for all of a batch, all of them and none in one batch, in chunks of prompts."""
    with cpu_llm(made[0], lora=made[1], max_num_batched_tokens=64, **options) as llm:
        assert llm.loras == tuple(KINDS)
        for name in (*KINDS, None):
            assert_same(logits_of(llm, prompts, name), expected, [name] * len(prompts))
        assert_same(logits_of(llm, prompts, NAMES), expected, NAMES)
        assert_same(logits_of(llm, prompts, NAMES[::-1]), expected, NAMES[::-1])


def test_what_graphs_compute(made, prompts, expected):
    """Steps with prompts in pieces and decode steps as captured: by a mask of slots."""
    with cpu_llm(made[0], lora=made[1], max_num_batched_tokens=64) as llm:
        runner = llm.engine.built.runner
        rows = runner.adapters
        assert rows.kinds == [0, 1, 3]
        plain = ReplayedPieces(runner.decoder, runner.turned, 64)
        for kind in rows.kinds:
            runner.pieces[kind] = plain.adapted(lambda slots, kind=kind: rows.masked(slots, kind))
            runner.pieces[kind].fill((16, 64))
        runner.graphs = Captured(runner)
        for names in (NAMES, ["mixed"] * 4, [None] * 4, [None, "mixed", None, "mixed"]):
            assert_same(logits_of(llm, prompts, names), expected, names)
        assert runner.graphs.kinds == {0, 1, 3}


class Captured:
    """Computes what a CUDA graph of the batch would, filled up with padding."""

    def __init__(self, runner):
        self.runner, self.kinds = runner, set()

    def run(self, ids, positions, rows, kind):
        self.kinds.add(kind)
        padding = [[0], [0], [self.runner.padding_row]]
        numbers = torch.cat([torch.tensor([ids, positions, rows]), torch.tensor(padding)], 1)
        assert self.runner.adapters.slots[self.runner.padding_row] == NO_ADAPTER
        return self.runner._decode_graph(numbers, kind)[: len(ids)]


def test_preempted_sequences_keep_their_adapter(made, prompts, expected):
    with cpu_llm(made[0], lora=made[1], kv_memory="200KB", prefix_caching=False) as llm:
        found = llm.generate(prompts * 2, greedy(40), lora=NAMES * 2)
        assert llm.engine.stats.preemptions > 0
        begins = [tokens[:6] for tokens in tokens_of(found)]
        assert begins == [expected[n][1][i] for i, n in enumerate(NAMES)] * 2
        assert [len(tokens) for tokens in tokens_of(found)] == [40] * 8
        again = llm.generate(prompts, greedy(40), lora=NAMES)
        assert tokens_of(again) == tokens_of(found)[:4]


def test_prefixes_are_the_adapters_own(made, prompts, expected):
    """K and V of one adapter are never read for another, also after its name was given away."""
    prompt = prompts[0]
    folders = dict(made[1])
    with cpu_llm(made[0], lora={"all": folders["all"]}, max_lora_rank=8) as llm:
        for _ in range(2):
            for name in ("all", None):
                [output] = llm.generate([prompt], greedy(6), lora=name)
                assert tokens_of([output]) == [expected[name][1][0]]
        assert output.cached_tokens == 64
        llm.unload_lora("all")
        llm.load_lora("all", folders["attention"])
        [output] = llm.generate([prompt], greedy(6), lora="all")
        assert (output.cached_tokens, tokens_of([output])) == (0, [expected["attention"][1][0]])
        llm.unload_lora("all")
        llm.load_lora("other name", folders["all"])
        [output] = llm.generate([prompt], greedy(6), lora="other name")
        assert output.cached_tokens == 64, "the same adapter"
        assert tokens_of([output]) == [expected["all"][1][0]]


def test_pages_from_another_engine(made, prompts, expected, tmp_path):
    """By --kv-transfer: those of the same adapter, whatever its name and slot."""
    share = {"kv_transfer": tmp_path / "kv"}
    with cpu_llm(made[0], lora=made[1], kv_role="prefill", **share) as llm:
        llm.generate(prompts[:1] * 2, greedy(1), lora=["mixed", None])
    other = {"first": made[1]["all"], "second": made[1]["mixed"]}
    with cpu_llm(made[0], lora=other, kv_role="decode", **share) as llm:
        for name, own, cached in (("second", "mixed", 64), ("first", "all", 0), (None, None, 64)):
            [output] = llm.generate(prompts[:1], greedy(6), lora=name)
            assert (output.cached_tokens, tokens_of([output])) == (cached, [expected[own][1][0]])


def test_added_and_removed_while_requests_run(made, prompts, expected):
    base, folders, _ = made
    with cpu_llm(base, max_loras=2, max_lora_rank=8) as llm:
        llm.load_lora("a", folders["all"])
        running = llm.add_request(prompts[0], greedy(6), lora="a")
        llm.add_request(prompts[1], greedy(3))  # without one
        request = llm.engine.requests[running].output
        llm.step()
        llm.load_lora("b", folders["mixed"])
        llm.unload_lora("a")  # which goes on
        with pytest.raises(ValueError, match="lora is 'a'; must be one of 'b'"):
            llm.generate([[5]], lora="a")
        with pytest.raises(ValueError, match="1 adapters are loaded, and 1 removed ones still"):
            llm.load_lora("c", folders["attention"])
        llm.engine.abort(llm.add_request([5], lora="b"))
        while llm.engine.busy:
            llm.step()
        assert tokens_of([request]) == [expected["all"][1][0]]
        llm.load_lora("c", folders["attention"])
        found = llm.generate(prompts[:1] * 3, greedy(6), lora=["b", "c", None])
        wanted = [expected[name][1][0] for name in ("mixed", "attention", None)]
        assert tokens_of(found) == wanted
        with pytest.raises(ValueError, match="'b' is loaded already"):
            llm.load_lora("b", folders["all"])
        with pytest.raises(ValueError, match="2 adapters are loaded; max_loras is 2"):
            llm.load_lora("d", folders["all"])
        assert llm.loras == ("b", "c")


@pytest.mark.parametrize("kv", ["sparse:k=8,v=8", "k=dense:int8,v=dense:int8"])
def test_compressed_caches(made, prompts, kv):
    """Alone and in one batch; merged or not, the cache stores the same K and V."""
    with cpu_llm(made[0], kv=kv, lora=made[1]) as llm:
        together = logits_of(llm, prompts, NAMES)[0]
        alone = [logits_of(llm, [p], n)[0][0] for p, n in zip(prompts, NAMES, strict=True)]
    assert max(map(worst, together, alone)) < 1e-4
    with cpu_llm(made[2]["all"], kv=kv) as llm:
        assert worst(together[0], logits_of(llm, prompts[:1])[0][0]) < 1e-3


def test_a_folded_basis(tmp_path, prompts):
    """V's basis is in the weights of V and of the output: adapters of both are turned, too."""
    torch.manual_seed(2)
    model = tiny_directory("llama", tmp_path / "base", head_dim=64)
    folder = save_adapter(tmp_path / "a", model, targets=("v_proj", "o_proj"))
    merged = save_merged(model, folder, tmp_path / "base", tmp_path / "merged")
    file = tmp_path / "calibration.safetensors"
    calibrate(model, random_ids(400), context=100).save(file)
    # Nothing leaves the window, so that the basis alone makes a difference.
    kv = "k=dense:fp32,v=dense:int8,v_basis=pca,window=512"
    with cpu_llm(tmp_path / "base", kv=kv, calibration=file, lora={"a": folder}) as llm:
        found = logits_of(llm, prompts, "a")
    with cpu_llm(merged) as llm:
        plain = logits_of(llm, prompts)
    assert found[1] == plain[1]
    assert max(map(worst, found[0], plain[0])) < 1e-3


def test_tensor_parallelism(made, prompts, expected):
    """A and B are cut as their weights are; an adapter that comes later reaches all ranks."""
    first = {"all": made[1]["all"]}
    options = {"tensor_parallel_size": 2, "lora": first, "max_loras": 3, "max_lora_rank": 8}
    with cpu_llm(made[0], **options) as llm:
        llm.load_lora("attention", made[1]["attention"])
        llm.load_lora("mixed", made[1]["mixed"])
        found = llm.generate(prompts, greedy(6), lora=NAMES)
        assert tokens_of(found) == [expected[name][1][i] for i, name in enumerate(NAMES)]


def test_several_outputs_of_one_request(made, prompts):
    params = SamplingParams(n=3, seed=5, max_tokens=8, ignore_eos=True)
    with cpu_llm(made[2]["all"]) as llm:
        [wanted] = llm.generate(prompts[:1], params)
    with cpu_llm(made[0], lora=made[1]) as llm:
        [found] = llm.generate(prompts[:1], params, lora="all")
        chat = [delta.text for delta in llm.stream(prompts[:1], greedy(2), lora="mixed")]
    assert [o.token_ids for o in found.outputs] == [o.token_ids for o in wanted.outputs]
    assert len(chat) == 2


# ---- what is refused ----------------------------------------------------------------------


def test_bad_names_and_limits(made):
    base, folders, _ = made
    with pytest.raises(ValueError, match=r"the adapter's name is ''; must be 1 to 200 printable"):
        LLM(base, lora={"": folders["all"]})
    with pytest.raises(ValueError, match="max_loras is 1; must be an integer of at least 3"):
        LLM(base, lora=folders, max_loras=1)
    with pytest.raises(TypeError, match="lora is list; must be folders by name"):
        LLM(base, lora=["x"])
    with pytest.raises(ValueError, match="'attention' has rank 8; max_lora_rank is 4"):
        LLM(base, lora=folders, max_lora_rank=4)
    with pytest.raises(FileNotFoundError, match=r"'x': .*nowhere: has no adapter_config.json"):
        LLM(base, lora={"x": base / "nowhere"})
    with cpu_llm(base) as llm:
        with pytest.raises(ValueError, match="prompt 0: lora is 'x'; must be None: no adapter"):
            llm.generate([[5]], lora="x")
        with pytest.raises(ValueError, match="2 names in lora for 1 prompts"):
            llm.generate([[5]], lora=["x", "y"])
        with pytest.raises(ValueError, match="0 adapters are loaded; max_loras is 0"):
            llm.load_lora("x", folders["mixed"])
        with pytest.raises(ValueError, match="lora is 'x'"):
            llm.unload_lora("x")
        assert_empty(llm)


def _settings(**changes):
    return lambda settings, tensors: settings.update(changes)


def _q(side):
    return f"base_model.model.model.layers.1.self_attn.q_proj.lora_{side}.weight"


BAD = {
    "dora": (_settings(use_dora=True), "use_dora is True; adapters with it are not supported"),
    "modules": (_settings(modules_to_save=["lm_head"]), r"modules_to_save is \['lm_head'\]"),
    "bias": (_settings(bias="all"), "bias is 'all'; must be 'none'"),
    "kind": (_settings(peft_type="LOHA"), "peft_type is 'LOHA'; must be 'LORA'"),
    "pissa": (_settings(init_lora_weights="pissa"), "init_lora_weights is 'pissa'"),
    "new": (_settings(use_magic=3), "use_magic is 3; adapters with it are not supported"),
    "rank": (_settings(r=0), "r is 0; must be an integer of 1 to 1024"),
    "other rank": (_settings(r=5), r"lora_A.weight is \[4, 96\]; must be \[5, 96\] with rank 5"),
    "regex": (_settings(rank_pattern={"(.+)+x": 4}), r"a pattern is '\(\.\+\)\+x'; must be a name"),
    "alpha": (_settings(lora_alpha="x"), "lora_alpha is 'x'; must be a finite number"),
    "missing": (lambda _, t: t.pop(_q("B")), rf"{_q('B')} is missing"),
    "embeddings": (
        lambda _, t: t.update({"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 64)}),
        "lm_head.lora_A.weight: only lora_A and lora_B of layers",
    ),
    "shape": (
        lambda _, t: t.update({_q("B"): torch.zeros(63, 4)}),
        r"\[63, 4\]; must be \[64, 4\]",
    ),
    "nan": (lambda _, t: t[_q("A")].fill_(float("nan")), r"lora_A.weight is not finite"),
    "integers": (lambda _, t: t.update({_q("A"): torch.ones(4, 64).int()}), "of torch.int32"),
    "layers": (
        lambda _, t: t.update({_q("A").replace("layers.1", "layers.9"): torch.zeros(4, 64)}),
        "layers.9.self_attn.q_proj.lora_A.weight: the model has 3 layers",
    ),
    "empty": (lambda _, t: t.clear(), "has no tensors"),
}


@pytest.mark.parametrize("kind", BAD)
def test_adapters_that_cannot_be_used(made, tmp_path, kind):
    """The field or the tensor is named, and the engine goes on."""
    change, message = BAD[kind]
    settings, tensors = load(made[1]["all"])
    change(settings, tensors)
    (tmp_path / "bad").mkdir()
    rewrite(tmp_path / "bad", settings, tensors)
    with pytest.raises(ValueError, match=message):
        LLM(made[0], lora={"bad": tmp_path / "bad"})


def test_files_that_cannot_be_read(made, tmp_path):
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("[]")
    (folder / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"no adapter_model.safetensors.*a pickle, is not"):
        LLM(made[0], lora={"bad": folder})
    (folder / "adapter_model.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="is a list; must be an object"):
        LLM(made[0], lora={"bad": folder})
    settings, _ = load(made[1]["all"])
    (folder / "adapter_config.json").write_text(__import__("json").dumps(settings))
    with pytest.raises(ValueError, match=r"adapter_model.safetensors: not an adapter"):
        LLM(made[0], lora={"bad": folder})
