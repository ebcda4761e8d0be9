#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/contender.h"
#include "tools/product_meter.h"

namespace sparsellm {

// What multiplies by a weight with all of its zeros: on CUDA "cublas", "cublaslt" and "dense", the
// engine's own; on the CPU the latter alone.
std::vector<std::string_view> dense_contenders(Device device);

// Whether sparse formats are compared with its ordinary launches: those of the libraries, on the
// CPU of the engine. With overlapping launches they are compared with all.
bool is_ordinary_baseline(std::string_view contender, Device device);

// One of these, or a weight in a format of sparse/registry.h. Throws Error.
std::unique_ptr<Contender> make_dense_or_format_contender(std::string_view name,
                                                          const ContenderInput& input);

// The best times of baselines, by shape, number of tokens and kind of launches; of a library there
// is but one.
class DenseBaseline {
 public:
  DenseBaseline(ProductMeter& meter, int64_t rotation_bytes)
      : meter_(meter), rotation_bytes_(rotation_bytes) {}

  // Measures all contenders; the least of all times so far count.
  void measure(const ProductOperands& operands, std::span<const int64_t> tokens);
  bool measured(int64_t out, int64_t in) const { return measured_.contains({out, in}); }
  // us; nothing if none was measured, or none was right.
  std::optional<double> best_us(int64_t out, int64_t in, int64_t tokens, Launches launches) const;

 private:
  using Key = std::array<int64_t, 4>;  // out, in, tokens, launches

  static Key key_of(int64_t out, int64_t in, int64_t tokens, Launches launches);

  ProductMeter& meter_;
  int64_t rotation_bytes_;
  std::map<Key, double> best_us_;
  std::set<std::pair<int64_t, int64_t>> measured_;  // shapes
};

// Least times by something, each the least of all that were given.
template <class Key>
void keep_least(std::map<Key, double>& times, const Key& key, double time) {
  const auto [known, first] = times.emplace(key, time);
  if (!first && time < known->second) {
    known->second = time;
  }
}

}  // namespace sparsellm
