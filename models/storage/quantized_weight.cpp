#include "models/storage/quantized_weight.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/base/convert.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "kernels/counter_random.h"
#include "models/storage/stored_names.h"
#include "sparse/load_context.h"

namespace sparsellm {
namespace {

constexpr std::string_view kPacked = ".weight_packed";
constexpr std::string_view kWeightScale = ".weight_scale";
constexpr std::string_view kWeightShape = ".weight_shape";
constexpr int64_t kPackedCodes = 8;             // of 4 bits in an int32
constexpr int64_t kMinElementsTaken = 8 << 10;  // worth the waking of a thread

// Tensors of the same modules that say that the weight is something else.
struct UnsupportedPart {
  std::string_view suffix;
  std::string_view why;
};
constexpr UnsupportedPart kUnsupportedParts[] = {
    {".weight_zero_point", "zero points (asymmetric quantisation) are not supported"},
    {".weight_g_idx", "groups in the order of activations (actorder) are not supported"},
    {".weight_global_scale", "scales of scales (nvfp4) are not supported"},
    {".weight_scale_inv", "scales of blocks are not supported"},
    {".scale_packed", "the format marlin-24 is not supported"},
};

// Of a tensor that is not aligned in the file.
int64_t load_integer(const StoredTensor& tensor, int64_t index) {
  if (tensor.dtype == "I64") {
    int64_t value = 0;
    std::memcpy(&value, tensor.bytes.data() + index * int64_t{sizeof(value)}, sizeof(value));
    return value;
  }
  int32_t value = 0;
  std::memcpy(&value, tensor.bytes.data() + index * int64_t{sizeof(value)}, sizeof(value));
  return value;
}

ValueType type_of_codes(std::string_view dtype) {
  return dtype == "I8" ? ValueType::i8 : ValueType::f8;
}

}  // namespace

std::optional<QuantizedWeight> QuantizedWeight::find(const Checkpoint& checkpoint,
                                                     std::string_view weight_name) {
  const auto has = [&](std::string_view base, std::string_view suffix) {
    return checkpoint.find(std::string(base).append(suffix)) != nullptr;
  };
  const auto has_codes = [&](std::string_view base, std::string_view suffix) {
    const StoredTensor* const tensor = checkpoint.find(std::string(base).append(suffix));
    return tensor != nullptr && is_code_type(tensor->dtype);
  };
  for (std::string_view name : stored_names(weight_name)) {
    const std::string_view module = module_of_weight(name);
    if (has(module, kPacked) || has(module, kWeightScale) || has_codes(name, "") ||
        has_codes(name, ".compressed") || has_codes(module, ".compressed")) {
      return QuantizedWeight(checkpoint, name);
    }
  }
  return std::nullopt;
}

QuantizedWeight::Part QuantizedWeight::part(std::string_view suffix) const {
  Part part{.name = module_, .tensor = nullptr};
  part.name += suffix;
  part.tensor = checkpoint_->find(part.name);
  return part;
}

std::string QuantizedWeight::describe(const Part& part) const {
  return fmt::format("{}: the tensor {}", checkpoint_->directory().string(), quote(part.name));
}

QuantizedWeight::QuantizedWeight(const Checkpoint& checkpoint, std::string_view name)
    : checkpoint_(&checkpoint),
      module_(module_of_weight(name)),
      bitmask_(BitmaskWeight::find(checkpoint, name)) {
  refuse_what_is_not_supported();
  Part plain{.name = std::string(name), .tensor = checkpoint.find(name)};
  Part packed = part(kPacked);
  scale_ = part(kWeightScale);
  const bool is_packed = packed.tensor != nullptr;
  require(!is_packed || (plain.tensor == nullptr && !bitmask_),
          "{}: the weight {} is stored twice, as {} and in another form",
          checkpoint.directory().string(), quote(name), quote(packed.name));
  require(is_packed || plain.tensor != nullptr || bitmask_.has_value(), "{} is missing",
          describe(plain));
  require(scale_.tensor != nullptr, "{} is missing", describe(scale_));
  if (is_packed) {
    shape_ = part(kWeightShape);
    type_ = ValueType::i4;
    codes_ = std::move(packed);
  } else {
    const std::string_view dtype =
        bitmask_ ? bitmask_->code_type() : std::string_view(plain.tensor->dtype);
    require(is_code_type(dtype),
            "{} has scales, but its values are {}; quantised ones are I8 or F8_E4M3",
            describe(plain), bitmask_ ? name_of(bitmask_->dtype()) : dtype);
    type_ = type_of_codes(dtype);
    codes_ = std::move(plain);
  }
  read_shape();
  read_scale_shape();
}

void QuantizedWeight::refuse_what_is_not_supported() const {
  for (const UnsupportedPart& each : kUnsupportedParts) {
    const Part found = part(each.suffix);
    require(found.tensor == nullptr, "{} is there: {}", describe(found), each.why);
  }
}

void QuantizedWeight::read_shape() {
  if (bitmask_) {
    rows_ = bitmask_->rows();
    columns_ = bitmask_->columns();
    return;
  }
  const std::vector<int64_t>& stored = codes_.tensor->shape;
  if (type_ != ValueType::i4) {
    require(stored.size() == 2 && stored[0] > 0 && stored[1] > 0,
            "{} has shape [{}]; expected two positive sizes", describe(codes_),
            fmt::join(stored, ", "));
    rows_ = stored[0];
    columns_ = stored[1];
    return;
  }
  require(shape_.tensor != nullptr, "{} is missing", describe(shape_));
  const StoredTensor& shape = *shape_.tensor;
  const bool is_pair =
      shape.shape == std::vector<int64_t>{2} || shape.shape == std::vector<int64_t>{2, 1};
  require((shape.dtype == "I64" || shape.dtype == "I32") && is_pair,
          "{} is {} [{}], but expected is I64 [2]", describe(shape_), shape.dtype,
          fmt::join(shape.shape, ", "));
  rows_ = load_integer(shape, 0);
  columns_ = load_integer(shape, 1);
  require(rows_ > 0 && columns_ > 0 && columns_ <= INT64_MAX - kPackedCodes,
          "{} says {} x {}; expected positive numbers", describe(shape_), rows_, columns_);
  const std::vector<int64_t> expected{rows_, (columns_ + kPackedCodes - 1) / kPackedCodes};
  require(codes_.tensor->dtype == "I32" && stored == expected,
          "{} is {} [{}], but of 4 bits and {} x {} expected is I32 [{}]", describe(codes_),
          codes_.tensor->dtype, fmt::join(stored, ", "), rows_, columns_,
          fmt::join(expected, ", "));
}

void QuantizedWeight::read_scale_shape() {
  const std::vector<int64_t>& shape = scale_.tensor->shape;
  scale_.tensor->float_dtype(describe(scale_));
  const bool is_one = std::ranges::all_of(shape, [](int64_t size) { return size == 1; });
  const bool of_rows =
      shape == std::vector<int64_t>{rows_} || shape == std::vector<int64_t>{rows_, 1};
  if (type_ != ValueType::i4) {
    group_ = columns_;
    require(is_one || of_rows,
            "{} has shape [{}]; of {} expected is one scale, or one for each of {} rows",
            describe(scale_), fmt::join(shape, ", "), name_of(type_), rows_);
    return;
  }
  group_ = kDefaultValueGroup;
  if (of_rows) {
    return;
  }
  const int64_t groups = shape.size() == 2 && shape[0] == rows_ ? shape[1] : 0;
  group_ = groups > 0 && columns_ % groups == 0 ? columns_ / groups : 0;
  require(std::ranges::find(kValueGroups, group_) != std::end(kValueGroups),
          "{} has shape [{}]; of {} x {} with 4 bits expected are groups of 32, 64 or 128 columns",
          describe(scale_), fmt::join(shape, ", "), rows_, columns_);
}

std::optional<int64_t> QuantizedWeight::stored_values() const {
  return bitmask_ ? std::optional(bitmask_->stored_values()) : std::nullopt;
}

int64_t QuantizedWeight::bytes() const {
  int64_t total = bitmask_ ? bitmask_->bytes() : 0;
  for (const Part* part : {&codes_, &shape_, &scale_}) {
    total += part->tensor == nullptr ? 0 : std::ssize(part->tensor->bytes);
  }
  return total;
}

std::vector<std::string> QuantizedWeight::tensor_names() const {
  std::vector<std::string> names = bitmask_ ? bitmask_->tensor_names() : std::vector<std::string>();
  for (const Part* part : {&codes_, &shape_, &scale_}) {
    if (part->tensor != nullptr) {
      names.push_back(part->name);
    }
  }
  return names;
}

std::span<const std::byte> QuantizedWeight::row_bytes(int64_t row) const {
  const std::span<const std::byte> bytes = codes_.tensor->bytes;
  const size_t pitch = bytes.size() / static_cast<size_t>(rows_);
  return bytes.subspan(static_cast<size_t>(row) * pitch, pitch);
}

void QuantizedWeight::unpack_row(int64_t row, std::span<int8_t> codes) const {
  const std::span<const std::byte> bytes = row_bytes(row);
  if (type_ != ValueType::i4) {
    std::memcpy(codes.data(), bytes.data(), bytes.size());
    return;
  }
  const auto nibble = [&](size_t column) {
    return std::to_integer<int>(bytes[column / 2]) >> column % 2 * 4 & 15;
  };
  for (size_t column = 0; column < codes.size(); ++column) {
    codes[column] = static_cast<int8_t>(nibble(column) - 8);
  }
  for (size_t column = codes.size(); column < bytes.size() * 2; ++column) {
    require(nibble(column) == 0 || nibble(column) == 8,
            "{} has a value after the last column in row {}", describe(codes_), row);
  }
}

double QuantizedWeight::density() const {
  const double elements = static_cast<double>(rows_) * static_cast<double>(columns_);
  if (bitmask_) {
    return static_cast<double>(bitmask_->stored_values()) / elements;
  }
  constexpr int64_t kSampledRows = 256;
  constexpr uint64_t kSampleSeed = 1;
  const int mask = type_ == ValueType::f8 ? 0x7f : 0xff;
  const int64_t rows = std::min(kSampledRows, rows_);
  std::vector<int8_t> codes(static_cast<size_t>(columns_));
  int64_t nonzeros = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t first = i * rows_ / rows;
    const int64_t piece = (i + 1) * rows_ / rows - first;
    unpack_row(first + static_cast<int64_t>(uniform(kSampleSeed, i) * static_cast<double>(piece)),
               codes);
    nonzeros += std::ranges::count_if(codes, [&](int8_t code) { return (code & mask) != 0; });
  }
  return static_cast<double>(nonzeros) /
         (static_cast<double>(rows) * static_cast<double>(columns_));
}

