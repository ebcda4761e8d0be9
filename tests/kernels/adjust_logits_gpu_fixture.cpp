#include "tests/kernels/adjust_logits_gpu_fixture.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace sparsellm::testing {
namespace {

// The bits that the engine's adjusted logits have on the device.
std::vector<uint32_t> expected_bits(std::span<const float> logits,
                                    const std::vector<float>& adjusted) {
  std::vector<uint32_t> bits;
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool forbidden = std::isfinite(logits[i]) && std::isinf(adjusted[i]);
    const float value = std::isfinite(logits[i]) ? adjusted[i] : logits[i];
    bits.push_back(forbidden ? kForbiddenLogit : std::bit_cast<uint32_t>(value));
  }
  return bits;
}

std::vector<uint32_t> bits_of(const Tensor& x) {
  const std::vector<std::byte> bytes = bytes_of(x);
  std::vector<uint32_t> bits(bytes.size() / sizeof(uint32_t));
  std::memcpy(bits.data(), bytes.data(), bytes.size());
  return bits;
}

}  // namespace

void AdjustLogits::expect_engines(std::string_view what, std::span<const float> logits,
                                  int64_t vocabulary, std::span<const Adjusted> sequences,
                                  int64_t first_row) {
  const auto size = static_cast<size_t>(vocabulary);
  const int64_t row_count = std::ssize(logits) / vocabulary;
  std::vector<int32_t> latest{5 % static_cast<int32_t>(vocabulary)};  // of a row without any
  std::vector<AdjustedRow> rows;
  std::vector<LogitAdjustment> adjustments;
  std::vector<SampleRow> samples(static_cast<size_t>(row_count));
  for (const Adjusted& sequence : sequences) {
    LogitAdjustments counted(sequence.params, vocabulary);
    counted.count({.tokens = std::span(sequence.tokens).first(sequence.tokens.size() - 1),
                   .prompt_length = sequence.prompt_length});
    rows.push_back({.row = static_cast<int32_t>(sequence.row + first_row),
                    .last = static_cast<int32_t>(latest.size()),
                    .first = static_cast<int32_t>(adjustments.size()),
                    .count = static_cast<int32_t>(counted.all().size()) + 1,
                    .penalties = penalties_of(sequence.params),
                    .generated = std::ssize(sequence.tokens) > sequence.prompt_length ? 1 : 0});
    latest.push_back(sequence.tokens.back());
    adjustments.insert(adjustments.end(), counted.all().begin(), counted.all().end());
    adjustments.emplace_back();
    samples[static_cast<size_t>(sequence.row)] = {.slot = sequence.row,
                                                  .temperature = sequence.params.temperature,
                                                  .top_k = sequence.params.top_k,
                                                  .top_p = sequence.params.top_p,
                                                  .min_p = sequence.params.min_p,
                                                  .seed = sequence.seed,
                                                  .index = std::ssize(sequence.tokens)};
  }
  const GuardedTensor logits_gpu = upload(DType::f32, {row_count, vocabulary}, logits.data());
  const GuardedTensor rows_gpu =
      upload(DType::i32, {std::ssize(rows), kAdjustedRowWords}, rows.data());
  const GuardedTensor adjustments_gpu =
      upload(DType::i32, {std::ssize(adjustments), kLogitAdjustmentWords}, adjustments.data());
  const GuardedTensor latest_gpu = i32_tensor(latest, kGpu);
  const GuardedTensor samples_gpu =
      upload(DType::i32, {row_count, kSampleRowWords}, samples.data());
  const std::vector<int32_t> untouched(static_cast<size_t>(row_count), kUntouched);
  const GuardedTensor tokens_gpu = i32_tensor(untouched, kGpu);

  adjust_logits(rows_gpu.view(), latest_gpu.view(), adjustments_gpu.view(), first_row,
                logits_gpu.view(), gpu->exec);
  sample(logits_gpu.view(), samples_gpu.view(), Tensor(), tokens_gpu.view(), gpu->exec);
  gpu->cuda.synchronize();
  const std::vector<uint32_t> adjusted = bits_of(logits_gpu.view());
  const std::vector<int32_t> tokens = download(tokens_gpu.view());
  restore_logits(rows_gpu.view(), adjustments_gpu.view(), first_row, logits_gpu.view(), gpu->exec);
  gpu->cuda.synchronize();
  const std::vector<uint32_t> restored = bits_of(logits_gpu.view());
  for (const GuardedTensor* tensor :
       {&logits_gpu, &rows_gpu, &adjustments_gpu, &latest_gpu, &tokens_gpu}) {
    EXPECT_TRUE(tensor->guards_intact());
  }

  std::vector<uint32_t> expected(logits.size());
  std::memcpy(expected.data(), logits.data(), logits.size_bytes());
  EXPECT_EQ(restored, expected) << what;
  std::vector<int32_t> expected_tokens = untouched;
  for (const Adjusted& sequence : sequences) {
    const auto at = static_cast<size_t>(sequence.row);
    const std::span<const float> row = logits.subspan(at * size, size);
    const TokenHistory history{.tokens = sequence.tokens, .prompt_length = sequence.prompt_length};
    std::ranges::copy(expected_bits(row, adjusted_logits(row, sequence.params, history)),
                      expected.begin() + static_cast<std::ptrdiff_t>(at * size));
    try {
      expected_tokens[at] = sample_token(row, sequence.params, history, {}, sequence.seed,
                                         std::ssize(sequence.tokens));
    } catch (const Error&) {
      expected_tokens[at] = kNoToken;
    }
  }
  EXPECT_EQ(tokens, expected_tokens) << what << ", vocabulary " << vocabulary;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(adjusted[i], expected[i])
        << what << ", vocabulary " << vocabulary << ", row " << i / size << ", token " << i % size;
  }
}

