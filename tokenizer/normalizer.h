#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sparsellm {

struct NfcStep {};
struct ReplaceStep {    // every occurrence, from left to right
  std::string pattern;  // not empty
  std::string content;
};
struct PrependStep {  // in front of a text that is not empty
  std::string content;
};
using NormalizerStep = std::variant<NfcStep, ReplaceStep, PrependStep>;

// What becomes of a text before tokens are looked for in it, step by step.
class Normalizer {
 public:
  // Of a text that steps have made longer; 64 MiB of spaces that become U+2581 fit.
  static constexpr size_t kMaxBytes = size_t{1} << 28;
  static constexpr size_t kMaxSteps = 100;  // a text goes through each

  explicit Normalizer(std::vector<NormalizerStep> steps = {});

  // `text` itself if nothing changes it, else a view of `storage`. Calls poll() now and then.
  // Throws Error for a result of more than kMaxBytes.
  std::string_view normalize(std::string_view text, std::string& storage,
                             const std::function<void()>& poll = {}) const;

  // The most bytes of a text for each `bytes` of its normalized form, if there is a bound.
  std::optional<int64_t> source_bytes(int64_t bytes) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace sparsellm
