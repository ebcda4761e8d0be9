#include "sparse/format.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/upload.h"
#include "sparse/cpu/cpu_weight.h"
#include "sparse/join_parts.h"
#include "sparse/record_slice.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

const EncodedWeight& largest_of(std::span<const EncodedWeight* const> parts) {
  return **std::ranges::max_element(parts, {}, &EncodedWeight::rows);
}

// All of them, one below the other.
OwnedTensor decode_joined(std::span<const EncodedWeight* const> parts, ThreadPool& threads) {
  const auto decode = [&](const EncodedWeight& part) {
    return weight_format(part.format).decode(part, threads);
  };
  const EncodedWeight& first = *parts.front();
  if (parts.size() == 1) {
    return decode(first);
  }
  OwnedTensor dense =
      allocate_tensor({}, first.dtype, {joined_rows(parts), first.columns}, "a joined weight");
  int64_t row = 0;
  for (const EncodedWeight* part : parts) {
    const OwnedTensor one = decode(*part);
    if (one.view.bytes() > 0) {
      std::memcpy(dense.view.rows(row, part->rows).raw(), one.view.raw(),
                  static_cast<size_t>(one.view.bytes()));
    }
    row += part->rows;
  }
  return dense;
}

// A copy of its own, contiguous.
OwnedTensor copy_columns(const Tensor& all, Range columns) {
  OwnedTensor part =
      allocate_tensor({}, all.dtype(), {all.size(0), columns.count}, "a slice of a weight");
  const int64_t item = size_of(all.dtype());
  for (int64_t row = 0; row < all.size(0) && columns.count > 0; ++row) {
    const auto at = [&](const Tensor& x, int64_t column) {
      return static_cast<std::byte*>(x.raw()) + (row * x.row_stride() + column) * item;
    };
    std::memcpy(at(part.view, 0), at(all, columns.begin),
                static_cast<size_t>(columns.count * item));
  }
  return part;
}

}  // namespace

std::string WeightFormat::values_in(std::string_view) const { return {}; }

void WeightFormat::check_layout(std::string_view text) const {
  require(text.empty(), "the layout of the weight format {} cannot be chosen", name());
}

EncodedWeight WeightFormat::encode(const Tensor& w, const LayoutOptions& options,
                                   ThreadPool& threads) const {
  check_layout(options.layout);
  return encode_on_host(w, options, threads);
}

EncodedWeight WeightFormat::encode(const Tensor& w, ThreadPool& threads) const {
  return encode(w, LayoutOptions(), threads);
}

void WeightFormat::validate(const EncodedWeight& e) const {
  ThreadPool caller(1);
  validate(e, caller);
}

int64_t WeightFormat::workspace_bytes(const EncodedWeight& e, Device, int64_t tokens, Sums) const {
  return cpu_weight_workspace_bytes(e, tokens);
}

void WeightFormat::tell_layout(EncodedWeight&, const LayoutOptions& options) const {
  check_layout(options.layout);
}

LayoutOptions WeightFormat::layout_like(const EncodedWeight&) const { return {}; }

int64_t WeightFormat::bytes_on_cpu(const EncodedWeight& e) const { return cpu_weight_bytes(e); }

std::unique_ptr<WeightMatrix> WeightFormat::load(std::span<const WeightPart> parts,
                                                 const LoadContext& ctx) const {
  require(!parts.empty(), "no weights to join");
  for (const WeightPart& part : parts) {
    naming_errors(part.name, [&] {
      require_runs_on(ctx.device, *this);
      require_header(*part.weight, *this);
      if (part.slice) {
        require_inside(*part.slice, part.weight->rows, part.weight->columns);
      }
      require(!ctx.device.is_cuda() || part.weight->dtype == ctx.compute,
              "its values are {}, but products on {} compute in {}", name_of(part.weight->dtype),
              to_string(ctx.device), name_of(ctx.compute));
    });
  }
  naming_errors(parts.front().name, [&] { joined_rows(weights_of(parts)); });
  for (const WeightPart& part : parts) {
    require(part.columns() == parts.front().columns(),
            "{}: {} columns of it cannot be joined with {} of others", part.name, part.columns(),
            parts.front().columns());
  }
  if (!ctx.device.is_cuda()) {
    return load_on_cpu(join_on_host(parts, ctx.threads), ctx.threads);
  }
  const bool fall_right = std::ranges::all_of(parts, [&](const WeightPart& part) {
    return !part.slice ||
           naming_errors(part.name, [&] { return at_borders(*part.weight, *part.slice); });
  });
  const int64_t held = ctx.uploads->held();
  try {
    return fall_right ? load_on_cuda(parts, ctx) : join_on_device(*this, parts, ctx);
  } catch (...) {
    ctx.uploads->drop(held);  // whose destinations have gone
    throw;
  }
}

