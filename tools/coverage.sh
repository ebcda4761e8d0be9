#!/usr/bin/env bash
# Prints as a table how many lines and branches of the parsers, of all that reads what others wrote,
# are reached by the tests and the corpora of the fuzz targets. The exit code is 1 if a parser has
# fewer than 95 % of its lines reached. `tools/coverage.sh FILE` shows the lines of a source that
# are not reached, from the last run.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh

parsers=(
  engine/rank_message.cpp engine/rank_options.cpp
  kernels/base/comm_messages.cpp kernels/base/json_events.cpp kernels/base/json_reader.cpp
  kernels/base/kernel_cache.cpp kernels/base/lfs_pointer.cpp kernels/base/open_directory.cpp
  kernels/base/rank_environment.cpp kernels/base/tune_cache.cpp
  models/compression_config.cpp models/config.cpp models/config_readers.cpp models/foreign_keys.cpp models/llama_config.cpp
  models/llama_relatives_config.cpp
  models/opt_config.cpp models/storage/bitmask_weight.cpp models/storage/model_directory.cpp
  models/storage/model_file.cpp models/storage/model_manifest.cpp models/storage/model_metadata.cpp models/storage/safetensors.cpp
  models/storage/safetensors_header.cpp models/storage/safetensors_index.cpp
  models/storage/quantized_weight.cpp models/storage/sparse_config.cpp models/weights/weight_store.cpp
  sparse/matrices/market_text.h sparse/matrices/matrix_market.cpp
  sparse/general_sparse/offset_function.cpp sparse/general_sparse/plan.cpp
  sparse/general_sparse/search/cost_model.cpp sparse/general_sparse/text_fields.cpp
  sparse/prune/glob.cpp sparse/prune/layer_range.cpp sparse/prune/plan.cpp
  sparse/prune/plan_reader.cpp sparse/prune/prune_method.cpp sparse/tca_bme/v1/paper_validate.cpp
  sparse/tca_bme/format/record_parts.cpp sparse/tca_bme/format/record_validate.cpp sparse/tiled_csl/host/record_check.cpp
  sparse/tiled_csl/v1/paper_validate.cpp
  tokenizer/added_tokens.cpp tokenizer/bpe.cpp tokenizer/oniguruma.cpp
  tokenizer/pretokenize.cpp tokenizer/sentencepiece.cpp tokenizer/sentencepiece_model.cpp
  tokenizer/token_table.cpp tokenizer/tokenizer.cpp tokenizer/tokenizer_config.cpp
  tokenizer/tokenizer_json.cpp tokenizer/tokenizer_json_decoder.cpp tokenizer/tokenizer_json_model.cpp
  tokenizer/tokenizer_json_normalizer.cpp tokenizer/tokenizer_json_parts.cpp
  tokenizer/tokenizer_json_pretokenizer.cpp tokenizer/utf8.cpp tokenizer/vocab_merges.cpp
  tools/bench/cost_samples.cpp tools/bench/matrix_list.cpp tools/bench/suite/suite_file.cpp
  tools/bench/suite/suite_group.cpp tools/bench/suite/suite_group_parts.cpp
  tools/bench/suite/suite_lists.cpp tools/bench/suite/suite_models.cpp
  tools/bench/suite/suite_result_line.cpp tools/bench/suite/suite_stated.cpp
  tools/cli/args.cpp tools/cli/session_message.cpp tools/run/generation_args.cpp tools/run/line_reader.cpp
  tools/run/prompt_lines.cpp
  tools/run/result_check.cpp tools/run/results.cpp tools/run/run_entries.cpp tools/run/run_mark.cpp
  tools/serve/completion_body.cpp tools/serve/http_connection_request.h
)
# Those of the tests that are about them.
tests=(base_test comm_test general_search_test general_sparse_test matrices_test models_test model_file_test rank_test record_pieces_test sparse_test tiled_csl_test tokenizer_test tools_test)
for target in tests/fuzz/*_fuzz.cpp; do
  target=${target##*/}
  corpora+=("${target%_fuzz.cpp}")
done

build=build/coverage
# Clang's tools have its version in their names where several are installed.
tool() {
  local of_clang
  of_clang=$(dirname "$(readlink -f "$(command -v clang++)")")/$1
  if [ -x "$of_clang" ]; then echo "$of_clang"; else command -v "$1"; fi
}
all_programs() {
  local name
  for name in "${tests[@]}" "${corpora[@]/#/replay_}"; do
    echo "$build/bin/$name"
  done
}
# The first program, and the others as options of llvm-cov.
covered() {
  local programs
  mapfile -t programs < <(all_programs)
  echo "${programs[0]}"
  printf -- '-object\n%s\n' "${programs[@]:1}"
}

if [ $# -gt 0 ]; then
  mapfile -t objects < <(covered)
  "$(tool llvm-cov)" show "${objects[@]}" -instr-profile "$build/merged.profdata" \
    "$build/$(realpath --relative-to="$build" "$1")" 2>/dev/null |
    grep -E '^ +[0-9]+\| +0\|' || true
  exit
fi

command -v clang++ >/dev/null || packages+=(clang libclang-rt-dev)
command -v llvm-cov >/dev/null || packages+=(llvm)
command -v python3 >/dev/null || packages+=(python3)
install_packages
cmake --preset coverage >&2
cmake --build "$build" --target "${tests[@]}" "${corpora[@]/#/replay_}" >&2

rm -rf "$build/profiles"
mkdir -p "$build/profiles"
export LLVM_PROFILE_FILE=$PWD/$build/profiles/%m-%p.profraw
for test in "${tests[@]}"; do
  "$build/bin/$test" --gtest_brief=1 >"$build/$test.log" 2>&1 || {
    tail -n 30 "$build/$test.log" >&2
    exit 1
  }
done
for corpus in "${corpora[@]}"; do
  "$build/bin/replay_$corpus" "tests/fuzz/corpus/$corpus" >"$build/replay_$corpus.log" 2>&1 || {
    tail -n 30 "$build/replay_$corpus.log" >&2
    exit 1
  }
done
"$(tool llvm-profdata)" merge -sparse "$build"/profiles/*.profraw -o "$build/merged.profdata"
mapfile -t objects < <(covered)
"$(tool llvm-cov)" export -summary-only "${objects[@]}" \
  -instr-profile "$build/merged.profdata" >"$build/summary.json" 2>"$build/llvm-cov.log"
python3 - "$build/summary.json" "${parsers[@]}" <<'END'
import json
import os
import sys

summary, *parsers = sys.argv[1:]
with open(summary) as file:
    # Compilers note names such as build/coverage/../../models/config.cpp.
    files = {
        os.path.relpath(entry["filename"]): entry["summary"]
        for entry in json.load(file)["data"][0]["files"]
    }
low = []
total = {"lines": [0, 0], "branches": [0, 0]}
print("| parser | lines | reached | branches | reached |\n|---|---:|---:|---:|---:|")


def share(count, covered):
    return f"{100 * covered / count:.1f} %" if count else "-"


for name in parsers:
    cells = [f"`{name}`"]
    for kind, sums in total.items():
        count, covered = files[name][kind]["count"], files[name][kind]["covered"]
        sums[0] += count
        sums[1] += covered
        cells += [str(count), share(count, covered)]
        if kind == "lines" and covered < 0.95 * count:
            low.append(name)
    print(f"| {' | '.join(cells)} |")
print(f"| all | {' | '.join(f'{a} | {share(a, b)}' for a, b in total.values())} |")
if low:
    sys.exit(f"fewer than 95 % of the lines are reached of {', '.join(low)}")
END
