#include "engine/sampling_tables.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr int64_t kTableWord = sizeof(int32_t);

int64_t most_words(const SamplingTables::Limits& limits) {
  const int64_t of_request =
      kAdjustedRowWords +
      std::min(kMaxRowAdjustments, limits.vocabulary + 1) * kLogitAdjustmentWords;
  return checked_mul(limits.max_requests, of_request, "words of adjusted logits") +
         limits.step_tokens * kLogProbRowWords;
}

// Of memory that has to be as large. Growing by half at least, lists that grow by a token a step
// seldom take a new one.
void reserve(PinnedBuffer& buffer, int64_t bytes) {
  constexpr int64_t kLeast = 1 << 16;
  if (buffer.bytes() < bytes) {
    const int64_t more = std::max({bytes, buffer.bytes() + buffer.bytes() / 2, kLeast});
    buffer = PinnedBuffer(more, "adjusted logits and log-probabilities of a step");
  }
}

// Puts lists one after the other in staging memory, and says where they will be on the device.
class TableWriter {
 public:
  TableWriter(std::byte* staged, const Tensor& tables) : staged_(staged), tables_(tables) {}

  template <class T>
  Tensor put(const std::vector<T>& values) {
    constexpr int64_t kWords = sizeof(T) / kTableWord;
    const int64_t words = std::ssize(values) * kWords;
    if (words > 0) {
      std::memcpy(staged_ + words_ * kTableWord, values.data(), values.size() * sizeof(T));
    }
    const Tensor list = tables_.rows(words_, words);
    words_ += words;
    return Tensor(list.raw(), DType::i32, {std::ssize(values), kWords}, tables_.device());
  }

 private:
  std::byte* staged_;
  Tensor tables_;
  int64_t words_ = 0;
};

int64_t words_of(const RankStep::Part& part) {
  return std::ssize(part.adjusted_rows) * kAdjustedRowWords +
         std::ssize(part.adjustments) * kLogitAdjustmentWords +
         std::ssize(part.log_prob_rows) * kLogProbRowWords;
}

}  // namespace

SamplingTables::SamplingTables(Device device, const Limits& limits)
    : tables_(allocate_tensor(device, DType::i32, {most_words(limits)},
                              "adjusted logits of a step (fewer requests take less)")),
      log_probs_(allocate_tensor(
          device, DType::i32, {limits.step_tokens, kLogProbsWords},
          "the log-probabilities of a step (a smaller number of tokens per step takes less)")) {}

int64_t SamplingTables::bytes_of(const Limits& limits) {
  return (most_words(limits) + limits.step_tokens * kLogProbsWords) * kTableWord;
}

SamplingTables::StepViews SamplingTables::send(const RankStep& step, int number,
                                               const CudaContext& cuda) {
  Slot& slot = slots_[static_cast<size_t>(number)];
  const int64_t words = words_of(step.decode) + words_of(step.prefill);
  slot.log_prob_rows =
      std::ssize(step.decode.log_prob_rows) + std::ssize(step.prefill.log_prob_rows);
  require(words <= tables_.view.size(0) && slot.log_prob_rows <= log_probs_.view.size(0),
          "a step with {} words of adjusted logits and {} log-probabilities is too large for its "
          "tables",
          words, slot.log_prob_rows);
  if (words == 0) {
    return {};
  }
  reserve(slot.tables, words * kTableWord);
  reserve(slot.log_probs, slot.log_prob_rows * int64_t{sizeof(LogProbs)});
  TableWriter writer(slot.tables.data(), tables_.view);
  int64_t results = 0;
  const auto views = [&](const RankStep::Part& part) {
    const int64_t rows = std::ssize(part.log_prob_rows);
    results += rows;
    return Views{.adjusted_rows = writer.put(part.adjusted_rows),
                 .adjustments = writer.put(part.adjustments),
                 .log_prob_rows = writer.put(part.log_prob_rows),
                 .log_probs = log_probs_.view.rows(results - rows, rows)};
  };
  StepViews sent;
  sent.decode = views(step.decode);
  sent.prefill = views(step.prefill);
  cuda.copy_async(tables_.view.raw(), slot.tables.data(), words * kTableWord);
  return sent;
}

void SamplingTables::fetch_log_probs(int number, const CudaContext& cuda) {
  const Slot& slot = slots_[static_cast<size_t>(number)];
  if (slot.log_prob_rows > 0) {
    cuda.copy_async(slot.log_probs.data(), log_probs_.view.raw(),
                    slot.log_prob_rows * int64_t{sizeof(LogProbs)});
  }
}

std::span<const LogProbs> SamplingTables::log_probs(int number) const {
  const Slot& slot = slots_[static_cast<size_t>(number)];
  return {reinterpret_cast<const LogProbs*>(slot.log_probs.data()),
          static_cast<size_t>(slot.log_prob_rows)};
}

}  // namespace sparsellm
