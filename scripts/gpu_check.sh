#!/usr/bin/env bash
# Tests and benchmarks on a machine with a GPU. Needs Python with torch, triton, pytest, hypothesis,
# typer, rich, transformers and safetensors, and no package index.
#
# Uses the wheel in dist/ when there is one (`make wheel` builds it elsewhere), else builds the libraries
# here, with cmake, ninja, nvcc and torch >= 2.13. GOSSAMER_RESULTS is the folder for the result files.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "${PYTHON:-python3}")
[[ $python = /* ]] || python=$PWD/$python
results=$(realpath -m "${GOSSAMER_RESULTS:-benchmarks/results}")
stage=build/gpu-check

rm -rf "$stage"
mkdir -p "$stage"
wheels=(dist/gossamer-*.whl)
if [ "${#wheels[@]}" -gt 1 ]; then
  echo "dist/ holds ${#wheels[@]} wheels; leave one there" >&2
  exit 1
elif [ -f "${wheels[0]}" ]; then
  GOSSAMER_REVISION=$(cat dist/REVISION)
  export GOSSAMER_REVISION
  echo "== using ${wheels[0]}, built from $GOSSAMER_REVISION"
  "$python" -m zipfile -e "${wheels[0]}" "$stage"
else
  echo "== building the libraries here"
  export PATH="$PATH:/usr/local/cuda/bin"
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DGOSSAMER_CUDA=ON \
    -DPython_EXECUTABLE="$python"
  cmake --build build/gpu
  cp -r gossamer "$stage"
  cmake --install build/gpu --prefix "$stage"
fi
cp -r tests benchmarks pyproject.toml "$stage"
cd "$stage"

echo "== doctor"
"$python" -m gossamer.cli.main doctor
echo "== tests"
"$python" -m pytest -q -m gpu -p no:cacheprovider
echo "== benchmarks"
"$python" -m benchmarks.all --device cuda --results "$results"
"$python" -m benchmarks.engine --device cuda --results "$results"
"$python" -m benchmarks.masked_attention --results "$results"
"$python" -m benchmarks.masked_host --results "$results"
"$python" -m benchmarks.masked_attention --plan shapes --seconds 120 --results "$results"
echo "== summary"
"$python" -m benchmarks.report --results "$results"
