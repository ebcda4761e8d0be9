#include "tools/bench/dense_baseline.h"

#include "kernels/base/error.h"
#include "sparse/dense/dense.h"
#include "tools/bench/format_contender.h"
#include "tools/bench/library_contenders.h"

namespace sparsellm {
namespace {

constexpr std::string_view kCublas = "cublas";
constexpr std::string_view kCublasLt = "cublaslt";
constexpr std::string_view kCublasReduced = "cublas-reduced";

}  // namespace

std::vector<std::string_view> dense_contenders(Device device) {
  if (device.is_cuda()) {
    return {kCublas, kCublasLt, kCublasReduced, dense_format().name()};
  }
  return {dense_format().name()};
}

bool is_baseline(std::string_view contender) {
  return contender != kCublasReduced && !is_narrow_dense(contender);
}

bool is_narrow_dense(std::string_view contender) {
  return contender == kFp8Contender || contender == kInt4Ceiling;
}

int64_t dense_int4_bytes(int64_t out, int64_t in) {
  constexpr int64_t kWeights = 64;
  constexpr int64_t kBytes = 33;  // of so many weights
  const int64_t weights = checked_mul(out, in, "weights in int4");
  return checked_add(checked_mul(weights, kBytes, "bytes of weights in int4"), kWeights - 1,
                     "bytes of weights in int4") /
         kWeights;
}

bool is_library_baseline(std::string_view contender) {
  return contender == kCublas || contender == kCublasLt;
}

std::unique_ptr<Contender> make_dense_or_format_contender(std::string_view name,
                                                          const ContenderInput& input) {
  if (name == kCublas) {
    return make_cublas_contender(input);
  }
  if (name == kCublasLt) {
    return make_cublaslt_contender(input);
  }
  if (name == kCublasReduced) {
    return make_reduced_cublas_contender(input);
  }
  if (name == kFp8Contender) {
    return make_fp8_contender(input);
  }
  return std::make_unique<FormatContender>(name, input);
}

void DenseTimes::add(std::string_view contender, const Cell& cell, const MeasuredProduct& product) {
  if (!is_baseline(contender) || !product.verified) {
    return;
  }
  keep_least(key_of(cell, Kind::ordinary), contender, product.us.median);
  keep_least(key_of(cell, Kind::overlapping), contender,
             product.overlapped.value_or(product.us).median);
  if (is_library_baseline(contender)) {
    keep_least(key_of(cell, Kind::library), contender, product.us.median);
  }
}

std::optional<FastestDense> DenseTimes::best(const Cell& cell, Launches launches) const {
  return find(key_of(cell, kind_of(launches)));
}

std::optional<FastestDense> DenseTimes::best_library(const Cell& cell) const {
  return find(key_of(cell, Kind::library));
}

DenseTimes::Key DenseTimes::key_of(const Cell& cell, Kind kind) {
  return {cell.out, cell.in, cell.tokens, static_cast<int64_t>(kind)};
}

DenseTimes::Kind DenseTimes::kind_of(Launches launches) {
  return launches == Launches::ordinary ? Kind::ordinary : Kind::overlapping;
}

void DenseTimes::keep_least(const Key& key, std::string_view contender, double us) {
  const auto [known, first] =
      least_.emplace(key, FastestDense{.contender = std::string(contender), .us = us});
  if (!first && us < known->second.us) {
    known->second = {.contender = std::string(contender), .us = us};
  }
}

std::optional<FastestDense> DenseTimes::find(const Key& key) const {
  const auto known = least_.find(key);
  return known != least_.end() ? std::optional(known->second) : std::nullopt;
}

Opponents DenseOpponents::fastest(int64_t tokens) {
  const Tensor& weight = operands_.weight();
  const DenseTimes::Cell cell{.out = weight.size(0), .in = weight.size(1), .tokens = tokens};
  Opponents opponents;
  try {
    if (const auto ordinary = times_.best(cell, Launches::ordinary)) {
      opponents.ordinary = contender(*ordinary);
    }
    if (const auto overlapping = times_.best(cell, Launches::overlapping)) {
      opponents.overlapping = contender(*overlapping);
    }
  } catch (const OutOfMemory& error) {
    opponents.problem = error.what();
  }
  return opponents;
}

Contender* DenseOpponents::contender(const FastestDense& fastest) {
  std::unique_ptr<Contender>& made = contenders_[fastest.contender];
  if (made == nullptr) {
    made =
        make_dense_or_format_contender(fastest.contender, meter_.input(operands_, rotation_bytes_));
  }
  return made.get();
}

void DenseBaseline::measure(const ProductOperands& operands, std::span<const int64_t> tokens) {
  const Tensor& weight = operands.weight();
  measured_.emplace(weight.size(0), weight.size(1));
  for (const std::string_view name : dense_contenders(weight.device())) {
    if (!is_baseline(name)) {
      continue;
    }
    std::unique_ptr<Contender> contender;
    try {
      contender = make_dense_or_format_contender(name, meter_.input(operands, rotation_bytes_));
    } catch (const OutOfMemory&) {
      continue;  // the others may take less
    }
    for (const int64_t n : tokens) {
      times_.add(name, {.out = weight.size(0), .in = weight.size(1), .tokens = n},
                 meter_.measure(*contender, operands, n));
    }
  }
}

}  // namespace sparsellm
