#!/usr/bin/env bash
# Lets every call of the C library of whole programs fail once, and kills them at every write:
# tools/integrity.sh [run|batch|forced_batch|convert|forced_convert|eval]. The tests do so for a sample
# of the calls; all take long.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh
install_packages
cmake --preset cpu
cmake --build --preset cpu --target integrity_test
SPARSELLM_INTEGRITY=all exec build/cpu/bin/integrity_test \
  --gtest_filter="Programs/Integrity.OfEveryCallThatFails/${1:-*}"
