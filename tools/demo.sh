#!/usr/bin/env bash
# Builds sparsellm-run for the CPU and continues a fairy tale with the 8-million-parameter model of
# tests/data. Options are passed on, e.g. tools/demo.sh -p "The old king" --temp 0.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tools/setup.sh
. "$root/tools/setup.sh"

install_packages
if [ ! -f "$root/build/cpu/build.ninja" ]; then
  (cd "$root" && cmake --preset cpu >&2)
fi
cmake --build "$root/build/cpu" --target sparsellm-run >&2

prompt=(-p "Once upon a time there was a king who had three daughters" --echo)
length=(-n 200)
for option in "$@"; do
  case "$option" in
    -p* | --prompt* | -f* | --file* | -h | --help | --version) prompt=() ;;
    -n* | --predict* | --n-predict*) length=() ;;
  esac
done
exec "$root/build/cpu/bin/sparsellm-run" -m "$root/tests/data/models/fable-llama-relu-8m" \
  ${prompt[@]+"${prompt[@]}"} ${length[@]+"${length[@]}"} "$@"
