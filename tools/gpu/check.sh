#!/usr/bin/env bash
# Checks the CUDA device on a machine that has one: tools/gpu/check.sh [BUILD [CMAKE-ARGUMENT ...]]
# Builds the tests in the folder BUILD (build/gpu by default; one that is built already stays as it
# is), for the GPU that is there, and runs: the programs with the labels gpu and gpu2 (the latter needs
# two GPUs, and says so), those with the label of a tool of compute-sanitizer (memcheck, racecheck,
# synccheck) under it too, and the tools on the demo models. Prints a table and fails if anything did.
# Without PCRE2 or utf8proc (install them or pass -DPCRE2_ROOT=DIR, -DUTF8PROC_ROOT=DIR) the tests
# that need their tokenizers are skipped.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

build=${1:-build/gpu}
shift || true
started=$SECONDS
failed=0
table=""

note() { table+=$(printf '%-36s %-6s %6d s  %s' "$1" "$2" "$3" "$4")$'\n'; }

# step NAME COMMAND ...: runs it, with its output in a log, of which a failure shows the end.
step() {
  local name=$1 log begin=$SECONDS summary
  shift
  log=$build/check-${name// /-}.log
  if "$@" >"$log" 2>&1; then
    summary=$(grep -E "PASSED|ERROR SUMMARY|RACECHECK SUMMARY|perplexity" "$log" | tail -n 1)
    note "$name" ok $((SECONDS - begin)) "$summary"
  else
    failed=1
    note "$name" FAILED $((SECONDS - begin)) "see $log"
    grep -E "Failure|FAILED|Error|error|=========" "$log" | head -n 60
    tail -n 15 "$log"
  fi
}

# programs_with LABEL: the test programs with this label.
programs_with() {
  awk -v label="$1" '{ for (i = 2; i <= NF; ++i) if ($i == label) print $1 }' \
    "$build/test_labels.txt"
}

is_built() {
  [ -s "$build/test_labels.txt" ] || return 1
  local program
  for program in $(programs_with gpu) sparsellm-run sparsellm-eval; do
    [ -x "$build/bin/$program" ] || return 1
  done
}

if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
  PATH=$PATH:/usr/local/cuda/bin
fi
if ! is_built; then
  mkdir -p "$build"
  options=(-DSPARSELLM_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DSPARSELLM_BENCHMARKS=OFF)
  if [[ "$*" != *PCRE2_ROOT* ]] && ! [ -e /usr/include/pcre2.h ]; then
    options+=(-DSPARSELLM_PCRE2=OFF)
  fi
  if [[ "$*" != *UTF8PROC_ROOT* ]] && ! [ -e /usr/include/utf8proc.h ]; then
    options+=(-DSPARSELLM_UTF8PROC=OFF)
  fi
  step "configure" cmake -S . -B "$build" -G Ninja "${options[@]}" "$@"
  step "build" cmake --build "$build" --target gpu_tests sparsellm-run sparsellm-eval
  [ $failed -eq 0 ] || exit 1
fi

for program in $(programs_with gpu) $(programs_with gpu2); do
  step "$program" "$build/bin/$program" --gtest_brief=1
done
for tool in memcheck racecheck synccheck; do
  options=(--tool "$tool" --error-exitcode 1)
  case $tool in
    memcheck) options+=(--leak-check full) ;;
    # Of all blocks of a launch together. With fewer than they have the tool ends the launch with an
    # error, and since it sets memory for them aside at each launch, with many more it runs out of it.
    synccheck) options+=(--num-cuda-barriers 16384) ;;
  esac
  for program in $(programs_with $tool); do
    step "$tool of $program" compute-sanitizer "${options[@]}" "$build/bin/$program" --gtest_brief=1
  done
done
step "memcheck of an engine" compute-sanitizer --tool memcheck --error-exitcode 1 \
  "$build/bin/sparsellm-run" -m tests/data/models/fable-llama-relu-8m --device cuda \
  --no-tune -p "Once upon a time" -n 24
models="fable-llama-relu-8m"
if ! grep -q "SPARSELLM_PCRE2:BOOL=OFF" "$build/CMakeCache.txt" 2>/dev/null; then
  models+=" fable-opt-8m"
fi
for model in $models; do
  step "perplexity $model" "$build/bin/sparsellm-eval" perplexity \
    -m "tests/data/models/$model" --device cuda --text tests/data/text/peter_pan.txt
done

echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
git log -1 --format='commit %h' 2>/dev/null || true
printf '%s' "$table"
echo "in all: $((SECONDS - started)) s"
exit $failed
