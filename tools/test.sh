#!/usr/bin/env bash
# Builds everything and runs the tests: tools/test.sh [PRESET] [-DVARIABLE=VALUE ...]
# PRESET is cpu, cuda, asan or tsan; by default cuda where there is nvcc, else cpu.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh

if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  preset=$1
  shift
else
  preset=$(default_preset)
fi

install_packages
cmake --preset "$preset" "$@"
cmake --build --preset "$preset"
exec ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error
