#!/usr/bin/env bash
# Measures the reports of the CPU device, in some minutes:
#   docs/benchmarks/measure_cpu.sh [BUILD [FOLDER]]
# BUILD is a build folder with sparsellm-bench (build/cpu by default), FOLDER where the reports go
# (docs/benchmarks/xeon-avx512). The CPU has to have AVX-512 and nothing else to do.
set -euo pipefail
cd "$(dirname "$0")/../.."
bench=${1:-build/cpu}/bin/sparsellm-bench
folder=${2:-docs/benchmarks/xeon-avx512}
mkdir -p "$folder"

# Runs `kernel` by both instruction sets; the reports go to FILE.
report() {
  local file=$folder/$1.jsonl
  shift
  for isa in avx512 avx2; do
    "$bench" kernel --device cpu --cpu-isa "$isa" "$@" --formats tca_bme --output jsonl
  done >"$file.part"
  mv "$file.part" "$file"
}

report kernel_zeros --shape 8192x8192,11008x4096 --tokens 1 --sparsity 0.5,0.6,0.7,0.8,0.9
report kernel_tokens --shape 8192x8192 --tokens 1,2,4,8,16,64,512 --sparsity 0.6
report kernel_few_nonzeros --shape 8192x8192 --tokens 1,2,4,8,16,64,512 --sparsity 0.95,0.99
