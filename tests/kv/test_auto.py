"""Presets: what they mean, and which cache they come to."""

from dataclasses import replace

import pytest
import torch

from gossamer.kv import Calibration, KVConfig, KVShape
from gossamer.kv.auto import LENGTH, Preset, choose
from gossamer.kv.ladder import LADDER, TYPICAL, Loss
from gossamer.kv.speed import DecodeSpeed

SHAPE = KVShape(2, 8, 2, 64)
INT8, KIVI, INT4, CODED, SMALLER, _, TINY, SPARSE = LADDER


def calibration(losses):
    found = Calibration.blank(SHAPE, "toy")
    return replace(found, manifest=replace(found.manifest, losses=losses))


def speeds(factors):
    """By bytes, unless it is said otherwise."""
    resolved = {str(config(spec)): factor for spec, factor in factors.items()}

    def speed(cache):
        factor = resolved.get(str(cache), 1 / cache.share(SHAPE))
        return DecodeSpeed("toy", tuned=True, us=1 / factor, dense_us=1.0, point="here")

    return speed


def config(spec):
    return KVConfig.of(spec, torch.float16).resolve(Calibration.blank(SHAPE, "toy"))


def chosen(text, losses, factors=None):
    losses = {spec: Loss(mean, 0.0) for spec, mean in losses.items()}
    preset = Preset.parse(text)
    return choose(preset, calibration(losses), SHAPE, torch.float16, speeds(factors or {}))


@pytest.mark.parametrize("text", ["dense", "automatic:3", "coded:25%", "", KVConfig()])
def test_other_specs_are_no_presets(text):
    assert Preset.parse(text) is None


@pytest.mark.parametrize(
    "text", ["auto:", "auto:fast", "auto:0%", "auto:101%", "auto:25", "auto:%"]
)
def test_a_preset_that_does_not_exist(text):
    with pytest.raises(ValueError, match=r"must be auto, auto:quality, auto:speed or a share"):
        Preset.parse(text)


def test_auto_takes_the_fastest_within_a_hundredth():
    losses = {INT8: 0.0, KIVI: 0.004, CODED: 0.009, SMALLER: 0.011}
    assert chosen("auto", losses).config == config(CODED)
    assert chosen("auto:quality", losses).config == config(INT8)
    assert chosen("auto:speed", losses).config == config(SMALLER)


def test_what_is_slow_here_is_not_taken():
    losses = {INT8: 0.0, CODED: 0.009}
    assert chosen("auto", losses, {CODED: 0.7}).config == config(INT8)
    everything = dict.fromkeys(losses, 0.7)
    assert chosen("auto", losses, everything).config == KVConfig()


def test_equally_fast_ones_are_told_apart_by_bytes():
    losses = {INT8: 0.0, CODED: 0.009}
    assert chosen("auto", losses, {INT8: 2.0, CODED: 1.95}).config == config(CODED)


def test_a_cache_that_breaks_the_model_is_never_taken():
    losses = {INT8: 0.0, KIVI: 0.003, INT4: 2.5, CODED: 1e9, TINY: 3.0}
    assert chosen("auto:speed", losses).config == config(KIVI)
    assert chosen("auto:33%", losses).config.k == config(KIVI).k


def test_a_budget_takes_the_least_loss_and_fills_up_the_window():
    losses = {CODED: 0.010, SMALLER: 0.02, SPARSE: 0.03}
    found = chosen("auto:25%", losses)
    assert found.config.k == config(CODED).k
    assert found.config.window > 32
    share = found.config.share_at(SHAPE, LENGTH)
    longer = replace(found.config, window=found.config.window + 32)
    assert share <= 0.25 < longer.share_at(SHAPE, LENGTH)
    assert found.rung.share == share


def test_of_losses_that_nobody_can_tell_apart_the_faster_one_wins():
    losses = {CODED: 0.0062, SPARSE: 0.006}
    assert chosen("auto:25%", losses, {SPARSE: 1.2, CODED: 2.5}).config.k == config(CODED).k
    assert chosen("auto:25%", losses, {SPARSE: 2.5, CODED: 1.2}).config.k == config(SPARSE).k
    assert chosen("auto:25%", {CODED: 0.01, SPARSE: 0.006}).config.k == config(SPARSE).k


def test_a_budget_that_nothing_fits_names_the_smallest():
    losses = {CODED: 0.01, TINY: 0.06}
    message = r"no cache fits 2% .* the smallest is .*auto:1[0-9]"
    with pytest.raises(ValueError, match=message) as caught:
        chosen("auto:2%", losses)
    nearest = str(caught.value).rpartition(" ")[2]
    assert chosen(nearest, losses).config.k == config(TINY).k


def test_a_whole_budget_is_dense():
    assert chosen("auto:100%", {INT8: 0.002}).config.share(SHAPE) == 1


def test_without_losses_those_of_smollm2_stand_in_and_it_says_so():
    found = chosen("auto", {})
    assert not found.measured
    assert "(as on SmolLM2)" in str(found)
    assert set(TYPICAL) == set(LADDER)


def test_heads_that_cannot_have_a_cache_are_skipped():
    shape = KVShape(1, 2, 1, 80)  # no groups of 32
    found = Calibration.blank(shape, "toy")
    losses = {KIVI: Loss(0.0, 0.0), INT8: Loss(0.001, 0.0)}
    found = replace(found, manifest=replace(found.manifest, losses=losses))

    def speed(cache):
        return DecodeSpeed("toy", tuned=True, us=cache.share(shape), dense_us=1.0)

    best = choose(Preset.parse("auto"), found, shape, torch.float16, speed)
    assert str(best.config) == INT8


def test_the_line_has_bytes_loss_speed_kernel_and_reason():
    line = str(chosen("auto:25%", {CODED: 0.01}))
    for part in (
        "auto:25%: ",
        "% of dense float16 at 8,192",
        "+0.0100",
        "toy",
        "x; the least loss",
    ):
        assert part in line
    assert "\n" not in line


def test_where_nothing_is_measured_bytes_decide_among_tuned_kernels():
    losses = {INT8: Loss(0.0, 0.0), CODED: Loss(0.01, 0.0), SPARSE: Loss(0.0, 0.0)}

    def speed(cache):
        return DecodeSpeed("toy", tuned=str(cache) != str(config(SPARSE)))

    best = choose(Preset.parse("auto"), calibration(losses), SHAPE, torch.float16, speed)
    assert best.config == config(CODED)
