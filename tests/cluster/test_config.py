"""What a deployment may be, and what a cluster must have for it."""

import pytest

from gossamer.cluster.config import ClusterConfig, Routing
from gossamer.cluster.run import check_resources


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
        ({"model": "m", "replicas": 0}, "replicas is 0; must be at least 1"),
        ({"model": "m", "replicas": 3, "max_replicas": 2}, "max_replicas is 2; must be at least 3"),
        ({"model": "m", "cpus": 0}, "cpus is 0; must be above 0"),
        ({"model": "m", "target_requests": 0}, "target_requests is 0; must be above 0"),
        ({"model": "m", "caches": ()}, "caches is empty"),
        ({"model": "m", "engine": {"max_num_seqs": 0}}, "max_num_seqs is 0"),
        ({"model": "m", "engine": {"speed": 1}}, "speed"),
        ({"model": "m", "routing": {"share": 2}}, "share is 2; must be 0 to 1"),
    ],
)
def test_bad_arguments(args, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ClusterConfig.parse(args)


def test_what_a_cluster_must_have():
    config = ClusterConfig(model="m", replicas=3, engine={"tensor_parallel_size": 2})
    check_resources(config, {"CPU": 6, "GPU": 6})
    check_resources(config, {"CPU": 6})  # on CPUs
    message = "replicas is 3, which need 6 CPU, 6 GPU; the cluster has 8 CPU, 4 GPU"
    with pytest.raises(ValueError, match=message):
        check_resources(config, {"CPU": 8, "GPU": 4})
    message = "replicas is 3, which need 6 CPU; the cluster has 2 CPU"
    with pytest.raises(ValueError, match=message):
        check_resources(config, {"CPU": 2})
