#!/usr/bin/env bash
# Measures figures and tables of papers on the GPUs that there are, and reports them beside what the
# papers state:
#   tools/gpu/paper.sh [NAME ...] [-- ARGUMENT ...]
# NAME is a suite, configs/benchmarks/NAME.json; without any all are measured, which takes hours.
# Arguments after -- go to sparsellm-bench suite, such as
#   --budget 9m    begin nothing that will not end in time; the next call goes on
#   --only GLOB    some of the cells, by SUITE/CELL
#   --all-formats  the formats that a suite does not list, too
# What this commit has measured on such a GPU is not measured again.
# The folder RESULTS (build/suites by default) gets a line in results.jsonl for each cell when it is
# measured, and report.md, with matplotlib images/*.svg, even if measuring was interrupted or some
# cells failed. BUILD is a build folder with the tools (build/gpu by default; made if it is not
# there).
set -euo pipefail

usage() {
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
}

names=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --)
      shift
      break
      ;;
    -*)
      echo "paper.sh: arguments of sparsellm-bench suite, such as $1, come after --" >&2
      exit 2
      ;;
  esac
  names+=("$1")
  shift
done

here=$(realpath "$(dirname "$0")/../..")
build=$(realpath -m "${BUILD:-$here/build/gpu}")
results=$(realpath -m "${RESULTS:-$here/build/suites}")
cd "$here"

suites=()
for name in "${names[@]}"; do
  if [ ! -f "configs/benchmarks/$name.json" ]; then
    all=$(basename -s .json configs/benchmarks/*.json | paste -sd ' ')
    echo "paper.sh: no suite is called $name; there are $all" >&2
    exit 2
  fi
  suites+=("configs/benchmarks/$name.json")
done
[ ${#suites[@]} -gt 0 ] || suites=(configs/benchmarks/*.json)

. tools/gpu/build_bench.sh
build_bench "$build" sparsellm-bench

# What is measured until Ctrl-C is reported; sparsellm-bench ends by it, this script does not.
trap : INT
suite() {
  "$build/bin/sparsellm-bench" suite "${suites[@]}" --results "$results" --resume "$@"
}
status=0
suite "$@" || status=$?
if [ ! -e "$results/results.jsonl" ]; then
  exit "$status"
fi
# Why cells have no result: they do not fit, need more GPUs, or have no kernels.
list=$results/list.txt
suite "$@" --list >"$list.part" && mv "$list.part" "$list"
trap - INT
report=("$results")
[ ! -e "$list" ] || report+=(--list "$list")
# After interrupted or failed cells the report is as far as it goes.
python3 docs/benchmarks/suite_report.py "${report[@]}" --suites "${suites[@]}"
exit "$status"
