#!/usr/bin/env bash
# Looks at the sources without building them:
#   tools/lint.sh
# has clang-format 14 and shellcheck look at all tracked files, and changes none.
#   tools/lint.sh format
# formats them.
#   tools/lint.sh tidy [PATH ...]
# has clang-tidy 14 look at the sources of the CPU build, or those in some folders; the checks are in
# .clang-tidy. All take twenty minutes on two cores.
# What is not installed is skipped with a note.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0

# The first of some names that is a program.
first_of() {
  local name
  for name in "$@"; do
    if command -v "$name" >/dev/null; then
      echo "$name"
      return
    fi
  done
}

skipped() {
  echo "skipped: there is no $1" >&2
}

# Other versions format differently.
clang_format=$(first_of clang-format-14 clang-format)
if [ -n "$clang_format" ] && ! "$clang_format" --version | grep -q 'version 14\.'; then
  clang_format=""
fi
mapfile -t sources < <(git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')

format() {
  if [ -z "$clang_format" ]; then
    skipped "clang-format 14"
    return
  fi
  printf '%s\0' "${sources[@]}" | xargs -0 -n 32 -P "$(nproc)" "$clang_format" "$@" || failed=1
}

check_scripts() {
  local scripts
  # Those without an ending begin with the name of a shell.
  mapfile -t scripts < <(
    git ls-files '*.sh'
    git grep -lE '^#!.*\b(ba|da)?sh\b' -- ':!*.sh' ':!*.md' ':!*.cpp' ':!tests/data'
  )
  if ! command -v shellcheck >/dev/null; then
    skipped shellcheck
    return
  fi
  shellcheck --external-sources "${scripts[@]}" || failed=1
}

tidy() {
  local run
  run=$(first_of run-clang-tidy-14)
  if [ -z "$run" ]; then
    skipped "clang-tidy 14"
    return
  fi
  cmake --preset cpu >&2
  cmake --build --preset cpu --target sparsellm_version >&2
  local paths=()
  local path
  # The library that clang 14 reads has no std::source_location.
  for path in "${@:-.}"; do
    paths+=("^(?!.*/source_path_test)$(realpath "$path")(/|$)")
  done
  "$run" -quiet -p build/cpu "${paths[@]}" || failed=1
}

case ${1-} in
  "")
    format --dry-run -Werror
    check_scripts
    ;;
  format) format -i ;;
  tidy) tidy "${@:2}" ;;
  *)
    echo "usage: tools/lint.sh [format | tidy [PATH ...]]" >&2
    exit 2
    ;;
esac
exit "$failed"
