#include "tests/engine/random_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "kernels/counter_random.h"
#include "tests/engine/check_greedy.h"
#include "tests/models/storage/write_safetensors.h"
#include "tests/testing/gpu_context.h"

namespace sparsellm::testing {
namespace {

constexpr int64_t kVocabulary = 300;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kBlocks = 2;
constexpr double kTolerance = 0.02;

// Numbers without a state: the same with every compiler.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : seed_(seed) {}
  double next() { return uniform(seed_, index_++); }
  int64_t below(int64_t count) { return static_cast<int64_t>(next() * static_cast<double>(count)); }
  double normal() {  // nearly: the sum of twelve
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) {
      sum += next();
    }
    return sum;
  }

 private:
  uint64_t seed_;
  int64_t index_ = 0;
};

// Of the elements of a matrix, the probability that it is no zero.
using Density = std::function<double(int64_t row, int64_t column)>;

enum class Profile : uint8_t { even, side_by_side, scattered, rows, columns, row_block };

Profile profile_of(BlockZeros zeros, Numbers& numbers) {
  const auto any = [&] { return static_cast<Profile>(numbers.below(6)); };
  switch (zeros) {
    case BlockZeros::mostly_even:
      return numbers.below(3) != 0 ? Profile::even : any();
    case BlockZeros::dense_block:
      return Profile::side_by_side;
    case BlockZeros::dense_blocks:
      return numbers.below(2) == 0 ? Profile::side_by_side : Profile::scattered;
    case BlockZeros::any:
      return any();
    default:
      return Profile::even;
  }
}

Density density_of(const RandomModel& model, int64_t block, int64_t rows, int64_t columns,
                   Numbers& numbers) {
  const double common = 1.0 - model.sparsity;
  const BlockZeros zeros = model.zeros[static_cast<size_t>(block)];
  switch (profile_of(zeros, numbers)) {
    case Profile::side_by_side: {  // one to four blocks of 64 x 128 are dense
      const int64_t count = zeros == BlockZeros::dense_block ? 1 : 1 + numbers.below(4);
      const int64_t row = numbers.below((rows + 63) / 64);
      const int64_t first = numbers.below((columns + 127) / 128);
      return [=](int64_t r, int64_t c) {
        return r / 64 == row && c / 128 >= first && c / 128 < first + count ? 1.0 : common;
      };
    }
    case Profile::scattered: {  // such blocks anywhere
      const uint64_t seed = static_cast<uint64_t>(numbers.below(1 << 30));
      return [=](int64_t r, int64_t c) {
        return sparsellm::uniform(seed, r / 64 * 100'000 + c / 128) < 0.01 ? 1.0 : common;
      };
    }
    case Profile::rows: {  // that differ
      std::vector<double> of_rows(static_cast<size_t>(rows));
      for (double& density : of_rows) {
        density = std::min(common * std::exp(0.7 * numbers.normal() - 0.25), 1.0);
      }
      return [of_rows](int64_t r, int64_t) { return of_rows[static_cast<size_t>(r)]; };
    }
    case Profile::columns: {  // of which some are dense
      const uint64_t seed = static_cast<uint64_t>(numbers.below(1 << 30));
      return [=](int64_t, int64_t c) { return sparsellm::uniform(seed, c) < 0.01 ? 1.0 : common; };
    }
    case Profile::row_block: {  // 64 rows are dense
      const int64_t row = numbers.below((rows + 63) / 64);
      return [=](int64_t r, int64_t) { return r / 64 == row ? 1.0 : common; };
    }
    default:
      return [common](int64_t, int64_t) { return common; };
  }
}

// `value` is called by several threads.
TestTensor tensor(std::string name, std::vector<int64_t> shape, ThreadPool& threads,
                  const std::function<double(int64_t)>& value) {
  int64_t count = 1;
  for (int64_t size : shape) {
    count *= size;
  }
  std::vector<uint16_t> values(static_cast<size_t>(count));
  threads.parallel_for(count, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      values[static_cast<size_t>(i)] = to_half(static_cast<float>(value(i))).bits;
    }
  });
  return {.name = std::move(name),
          .dtype = "F16",
          .shape = std::move(shape),
          .bytes = bytes_of(values)};
}

