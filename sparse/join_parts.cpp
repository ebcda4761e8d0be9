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
namespace {

// Some columns of some rows; complete on return.
void expand_columns(const WeightMatrix& weight, const Slice& slice, const Tensor& dense,
                    ExecContext& exec) {
  const OwnedTensor rows =
      allocate_scratch(exec, dense.dtype(), {slice.rows.count, weight.in()}, "a weight's rows");
  weight.expand(slice.rows, rows.view, exec);
  const Tensor columns = rows.view.columns(slice.columns.begin, slice.columns.count);
  const int64_t item = size_of(dense.dtype());
  exec.cuda->copy_rows_async(dense.raw(), dense.row_stride() * item, columns.raw(),
                             columns.row_stride() * item, columns.size(1) * item, columns.size(0));
  exec.cuda->synchronize();
}

}  // namespace

std::vector<const EncodedWeight*> weights_of(std::span<const WeightPart> parts) {
  std::vector<const EncodedWeight*> weights;
  std::ranges::transform(parts, std::back_inserter(weights), &WeightPart::weight);
  return weights;
}

void read_and_validate(const WeightPart& part, ThreadPool& threads) {
  if (part.slice) {
    *part.weight = weight_format(part.weight->format).read_slice(part, threads);
    return;
  }
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
  const bool as_it_is = !part.slice || naming_errors(part.name, [&] {
    return format.at_borders(*part.weight, *part.slice);
  });
  WeightPart loaded = part;
  if (!as_it_is) {
    loaded.slice.reset();
  }
  const int64_t held = ctx.uploads->held();
  const std::unique_ptr<WeightMatrix> weight = format.load({&loaded, 1}, ctx);
  ctx.uploads->flush(held);
  if (as_it_is || part.slice->columns.count == weight->in()) {
    const int64_t first = as_it_is ? 0 : part.slice->rows.begin;
    weight->expand({.begin = first, .count = dense.size(0)}, dense, exec);
  } else {
    expand_columns(*weight, *part.slice, dense, exec);
  }
  exec.cuda->synchronize();  // the weight's memory goes
}

int64_t joined_rows(std::span<const WeightPart> parts) {
  int64_t rows = 0;
  for (const WeightPart& part : parts) {
    rows = checked_add(rows, part.rows(), "rows of a joined weight");
  }
  return rows;
}

std::unique_ptr<WeightMatrix> join_on_device(const WeightFormat& format,
                                             std::span<const WeightPart> parts,
                                             const LoadContext& ctx) {
  ExecContext& exec = ctx.exec();
  const WeightPart& largest = *std::ranges::max_element(parts, {}, &WeightPart::rows);
  const LayoutOptions options =
      naming_errors(largest.name, [&] { return format.layout_like(*largest.weight); });
  const OwnedTensor dense = allocate_scratch(
      exec, ctx.compute, {joined_rows(parts), parts.front().columns()}, "a joined weight");
  int64_t row = 0;
  for (const WeightPart& part : parts) {
    expand_part(format, part, dense.view.rows(row, part.rows()), ctx);
    row += part.rows();
  }
  return naming_errors(parts.front().name,
                       [&] { return format.encode_on_device(dense.view, options, ctx); });
}

}  // namespace sparsellm
