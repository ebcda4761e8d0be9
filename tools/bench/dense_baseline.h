#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/bench/contender.h"
#include "tools/bench/product_meter.h"

namespace sparsellm {

// What multiplies by a weight with all of its zeros: on CUDA "cublas", "cublaslt",
// "cublas-reduced" and "dense", the engine's own; on the CPU the latter alone.
std::vector<std::string_view> dense_contenders(Device device);

// Whether others are compared with it: not with one whose sums may be reduced, as theirs are in
// f32, nor with one whose operands are rounded to less.
bool is_baseline(std::string_view contender);
// Whether it is one of these that a library computes.
bool is_library_baseline(std::string_view contender);

// Dense with fewer bits than the weights have, beside narrow values and for information alone: x
// and the weight in FP8 by cuBLASLt, on CUDA; and what no product takes less time than that reads
// all weights in int4, which is computed and not measured.
inline constexpr std::string_view kFp8Contender = "cublaslt-fp8";
inline constexpr std::string_view kInt4Ceiling = "int4-ceiling";
bool is_narrow_dense(std::string_view contender);

// Of [out, in] weights of 4 bits with a scale in f16 for every 128, 4.125 bits each, rounded up.
// Throws Error where that does not fit.
int64_t dense_int4_bytes(int64_t out, int64_t in);

// One of dense_contenders(), or a weight in a format of sparse/registry.h. Throws Error.
std::unique_ptr<Contender> make_dense_or_format_contender(std::string_view name,
                                                          const ContenderInput& input);

// The fastest of something, and its median.
struct FastestDense {
  std::string contender;
  double us = 0.0;
};

// The least times of baselines, each the least of all that were given, by shape, number of tokens
// and kind of launches. Those of a library are of both kinds.
class DenseTimes {
 public:
  struct Cell {
    int64_t out = 0;
    int64_t in = 0;
    int64_t tokens = 0;
  };
  // Takes it into account if it is a baseline's and verified.
  void add(std::string_view contender, const Cell& cell, const MeasuredProduct& product);
  // Of any kind that is dense, and of libraries; nothing if none was measured, or none was right.
  std::optional<FastestDense> best(const Cell& cell, Launches launches) const;
  std::optional<FastestDense> best_library(const Cell& cell) const;

 private:
  enum class Kind : int64_t { ordinary, overlapping, library };
  using Key = std::array<int64_t, 4>;  // out, in, tokens, Kind

  static Key key_of(const Cell& cell, Kind kind);
  static Kind kind_of(Launches launches);
  void keep_least(const Key& key, std::string_view contender, double us);
  std::optional<FastestDense> find(const Key& key) const;

  std::map<Key, FastestDense> least_;
};

// The fastest dense contenders by those times for one weight, each made when it is first requested.
class DenseOpponents {
 public:
  // All outlive this object.
  DenseOpponents(const DenseTimes& times, ProductMeter& meter, const ProductOperands& operands,
                 int64_t rotation_bytes)
      : times_(times), meter_(meter), operands_(operands), rotation_bytes_(rotation_bytes) {}

  // For each kind of launches; nullptr where none was measured, or where there is not enough
  // memory.
  Opponents fastest(int64_t tokens);

 private:
  Contender* contender(const FastestDense& fastest);

  const DenseTimes& times_;
  ProductMeter& meter_;
  const ProductOperands& operands_;
  int64_t rotation_bytes_;
  std::map<std::string, std::unique_ptr<Contender>> contenders_;
};

// Measures what is dense, shape by shape.
class DenseBaseline {
 public:
  DenseBaseline(ProductMeter& meter, int64_t rotation_bytes)
      : meter_(meter), rotation_bytes_(rotation_bytes) {}

  // Measures all baselines.
  void measure(const ProductOperands& operands, std::span<const int64_t> tokens);
  bool measured(int64_t out, int64_t in) const { return measured_.contains({out, in}); }
  const DenseTimes& times() const { return times_; }

 private:
  ProductMeter& meter_;
  int64_t rotation_bytes_;
  DenseTimes times_;
  std::set<std::pair<int64_t, int64_t>> measured_;  // shapes
};

}  // namespace sparsellm
