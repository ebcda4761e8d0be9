#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "sparse/format.h"

namespace sparsellm {

class JsonDocument;

// A weight as far as the choice of its format goes by it.
struct WeightSize {
  int64_t rows = 0;
  int64_t columns = 0;
  double density = 1.0;  // the share of nonzeros
};

// What "auto" is for where it is not known what a model will be used for: a few requests that
// generate.
inline constexpr int64_t kDecodedTokens = 8;

// Which format of a linear layer's weight is the fastest, as it was measured on some GPU: for where
// nothing can be measured. As a JSON file:
//
//   {"description": "...", "gpu": "NVIDIA H200",
//    "rules": [{"density": [0, 0.5], "elements": [0, 1000000000], "tokens": [1, 32],
//               "format": "tca_bme"}, ...]}
//
// The first rule that matches is the one that holds; what none matches is dense. A rule has
//   format    a name of sparse/registry.h
// and ranges, of which both ends belong to it; one that is not there takes everything:
//   density   the share of nonzeros
//   elements  rows x columns of the weight
//   tokens    rows of the activations
class FormatRules {
 public:
  // Throws Error with the file's name, and the rule's number from 1 on, for everything that is not
  // as above. The file may be hostile.
  static FormatRules read(const std::filesystem::path& path);
  // Those that are compiled in.
  static const FormatRules& built_in();

  // The GPU that they were measured on.
  const std::string& gpu() const { return gpu_; }

  const WeightFormat& choose(const WeightSize& weight, int64_t tokens) const;
  // What most of these numbers of tokens come to; of equally many, what the first of them does.
  const WeightFormat& choose(const WeightSize& weight, std::span<const int64_t> tokens) const;

 private:
  template <class T>
  struct Between {
    T least;
    T most;
    // 1 - 0.7 is 0.3, too.
    static constexpr T kRounding = static_cast<T>(std::is_floating_point_v<T> ? 1e-9 : 0);
    bool contains(T value) const { return least - kRounding <= value && value <= most + kRounding; }
  };
  struct Rule {
    Between<double> density;
    Between<int64_t> elements;
    Between<int64_t> tokens;
    const WeightFormat* format;
  };

  static FormatRules parse(const JsonDocument& document, const std::string& name);

  std::string gpu_;
  std::vector<Rule> rules_;
};

// Whether weights of this size and dtype can be expected to take fewer bytes in the format than
// dense ones, and it holds them; `layout`: in which it encodes them. Of the dense format: no.
bool saves_bytes(const WeightFormat& format, const WeightSize& weight, DType dtype,
                 const LayoutOptions& layout = {});

// By the fields that WeightFormat::expected_bytes() takes.
EncodedWeight weight_header(const WeightFormat& format, const WeightSize& weight, DType dtype);

}  // namespace sparsellm