std::vector<int32_t> AdjustLogits::random_tokens(int64_t length, int64_t vocabulary) {
  const int64_t different = std::min<int64_t>(vocabulary, 1 + length / 2);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i) {
    // Over the whole vocabulary, with both of its ends.
    const int64_t which = random.below(different);
    tokens.push_back(static_cast<int32_t>(
        different == 1 ? random.below(vocabulary) : which * (vocabulary - 1) / (different - 1)));
  }
  return tokens;
}

std::vector<LogitBias> AdjustLogits::random_biases(int64_t count, int64_t vocabulary) {
  std::vector<LogitBias> biases;
  const std::vector<int32_t> ids = random.permutation(static_cast<int32_t>(vocabulary));
  for (size_t i = 0; i < static_cast<size_t>(std::min(count, vocabulary)); ++i) {
    biases.push_back({.token = ids[i],
                      .bias = random.below(3) == 0 ? -std::numeric_limits<float>::infinity()
                                                   : static_cast<float>(random.uniform(-9, 9))});
  }
  return biases;
}

std::vector<AdjustLogits::Adjusted> AdjustLogits::random_sequences(int64_t vocabulary) {
  constexpr float kMax = std::numeric_limits<float>::max();
  std::vector<Adjusted> sequences;
  for (const Penalties& penalties :
       {Penalties{}, Penalties{.repetition = 1.3f}, Penalties{.repetition = 0.7f},
        Penalties{.frequency = 0.37f}, Penalties{.presence = -1.1f},
        Penalties{.repetition = 1.7f, .frequency = -0.3f, .presence = 0.9f},
        Penalties{.repetition = 1e-30f, .frequency = kMax, .presence = -kMax},
        Penalties{.repetition = kMax, .frequency = -kMax}}) {
    for (const int64_t biases : {0, 1, 7}) {
      for (const bool generated : {false, true}) {
        const int64_t prompt = 1 + random.below(40);
        const int64_t length = prompt + (generated ? 1 + random.below(40) : 0);
        Adjusted sequence;
        sequence.row = static_cast<int32_t>(sequences.size());
        sequence.tokens = random_tokens(length, vocabulary);
        sequence.prompt_length = prompt;
        sequence.seed = static_cast<uint64_t>(random.below(int64_t{1} << 62));
        sequence.params.temperature = random.below(2) == 0 ? 0.0f : 0.9f;
        sequence.params.top_k = random.below(3) == 0 ? 5 : 0;
        sequence.params.top_p = random.below(3) == 0 ? 0.9f : 1.0f;
        sequence.params.repetition_penalty = penalties.repetition;
        sequence.params.frequency_penalty = penalties.frequency;
        sequence.params.presence_penalty = penalties.presence;
        sequence.params.logit_bias = random_biases(biases, vocabulary);
        sequences.push_back(std::move(sequence));
      }
    }
  }
  return sequences;
}

}  // namespace sparsellm::testing
