#!/usr/bin/env bash
# Builds the programs and libraries, without tests, and packs them for Debian or Ubuntu, whichever
# this is: tools/package.sh [PRESET] [-DVARIABLE=VALUE ...]; PRESET is cpu or cuda, by default as in
# tools/test.sh. The packages are in build/packages.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh

take_preset "$@"
build=build/$preset-package

packages+=(file)  # which cpack asks what a program is
install_packages
cmake --preset "$preset" -B "$build" -DSPARSELLM_TESTS=OFF -DSPARSELLM_BENCHMARKS=OFF "${options[@]}"
cmake --build "$build"
cpack --config "$build/CPackConfig.cmake" -B "$PWD/build/packages"
