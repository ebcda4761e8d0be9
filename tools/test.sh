#!/usr/bin/env bash
# Builds everything and runs the tests: tools/test.sh [PRESET] [-DVARIABLE=VALUE ...]
# PRESET is cpu, cuda, asan or tsan; by default cuda where there is nvcc, else cpu.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh

take_preset "$@"

install_packages
cmake --preset "$preset" "${options[@]}"
cmake --build --preset "$preset"
some=()
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
  echo "There is no GPU: the tests that need one (ctest's label gpu) are not run." >&2
  some=(--label-exclude gpu)
fi
exec ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error "${some[@]}"