TestTensor linear(std::string name, const RandomModel& model, int64_t block, int64_t out,
                  int64_t in, Numbers& numbers, ThreadPool& threads) {
  const Density density = density_of(model, block, out, in, numbers);
  // Outputs are about as large as inputs.
  const double spread = std::sqrt(3.0 / ((1.0 - model.sparsity) * static_cast<double>(in)));
  const uint64_t seed = static_cast<uint64_t>(numbers.below(1 << 30));
  return tensor(std::move(name), {out, in}, threads, [&](int64_t i) {
    const uint64_t bits = uniform_bits(seed, i);
    const double place = static_cast<double>(bits >> 27) * 0x1p-26;
    const double value = static_cast<double>(bits & 0x7ffffff) * 0x1p-26 - 1.0;
    return place < density(i / in, i % in) ? spread * value : 0.0;
  });
}

EngineOptions options_on(Device device) {
  EngineOptions options;
  options.device = device;
  options.max_requests = 4;
  options.step_tokens = 64;
  options.with_tokenizer = false;
  return options;
}

std::string_view name_of(BlockZeros zeros) {
  switch (zeros) {
    case BlockZeros::even:
      return "even";
    case BlockZeros::mostly_even:
      return "mostly even";
    case BlockZeros::dense_block:
      return "a dense block";
    case BlockZeros::dense_blocks:
      return "dense blocks";
    default:
      return "any";
  }
}

void write_config(const std::filesystem::path& directory, const RandomModel& model) {
  const int64_t heads = model.hidden / kHeadDim;
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"model_type", "llama"},
                                 {"hidden_act", "silu"},
                                 {"hidden_size", model.hidden},
                                 {"intermediate_size", model.intermediate},
                                 {"num_hidden_layers", kBlocks},
                                 {"num_attention_heads", heads},
                                 {"num_key_value_heads", heads},
                                 {"head_dim", kHeadDim},
                                 {"max_position_embeddings", 64},
                                 {"rms_norm_eps", 1e-5},
                                 {"tie_word_embeddings", true},
                                 {"torch_dtype", "float16"},
                                 {"vocab_size", kVocabulary}};
  std::ofstream(directory / "config.json") << config.dump(1);
}

void write_weights(const std::filesystem::path& directory, const RandomModel& model) {
  Numbers numbers(model.seed);
  ThreadPool threads;
  std::vector<TestTensor> tensors;
  const auto add_norm = [&](const std::string& name) {
    tensors.push_back(tensor(name, {model.hidden}, threads, [](int64_t) { return 1.0; }));
  };
  const double spread = 3.0 / std::sqrt(static_cast<double>(model.hidden));
  tensors.push_back(
      tensor("model.embed_tokens.weight", {kVocabulary, model.hidden}, threads,
             [&](int64_t i) { return spread * (2.0 * uniform(mix_bits(model.seed), i) - 1.0); }));
  add_norm("model.norm.weight");
  for (int64_t block = 0; block < kBlocks; ++block) {
    const std::string prefix = fmt::format("model.layers.{}.", block);
    const auto add = [&](const char* name, int64_t out, int64_t in) {
      tensors.push_back(linear(prefix + name + ".weight", model, block, out, in, numbers, threads));
    };
    add_norm(prefix + "input_layernorm.weight");
    add_norm(prefix + "post_attention_layernorm.weight");
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}) {
      add(name, model.hidden, model.hidden);
    }
    add("self_attn.o_proj", model.hidden, model.hidden);
    add("mlp.gate_proj", model.intermediate, model.hidden);
    add("mlp.up_proj", model.intermediate, model.hidden);
    add("mlp.down_proj", model.hidden, model.intermediate);
  }
  std::ofstream(directory / "model.safetensors", std::ios::binary) << write_safetensors(tensors);
}

}  // namespace

