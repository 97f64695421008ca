"""The caches that the README recommends are fast, and its short specs are the rows of its table."""

import re

import pytest

from gossamer.kv import Calibration, KVConfig
from gossamer.models import open_model
from tests.docs.snippets import page
from tests.engine.serving import need_smollm2

LEAST = 2.0  # of the fastest dense kernel
ROW = re.compile(r"^\| `([^`]+)` \|.* ([0-9.]+)x \|$", re.MULTILINE)


def recommended() -> list[tuple[str, float]]:
    """Specs and speed-ups of the README's table."""
    found = re.search(
        r"<!-- recommended -->(.*)<!-- /recommended -->", page("README.md"), re.DOTALL
    )
    if found is None:
        pytest.skip("there is no README here")
    return [(spec, float(speed)) for spec, speed in ROW.findall(found[1])]


def test_caches_of_the_readme_decode_twice_as_fast_as_dense():
    speeds = recommended()
    assert len(speeds) >= 5
    assert all(speed >= LEAST for _, speed in speeds), speeds


@pytest.mark.parametrize(("short", "row"), [("coded:23.5%", 0), ("coded:20.5%", 1)])
def test_short_specs_are_rows(short, row):
    need_smollm2()
    assert f"`{short}`" in page("README.md")
    calibration = Calibration.load(open_model("smollm2").calibration)
    assert str(KVConfig.parse(short).resolve(calibration)) == recommended()[row][0]
