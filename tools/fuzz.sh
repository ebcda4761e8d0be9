#!/usr/bin/env bash
# Runs the fuzz targets of tests/fuzz, by default all of them:
#   tools/fuzz.sh SECONDS [TARGET ...]
# Builds them with clang, and runs each target for SECONDS, as many at a time as there are cores.
# They begin with what is kept in tests/fuzz/corpus, and with seeds that are made of the models of
# tests/data. What a run learns stays in build/fuzz/corpus for the next one; inputs that break
# something are kept in build/fuzz/crashes. The exit code is 1 if there are any;
# build/fuzz/bin/replay_TARGET FILE runs one again.
#   tools/fuzz.sh --minimise [TARGET ...]
# makes tests/fuzz/corpus anew: of all inputs that are there, the smallest that reach every place in
# the code that all of them together reach. The tests run them.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tools/setup.sh
. "$root/tools/setup.sh"

usage() {
  echo "usage: tools/fuzz.sh SECONDS|--minimise [TARGET ...]; the targets are: ${all_targets[*]}" >&2
  exit 2
}

all_targets=()
for source in "$root"/tests/fuzz/*_fuzz.cpp; do
  source=${source##*/}
  all_targets+=("${source%_fuzz.cpp}")
done
[[ "${1-}" =~ ^([1-9][0-9]{0,5}|--minimise)$ ]] || usage
duration=$1
shift
targets=("$@")
if [ $# -eq 0 ]; then
  targets=("${all_targets[@]}")
fi
for target in "${targets[@]}"; do
  [ -f "$root/tests/fuzz/${target}_fuzz.cpp" ] || usage
done

command -v clang++ >/dev/null || packages+=(clang libclang-rt-dev)
command -v python3 >/dev/null || packages+=(python3)
install_packages
build="$root/build/fuzz"
kept="$root/tests/fuzz/corpus"
if [ ! -f "$build/build.ninja" ]; then
  (cd "$root" && cmake --preset fuzz >&2)
fi
build_targets=(encoding_seeds)
for target in "${targets[@]}"; do
  build_targets+=("fuzz_$target" "replay_$target")
done
cmake --build "$build" --target "${build_targets[@]}" >&2

# The targets write every input to a file, which should stay in memory.
scratch=$(mktemp -d -p "$(test -w /dev/shm && echo /dev/shm || echo "${TMPDIR:-/tmp}")" \
  sparsellm-fuzz-XXXXXX)
export TMPDIR=$scratch
running=0
# shellcheck disable=SC2317  # the trap calls it
cleanup() {
  if [ "$running" -gt 0 ]; then
    # shellcheck disable=SC2046  # one word per process
    kill $(jobs -p) 2>/dev/null || true
    wait || true
  fi
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

rm -rf "$build/seeds"
python3 "$root/tests/fuzz/make_seeds.py" "$build/seeds"
"$build/bin/encoding_seeds" "$build/seeds"

# A crash has to end the program; an allocation that cannot be had is a std::bad_alloc, as without
# the sanitizers.
export ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1:malloc_context_size=8

# Of an input; what breaks something does so with less.
max_len=16384

run_target() {
  local target=$1
  local corpus="$build/corpus/$target"
  local crashes="$build/crashes/$target"
  mkdir -p "$corpus" "$crashes" "$kept/$target"
  "$build/bin/replay_$target" "$build/seeds/$target"/* || return 1
  local options=(-max_len="$max_len")
  case $target in
    # In large programs the bookkeeping of entropic schedules takes longer than the programs. A
    # script begins with several lines.
    convert | model_directory) options=(-entropic=0 -max_len=600 -len_control=0) ;;
  esac
  exec "$build/bin/fuzz_$target" -max_total_time="$duration" "${options[@]}" -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 \
    -dict="$root/tests/fuzz/$target.dict" \
    -artifact_prefix="$crashes/" "$corpus" "$kept/$target" "$build/seeds/$target"
}

# Without counters it does not matter how often a place is reached, which few inputs show.
minimise_target() {
  local target=$1
  local result="$build/minimised/$target"
  rm -rf "$result"
  mkdir -p "$result" "$build/corpus/$target" "$kept/$target"
  "$build/bin/fuzz_$target" -merge=1 -use_counters=0 -max_len="$max_len" -timeout=10 \
    -rss_limit_mb=2048 "$result" "$kept/$target" "$build/corpus/$target" \
    "$build/seeds/$target" >"$build/logs/$target" 2>&1
  rm -rf "${kept:?}/$target"
  cp -r "$result" "$kept/$target"
  printf '%-18s %6s files %8s bytes\n' "$target" "$(find "$kept/$target" -type f | wc -l)" \
    "$(find "$kept/$target" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum + 0 }')"
}

# The last number after a word of a target's log.
number_after() {
  local found
  found=$(grep -oE "$1:? +[0-9]+" "$2" | tail -n 1 | grep -oE '[0-9]+$') || found="-"
  echo "$found"
}

# Where the input is that broke something; nothing if none did.
broken_input() {
  grep -oE 'Test unit written to .*' "$1" | tail -n 1 | cut -d ' ' -f 5- || true
}

report() {
  local target=$1
  local status=$2
  local log="$build/logs/$target"
  local result="ok"
  local input
  if [ "$status" -ne 0 ]; then
    input=$(broken_input "$log")
    result="FAILED: ${input:-see $log}"
  fi
  printf '%-18s %10s %7s %8s %7s %6s MB  %s\n' "$target" \
    "$(number_after stat::number_of_executed_units "$log")" \
    "$(number_after stat::average_exec_per_sec "$log")" "$(number_after cov "$log")" \
    "$(number_after corp "$log")" "$(number_after stat::peak_rss_mb "$log")" "$result"
}

# What went wrong, and the input, so that they can be had from a log of CI, too.
show_failure() {
  local log="$build/logs/$1"
  local input
  tail -n 40 "$log" | cut -c 1-500
  input=$(broken_input "$log")
  if [ -f "$input" ]; then
    echo "the input, base64 of gzip:"
    gzip -9c "$input" | base64
  fi
}

failed=0
declare -A target_of
collect_one() {
  local status=0
  local pid
  wait -n -p pid || status=$?
  running=$((running - 1))
  report "${target_of[$pid]}" "$status"
  if [ "$status" -ne 0 ]; then
    failed=1
    show_failure "${target_of[$pid]}"
  fi
}

mkdir -p "$build/logs"
if [ "$duration" = --minimise ]; then
  for target in "${targets[@]}"; do
    minimise_target "$target"
  done
  exit
fi
printf '%-18s %10s %7s %8s %7s %9s  %s\n' target executions exec/s coverage corpus "peak RSS" result
for target in "${targets[@]}"; do
  while [ "$running" -ge "$(nproc)" ]; do
    collect_one
  done
  run_target "$target" >"$build/logs/$target" 2>&1 &
  target_of[$!]=$target
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  collect_one
done
exit "$failed"
