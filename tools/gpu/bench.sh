#!/usr/bin/env bash
# Measures the tables of docs/performance.md and docs/notes on a GPU:
#   tools/gpu/bench.sh SECTION [BUILD [NAME ...] [ARGUMENT ...]]
#   docs      all that docs/benchmarks/tables.py needs of a GPU, as docs/benchmarks/NAME/*.jsonl; NAME is
#             h200 or h100, for which less is measured
#   dense     decoding with dense weights: Llama-2-7B, -13B, 3.1-8B, OPT-13B, -30B; batches of 1 to 64
#   large     OPT-66B, 1 and 8 requests, and 64 that do not fit
#   attention attention alone, by requests and tokens
#   comm      sums over the GPUs of this machine, by size and way
#   breakdown where the time of a step goes, OPT-30B
#   kernel    matrix products in OPT-30B's shapes, dense and with cuSPARSE
#   tca_bme   the same by bitmap weights, in shapes of OPT and Llama, by sparsity and tokens; NAME is
#             large, medium or small (all of them)
#   patterns  what uneven zeros cost the bitmap kernel: the shapes of tca_bme (NAME likewise), rows of
#             different densities, dense blocks and, at 60 % zeros, dense columns against even zeros;
#             as csv, and after it the summary of pattern_report.py
#   general   products on the CUDA cores: general_sparse against bitmaps, as
#             docs/benchmarks/NAME/kernel_general_sparse.jsonl; NAME is h200, as of the next four
#   blocks    the same formats where zeros are uniform, by magnitude and in blocks, as
#             docs/benchmarks/NAME/kernel_blocks.jsonl
#   search    sparse matrices of f32 against cuSPARSE, by the program's kernels and by the best of
#             generated ones, as docs/benchmarks/NAME/matrices_searched.jsonl; after h200 some of the
#             classes of configs/matrices/spmm.json
#   matrix-ablation  the same by parts of the search space, as
#             docs/benchmarks/NAME/matrices_ablation.jsonl
#   general-models  models with the plan of GeneralSparse's experiments, by format, as
#             docs/benchmarks/NAME/throughput_*_generalsparse.jsonl; after h200 some of the models, each
#             takes 2 to 7 minutes
#   relatives what Llama's relatives add: Qwen3-8B with and without its norms of heads, as
#             docs/benchmarks/NAME/head_norms.jsonl, and attention over a window, as
#             docs/benchmarks/NAME/attention_window.jsonl; NAME is h200
#   ablation  what the stages of the bitmap kernel cost; --formats tiled_csl: of the one of Tiled-CSL
#   mlp       MLPs of Llama-2-7B and -13B, OPT-13B and -30B whose neurons are predicted to be zero
#   mlp-ablation  the first two without and with the ideas of SparseInfer
#   tp        models that two GPUs share against one of them, prompts, and the sums alone, as
#             docs/benchmarks/NAME/{ranks,comm}.jsonl; NAME is h200
#   shards    bitmap weights in the shapes of configs/NAME.json (of all of them: half an hour), of
#             what a GPU has of them if there are 1, 2 or 4
#   serving   requests that come and go against batches that stay together, Llama-2-7B
#   values    bitmaps over values of 8 and 4 bits, beside dense weights of as few and of 16 and
#             bitmaps over 16, and with uneven zeros, as
#             docs/benchmarks/NAME/{kernel_values,values_patterns}.jsonl; NAME is h200, as of the next one
#   values-models  decode steps with such weights, as docs/benchmarks/NAME/throughput_values.jsonl
#   server    requests through sparsellm-serve against the same in an engine, Llama-2-7B's shapes (made
#             in BUILD, which takes 14 GB), as docs/benchmarks/NAME/server.jsonl; NAME is h200
#   adjusted  requests with penalties, biases and log-probabilities among others, and prompts with
#             log-probabilities, as docs/benchmarks/NAME/adjusted.jsonl; NAME is h200
#   load      a checkpoint of 26 GB in the page cache to the GPU, and converted to bitmaps (made in
#             $TMPDIR, which needs 40 GB)
#   trace     gaps between kernels in decode steps of OPT-30B, with CUPTI
# Engines are measured three times, and products with few tokens also for numbers that are no powers
# of two. Each takes some minutes, shards for each NAME. BUILD is a build folder with the tools (build/gpu by
# default; made if it is not there). Further arguments, from the first with a dash on, go to
# sparsellm-bench.
set -euo pipefail
cd "$(dirname "$0")/../.."