RandomModel random_model(int64_t index, uint64_t seed) {
  const int64_t pair = index / 2;
  Numbers numbers(mix_bits(seed) + static_cast<uint64_t>(pair));
  constexpr std::array<int64_t, 4> kHidden = {256, 320, 512, 1024};
  constexpr std::array<int64_t, 5> kNarrow = {200, 513, 1024, 2752, 4096};
  constexpr std::array<int64_t, 5> kWide = {7168, 8200, 11008, 14336, 28672};
  const bool wide = pair % 2 == 0;
  // Dense blocks among small records, those of many chunks, are what fits least into the plan of a
  // matrix without them, above all if each warp of all thread blocks has a record: in the larger of
  // the wide matrices.
  const bool hard = pair % 8 < 3 || pair % 8 == 4;
  const int64_t choice = numbers.below(kWide.size());
  const int64_t intermediate =
      wide ? kWide[static_cast<size_t>(choice)] : kNarrow[static_cast<size_t>(choice)];
  int64_t hidden = kHidden[static_cast<size_t>(numbers.below(kHidden.size()))];
  if (hard && wide) {
    constexpr int64_t kElements = 11'000'000;
    hidden = (kElements / intermediate + kHeadDim) / kHeadDim * kHeadDim;
  }
  const int64_t percent = hard ? 64 + numbers.below(28) : 30 + numbers.below(66);
  std::array<BlockZeros, 2> zeros = {BlockZeros::mostly_even, BlockZeros::any};
  if (hard) {
    zeros = {BlockZeros::even, BlockZeros::dense_blocks};
  } else if (index % 2 == 0) {
    zeros = {BlockZeros::even, BlockZeros::even};
  }
  return {.hidden = hidden,
          .intermediate = intermediate,
          .sparsity = 0.01 * static_cast<double>(percent),
          .zeros = zeros,
          .format = numbers.below(8) == 0 ? "dense" : "tca_bme",
          .seed = mix_bits(seed ^ static_cast<uint64_t>(index))};
}

std::string to_string(const RandomModel& model) {
  return fmt::format("hidden {}, intermediate {}, {:.0f} % zeros, {} and {}, {}", model.hidden,
                     model.intermediate, 100.0 * model.sparsity, name_of(model.zeros[0]),
                     name_of(model.zeros[1]), model.format);
}

RandomCheckpoint::RandomCheckpoint(std::filesystem::path directory, const RandomModel& model)
    : directory_(std::move(directory)), model_(model) {
  std::filesystem::create_directories(directory_);
  write_config(directory_, model_);
  write_weights(directory_, model_);
}

RandomCheckpoint::Outcome RandomCheckpoint::check(const std::filesystem::path& tune_cache) {
  try {
    EngineOptions options = options_on(kGpu);
    options.weight_format = model_.format;
    options.tuning = Tuning::measured;
    options.tune_cache = tune_cache;
    Engine on_gpu = Engine::load(directory_, options);
    return {.wrong = wrong_tokens(on_gpu), .tuned_choices = on_gpu.stats().tuned_choices};
  } catch (const std::exception& error) {
    return {.wrong = error.what()};
  }
}

std::string RandomCheckpoint::wrong_tokens(Engine& on_gpu) {
  if (!on_cpu_) {
    EngineOptions options = options_on(Device{});
    options.weight_format = "dense";
    on_cpu_.emplace(Engine::load(directory_, options));
  }
  Numbers numbers(model_.seed);
  std::vector<Request> requests(5);
  for (Request& request : requests) {
    request.sampling.temperature = 0.0f;
    request.max_tokens = 3;
    request.ignore_eos = true;
    const int64_t length = 1 + numbers.below(9);
    for (int64_t i = 0; i < length; ++i) {
      request.prompt.push_back(static_cast<int32_t>(numbers.below(kVocabulary)));
    }
  }
  std::vector<Completion> completions = on_gpu.generate({requests.front()});
  for (Completion& completion :
       on_gpu.generate(std::vector<Request>(requests.begin() + 1, requests.end()))) {
    completion.request += 1;
    completions.push_back(std::move(completion));
  }
  for (const Completion& completion : completions) {
    if (!completion.error.empty()) {
      return completion.error;
    }
    const std::string wrong =
        check_greedy(*on_cpu_, requests[completion.request], completion.tokens, kTolerance);
    if (!wrong.empty()) {
      return fmt::format("request {}, of {} tokens: {}", completion.request,
                         requests[completion.request].prompt.size(), wrong);
    }
  }
  return "";
}

}  // namespace sparsellm::testing
