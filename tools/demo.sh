#!/usr/bin/env bash
# Builds sparsellm-run for the CPU and continues a fairy tale with the 8-million-parameter model of
# tests/data. Options are passed on, e.g. tools/demo.sh -p "The old king" --temp 0.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh

install_packages
if [ ! -f build/cpu/build.ninja ]; then
  cmake --preset cpu >&2
fi
cmake --build --preset cpu --target sparsellm-run >&2

options=("$@")
if [ ${#options[@]} -eq 0 ]; then
  options=(-p "Once upon a time there was a king who had three daughters" -n 200 --echo)
fi
exec build/cpu/bin/sparsellm-run -m tests/data/models/fable-llama-relu-8m "${options[@]}"
