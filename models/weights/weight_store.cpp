#include "models/weights/weight_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/convert.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/upload.h"
#include "kernels/counter_random.h"
#include "models/storage/bitmask_weight.h"
#include "models/storage/quantized_weight.h"
#include "models/storage/stored_names.h"
#include "sparse/count_nonzeros.h"
#include "sparse/dense/dense.h"
#include "sparse/narrow_encoding.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/quantized/quantized_choice.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "sparse/tca_bme/tca_bme.h"

namespace sparsellm {
namespace {

// Contiguous, on the host; `whole` itself if it is all of it.
OwnedTensor slice_of(OwnedTensor whole, const Slice& slice) {
  const Tensor& from = whole.view;
  if (slice.rows.count == from.size(0) && slice.columns.count == from.size(1)) {
    return whole;
  }
  OwnedTensor part = allocate_tensor({}, from.dtype(), {slice.rows.count, slice.columns.count},
                                     "a part of a weight");
  for (int64_t i = 0; i < slice.rows.count; ++i) {
    const Tensor row = from.rows(slice.rows.begin + i, 1);
    copy_bytes({}, part.view.rows(i, 1).raw(), {},
               row.columns(slice.columns.begin, slice.columns.count).raw(),
               slice.columns.count * size_of(from.dtype()));
  }
  return part;
}

}  // namespace

WeightStore::WeightStore(const Checkpoint& checkpoint)
    : checkpoint_(&checkpoint),
      file_(checkpoint),
      dtype_of_codes_(has_tensor_of(checkpoint, "BF16") ? DType::bf16 : DType::f16) {}

std::string WeightStore::describe(std::string_view name) const {
  return fmt::format("{}: the tensor {}", checkpoint_->directory().string(), quote(name));
}

std::string WeightStore::plain_name(std::string_view name) const {
  for (std::string_view stored : stored_names(name)) {
    if (checkpoint_->find(stored) != nullptr) {
      return std::string(stored);
    }
  }
  return {};
}

WeightStore::Stored WeightStore::get(std::string_view name) const {
  const std::string plain = plain_name(name);
  if (const ModelFile::Weight* weight = file_.find(name)) {
    require(plain.empty(), "{} is stored twice, plainly and as {}", describe(name),
            weight->header.format);
    return {.name = file_.stored_name(name),
            .form = Form::encoded,
            .format = weight->header.format,
            .dtype = weight->header.dtype,
            .rows = weight->header.rows,
            .columns = weight->header.columns,
            .nonzeros = weight->header.nonzeros,
            .file = weight->file,
            .bytes = weight->bytes,
            .tensors = weight->tensors};
  }
  if (const auto weight = QuantizedWeight::find(*checkpoint_, name)) {
    return {.name = std::string(name),
            .form = Form::quantized,
            .format = std::string(tca_bme_format().name()),
            .dtype = dtype_of_codes_,
            .rows = weight->rows(),
            .columns = weight->columns(),
            .nonzeros = weight->stored_values().value_or(0),
            .file = nullptr,
            .bytes = weight->bytes(),
            .tensors = weight->tensor_names()};
  }
  if (const auto weight = BitmaskWeight::find(*checkpoint_, name)) {
    return {.name = std::string(name),
            .form = Form::bitmask,
            .format = std::string(dense_format().name()),
            .dtype = weight->dtype(),
            .rows = weight->rows(),
            .columns = weight->columns(),
            .nonzeros = weight->stored_values(),
            .file = nullptr,
            .bytes = weight->bytes(),
            .tensors = weight->tensor_names()};
  }
  require(!plain.empty(), "{} is missing", describe(name));
  const StoredTensor& tensor = *checkpoint_->find(plain);
  require(tensor.shape.size() == 2, "{} has {} dimensions; expected 2", describe(name),
          tensor.shape.size());
  return {.name = plain,
          .form = Form::plain,
          .format = std::string(dense_format().name()),
          .dtype = tensor.float_dtype(describe(plain)),
          .rows = tensor.shape[0],
          .columns = tensor.shape[1],
          .nonzeros = 0,
          .file = nullptr,
          .bytes = std::ssize(tensor.bytes),
          .tensors = {plain}};
}

double WeightStore::density(std::string_view name) const {
  const Stored stored = get(name);
  const double elements = static_cast<double>(stored.rows) * static_cast<double>(stored.columns);
  if (elements == 0.0) {
    return 1.0;
  }
  if (stored.form == Form::quantized) {
    return QuantizedWeight::find(*checkpoint_, name)->density();
  }
  if (stored.form != Form::plain) {
    return static_cast<double>(stored.nonzeros) / elements;
  }
  // Spread over the whole matrix, one row at random out of each of as many equally large pieces: at
  // equal distances all might be alike in a matrix whose rows repeat, as those of heads may.
  constexpr int64_t kRows = 256;
  constexpr uint64_t kSeed = 1;
  const std::span<const std::byte> bytes = checkpoint_->find(stored.tensors.front())->bytes;
  const MappedFile& file = checkpoint_->file_of(bytes);
  const int64_t row_bytes = stored.columns * size_of(stored.dtype);
  const int64_t rows = std::min(kRows, stored.rows);
  const OwnedTensor sample = allocate_tensor({}, stored.dtype, {rows, stored.columns}, name);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t first = i * stored.rows / rows;
    const int64_t piece = (i + 1) * stored.rows / rows - first;
    const int64_t row =
        first + static_cast<int64_t>(uniform(kSeed, i) * static_cast<double>(piece));
    file.read(bytes.subspan(static_cast<size_t>(row * row_bytes), static_cast<size_t>(row_bytes)),
              static_cast<std::byte*>(sample.view.raw()) + i * row_bytes);
  }
  ThreadPool caller(1);
  return static_cast<double>(count_nonzeros(sample.view, caller)) /
         static_cast<double>(sample.view.element_count());
}

