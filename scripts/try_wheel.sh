#!/usr/bin/env bash
# try_wheel.sh WHEEL TORCH_VERSION: install a wheel into a fresh environment and use it from elsewhere.
set -euo pipefail
wheel=$(realpath "$1")
torch=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" --disable-pip-version-check --quiet)
"${pip[@]}" install "torch==$torch"
"${pip[@]}" install "$wheel"
cd "$folder"
venv/bin/gossamer doctor
venv/bin/python - <<'SMOKE'
import torch
import gossamer

x, bias = torch.randn(5, 33), torch.randn(33)
want = torch.nn.functional.gelu(x + bias)
torch.testing.assert_close(gossamer.ops.fused_add_gelu(x, bias, backend="cpu"), want)
torch.testing.assert_close(torch.ops.gossamer.fused_add_gelu(x, bias), want)
print("gossamer", gossamer.__version__, "works from", gossamer.__file__)
SMOKE
