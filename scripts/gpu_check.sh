#!/usr/bin/env bash
# Tests and benchmarks on a machine with a GPU. Needs Python with torch, triton, pytest, hypothesis,
# typer and rich, and no package index.
#
# Uses the wheel in dist/ when there is one (`make gpu-bundle` builds it elsewhere), else builds the
# libraries here. GOSSAMER_RESULTS is the folder for the result files.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
results=$(realpath -m "${GOSSAMER_RESULTS:-benchmarks/results}")
stage=build/gpu-check

rm -rf "$stage"
mkdir -p "$stage"
if compgen -G "dist/gossamer-*.whl" > /dev/null; then
  echo "== using $(ls dist/gossamer-*.whl)"
  "$python" -m zipfile -e dist/gossamer-*.whl "$stage"
  if [ -f dist/REVISION ]; then GOSSAMER_REVISION=$(cat dist/REVISION); export GOSSAMER_REVISION; fi
else
  echo "== building the libraries here"
  export PATH="$PATH:/usr/local/cuda/bin"
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DGOSSAMER_CUDA=ON \
    -DPython_EXECUTABLE="$(command -v "$python")"
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
echo "== summary"
"$python" -m benchmarks.report --results "$results"