EncodedSize WeightStore::size(const Stored& stored, const std::optional<Slice>& slice) const {
  if (stored.form == Form::quantized) {
    const std::optional<QuantizedWeight> weight = QuantizedWeight::find(*checkpoint_, stored.name);
    EncodedWeight header{.format = stored.format,
                         .version = tca_bme::kQuantizedVersion,
                         .dtype = stored.dtype,
                         .rows = slice ? slice->rows.count : stored.rows,
                         .columns = slice ? slice->columns.count : stored.columns,
                         .nonzeros = 0,
                         .parts = {}};
    const int64_t elements = header.rows * header.columns;
    header.nonzeros = std::llround(weight->density() * static_cast<double>(elements));
    header.parts.push_back(tca_bme::quantized_layout_part(tca_bme::quantized_layout_for(
        tca_bme::values_of(weight->type()),
        weight->type() == ValueType::i4 ? static_cast<int32_t>(weight->group()) : 0, elements,
        header.nonzeros)));
    return {.bytes = tca_bme::expected_quantized_bytes(header),
            .nonzeros = header.nonzeros,
            .exact = false};
  }
  if (!slice) {
    return {.bytes = stored.bytes, .nonzeros = stored.nonzeros};
  }
  const EncodedWeight weight = unchecked(stored.name);
  return naming_errors(file_.describe(stored.name), [&] {
    require_inside(*slice, weight.rows, weight.columns);
    return weight_format(weight.format).expected_size(weight, *slice);
  });
}

OwnedTensor WeightStore::dense(std::string_view name, ThreadPool& threads,
                               const std::optional<Slice>& slice) const {
  const Stored stored = get(name);
  const Slice wanted = slice.value_or(Slice{.rows = {.begin = 0, .count = stored.rows},
                                            .columns = {.begin = 0, .count = stored.columns}});
  require_inside(wanted, stored.rows, stored.columns);
  switch (stored.form) {
    case Form::plain:
      return dense_plain(stored, wanted);
    case Form::bitmask:
      return slice_of(BitmaskWeight::find(*checkpoint_, name)->dense(), wanted);
    case Form::quantized:
      return dense_quantized(stored, wanted, threads);
    case Form::encoded:
      break;
  }
  EncodedWeight weight = unchecked(name);
  const WeightFormat& format = weight_format(weight.format);
  const std::string described = file_.describe(stored.name);
  if (slice && naming_errors(described, [&] { return format.at_borders(weight, wanted); })) {
    const WeightPart part{
        .weight = &weight, .name = described, .file = stored.file, .slice = wanted};
    return format.decode(format.read_slice(part, threads), threads);
  }
  return slice_of(format.decode(encoded(name, threads), threads), wanted);
}

