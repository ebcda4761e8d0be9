#include "models/storage/bitmask_weight.h"

#include <spdlog/fmt/ranges.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/stored_names.h"

namespace sparsellm {
namespace {

constexpr std::string_view kBitmask = ".bitmask";
constexpr std::string_view kCompressed = ".compressed";
constexpr std::string_view kRowOffsets = ".row_offsets";
constexpr std::string_view kShape = ".shape";

// Not aligned in the file.
int64_t load_i64(std::span<const std::byte> bytes, int64_t index) {
  int64_t value = 0;
  std::memcpy(&value, bytes.data() + index * int64_t{sizeof(value)}, sizeof(value));
  return value;
}

int count_bits(std::span<const std::byte> bytes) {
  int count = 0;
  for (std::byte byte : bytes) {
    count += std::popcount(std::to_integer<uint8_t>(byte));
  }
  return count;
}

template <class T>
void expand_row(std::span<const std::byte> mask, const std::byte* values, T* row) {
  int64_t column = 0;
  for (std::byte byte : mask) {
    for (auto bits = std::to_integer<uint32_t>(byte); bits != 0; bits &= bits - 1) {
      std::memcpy(row + column + std::countr_zero(bits), values, sizeof(T));
      values += sizeof(T);
    }
    column += 8;
  }
}

}  // namespace

std::string_view module_of_weight(std::string_view weight_name) {
  constexpr std::string_view kWeight = ".weight";
  return weight_name.ends_with(kWeight) ? weight_name.substr(0, weight_name.size() - kWeight.size())
                                        : weight_name;
}

bool is_code_type(std::string_view dtype) { return dtype == "I8" || dtype == "F8_E4M3"; }

std::optional<BitmaskWeight> BitmaskWeight::find(const Checkpoint& checkpoint,
                                                 std::string_view weight_name) {
  // ".shape" alone says nothing: other tensors may be called so.
  const auto is_base = [&](std::string_view base) {
    for (std::string_view suffix : {kBitmask, kCompressed, kRowOffsets}) {
      if (checkpoint.find(std::string(base).append(suffix)) != nullptr) {
        return true;
      }
    }
    return false;
  };
  const std::string directory = checkpoint.directory().string();
  for (std::string_view name : stored_names(weight_name)) {
    const std::string_view module = module_of_weight(name);
    const bool old_base = is_base(name);
    const bool new_base = module != name && is_base(module);
    if (old_base || new_base) {
      require(!old_base || !new_base, "{}: the weight {} is stored twice, as {} and as {}",
              directory, quote(name), quote(std::string(name).append(kBitmask)),
              quote(std::string(module).append(kBitmask)));
      require(checkpoint.find(name) == nullptr,
              "{}: the weight {} is stored twice, plainly and with a bitmask", directory,
              quote(name));
      return BitmaskWeight(checkpoint, std::string(old_base ? name : module));
    }
  }
  return std::nullopt;
}

BitmaskWeight::Part BitmaskWeight::part(std::string_view suffix) const {
  Part part{.name = base_, .tensor = nullptr};
  part.name += suffix;
  part.tensor = checkpoint_->find(part.name);
  return part;
}

std::string BitmaskWeight::describe(const Part& part) const {
  return fmt::format("{}: the tensor {}", checkpoint_->directory().string(), quote(part.name));
}

BitmaskWeight::BitmaskWeight(const Checkpoint& checkpoint, const std::string& base)
    : checkpoint_(&checkpoint), base_(base) {
  shape_ = part(kShape);
  bitmask_ = part(kBitmask);
  compressed_ = part(kCompressed);
  row_offsets_ = part(kRowOffsets);
  for (const Part* needed : {&shape_, &bitmask_, &compressed_}) {
    require(needed->tensor != nullptr, "{} is missing", describe(*needed));
  }
  const auto require_type = [&](const Part& part, std::string_view dtype,
                                std::vector<int64_t> shape) {
    std::vector<int64_t> stored = part.tensor->shape;
    if (stored.size() == shape.size() + 1 && stored.back() == 1) {
      stored.pop_back();
    }
    require(part.tensor->dtype == dtype && stored == shape,
            "{} is {} [{}], but expected is {} [{}]", describe(part), part.tensor->dtype,
            fmt::join(part.tensor->shape, ", "), dtype, fmt::join(shape, ", "));
  };

  require_type(shape_, "I64", {2});
  rows_ = load_i64(shape_.tensor->bytes, 0);
  columns_ = load_i64(shape_.tensor->bytes, 1);
  require(rows_ > 0 && columns_ > 0, "{} says {} x {}; expected positive numbers", describe(shape_),
          rows_, columns_);
  const std::string elements = "the elements of " + describe(shape_);
  checked_mul(checked_mul(rows_, columns_, elements.c_str()), 8, elements.c_str());

  require_type(bitmask_, "U8", {rows_, (columns_ + 7) / 8});
  if (row_offsets_.tensor != nullptr) {
    require_type(row_offsets_, "I64", {rows_});
  }
  if (is_code_type(compressed_.tensor->dtype)) {
    code_type_ = compressed_.tensor->dtype;
  } else {
    dtype_ = compressed_.tensor->float_dtype(describe(compressed_));
  }
  values_ =
      std::ssize(compressed_.tensor->bytes) / (code_type_.empty() ? size_of(dtype_) : int64_t{1});
  require(values_ <= rows_ * columns_, "{} has {} values, but the weight {} x {} elements",
          describe(compressed_), values_, rows_, columns_);
}

int64_t BitmaskWeight::bytes() const {
  int64_t total = 0;
  for (const Part* part : {&shape_, &bitmask_, &compressed_, &row_offsets_}) {
    total += part->tensor == nullptr ? 0 : std::ssize(part->tensor->bytes);
  }
  return total;
}

std::vector<std::string> BitmaskWeight::tensor_names() const {
  std::vector<std::string> names;
  for (const Part* part : {&shape_, &bitmask_, &compressed_, &row_offsets_}) {
    if (part->tensor != nullptr) {
      names.push_back(part->name);
    }
  }
  return names;
}

OwnedTensor BitmaskWeight::dense() const {
  require(code_type_.empty(),
          "{} has the dtype {}: codes of a quantised weight, not floating-point values",
          describe(compressed_), code_type_);
  OwnedTensor result = allocate_tensor({}, dtype_, {rows_, columns_}, base_);
  std::memset(result.view.raw(), 0, static_cast<size_t>(result.view.bytes()));
  visit_float(dtype_, [&]<class T>(T) { expand(result.view.row<T>(0)); });
  return result;
}

std::vector<int8_t> BitmaskWeight::codes() const {
  require(!code_type_.empty(), "{} has floating-point values, not codes of a quantised weight",
          describe(compressed_));
  std::vector<int8_t> result(static_cast<size_t>(rows_ * columns_));
  expand(result.data());
  return result;
}

template <class T>
void BitmaskWeight::expand(T* to) const {
  const int64_t mask_bytes = (columns_ + 7) / 8;
  const int64_t padding_bits = mask_bytes * 8 - columns_;
  int64_t done = 0;
  for (int64_t row = 0; row < rows_; ++row) {
    const auto mask = bitmask_.tensor->bytes.subspan(static_cast<size_t>(row * mask_bytes),
                                                     static_cast<size_t>(mask_bytes));
    require(std::to_integer<int>(mask.back()) >> (8 - padding_bits) == 0,
            "{} has a bit after the last column in row {}", describe(bitmask_), row);
    if (row_offsets_.tensor != nullptr) {
      const int64_t offset = load_i64(row_offsets_.tensor->bytes, row);
      require(offset == done, "{} is {} in row {}, but the rows above have {} values",
              describe(row_offsets_), offset, row, done);
    }
    const int64_t count = count_bits(mask);
    require(count <= values_ - done, "{} has more bits up to row {} than there are values, {}",
            describe(bitmask_), row, values_);
    expand_row(mask, compressed_.tensor->bytes.data() + done * int64_t{sizeof(T)},
               to + row * columns_);
    done += count;
  }
  require(done == values_, "{} has {} values, but the bitmask {} bits", describe(compressed_),
          values_, done);
  for (const Part* part : {&bitmask_, &compressed_, &row_offsets_}) {
    if (part->tensor != nullptr) {
      release_pages(part->tensor->bytes);
    }
  }
}

}  // namespace sparsellm