std::unique_ptr<WeightMatrix> WeightFormat::load(EncodedWeight e, const LoadContext& ctx) const {
  const WeightPart part{.weight = &e};
  if (!ctx.device.is_cuda()) {
    return load({&part, 1}, ctx);
  }
  const int64_t held = ctx.uploads->held();
  std::unique_ptr<WeightMatrix> weight = load({&part, 1}, ctx);
  ctx.uploads->flush(held);
  return weight;
}

std::unique_ptr<WeightMatrix> WeightFormat::encode_on_device(const Tensor& w,
                                                             const LayoutOptions& options,
                                                             const LoadContext& ctx) const {
  check_layout(options.layout);
  if (std::unique_ptr<WeightMatrix> weight = encode_without_host(w, options, ctx)) {
    return weight;
  }
  require_runs_on(ctx.device, *this);
  OwnedTensor host{.buffer = {}, .view = w};
  if (w.device().is_cuda()) {
    require(w.contiguous(), "a weight with strided rows");
    host = allocate_tensor({}, w.dtype(), {w.size(0), w.size(1)}, "a weight to be encoded");
    const ExecContext& exec = ctx.exec();
    exec.cuda->copy(host.view.raw(), w.raw(), w.bytes(), exec.queue);
  }
  const std::string reason = why_not(host.view);
  require(reason.empty(), "{}", reason);
  EncodedWeight e = encode_on_host(host.view, options, ctx.threads);
  host = {};
  return load(std::move(e), ctx);
}

std::unique_ptr<WeightMatrix> WeightFormat::encode_on_device(const Tensor& w,
                                                             const LoadContext& ctx) const {
  return encode_on_device(w, LayoutOptions(), ctx);
}

std::unique_ptr<WeightMatrix> WeightFormat::encode_without_host(const Tensor&, const LayoutOptions&,
                                                                const LoadContext&) const {
  return nullptr;
}

std::unique_ptr<WeightMatrix> WeightFormat::load_on_cuda(std::span<const WeightPart>,
                                                         const LoadContext& ctx) const {
  fail("the weight format {} has no kernels for {}", name(), to_string(ctx.device));
}

std::optional<EncodedWeight> WeightFormat::slice(const EncodedWeight&, Axis, Range) const {
  return std::nullopt;
}

std::optional<EncodedWeight> WeightFormat::concat_rows(
    std::span<const EncodedWeight* const>) const {
  return std::nullopt;
}

EncodedWeight WeightFormat::encode_again(std::span<const EncodedWeight* const> parts,
                                         const Slice& slice, ThreadPool& threads) const {
  const LayoutOptions options = layout_like(largest_of(parts));
  OwnedTensor dense = decode_joined(parts, threads);
  if (slice.columns.count < dense.view.size(1)) {
    dense = copy_columns(dense.view.rows(slice.rows.begin, slice.rows.count), slice.columns);
    return encode(dense.view, options, threads);
  }
  return encode(dense.view.rows(slice.rows.begin, slice.rows.count), options, threads);
}

bool WeightFormat::at_borders(const EncodedWeight&, const Slice&) const { return false; }

EncodedSize WeightFormat::expected_size(const EncodedWeight& e, const Slice& slice) const {
  EncodedWeight header{.format = e.format,
                       .version = version(),
                       .dtype = e.dtype,
                       .rows = slice.rows.count,
                       .columns = slice.columns.count,
                       .nonzeros = 0,
                       .parts = {}};
  header.nonzeros = proportional(e.nonzeros, header.rows * header.columns, e.rows * e.columns);
  tell_layout(header, layout_like(e));
  return {.bytes = expected_bytes(header), .nonzeros = header.nonzeros, .exact = false};
}

EncodedWeight WeightFormat::read_slice(const WeightPart& part, ThreadPool& threads) const {
  const Slice wanted = *part.slice;
  return naming_errors(part.name, [&] {
    require_header(*part.weight, *this);
    require_inside(wanted, part.weight->rows, part.weight->columns);
    if (at_borders(*part.weight, wanted)) {
      return read_slice_at_borders(part, threads);
    }
    EncodedWeight whole = view_of(*part.weight);
    if (part.file != nullptr) {
      for (EncodedPart& array : whole.parts) {
        take_into_memory(array, part.file_of(array.bytes));
      }
      validate(whole, threads);
    }
    if (wanted.rows.count < whole.rows) {
      whole = sparsellm::slice(whole, Axis::rows, wanted.rows, threads);
    }
    if (wanted.columns.count < whole.columns) {
      whole = sparsellm::slice(whole, Axis::columns, wanted.columns, threads);
    }
    return with_own_memory(std::move(whole));
  });
}

EncodedWeight WeightFormat::read_slice_at_borders(const WeightPart& part, ThreadPool&) const {
  fail("the format {} reads no slices", part.weight->format);
}

