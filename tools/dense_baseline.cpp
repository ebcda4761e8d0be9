#include "tools/dense_baseline.h"

#include "sparse/dense/dense.h"
#include "tools/format_contender.h"
#include "tools/library_contenders.h"

namespace sparsellm {
namespace {

constexpr std::string_view kCublas = "cublas";
constexpr std::string_view kCublasLt = "cublaslt";

}  // namespace

std::vector<std::string_view> dense_contenders(Device device) {
  if (device.is_cuda()) {
    return {kCublas, kCublasLt, dense_format().name()};
  }
  return {dense_format().name()};
}

bool is_ordinary_baseline(std::string_view contender, Device device) {
  return contender != dense_format().name() || !device.is_cuda();
}

std::unique_ptr<Contender> make_dense_or_format_contender(std::string_view name,
                                                          const ContenderInput& input) {
  if (name == kCublas) {
    return make_cublas_contender(input);
  }
  if (name == kCublasLt) {
    return make_cublaslt_contender(input);
  }
  return std::make_unique<FormatContender>(name, input);
}

void DenseBaseline::measure(const ProductOperands& operands, std::span<const int64_t> tokens) {
  const Tensor& weight = operands.weight();
  measured_.emplace(weight.size(0), weight.size(1));
  for (const std::string_view name : dense_contenders(weight.device())) {
    std::unique_ptr<Contender> contender;
    try {
      contender = make_dense_or_format_contender(name, meter_.input(operands, rotation_bytes_));
    } catch (const OutOfMemory&) {
      continue;  // the others may take less
    }
    for (const int64_t n : tokens) {
      const MeasuredProduct product = meter_.measure(*contender, operands, n);
      if (product.verified) {
        const auto keep = [&](Launches launches, const Spread& us) {
          keep_least(best_us_, key_of(weight.size(0), weight.size(1), n, launches), us.median);
        };
        if (is_ordinary_baseline(name, weight.device())) {
          keep(Launches::ordinary, product.us);
        }
        keep(Launches::overlapping, product.overlapped.value_or(product.us));
      }
    }
  }
}

DenseBaseline::Key DenseBaseline::key_of(int64_t out, int64_t in, int64_t tokens,
                                         Launches launches) {
  return {out, in, tokens, static_cast<int64_t>(launches)};
}

std::optional<double> DenseBaseline::best_us(int64_t out, int64_t in, int64_t tokens,
                                             Launches launches) const {
  const auto known = best_us_.find(key_of(out, in, tokens, launches));
  return known != best_us_.end() ? std::optional(known->second) : std::nullopt;
}

}  // namespace sparsellm
