#!/usr/bin/env bash
# Looks into one launch of the kernel of a sparse format with Nsight Compute:
#   tools/gpu/profile.sh [OUTxIN [SPARSITY [TOKENS [BUILD [ARGUMENT ...]]]]]
# By default 28672x7168, 0.6, 8 and build/gpu; further arguments go to `sparsellm-bench kernel`.
# FORMAT is the format [tca_bme], KERNEL a regular expression for the name of the kernel if another
# one than that of the product is meant. Clocks are left as they are, the caches are flushed before
# each pass. Prints - for what this GPU does not count.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
  echo "profile.sh: $1" >&2
  exit 1
}

shape=${1:-28672x7168}
sparsity=${2:-0.6}
tokens=${3:-8}
build=${4:-build/gpu}
format=${FORMAT:-tca_bme}
case $format in
  general_sparse) kernel='(slice|row)_product_kernel' ;;
  tiled_csl) kernel=tile_ ;;
  *) kernel='record_(matmul|multistage|wgmma)_kernel' ;;
esac
shift $(($# < 4 ? $# : 4))

ncu=$(command -v ncu || true)
for candidate in /usr/local/cuda/bin/ncu /opt/nvidia/nsight-compute/*/ncu; do
  [ -n "$ncu" ] || [ ! -x "$candidate" ] || ncu=$candidate
done
[ -n "$ncu" ] || fail "ncu (Nsight Compute) is not installed, or not in PATH"
bench=$build/bin/sparsellm-bench
[ -x "$bench" ] || fail "there is no $bench; tools/gpu/bench.sh builds it"
report=tools/gpu/profile_report.py

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# A metric that a GPU does not know ends the run: only those that it lists are asked for.
"$ncu" --query-metrics >"$folder/known" 2>&1 || true
metrics=$(python3 "$report" metrics "$folder/known")
status=0
"$ncu" --clock-control none --profile-from-start off \
  --kernel-name "regex:${KERNEL:-$kernel}" --launch-count 1 \
  --metrics "$metrics" --page raw --csv --print-units base --log-file "$folder/ncu" \
  "$bench" kernel --profile --shape "$shape" --sparsity "$sparsity" --tokens "$tokens" \
  --formats "$format" --repeat 3 --format jsonl "$@" \
  >"$folder/bench" 2>"$folder/errors" || status=$?
touch "$folder/ncu"
if grep -qs ERR_NVGPUCTRPERM "$folder"/{ncu,bench,errors}; then
  fail "no permission to read the GPU's counters (ERR_NVGPUCTRPERM): it takes root with \
CAP_SYS_ADMIN, or the driver with NVreg_RestrictProfilingToAdminUsers=0"
fi
if [ "$status" -ne 0 ]; then
  fail "ncu ended with $status: $(grep -h . "$folder"/{errors,ncu} | tail -n 1)"
fi
python3 "$report" report "$folder/ncu" "$folder/bench" "$format"
