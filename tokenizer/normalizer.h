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
  static constexpr size_t kMaxSteps = 16;  // a text goes through each

  explicit Normalizer(std::vector<NormalizerStep> steps = {});

  // What all steps together may write for a text of so many bytes, or for all pieces of one.
  class Budget {
   public:
    explicit Budget(size_t text_bytes);
    // Throws Error if too little is left.
    void take(size_t bytes);

   private:
    size_t text_bytes_;
    size_t left_;
  };

  // `text` itself if nothing changes it, else a view of `storage`. Calls poll() now and then.
  // Throws Error if steps write more than is left of the budget.
  std::string_view normalize(std::string_view text, std::string& storage, Budget& budget,
                             const std::function<void()>& poll = {}) const;

  // The most bytes of a text for each `bytes` of its normalized form, if there is a bound.
  std::optional<int64_t> source_bytes(int64_t bytes) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace sparsellm