// [rows, groups]
std::vector<float> QuantizedWeight::scales() const {
  const DType dtype = scale_.tensor->float_dtype(describe(scale_));
  const int64_t count = std::ssize(scale_.tensor->bytes) / size_of(dtype);
  std::vector<float> stored(static_cast<size_t>(count));
  convert(dtype, scale_.tensor->bytes.data(), DType::f32,
          reinterpret_cast<std::byte*>(stored.data()), count);
  const QuantizedMatrix sizes{.columns = columns_, .group = group_};
  const int64_t all = rows_ * sizes.groups();
  if (count == all) {
    return stored;
  }
  const int64_t sharing = all / count;  // of the matrix, or of a row
  std::vector<float> scales(static_cast<size_t>(all));
  for (int64_t i = 0; i < all; ++i) {
    scales[static_cast<size_t>(i)] = stored[static_cast<size_t>(i / sharing)];
  }
  return scales;
}

QuantizedMatrix QuantizedWeight::matrix(ThreadPool& threads) const {
  QuantizedMatrix q{.type = type_, .rows = rows_, .columns = columns_, .group = group_};
  q.scales = scales();
  if (bitmask_) {
    q.codes = bitmask_->codes();
  } else {
    q.codes.resize(static_cast<size_t>(rows_ * columns_));
    threads.parallel_for(rows_, kMinElementsTaken / columns_ + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        unpack_row(row, std::span(q.codes).subspan(static_cast<size_t>(row * columns_),
                                                   static_cast<size_t>(columns_)));
      }
    });
    release_pages(codes_.tensor->bytes);
  }
  naming_errors(
      fmt::format("{}: the weight {}", checkpoint_->directory().string(), quote(codes_.name)),
      [&] { require_valid(q); });
  return q;
}

}  // namespace sparsellm
