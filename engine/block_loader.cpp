#include "engine/block_loader.h"

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/observed_weight.h"
#include "kernels/base/error.h"
#include "sparse/dense/dense.h"

namespace sparsellm {
namespace {

std::string module_of(const std::string& weight_name) {
  constexpr std::string_view suffix = ".weight";
  require(weight_name.ends_with(suffix), "{} is not the weight of a module", weight_name);
  return weight_name.substr(0, weight_name.size() - suffix.size());
}

}  // namespace

BlockLoader::BlockLoader(const Checkpoint& checkpoint, const LinearWeights& linear_weights,
                         std::optional<DType> dtype)
    : CheckpointLoader(checkpoint, {}, std::nullopt, {}), linear_weights_(&linear_weights) {
  if (dtype) {
    round_to(*dtype);
  }
}

OwnedTensor BlockLoader::get(const Wanted::Part& part, int64_t columns) const {
  OwnedTensor weight = (*linear_weights_)(part.name);
  const Tensor& view = weight.view;
  require(!view.empty() && view.rank() == 2 && view.size(0) == part.rows && view.size(1) == columns,
          "{} for calibration has shape {}, but the config asks for [{}, {}]", part.name,
          view.shape_string(), part.rows, columns);
  require(is_floating(view.dtype()) && view.contiguous() && !view.device().is_cuda(),
          "{} for calibration is no contiguous matrix of floating-point numbers in host memory",
          part.name);
  return weight;
}

OwnedTensor BlockLoader::join(const Wanted& wanted) {
  OwnedTensor first = get(wanted.parts.front(), wanted.stored_columns);
  if (wanted.parts.size() == 1) {
    return first;
  }
  OwnedTensor joined = allocate(wanted, first.view.dtype());
  int64_t row = 0;
  for (const Wanted::Part& part : wanted.parts) {
    // One part in memory at a time; `first` is moved from once.
    const OwnedTensor weight = row == 0 ? std::move(first)  // NOLINT(bugprone-use-after-move)
                                        : get(part, wanted.stored_columns);
    require(weight.view.dtype() == joined.view.dtype(),
            "{} is {}, but {} is {}; joined weights need one dtype", part.name,
            name_of(weight.view.dtype()), wanted.parts.front().name, name_of(joined.view.dtype()));
    copy_bytes({}, joined.view.rows(row, part.rows).raw(), {}, weight.view.raw(),
               weight.view.bytes());
    row += part.rows;
  }
  return joined;
}

std::unique_ptr<WeightMatrix> BlockLoader::load_weight(const Wanted& wanted) {
  auto weight = std::make_unique<DenseWeight>(count(join(wanted)));
  InputSums sums{.modules = {},
                 .squares = std::vector<double>(static_cast<size_t>(wanted.stored_columns), 0.0)};
  for (const Wanted::Part& part : wanted.parts) {
    sums.modules.push_back(module_of(part.name));
  }
  inputs_.push_back(std::move(sums));
  return std::make_unique<ObservedWeight>(std::move(weight), inputs_.back().squares);
}

}  // namespace sparsellm
