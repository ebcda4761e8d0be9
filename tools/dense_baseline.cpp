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

}  // namespace sparsellm
