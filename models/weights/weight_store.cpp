#include "models/weights/weight_store.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/convert.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "kernels/counter_random.h"
#include "models/storage/bitmask_weight.h"
#include "models/storage/stored_names.h"
#include "sparse/count_nonzeros.h"
#include "sparse/dense/dense.h"
#include "sparse/registry.h"

namespace sparsellm {

WeightStore::WeightStore(const Checkpoint& checkpoint)
    : checkpoint_(&checkpoint), file_(checkpoint) {}

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

OwnedTensor WeightStore::dense(std::string_view name, ThreadPool& threads) const {
  const Stored stored = get(name);
  if (stored.form == Form::bitmask) {
    return BitmaskWeight::find(*checkpoint_, name)->dense();
  }
  if (stored.form == Form::encoded) {
    const EncodedWeight weight = encoded(name, threads);
    return weight_format(weight.format).decode(weight, threads);
  }
  const std::span<const std::byte> bytes = checkpoint_->find(stored.tensors.front())->bytes;
  const auto unit = static_cast<uintptr_t>(size_of(stored.dtype));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % unit == 0) {
    // Tensor has no view of memory that is only read; nobody writes to this one.
    auto* const data = const_cast<std::byte*>(bytes.data());
    return {.buffer = {}, .view = Tensor(data, stored.dtype, {stored.rows, stored.columns}, {})};
  }
  OwnedTensor copy = allocate_tensor({}, stored.dtype, {stored.rows, stored.columns}, name);
  checkpoint_->file_of(bytes).read(bytes, static_cast<std::byte*>(copy.view.raw()));
  return copy;
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
                                  ThreadPool& threads) const {
  OwnedTensor values = dense(name, threads);
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
  return to.encode(values.view, threads);
}

void WeightStore::release(const Stored& stored) const {
  for (const std::string& tensor : stored.tensors) {
    release_pages(checkpoint_->find(tensor)->bytes);
  }
}

void WeightStore::require_all_used(const std::set<std::string, std::less<>>& used,
                                   std::initializer_list<std::string_view> ignored) const {
  for (const std::string& name : checkpoint_->names()) {
    const bool is_ignored = std::any_of(ignored.begin(), ignored.end(),
                                        [&](std::string_view end) { return name.ends_with(end); });
    require(file_.is_padding(name) || is_ignored || used.contains(name),
            "{}: the checkpoint has the tensor {}, which its config does not ask for",
            checkpoint_->directory().string(), quote(name));
  }
}

std::string_view joined_format(std::span<const WeightStore::Stored> parts) {
  return std::ranges::max_element(parts, {}, &WeightStore::Stored::rows)->format;
}

}  // namespace sparsellm
