#!/usr/bin/env bash
# Builds everything and runs the tests: tools/test.sh [PRESET] [-DVARIABLE=VALUE ...]
# PRESET is cpu, cuda, asan or tsan; by default cuda where nvcc is found, else cpu.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh

preset=""
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  preset=$1
  shift
fi
if [ -z "$preset" ]; then
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    preset=cuda
  else
    preset=cpu
  fi
fi

install_packages
cmake --preset "$preset" "$@"
cmake --build --preset "$preset"
exec ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error