section=${1:-}
build=${2:-build/gpu}
shift || true
shift || true
names=()
while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do
  names+=("$1")
  shift
done
case $section in
  docs | general | blocks | search | matrix-ablation | general-models | relatives | tca_bme | patterns | shards \
    | tp | server | adjusted | values | values-models) ;;
  *)
    if [ ${#names[@]} -gt 0 ]; then
      echo "bench.sh: $section takes no names, such as ${names[0]}" >&2
      exit 2
    fi
    ;;
esac

. tools/gpu/build_bench.sh
targets=(sparsellm-bench sparsellm-convert)
[ "$section" != server ] || targets+=(sparsellm-serve)  # which takes Boost's headers
build_bench "$build" "${targets[@]}"
bench=$build/bin/sparsellm-bench
few_tokens=1,8,9,12,16,17,24,32,33,48

# Sets `shapes` to those of the groups in `names`.
select_shapes() {
  local -A groups=(
    [large]="28672x7168,7168x28672,21504x7168,36864x9216,9216x36864"
    [medium]="11008x4096,4096x11008,14336x4096,13824x5120"
    [small]="4096x4096,5120x5120,7168x7168")
  [ ${#names[@]} -gt 0 ] || names=(large medium small)
  shapes=
  local name
  for name in "${names[@]}"; do
    if [ -z "${groups[$name]:-}" ]; then
      echo "bench.sh: no shapes are called $name; use large, medium or small" >&2
      exit 2
    fi
    shapes+=${shapes:+,}${groups[$name]}
  done
}

decode() {
  local model=$1
  shift
  "$bench" throughput --config "configs/$model.json" --prompt 64 --output "${output:-512}" \
    --repeat "${repeat:-3}" "$@"
}

# Sets `folder` to that of the reports of an H200, the only name.
only_h200() {
  if [ "${names[*]}" != h200 ]; then
    echo "usage: tools/gpu/bench.sh $section BUILD h200 [ARGUMENT ...]" >&2
    exit 2
  fi
  folder=docs/benchmarks/h200
  mkdir -p "$folder"
}

# Runs sparsellm-bench with the arguments after FILE, whose report goes to $folder/FILE.jsonl.
report() {
  local file=$folder/$1.jsonl
  shift
  "$bench" "$@" --output jsonl >"$file.part"
  mv "$file.part" "$file"
}

# The same, after what the file has already.
report_more() {
  local name=$1
  shift
  report "$name.more" "$@"
  cat "$folder/$name.more.jsonl" >>"$folder/$name.jsonl"
  rm "$folder/$name.more.jsonl"
}

case $section in
  docs)
    gpu=${names[0]:-}
    case $gpu in
      h200)
        tokens=1,8,16,32 zeros=0.5,0.6,0.7,0.8,0.9
        batches=1,8,16,32,64 models=(llama-2-7b opt-13b opt-30b)
        ;;
      h100)
        tokens=1,8,32 zeros=0.5,0.6,0.8
        batches=1,8,16,32 models=(llama-2-7b opt-30b)
        ;;
      *)
        echo "usage: tools/gpu/bench.sh docs BUILD h200|h100 [ARGUMENT ...]" >&2
        exit 2
        ;;
    esac
    folder=docs/benchmarks/$gpu
    mkdir -p "$folder"
    names=()
    select_shapes
    bitmaps=(--weight-format tca_bme --sparsity 0.6)
    engine=(--batch "$batches" --prompt 64 --output 128 --repeat 3 --no-layers)
    report kernel_means kernel --shape "$shapes" --tokens "$tokens" --sparsity "$zeros" \
      --formats tca_bme "$@"
    for model in "${models[@]}"; do
      config=(--config "configs/$model.json")
      report "throughput_${model}_dense" throughput "${config[@]}" "${engine[@]}" "$@"
      report "throughput_${model}_tca_bme" throughput "${config[@]}" "${engine[@]}" \
        "${bitmaps[@]}" "$@"
    done
    # Both formats: the large shapes, the others, and many tokens.
    both=(--formats "tiled_csl,tca_bme")
    large=28672x7168,7168x28672,21504x7168,36864x9216,9216x36864
    others=11008x4096,4096x11008,14336x4096,13824x5120,4096x4096,5120x5120,7168x7168
    report kernel_formats kernel --shape "$large" --tokens 1,8,16,32,64,128 \
      --sparsity 0.5,0.6,0.7,0.8,0.9,0.95 "${both[@]}" "$@"
    report_more kernel_formats kernel --shape "$others" --tokens 1,8,32 \
      --sparsity 0.6,0.8,0.9,0.95 "${both[@]}" "$@"
    if [ "$gpu" = h200 ]; then
      report_more kernel_formats kernel --shape "$large" --tokens 256,1024,4096 \
        --sparsity 0.6,0.7,0.8,0.9,0.95 "${both[@]}" "$@"
      file=throughput_opt-30b_formats
      steps=(throughput --config configs/opt-30b.json --sparsity 0.8 --prompt 64 --output 512
        --repeat 1 --no-layers --batch "8,16,32,64")
      report "$file" "${steps[@]}" --weight-format dense "$@"
      for format in tca_bme tiled_csl auto; do
        report_more "$file" "${steps[@]}" --weight-format "$format" "$@"
      done
      some=28672x7168,7168x28672,11008x4096,4096x4096
      report kernel_few_tokens kernel --shape "$some" --tokens 9,12,17,24,33,48 --sparsity 0.6 \
        --formats tca_bme "$@"
      report kernel_many_tokens kernel --shape "$some" --tokens 64,128,256,512,1024,2048,4096 \
        --sparsity 0.6 --formats tca_bme "$@"
      report kernel_dense kernel --shape 28672x7168,7168x28672,21504x7168,7168x7168 \
        --tokens 1,8,64,1024 --sparsity 0 --formats dense "$@"
      few=(kernel --shape "$shapes" --tokens "1,8,32" --formats tca_bme)
      report patterns "${few[@]}" --sparsity 0.6 \
        --pattern uniform,rows:0.5,dense-blocks:0.01,outliers:0.01 "$@"
      report_more patterns "${few[@]}" --sparsity 0.5,0.8 \
        --pattern uniform,rows:0.5,dense-blocks:0.01 "$@"
      report attention attention --requests 1,8,64 --context 128,512,2048,8192 "$@"
      for model in llama-3.1-8b llama-2-13b; do
        report "throughput_${model}_dense" throughput --config "configs/$model.json" \
          "${engine[@]}" "$@"
      done
      # Neurons that are zero.
      off=(--activation-sparsity off)
      exact=(--activation-sparsity exact --zeros 0.9)
      predict=(--activation-sparsity predict --votes sign)
      likely=("${predict[@]}" --predicted 0.9 --zeros 0.9)
      for model in prosparse-llama-2-7b prosparse-llama-2-13b opt-13b opt-30b; do
        batch=1
        [ "$model" != prosparse-llama-2-7b ] || batch=1,2,4,8
        file=throughput_${model}_activation
        steps=(throughput --prompt 64 --output 512 --repeat 1 --no-layers
          --config "configs/$model.json")
        report "$file" "${steps[@]}" --batch "$batch" "${off[@]}" "$@"
        report_more "$file" "${steps[@]}" --batch "$batch" "${likely[@]}" "$@"
        report_more "$file" "${steps[@]}" --batch 1 "${predict[@]}" --predicted 0.95 --zeros 0.95 "$@"
        report_more "$file" "${steps[@]}" --batch 1 "${predict[@]}" --predicted 0.8 --zeros 0.89 "$@"
        report_more "$file" "${steps[@]}" --batch 1 "${exact[@]}" "$@"
      done
      file=throughput_prosparse-llama-2-7b_activation_cpu
      steps=(throughput --device cpu --prompt 64 --output 64 --repeat 1 --no-layers --batch 1
        --config configs/prosparse-llama-2-7b.json)
      report "$file" "${steps[@]}" "${off[@]}" "$@"
      report_more "$file" "${steps[@]}" "${likely[@]}" "$@"
      report_more "$file" "${steps[@]}" "${exact[@]}" "$@"
      report mlp mlp --tokens 1,2,4,8,16,32 "$@"
      report_more mlp mlp --votes sign --tokens 1,2,4,8,16,32 "$@"
      report mlp_ablation mlp --ablation --shape 11008x4096 "$@"
    fi
    ;;
  dense)
    for model in llama-2-7b llama-3.1-8b llama-2-13b opt-13b opt-30b; do
      decode "$model" --batch 1,8,16,32,64 "$@"
    done
    ;;
  large)
    decode opt-66b --batch 1,8 --gpu-memory-utilization 0.98 "$@"
    decode opt-66b --batch 64 "$@"
    ;;
  attention)
    "$bench" attention --requests 1,8,64 --context 128,512,2048,8192 "$@"
    ;;
  comm)
    gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
    for ((ranks = 2; ranks <= gpus && ranks <= 8; ranks *= 2)); do
      "$bench" comm --ranks "$ranks" \
        --bytes 8K,14K,16K,32K,64K,128K,224K,256K,448K,512K,1M,2M,4M,16M,32M "$@"
    done
    ;;
  server)
    only_h200
    rm -f "$folder/server.jsonl"
    checkpoint=$build/llama-2-7b
    mkdir "$checkpoint"
    server=
    trap '[ -z "$server" ] || kill "$server"; rm -rf "$checkpoint"' EXIT
    python3 tools/gpu/make_checkpoint.py configs/llama-2-7b.json "$checkpoint" 0.6
    cp tests/data/tokenizers/llama2/tokenizer.json "$checkpoint"
    weights=(--model "$checkpoint" --weight-format tca_bme "$@")
    for streams in 64 256; do
      requests=(--prompt 64 --output 128)
      alone=("${weights[@]}" "${requests[@]}" --no-layers --batch "$streams")
      all_at_once=(--requests $((4 * streams + 128)))
      by_chance=(--requests $((1024 + streams)))
      report_more server throughput "${alone[@]}" "${all_at_once[@]}" --arrivals poisson:1000000
      tokens=$(grep -o '"tokens_per_gpu_second":[0-9.]*' "$folder/server.jsonl" | tail -n 1)
      rate=$(awk -v tokens="${tokens#*:}" 'BEGIN { printf "%.1f", 0.7 * tokens / 128 }')
      "$build/bin/sparsellm-serve" "${weights[@]}" --unix "$checkpoint/socket" --quiet \
        --parallel "$streams" --ctx-size 192 &
      server=$!
      until curl --silent --fail --unix-socket "$checkpoint/socket" http://localhost/health; do
        kill -0 "$server"
        sleep 0.5
      done
      served=(--url "unix:$checkpoint/socket" --config configs/llama-2-7b.json "${requests[@]}")
      report_more server throughput "${served[@]}" "${all_at_once[@]}" --concurrency "$streams"
      # The slowest wait for one of the streams: how long differs from run to run.
      for _ in 1 2 3; do
        report_more server throughput "${alone[@]}" "${by_chance[@]}" --arrivals "poisson:$rate"
        report_more server throughput "${served[@]}" "${by_chance[@]}" --arrivals "poisson:$rate"
      done
      kill "$server"
      wait "$server"
      server=
    done
    ;;
  adjusted)
    only_h200
    rm -f "$folder/adjusted.jsonl"
    engine=(--config configs/llama-2-7b.json --sparsity 0.6 --weight-format tca_bme --no-layers)
    for choice in "" "--adjusted 32"; do
      # shellcheck disable=SC2086  # a flag and its value, or neither
      report_more adjusted throughput "${engine[@]}" --batch 32,64 --prompt 64 --output 128 \
        $choice "$@"
    done
    for choice in "" --scored; do
      # shellcheck disable=SC2086
      report_more adjusted throughput "${engine[@]}" --batch 8 --prompt 512 --output 1 $choice "$@"
    done
    ;;
  values)
    only_h200
    rm -f "$folder/kernel_values.jsonl"
    large=28672x7168,7168x28672,36864x9216
    small=11008x4096,14336x4096,4096x11008
    zeros=(--sparsity "0.5,0.6,0.7,0.8")
    i8=(--formats "tca_bme,dense_i8" --values i8)
    report_more kernel_values kernel --shape "$large,$small" --tokens 1,8 "${zeros[@]}" "${i8[@]}" "$@"
    report_more kernel_values kernel --shape 28672x7168,7168x28672 --tokens 16,32 "${zeros[@]}" \
      "${i8[@]}" "$@"
    report_more kernel_values kernel --shape 28672x7168,7168x28672 --tokens 64,128,2048 \
      --sparsity 0.6 "${i8[@]}" "$@"
    report_more kernel_values kernel --shape "$large" --tokens 1,8 "${zeros[@]}" \
      --formats tca_bme,dense_i4 --values i4 "$@"
    report_more kernel_values kernel --shape 28672x7168 --tokens 16,32,64,128 --sparsity 0.6 \
      --formats tca_bme,dense_i4 --values i4 "$@"
    report_more kernel_values kernel --shape 28672x7168 --tokens 1,8,16,32,64,128 --sparsity 0.6 \
      --formats tca_bme --values f8 "$@"
    report_more kernel_values kernel --shape 28672x7168,7168x28672 --tokens 32 "${zeros[@]}" \
      --formats tca_bme "$@"
    report_more kernel_values kernel --shape 28672x7168,7168x28672 --tokens 64,128,2048 \
      --sparsity 0.6 --formats tca_bme "$@"
    report values_patterns kernel --shape 28672x7168,11008x4096 --tokens 1,8 --sparsity 0.6 \
      --pattern uniform,rows:0.5,dense-blocks:0.01 --formats tca_bme --values i8 "$@"
    ;;
  values-models)
    only_h200
    rm -f "$folder/throughput_values.jsonl"
    steps=(--prompt 64 --output 512 --repeat 1 --no-layers --gpu-memory-utilization 0.98)
    bitmaps=(--weight-format tca_bme --sparsity)
    for model in opt-30b:8 llama-2-7b:1; do
      engine=(--config "configs/${model%:*}.json" --batch "${model#*:}" "${steps[@]}")
      report_more throughput_values throughput "${engine[@]}" "${bitmaps[@]}" 0.6 --values i8 "$@"
      report_more throughput_values throughput "${engine[@]}" "${bitmaps[@]}" 0.6 "$@"
      report_more throughput_values throughput "${engine[@]}" --weight-format dense_i8 "$@"
      report_more throughput_values throughput "${engine[@]}" "$@"
      report_more throughput_values throughput "${engine[@]}" "${bitmaps[@]}" 0.6 --values i4 "$@"
      report_more throughput_values throughput "${engine[@]}" --weight-format dense_i4 "$@"
    done
    # Which one GPU holds with fewer bits alone.
    engine=(--config configs/opt-175b.json "${steps[@]}" "${bitmaps[@]}")
    report_more throughput_values throughput "${engine[@]}" 0.6 --values i8 --batch "1,8,16" "$@"
    report_more throughput_values throughput "${engine[@]}" 0.5 --values i4 --batch "1,4,8" \
      --gpu-memory 80G "$@"
    ;;
  breakdown)
    decode opt-30b --batch 1,8,64 --breakdown "$@"
    ;;
  kernel)
    "$bench" kernel --config configs/opt-30b.json --tokens "$few_tokens,64,128,256,1024" \
      --sparsity 0.5 --formats dense,cusparse "$@"
    ;;
  tca_bme)
    select_shapes
    "$bench" kernel --shape "$shapes" --tokens "$few_tokens" --sparsity 0.4,0.5,0.6,0.7,0.8,0.9 \
      --formats tca_bme "$@"
    "$bench" kernel --shape "$shapes" --tokens 64,128,256,1024,2048 --sparsity 0.6 \
      --formats tca_bme "$@"
    ;;
  patterns)
    select_shapes
    reports=$(mktemp)
    trap 'rm -f "$reports"' EXIT
    uneven() {  # the same run measures a pattern and what it is compared with
      "$bench" kernel --shape "$shapes" --tokens 1,8,32 --formats tca_bme --format csv "$@" |
        tee -a "$reports"
    }
    uneven --sparsity 0.6 --pattern uniform,rows:0.5,dense-blocks:0.01,outliers:0.01 "$@"
    uneven --sparsity 0.5,0.8 --pattern uniform,rows:0.5,dense-blocks:0.01 "$@"
    python3 tools/gpu/pattern_report.py "$reports"
    ;;
  ablation)
    "$bench" kernel --shape 28672x7168,11008x4096,4096x4096 --tokens 1,8,16 \
      --sparsity 0.5,0.6,0.7,0.8,0.9 --ablation "$@"
    ;;
  mlp)
    for shares in 0.9:0.9 0.95:0.95 0.8:0.89 0:0; do  # predicted:zeros
      "$bench" mlp --predicted "${shares%:*}" --zeros "${shares#*:}" "$@"
    done
    ;;
  general)
    only_h200
    report kernel_general_sparse kernel \
      --shape 28672x7168,7168x28672,4096x4096,11008x4096,4096x11008,36864x9216 --tokens 1,8,32 \
      --sparsity 0.5,0.6,0.7,0.8,0.9,0.95,0.99 --formats general_sparse,tca_bme "$@"
    ;;
  blocks)
    only_h200
    report kernel_blocks kernel --shape 28672x7168,7168x28672,36864x9216 --tokens 8,32,64 \
      --sparsity 0.7,0.9 --pattern uniform,magnitude:0.3,kept-blocks:4x4,kept-blocks:8x8 \
      --formats general_sparse,tca_bme "$@"
    ;;
  search | matrix-ablation)
    classes=("${names[@]:1}")
    names=("${names[@]:0:1}")
    only_h200
    [ ${#classes[@]} -gt 0 ] ||
      classes=(banded stencil power-law blocks uniform skewed arrow empty-rows)
    if [ "$section" = search ]; then
      file=matrices_searched options=(--search 16)
    else
      file=matrices_ablation options=(--tokens "8,64" --search 4 --ablation)
    fi
    rm -f "$folder/$file.jsonl"
    for class in "${classes[@]}"; do
      report_more "$file" kernel --matrices configs/matrices/spmm.json --only "$class-*" \
        "${options[@]}" "$@"
    done
    ;;
  general-models)
    models=("${names[@]:1}")
    names=("${names[@]:0:1}")
    only_h200
    [ ${#models[@]} -gt 0 ] || models=(opt-30b opt-66b llama-2-7b llama-2-13b llama-3.1-8b)
    for model in "${models[@]}"; do
      file=throughput_${model}_generalsparse
      rm -f "$folder/$file.jsonl" "$folder/${file}_breakdown.jsonl"
      # auto chooses formats for all numbers of requests that an engine is started with.
      for choice in dense:1,8,32 tca_bme:1,8,32 tiled_csl:1,8,32 general_sparse:1,8,32 \
        auto:1 auto:8 auto:32; do
        engine=(--config "configs/$model.json" --plan configs/plans/generalsparse.json
          --weight-format "${choice%:*}" --batch "${choice#*:}" --repeat 1 --no-layers
          --gpu-memory-utilization 0.98)
        report_more "$file" throughput "${engine[@]}" --prompt 64 --output 512 "$@"
        [ "$model" = opt-30b ] || continue
        report_more "${file}_breakdown" throughput "${engine[@]}" --prompt 64 --output 64 \
          --breakdown "$@"
      done
    done
    ;;
  relatives)
    only_h200
    plain=$(mktemp -d)
    trap 'rm -r "$plain"' EXIT
    # The same shapes in a family that has no norms of heads.
    sed 's/Qwen3ForCausalLM/LlamaForCausalLM/; s/"qwen3"/"llama"/' configs/qwen3-8b.json \
      >"$plain/without-head-norms.json"
    rm -f "$folder/head_norms.jsonl"
    for config in configs/qwen3-8b.json "$plain/without-head-norms.json"; do
      report_more head_norms throughput --config "$config" --batch 1,64 --prompt 64 --output 256 \
        --repeat 3 --no-layers "$@"
    done
    heads=(--requests 8 --context "4096,16384" --heads 32 --kv-heads 8)
    report attention_window attention "${heads[@]}" --window 4096 "$@"
    report_more attention_window attention "${heads[@]}" "$@"
    ;;
  mlp-ablation)
    "$bench" mlp --ablation --predicted 0.9 --zeros 0.92 "$@"
    ;;
  tp)
    only_h200
    rm -f "$folder/ranks.jsonl"
    share() {  # on one GPU, and on two
      local ranks
      for ranks in 1 2; do
        report_more ranks throughput --repeat 1 --no-layers --tensor-parallel "$ranks" "$@"
      done
    }
    for model in opt-30b llama-2-13b opt-66b llama-2-70b; do
      engine=(--config "configs/$model.json" --prompt 64 --output 512 --batch "1,8,16,32"
        --gpu-memory-utilization 0.98)
      share "${engine[@]}" "$@"
      share "${engine[@]}" --sparsity 0.6 --weight-format tca_bme "$@"
    done
    for format in tiled_csl auto; do
      share --config configs/opt-66b.json --prompt 64 --output 512 --batch "1,32" --sparsity 0.8 \
        --weight-format "$format" "$@"
    done
    # With so many zeros one GPU holds it; its dense weights need three.
    share --config configs/opt-175b.json --prompt 64 --output 512 --batch 8 --sparsity 0.78 \
      --weight-format tca_bme --gpu-memory-utilization 0.98 "$@"
    for model in prosparse-llama-2-7b opt-30b; do
      share --config "configs/$model.json" --prompt 64 --output 512 --batch 1 \
        --activation-sparsity predict --votes sign --predicted 0.9 --zeros 0.9 "$@"
    done
    share --config configs/opt-30b.json --prompt 2047 --output 1 --step-tokens 2048 --batch 1 "$@"
    report comm comm --ranks 2 --bytes 8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,16M,32M "$@"
    ;;
  shards)
    configs=("${names[@]/%/.json}")
    configs=("${configs[@]/#/configs/}")
    [ ${#names[@]} -gt 0 ] || configs=(configs/*.json)
    "$bench" kernel --config "${configs[@]}" --tensor-parallel 1,2,4 --tokens 1,8,16,32 \
      --sparsity 0.5,0.6 --formats tca_bme "$@"
    ;;
  serving)
    # 256 requests of other lengths, 32 at a time, against 32 that stay together; then the same in a
    # KV cache of 10240 tokens, against the 20 requests that it holds. A token takes 512 KiB.
    model=(--config configs/llama-2-7b.json)
    together=(--prompt 256 --output 256 --repeat 3)
    arriving=(--prompt 128:384 --output 128:384 --arrivals poisson:100000 --requests 256)
    "$bench" throughput "${model[@]}" --batch 32 "${together[@]}" "$@"
    "$bench" throughput "${model[@]}" --batch 32 "${arriving[@]}" "$@"
    "$bench" throughput "${model[@]}" --batch 20 --kv-memory 5G "${together[@]}" "$@"
    "$bench" throughput "${model[@]}" --batch 32 --kv-memory 5G "${arriving[@]}" "$@"
    ;;
  load)
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    mkdir "$folder/plain"
    python3 tools/gpu/make_checkpoint.py configs/opt-13b.json "$folder/plain"
    "$bench" load --model "$folder/plain" "$@"
    "$build/bin/sparsellm-convert" --model "$folder/plain" --output "$folder/sparse" \
      --prune magnitude --sparsity 0.6 --format tca_bme --quiet >&2
    rm -r "$folder/plain"
    "$bench" load --model "$folder/sparse" "$@"
    ;;
  trace)
    cuda=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    library=$(realpath "$build")/kernel_gaps.so
    "$bench" tune --config configs/opt-30b.json >&2  # not under the trace
    g++ -std=c++20 -O2 -shared -fPIC tools/gpu/kernel_gaps.cpp -o "$library" \
      -I"$cuda/include" -I"$cuda/extras/CUPTI/include" -L"$cuda/lib64" -L"$cuda/lib" \
      -L"$cuda/extras/CUPTI/lib64" -lcupti
    export LD_LIBRARY_PATH=$cuda/lib64:$cuda/extras/CUPTI/lib64:${LD_LIBRARY_PATH:-}
    for batch in 1 8 64; do
      CUDA_INJECTION64_PATH=$library output=64 repeat=1 decode opt-30b --batch "$batch" --quiet "$@"
    done
    ;;
  *)
    echo "usage: tools/gpu/bench.sh docs|dense|large|attention|comm|breakdown|kernel|tca_bme|patterns|general|blocks|search|matrix-ablation|general-models|relatives|ablation|mlp|mlp-ablation|tp|shards|serving|server|adjusted|load|trace [BUILD [NAME ...] [ARGUMENT ...]]" >&2
    exit 2
    ;;
esac