OwnedTensor WeightStore::dense_plain(const Stored& stored, const Slice& slice) const {
  const std::span<const std::byte> bytes = checkpoint_->find(stored.tensors.front())->bytes;
  const int64_t item = size_of(stored.dtype);
  const int64_t pitch = stored.columns * item;
  const int64_t first = slice.rows.begin * pitch + slice.columns.begin * item;
  const bool whole_rows = slice.columns.count == stored.columns;
  if (whole_rows && reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(item) == 0) {
    // Tensor has no view of memory that is only read; nobody writes to this one.
    auto* const data = const_cast<std::byte*>(bytes.data()) + first;
    return {.buffer = {},
            .view = Tensor(data, stored.dtype, {slice.rows.count, stored.columns}, {})};
  }
  OwnedTensor copy =
      allocate_tensor({}, stored.dtype, {slice.rows.count, slice.columns.count}, stored.name);
  const int64_t rows = whole_rows ? 1 : slice.rows.count;
  const int64_t row_bytes = copy.view.bytes() / std::max(rows, int64_t{1});
  if (copy.view.bytes() > 0) {
    read_source(
        {.what = describe(stored.name),
         .source = bytes.subspan(static_cast<size_t>(first), static_cast<size_t>(row_bytes)),
         .rows = rows,
         .pitch = pitch,
         .from = stored.dtype,
         .to = stored.dtype,
         .file = &checkpoint_->file_of(bytes)},
        static_cast<std::byte*>(copy.view.raw()));
  }
  return copy;
}

QuantizedMatrix WeightStore::quantized(std::string_view name, ThreadPool& threads) const {
  const std::optional<QuantizedWeight> weight = QuantizedWeight::find(*checkpoint_, name);
  require(weight.has_value(), "{} is not quantised", describe(name));
  return weight->matrix(threads);
}

OwnedTensor WeightStore::dense_quantized(const Stored& stored, const Slice& slice,
                                         ThreadPool& threads) const {
  const QuantizedMatrix q = quantized(stored.name, threads);
  naming_errors(describe(stored.name), [&] { require_finite(q, stored.dtype); });
  return slice_of(dequantize(q, stored.dtype, threads), slice);
}

EncodedWeight WeightStore::encode_codes(std::string_view name, const WeightFormat& to, DType dtype,
                                        ThreadPool& threads,
                                        const std::optional<Slice>& slice) const {
  const QuantizedMatrix q = quantized(name, threads);
  return naming_errors(describe(name), [&] {
    require_finite(q, dtype);
    EncodedWeight encoded = tca_bme::encode_quantized(q, to.name(), dtype, threads);
    if (slice) {
      require_inside(*slice, q.rows, q.columns);
      encoded = sparsellm::slice(encoded, Axis::rows, slice->rows, threads);
      encoded = sparsellm::slice(encoded, Axis::columns, slice->columns, threads);
    }
    return encoded;
  });
}

EncodedWeight WeightStore::encoded(std::string_view name, ThreadPool& threads) const {
  std::optional<EncodedWeight> weight = file_.encoded(name, threads);
  require(weight.has_value(), "{} is not stored in a sparse format", describe(name));
  return std::move(*weight);
}

EncodedWeight WeightStore::unchecked(std::string_view name) const {
  std::optional<EncodedWeight> weight = file_.unchecked(name);
  require(weight.has_value(), "{} is not stored in a sparse format", describe(name));
  return std::move(*weight);
}

EncodedWeight WeightStore::encode(std::string_view name, const WeightFormat& to, DType dtype,
                                  ThreadPool& threads, const std::optional<Slice>& slice,
                                  const LayoutOptions& options) const {
  if (const auto weight = QuantizedWeight::find(*checkpoint_, name);
      weight && (&to == &tca_bme_format() || tca_bme::dense_values(to.name()) == weight->type())) {
    return encode_codes(name, to, dtype, threads, slice);
  }
  OwnedTensor values = dense(name, threads, slice);
  if (values.view.dtype() != dtype) {
    OwnedTensor converted =
        allocate_tensor({}, dtype, {values.view.size(0), values.view.size(1)}, name);
    const std::optional<float> overflow =
        convert(values.view.dtype(), static_cast<const std::byte*>(values.view.raw()), dtype,
                static_cast<std::byte*>(converted.view.raw()), values.view.element_count());
    require(!overflow, "{}: the value {} is too large for {}", describe(name), overflow.value_or(0),
            name_of(dtype));
    values = std::move(converted);
  }
  const std::string reason = to.why_not(values.view);
  require(reason.empty(), "{} cannot be loaded as {}: {}", describe(name), to.name(), reason);
  return to.encode(values.view, options, threads);
}

