#include "sparse/join_parts.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/upload.h"
#include "sparse/registry.h"

namespace sparsellm {

std::vector<const EncodedWeight*> weights_of(std::span<const WeightPart> parts) {
  std::vector<const EncodedWeight*> weights;
  std::ranges::transform(parts, std::back_inserter(weights), &WeightPart::weight);
  return weights;
}

void read_and_validate(const WeightPart& part, ThreadPool& threads) {
  if (part.file == nullptr) {
    return;
  }
  for (EncodedPart& array : part.weight->parts) {
    take_into_memory(array, part.file);
  }
  naming_errors(part.name,
                [&] { weight_format(part.weight->format).validate(*part.weight, threads); });
}

EncodedWeight join_on_host(std::span<const WeightPart> parts, ThreadPool& threads) {
  for (const WeightPart& part : parts) {
    read_and_validate(part, threads);
  }
  if (parts.size() == 1) {
    return std::move(*parts.front().weight);
  }
  EncodedWeight joined =
      naming_errors(parts.front().name, [&] { return concat_rows(weights_of(parts), threads); });
  for (const WeightPart& part : parts) {
    part.weight->parts.clear();
  }
  return joined;
}

void expand_part(const WeightFormat& format, const WeightPart& part, const Tensor& dense,
                 const LoadContext& ctx) {
  ExecContext& exec = ctx.exec();
  const int64_t held = ctx.uploads->held();
  const std::unique_ptr<WeightMatrix> weight = format.load({&part, 1}, ctx);
  ctx.uploads->flush(held);
  weight->expand({.begin = 0, .count = dense.size(0)}, dense, exec);
  exec.cuda->synchronize();  // the weight's memory goes
}

std::unique_ptr<WeightMatrix> join_on_device(const WeightFormat& format,
                                             std::span<const WeightPart> parts,
                                             const LoadContext& ctx) {
  ExecContext& exec = ctx.exec();
  const std::vector<const EncodedWeight*> weights = weights_of(parts);
  const OwnedTensor dense = allocate_scratch(
      exec, ctx.compute, {joined_rows(weights), weights.front()->columns}, "a joined weight");
  int64_t row = 0;
  for (const WeightPart& part : parts) {
    expand_part(format, part, dense.view.rows(row, part.weight->rows), ctx);
    row += part.weight->rows;
  }
  return naming_errors(parts.front().name,
                       [&] { return format.encode_on_device(dense.view, ctx); });
}

}  // namespace sparsellm
