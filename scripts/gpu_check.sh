#!/usr/bin/env bash
# Tests and benchmarks on a machine with a GPU. Needs Python with torch, triton, pytest, hypothesis,
# typer, rich, transformers and safetensors, and no package index.
#
# Uses the wheel in dist/ when there is one (`make wheel` builds it elsewhere), else builds the libraries
# here, with cmake, ninja, nvcc and torch >= 2.13. GOSSAMER_RESULTS is the folder for the result files.
#
# Arguments: the parts to run, of doctor, tests, ops, engine, masked and checks; all by default. With pytest-xdist tests
# run on all cores.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "${PYTHON:-python3}")
[[ $python = /* ]] || python=$PWD/$python
results=$(realpath -m "${GOSSAMER_RESULTS:-benchmarks/results}")
stage=build/gpu-check
parts=("$@")
[ "${#parts[@]}" -gt 0 ] || parts=(doctor tests ops engine masked checks)
for part in "${parts[@]}"; do
  case $part in doctor | tests | ops | engine | masked | checks) ;;
  *) echo "there is no part $part; must be doctor, tests, ops, engine, masked or checks" >&2 && exit 2 ;; esac
done

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
# What check-op looks at: sources, tests and docs.
cp -r tests benchmarks pyproject.toml CMakeLists.txt csrc docs README.md "$stage"
cd "$stage"

run_doctor() { "$python" -m gossamer.cli.main doctor; }
run_tests() {
  local cores=()
  "$python" -c "import xdist" 2> /dev/null && cores=(--numprocesses auto --dist worksteal)
  "$python" -m pytest -q -m gpu -p no:cacheprovider "${cores[@]}"
}
run_ops() { "$python" -m benchmarks.suites.all --device cuda --results "$results"; }
run_engine() {
  "$python" -m benchmarks.end_to_end.engine --device cuda --results "$results"
  "$python" -m benchmarks.end_to_end.prefill --device cuda --results "$results"
}
run_masked() {
  "$python" -m benchmarks.suites.masked_attention --results "$results"
  "$python" -m benchmarks.suites.masked_host --results "$results"
  "$python" -m benchmarks.suites.masked_attention --points shapes --seconds 180 --results "$results"
  "$python" -m benchmarks.suites.masked_attention --points families --seconds 180 --results "$results"
}
run_checks() { "$python" -m gossamer.cli.main check-op --all --results benchmarks/results; }

for part in "${parts[@]}"; do
  echo "== $part"
  "run_$part"
done
echo "== summary"
"$python" -m benchmarks.reports.pages --results "$results"
