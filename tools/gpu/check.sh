#!/usr/bin/env bash
# Checks the CUDA device on a machine that has one: tools/gpu/check.sh [BUILD [CMAKE-ARGUMENT ...]]
# Builds the tests in the folder BUILD (build/gpu by default; one that is built already stays as it
# is), for the GPU that is there, and runs: the tests with the label gpu, the small ones of them
# under compute-sanitizer (memcheck, racecheck, synccheck), and the tools on the demo model. Prints a table and
# fails if anything did.
# Without PCRE2 (install it or pass -DPCRE2_ROOT=DIR) the tests that need its tokenizers are skipped.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

build=${1:-build/gpu}
shift || true
started=$SECONDS
failed=0
table=""

note() { table+=$(printf '%-34s %-6s %6d s  %s' "$1" "$2" "$3" "$4")$'\n'; }

# step NAME COMMAND ...: runs it, with its output in a log, of which a failure shows the end.
step() {
  local name=$1 log begin=$SECONDS summary
  shift
  log=$build/check-${name// /-}.log
  if "$@" >"$log" 2>&1; then
    summary=$(grep -E "tests passed|ERROR SUMMARY|RACECHECK SUMMARY|perplexity" "$log" | tail -n 1)
    note "$name" ok $((SECONDS - begin)) "$summary"
  else
    failed=1
    note "$name" FAILED $((SECONDS - begin)) "see $log"
    grep -E "Failure|FAILED|Error|error|=========" "$log" | head -n 60
    tail -n 15 "$log"
  fi
}

if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
  PATH=$PATH:/usr/local/cuda/bin
fi
if [ ! -x "$build/bin/gpu_test" ]; then
  mkdir -p "$build"
  options=(-DSPARSELLM_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DSPARSELLM_BENCHMARKS=OFF)
  if [[ "$*" != *PCRE2_ROOT* ]] && ! [ -e /usr/include/pcre2.h ]; then
    options+=(-DSPARSELLM_PCRE2=OFF)
  fi
  step "configure" cmake -S . -B "$build" -G Ninja "${options[@]}" "$@"
  step "build" cmake --build "$build" --target gpu_test gpu_sparse_test sparsellm-run sparsellm-eval
  [ $failed -eq 0 ] || exit 1
fi
tests=$build/bin/gpu_test
sparse_tests=$build/bin/gpu_sparse_test

step "gpu tests" "$tests" --gtest_brief=1
step "gpu tests of sparse weights" "$sparse_tests" --gtest_brief=1
# Not the long ones: a sanitizer makes them several times slower. Nor what runs out of memory on
# purpose.
memory='*Ops*:*FillRandom*:*Attention*:*Sample*:*Upload*:*Gemm.Every*:*Gemm.TunedCalls*'
memory+=':*GemmStream.AnyShape/f16:*AppendingRows.InFewSteps/f16'
memory+='-*LargeVocab*:*ALargeLaunch*:*LongPrompt*:*LongContext*:*AllParameters*:*BannedIds*:*BenchAttention*'
step "memcheck" compute-sanitizer --tool memcheck --leak-check full --error-exitcode 1 \
  "$tests" --gtest_brief=1 --gtest_filter="$memory"
races='*Ops.*Norm*:Sample.Slots*:Sample.RowsWith*:Sample.ManyTopKs:*Attention*Nan*:*Attention*Score*'
races+=':*GemmStream.FewProducts/f16:*AppendingRows.InFewSteps/f16'
step "racecheck" compute-sanitizer --tool racecheck --error-exitcode 1 \
  "$tests" --gtest_brief=1 --gtest_filter="$races"
step "synccheck" compute-sanitizer --tool synccheck --error-exitcode 1 \
  "$tests" --gtest_brief=1 --gtest_filter='*GemmStream.FewProducts/*:*Attention*Nan*'
memory='*ProductsOfAllPatterns/f16:*ExpandsAnyRows/f16:*EncodesAsTheCpuDoes/f16:*Multistage.Runs*'
memory+=':*Wgmma.SmallProducts/*:*UnevenRecords.ExpandToWhatTheyWere/f16'
memory+=':*UnevenRecords.SumsDepend*/f16'
step "memcheck of sparse weights" compute-sanitizer --tool memcheck --leak-check full \
  --error-exitcode 1 "$sparse_tests" --gtest_brief=1 --gtest_filter="$memory"
# Without expansion: racecheck finds hazards in kernels of cuBLAS.
races='*ABatchInvariantRow*/f16:*EncodesAsTheCpuDoes/f16:*Multistage.Runs*/f16'
races+=':*Wgmma.FewSmallProducts/f16:*UnevenRecords.SumsDepend*/f16'
step "racecheck of sparse weights" compute-sanitizer --tool racecheck --error-exitcode 1 \
  "$sparse_tests" --gtest_brief=1 --gtest_filter="$races"
step "synccheck of sparse weights" compute-sanitizer --tool synccheck --error-exitcode 1 \
  "$sparse_tests" --gtest_brief=1 --gtest_filter='*ProductsOfAllPatterns/*:*Wgmma.SmallProducts/*'
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
