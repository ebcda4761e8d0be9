#include "tokenizer/normalizer.h"

#include <utility>

#include "kernels/base/error.h"
#include "tokenizer/find_text.h"
#include "tokenizer/nfc.h"

namespace sparsellm {
namespace {

constexpr size_t kReplacedBytesPerPoll = 1 << 20;
constexpr int64_t kMaxSourceBytes = int64_t{1} << 40;  // above it there is no bound

using Poll = std::function<void()>;

// Two steps that make three bytes of one, as U+2581 of a space, need twelve for a byte.
constexpr size_t kTextBudget = 1 << 20;
constexpr size_t kTextBudgetPerByte = 16;

std::string_view run_step(const NfcStep& /*step*/, std::string_view text, std::string& storage,
                          Normalizer::Budget& budget, const Poll& poll) {
  const std::string_view result = to_nfc(text, storage, poll);
  budget.take(result.data() == text.data() ? 0 : result.size());
  return result;
}

std::string_view run_step(const ReplaceStep& step, std::string_view text, std::string& storage,
                          Normalizer::Budget& budget, const Poll& poll) {
  const size_t bytes = step.pattern.size();
  size_t count = 0;
  const size_t first = find_text(text, step.pattern, 0);
  for (size_t found = first; found != std::string_view::npos;
       found = find_text(text, step.pattern, found + bytes)) {
    ++count;
  }
  if (count == 0) {
    return text;
  }
  // A text that grew on the way would take twice the memory.
  const size_t size = text.size() - count * bytes + count * step.content.size();
  budget.take(size);
  storage.clear();
  storage.reserve(size);
  size_t done = 0;
  size_t next_poll = kReplacedBytesPerPoll;
  for (size_t found = first; found != std::string_view::npos;
       found = find_text(text, step.pattern, done)) {
    storage.append(text.substr(done, found - done)).append(step.content);
    done = found + bytes;
    if (poll && done >= next_poll) {
      poll();
      next_poll = done + kReplacedBytesPerPoll;
    }
  }
  return storage.append(text.substr(done));
}

std::string_view run_step(const PrependStep& step, std::string_view text, std::string& storage,
                          Normalizer::Budget& budget, const Poll& /*poll*/) {
  if (text.empty() || step.content.empty()) {
    return text;
  }
  budget.take(step.content.size() + text.size());
  storage.clear();
  storage.reserve(step.content.size() + text.size());
  return storage.append(step.content).append(text);
}

// For each `denominator` bytes that come out at least, at most `numerator` bytes went in.
struct Shrinkage {
  size_t numerator;
  size_t denominator;
};

Shrinkage shrinkage(const NfcStep& /*step*/) { return {kNfcMostBytes, kNfcLeastBytes}; }
Shrinkage shrinkage(const ReplaceStep& step) { return {step.pattern.size(), step.content.size()}; }
Shrinkage shrinkage(const PrependStep& /*step*/) { return {1, 1}; }

}  // namespace

Normalizer::Budget::Budget(size_t text_bytes)
    : text_bytes_(text_bytes), left_(kTextBudget + kTextBudgetPerByte * text_bytes) {}

void Normalizer::Budget::take(size_t bytes) {
  require(bytes <= left_,
          "the normalizer writes more than {} bytes for a text of {}, which is not supported",
          kTextBudget + kTextBudgetPerByte * text_bytes_, text_bytes_);
  left_ -= bytes;
}

Normalizer::Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

std::string_view Normalizer::normalize(std::string_view text, std::string& storage, Budget& budget,
                                       const Poll& poll) const {
  std::string next;
  for (const NormalizerStep& step : steps_) {
    const std::string_view result =
        std::visit([&](const auto& s) { return run_step(s, text, next, budget, poll); }, step);
    if (result.data() != text.data() || result.size() != text.size()) {
      storage.swap(next);
      text = storage;
      std::string().swap(next);
    }
  }
  return text;
}

std::optional<int64_t> Normalizer::source_bytes(int64_t bytes) const {
  for (const NormalizerStep& step : steps_) {
    const Shrinkage ratio = std::visit([](const auto& s) { return shrinkage(s); }, step);
    if (ratio.denominator == 0) {
      return {};
    }
    if (ratio.numerator > ratio.denominator) {
      const auto least = static_cast<int64_t>(ratio.denominator);
      bytes = (bytes * static_cast<int64_t>(ratio.numerator) + least - 1) / least;
    }
    if (bytes > kMaxSourceBytes) {
      return {};
    }
  }
  return bytes;
}

}  // namespace sparsellm