void require_inside(const Slice& slice, int64_t rows, int64_t columns) {
  const auto is_inside = [](Range range, int64_t size) {
    return range.begin >= 0 && range.count >= 0 && range.count <= size - range.begin;
  };
  require(is_inside(slice.rows, rows) && is_inside(slice.columns, columns),
          "{} rows from {} and {} columns from {} of a weight of {} x {}", slice.rows.count,
          slice.rows.begin, slice.columns.count, slice.columns.begin, rows, columns);
}

EncodedWeight slice(const EncodedWeight& e, Axis axis, Range range, ThreadPool& threads) {
  const int64_t size = axis == Axis::rows ? e.rows : e.columns;
  require(range.begin >= 0 && range.count >= 0 && range.count <= size - range.begin,
          "{} {} from {} of a weight with {}", range.count, axis == Axis::rows ? "rows" : "columns",
          range.begin, size);
  const WeightFormat& format = weight_format(e.format);
  if (std::optional<EncodedWeight> sliced = format.slice(e, axis, range)) {
    return std::move(*sliced);
  }
  const EncodedWeight* const part = &e;
  const Range all_rows{.begin = 0, .count = e.rows};
  const Range all_columns{.begin = 0, .count = e.columns};
  return format.encode_again({&part, 1},
                             {.rows = axis == Axis::rows ? range : all_rows,
                              .columns = axis == Axis::rows ? all_columns : range},
                             threads);
}

EncodedWeight concat_rows(std::span<const EncodedWeight* const> parts, ThreadPool& threads) {
  const int64_t rows = joined_rows(parts);
  const EncodedWeight& largest = largest_of(parts);
  const WeightFormat& format = weight_format(largest.format);
  const bool same_format = std::ranges::all_of(parts, [&](const EncodedWeight* part) {
    return part->format == largest.format && part->version == largest.version;
  });
  if (same_format) {
    if (std::optional<EncodedWeight> joined = format.concat_rows(parts)) {
      return std::move(*joined);
    }
  }
  return format.encode_again(
      parts,
      {.rows = {.begin = 0, .count = rows}, .columns = {.begin = 0, .count = largest.columns}},
      threads);
}

void require_header(const EncodedWeight& e, const WeightFormat& format) {
  require(e.format == format.name(), "an encoding in the format {} is not one in {}", e.format,
          format.name());
  require(e.rows >= 0 && e.columns >= 0, "an encoded weight of {} x {} elements", e.rows,
          e.columns);
  const int64_t elements = checked_mul(e.rows, e.columns, "elements of an encoded weight");
  checked_mul(elements, 8, "bytes of an encoded weight");
  require(e.nonzeros >= 0 && e.nonzeros <= elements, "{} nonzeros in a weight of {} x {} elements",
          e.nonzeros, e.rows, e.columns);
}

int64_t joined_rows(std::span<const EncodedWeight* const> parts) {
  require(!parts.empty(), "no weights to join");
  const EncodedWeight& first = *parts.front();
  int64_t rows = 0;
  for (const EncodedWeight* part : parts) {
    require(part->columns == first.columns && part->dtype == first.dtype,
            "a weight of {} columns of {} cannot be joined with one of {} columns of {}",
            part->columns, name_of(part->dtype), first.columns, name_of(first.dtype));
    rows = checked_add(rows, part->rows, "rows of a joined weight");
  }
  return rows;
}

void require_runs_on(const Device& device, const WeightFormat& format) {
  require(format.runs_on(device),
          "the weight format {} has no kernels for {}; converted to dense, weights run there",
          format.name(), to_string(device));
}

EncodedWeight view_of(const EncodedWeight& e) {
  EncodedWeight view{.format = e.format,
                     .version = e.version,
                     .dtype = e.dtype,
                     .rows = e.rows,
                     .columns = e.columns,
                     .nonzeros = e.nonzeros,
                     .parts = {}};
  for (const EncodedPart& part : e.parts) {
    view.parts.push_back(
        {.name = part.name, .dtype = part.dtype, .bytes = part.bytes, .memory = {}});
  }
  return view;
}

void take_into_memory(EncodedPart& part, const MappedFile* file) {
  if (part.memory.data() != nullptr || part.bytes.empty()) {
    return;
  }
  Buffer memory(Device{}, std::ssize(part.bytes), "an encoded weight");
  if (file != nullptr) {
    file->read(part.bytes, static_cast<std::byte*>(memory.data()));
  } else {
    std::memcpy(memory.data(), part.bytes.data(), part.bytes.size());
  }
  part.bytes = {static_cast<const std::byte*>(memory.data()), part.bytes.size()};
  part.memory = std::move(memory);
}

EncodedWeight with_own_memory(EncodedWeight e) {
  for (EncodedPart& part : e.parts) {
    take_into_memory(part);
  }
  return e;
}

}  // namespace sparsellm
