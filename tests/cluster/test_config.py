"""What a deployment may be, and what a cluster must have for it."""

import pytest

from gossamer.cluster.config import ClusterConfig, Routing


def test_from_the_arguments_of_a_config_file():
    config = ClusterConfig.parse(
        {
            "model": "/models/llama",
            "caches": "coded:23.5%",
            "engine": {"max_num_seqs": 64, "tensor_parallel_size": 2},
            "settings": {"model": "llama", "limits": {"queue": 10}, "hosts": ["a.example"]},
            "replicas": 2,
            "max_replicas": 4,
            "routing": {"slack": 3},
        }
    )
    assert (config.settings.model, config.settings.hosts) == ("llama", ("a.example",))
    assert config.most_requests == 74
    assert config.routing == Routing(slack=3)
    assert config.start.caches == ("coded:23.5%",)
    assert config.start.options["launcher"] == "ray"
    assert config.bundle({"CPU": 8, "GPU": 2}) == {"CPU": 1, "GPU": 1}
    assert config.bundle({"CPU": 8}) == {"CPU": 1}
    assert ClusterConfig.parse({"model": "a/tiny"}).settings.model == "tiny"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"model": "m", "replica": 2}, "args has 'replica'; must be some of model, caches"),
        ({"model": "m", "settings": {"limits": {"que": 1}}}, "limits has 'que'"),
        ({"model": "m", "settings": 3}, "settings is 3; must be a mapping"),
        ({"model": "m", "replicas": 0}, "replicas is 0; must be an integer of at least 1"),
        ({"model": "m", "replicas": "2"}, "replicas is '2'; must be an integer"),
        ({"model": "m", "replicas": 3, "max_replicas": 2}, "max_replicas is 2; .* at least 3"),
        ({"model": "m", "cpus": 0}, "cpus is 0; must be a number above 0"),
        ({"model": "m", "target_requests": 0}, "target_requests is 0; must be a number above 0"),
        ({"model": "m", "caches": ()}, r"caches is \(\); must name at least one"),
        ({"model": "m", "caches": 3}, "caches is 3; must be a list"),
        ({"model": "m", "settings": {"origins": "http://x"}}, "origins is 'http://x'; must be a"),
        ({"model": "m", "settings": {"profiles": "/x"}}, "profiles is /x; cannot be had"),
        ({"model": "m", "settings": {"limits": {"body": "much"}}}, "body is 'much'"),
        (
            {"model": "m", "engine": {"tensor_parallel_size": 2, "launcher": "spawn"}},
            "launcher is 'spawn'; must be ray",
        ),
        ({"model": "m", "engine": {"max_num_seqs": 0}}, "max_num_seqs is 0"),
        ({"model": "m", "engine": {"speed": 1}}, "speed"),
        ({"model": "m", "routing": {"share": 2}}, "share is 2; must be 0 to 1"),
    ],
)
def test_bad_arguments(args, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ClusterConfig.parse(args)


def test_keys_and_adapters_of_replicas(tmp_path):
    """Names of keys and adapters of options reach replicas; what one process counts does not."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[a]\nkey = "x"')
    settings = {"api_keys": str(keys), "log_format": "json"}
    engine = {"lora": {"a": "/adapters/a"}}
    config = ClusterConfig.parse({"model": "m", "settings": settings, "engine": engine})
    assert config.start.options["lora"] == {"a": "/adapters/a"}
    assert (config.settings.api_keys, config.start.log_format) == (keys, "json")
    keys.write_text('[a]\nkey = "x"\ntokens_per_minute = 9')
    with pytest.raises(ValueError, match="has limits per minute, which are not counted over rep"):
        ClusterConfig.parse({"model": "m", "settings": settings})
    with pytest.raises(ValueError, match=r"lora_dir is .*; adapters of replicas are those of lora"):
        ClusterConfig.parse({"model": "m", "settings": {"lora_dir": str(tmp_path)}})


def test_what_a_cluster_must_have():
    config = ClusterConfig(model="m", replicas=3, engine={"tensor_parallel_size": 2})
    config.check({"CPU": 6, "GPU": 6}, [{"CPU": 6, "GPU": 6}])
    config.check({"CPU": 6}, [{"CPU": 6}])  # on CPUs
    message = "replicas is 3, which need 6 CPU, 6 GPU; the cluster has 8 CPU, 4 GPU"
    with pytest.raises(ValueError, match=message):
        config.check({"CPU": 8, "GPU": 4}, [{"CPU": 8, "GPU": 4}])
    with pytest.raises(ValueError, match="replicas is 3, which need 6 CPU; the cluster has 2 CPU"):
        config.check({"CPU": 2}, [{"CPU": 2}])
    wide = ClusterConfig(model="m", cpus=6)
    with pytest.raises(ValueError, match="a rank needs 6 CPU on one node; no node has as many"):
        wide.check({"CPU": 8}, [{"CPU": 4}, {"CPU": 4}])
    on_gpus = ClusterConfig(model="m", engine={"device": "cuda"})
    with pytest.raises(ValueError, match="which need 1 CPU, 1 GPU; the cluster has 8 CPU, 0 GPU"):
        on_gpus.check({"CPU": 8}, [{"CPU": 8}])
