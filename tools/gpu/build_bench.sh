# shellcheck shell=bash
# Read by bench.sh and paper.sh: build_bench BUILD TARGET... makes a build folder with the tools,
# unless sparsellm-bench is there.
if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
  PATH=$PATH:/usr/local/cuda/bin
fi

build_bench() {
  local build=$1
  shift
  [ ! -x "$build/bin/sparsellm-bench" ] || return 0
  local options=(-DSPARSELLM_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DSPARSELLM_BENCHMARKS=OFF)
  [ -e /usr/include/pcre2.h ] || options+=(-DSPARSELLM_PCRE2=OFF)
  [ -e /usr/include/utf8proc.h ] || options+=(-DSPARSELLM_UTF8PROC=OFF)
  cmake -S . -B "$build" -G Ninja "${options[@]}" >&2
  cmake --build "$build" --target "$@" >&2
}