LayoutOptions WeightStore::layout_like(const Stored& stored) const {
  return stored.form == Form::encoded
             ? naming_errors(
                   describe(stored.name),
                   [&] { return weight_format(stored.format).layout_like(unchecked(stored.name)); })
             : LayoutOptions();
}

std::string WeightStore::narrow_values(const Stored& stored) const {
  if (stored.form == Form::quantized) {
    const std::optional<QuantizedWeight> weight = QuantizedWeight::find(*checkpoint_, stored.name);
    return tca_bme::text_of({.type = weight->type(), .group = weight->group()});
  }
  return stored.form == Form::encoded
             ? naming_errors(describe(stored.name),
                             [&] {
                               const EncodedWeight e = unchecked(stored.name);
                               return has_narrow_values(e) ? type_of_values(e) : std::string();
                             })
             : std::string();
}

bool WeightStore::are_alike(std::span<const Stored> parts) const {
  return std::ranges::all_of(parts, [&](const Stored& part) {
    return part.format == parts.front().format &&
           narrow_values(part) == narrow_values(parts.front());
  });
}

std::string_view WeightStore::joined_format(std::span<const Stored> parts) const {
  const Stored& largest = *std::ranges::max_element(parts, {}, &Stored::rows);
  return always_rounds(largest.format) && !are_alike(parts) ? dense_format().name()
                                                            : std::string_view(largest.format);
}

void WeightStore::release(const Stored& stored) const {
  for (const std::string& tensor : stored.tensors) {
    release_pages(checkpoint_->find(tensor)->bytes);
  }
}

void WeightStore::require_all_used(const std::set<std::string, std::less<>>& used,
                                   std::span<const std::string_view> ignored) const {
  for (const std::string& name : checkpoint_->names()) {
    const bool is_ignored = std::any_of(ignored.begin(), ignored.end(),
                                        [&](std::string_view end) { return name.ends_with(end); });
    require(file_.is_padding(name) || is_ignored || used.contains(name),
            "{}: the checkpoint has the tensor {}, which its config does not ask for",
            checkpoint_->directory().string(), quote(name));
  }
}

bool has_tensor_of(const Checkpoint& checkpoint, std::string_view dtype) {
  return std::ranges::any_of(checkpoint.names(), [&](const std::string& name) {
    // Scales of quantised weights, and of encoded ones with narrow values.
    const bool scales = name.ends_with("_scale") || name.ends_with(".scales");
    return checkpoint.find(name)->dtype == dtype && !scales;
  });
}

void require_finite(const QuantizedMatrix& q, DType dtype) {
  const double infinite_from = dtype == DType::f16    ? 65520.0
                               : dtype == DType::bf16 ? 0x1.ffp127
                                                      : 0x1.ffffffp127;
  std::array<double, 256> magnitudes{};
  for (size_t bits = 0; bits < magnitudes.size(); ++bits) {
    magnitudes[bits] = std::fabs(value_of(q.type, static_cast<int8_t>(bits)));
  }
  const double most = q.type == ValueType::f8 ? 448.0 : q.type == ValueType::i8 ? 128.0 : 8.0;
  for (int64_t i = 0; i < std::ssize(q.scales); ++i) {
    const double scale = q.scales[static_cast<size_t>(i)];
    if (most * scale < infinite_from) {
      continue;
    }
    const int64_t row = i / q.groups();
    const int64_t first = i % q.groups() * q.group;
    const int64_t stop = std::min(q.columns, first + q.group);
    for (int64_t column = first; column < stop; ++column) {
      const auto code =
          static_cast<uint8_t>(q.codes[static_cast<size_t>(row * q.columns + column)]);
      require(magnitudes[code] * scale < infinite_from,
              "the value in row {}, column {} is too large for {}", row, column, name_of(dtype));
    }
  }
}

}  // namespace sparsellm
