#include "models/storage/safetensors_header.h"

#include <spdlog/fmt/ranges.h>

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_events.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kDtype = "dtype";
constexpr std::string_view kShape = "shape";
constexpr std::string_view kOffsets = "data_offsets";

// More than two for each tensor of any model.
constexpr size_t kMaxMetadata = 1 << 20;

class HeaderEvents final : private JsonEvents {
 public:
  HeaderEvents(const std::string& source, std::span<const std::byte> data)
      : JsonEvents(source, kMaxDepth), header_(object_, source + ": the header"), data_(data) {}

  SafetensorsHeader read(std::string_view text) {
    JsonEvents::read(text);
    return {.tensors = std::move(tensors_), .metadata = std::move(metadata_)};
  }

 private:
  static constexpr int kMaxDepth = 3;  // the header, a tensor, its shape

  // The numbers of an array; `values` are the first of them, as many as there may be.
  struct Numbers {
    std::vector<int64_t> values;
    size_t most;
    size_t count = 0;
    bool seen = false;
  };

  void on_key(std::string& key) override {
    if (depth() == 1) {
      begin_member(key);
      return;
    }
    key_ = std::move(key);
    if (in_metadata_) {
      if (metadata_.size() >= kMaxMetadata) {
        fail("{} has more than {} members", header_.member(kMetadata, nullptr).name(),
             kMaxMetadata);
      }
      return;
    }
    Numbers* const numbers = numbers_of(key_);
    if (numbers == nullptr && key_ != kDtype) {
      fail("{} has the unknown key {}; known are {}, {}, {}", entry().name(), quote(key_), kDtype,
           kShape, kOffsets);
    }
    if (std::exchange(numbers == nullptr ? has_dtype_ : numbers->seen, true)) {
      refuse_second(key_);
    }
  }

  // The reader's own strings have room for the longest: names are copied.
  void begin_member(const std::string& key) {
    in_metadata_ = key == kMetadata;
    if (in_metadata_) {
      if (std::exchange(has_metadata_, true)) {
        refuse_second(key);
      }
      return;
    }
    const auto [place, is_new] = tensors_.try_emplace(key);
    if (!is_new) {
      refuse_second(place->first);
    }
    tensor_ = &*place;
    has_dtype_ = false;
    for (Numbers* numbers : {&shape_, &offsets_}) {
      numbers->values.clear();
      numbers->count = 0;
      numbers->seen = false;
    }
  }

  void on_value(json& value) override {
    if (depth() == 0) {
      JsonValue(value, header_.name()).keys();  // an object
    } else if (depth() == 1) {
      (in_metadata_ ? header_.member(kMetadata, &value) : JsonValue(value, entry().name())).keys();
    } else if (in_metadata_) {
      add_metadata(value);
    } else if (depth() == 2) {
      begin_field(value);
    } else {
      add_number(value);
    }
  }

  void add_metadata(const json& value) {
    if (!value.is_string()) {
      header_.member(kMetadata, &object_).member(key_, &value).string();
    }
    const auto [place, is_new] = metadata_.emplace(key_, value.get_ref<const std::string&>());
    if (!is_new) {
      refuse_second(key_);
    }
  }

  void begin_field(json& value) {
    Numbers* const numbers = numbers_of(key_);
    if (numbers != nullptr && !value.is_array()) {
      entry().member(key_, &value).integers(0, INT64_MAX);
    }
    if (numbers == nullptr) {
      const JsonValue dtype = entry().member(key_, &value);
      tensor_->second.dtype = dtype.string();
      if (!stored_item_bits(tensor_->second.dtype)) {
        dtype.refuse("the safetensors format has no such type");
      }
    }
  }

  void add_number(const json& value) {
    Numbers& numbers = *numbers_of(key_);
    const std::optional<int64_t> number = to_integer(value, 0, INT64_MAX);
    if (!number) {
      fail("{} holds {}; expected integers from 0 to {}", entry().member(key_, nullptr).name(),
           describe(value), INT64_MAX);
    }
    if (numbers.count++ < numbers.most) {
      numbers.values.push_back(*number);
    }
  }

  void on_end() override {
    if (depth() == 2 && !in_metadata_) {
      finish_tensor();
    }
  }

  void finish_tensor() {
    StoredTensor& tensor = tensor_->second;
    if (!has_dtype_) {
      entry().member(kDtype, nullptr).string();
    }
    for (const auto& [key, seen] : {std::pair(kShape, shape_.seen), {kOffsets, offsets_.seen}}) {
      if (!seen) {
        entry().member(key, nullptr).integers(0, INT64_MAX);
      }
    }
    if (shape_.count > shape_.most) {
      fail("{} has {} dimensions; at most {} are supported", entry().name(), shape_.count,
           SafetensorsFile::kMaxRank);
    }
    if (offsets_.count != offsets_.most) {
      fail("{} holds {} numbers; expected 2", entry().member(kOffsets, nullptr).name(),
           offsets_.count);
    }
    tensor.shape = shape_.values;
    const auto [begin, end] = std::array{offsets_.values[0], offsets_.values[1]};
    if (begin > end) {
      fail("{} begins at byte {} and ends at {}", entry().name(), begin, end);
    }
    if (end > std::ssize(data_)) {
      fail("{} ends at byte {} of the data, but the file has only {}; it is cut off or damaged",
           entry().name(), end, data_.size());
    }
    const int64_t bytes = expected_bytes(tensor);
    if (end - begin != bytes) {
      fail("{} has {} bytes of data, but {} [{}] takes {}", entry().name(), end - begin,
           tensor.dtype, fmt::join(tensor.shape, ", "), bytes);
    }
    tensor.bytes = data_.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
  }

  int64_t expected_bytes(const StoredTensor& tensor) const {
    int64_t elements = 1;
    for (int64_t size : tensor.shape) {
      elements = product(elements, size);
    }
    const int64_t bits = product(elements, *stored_item_bits(tensor.dtype));
    if (bits % 8 != 0) {
      fail("{}: {} elements of {} do not fill whole bytes", entry().name(), elements, tensor.dtype);
    }
    return bits / 8;
  }

  int64_t product(int64_t a, int64_t b) const {
    int64_t result = 0;
    if (__builtin_mul_overflow(a, b, &result)) {
      fail("{}: {} * {} does not fit 64 bits", entry().member(kShape, nullptr).name(), a, b);
    }
    return result;
  }

  // Its name takes longer than all the rest: it is for messages.
  JsonValue entry() const {
    return JsonValue(object_, fmt::format("{}: tensor {}", source(), quote(tensor_->first)));
  }

  Numbers* numbers_of(std::string_view key) {
    return key == kShape ? &shape_ : key == kOffsets ? &offsets_ : nullptr;
  }

  const json object_ = json::object();
  JsonValue header_;
  std::span<const std::byte> data_;
  StoredTensors tensors_;
  std::map<std::string, std::string> metadata_;
  bool has_metadata_ = false;

  // Of the member that is read.
  bool in_metadata_ = false;
  StoredTensors::value_type* tensor_ = nullptr;
  std::string key_;
  bool has_dtype_ = false;
  Numbers shape_{.values = {}, .most = SafetensorsFile::kMaxRank};
  Numbers offsets_{.values = {}, .most = 2};
};

}  // namespace

SafetensorsHeader read_safetensors_header(std::string_view text, const std::string& source,
                                          std::span<const std::byte> data) {
  return HeaderEvents(source, data).read(text);
}

}  // namespace sparsellm
