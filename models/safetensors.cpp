#include "models/safetensors.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_events.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/lfs_pointer.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are used as they are stored");

struct StoredType {
  std::string_view name;
  int64_t bits;
};

// All types of the format (safetensors 0.8).
constexpr std::array kStoredTypes{
    StoredType{"BOOL", 8},        StoredType{"F4", 4},          StoredType{"F6_E2M3", 6},
    StoredType{"F6_E3M2", 6},     StoredType{"U8", 8},          StoredType{"I8", 8},
    StoredType{"F8_E5M2", 8},     StoredType{"F8_E4M3", 8},     StoredType{"F8_E8M0", 8},
    StoredType{"F8_E4M3FNUZ", 8}, StoredType{"F8_E5M2FNUZ", 8}, StoredType{"I16", 16},
    StoredType{"U16", 16},        StoredType{"F16", 16},        StoredType{"BF16", 16},
    StoredType{"I32", 32},        StoredType{"U32", 32},        StoredType{"F32", 32},
    StoredType{"C64", 64},        StoredType{"F64", 64},        StoredType{"I64", 64},
    StoredType{"U64", 64},
};

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kDtype = "dtype";
constexpr std::string_view kShape = "shape";
constexpr std::string_view kOffsets = "data_offsets";

using Tensors = std::map<std::string, StoredTensor, std::less<>>;

// More than two for each tensor of any model.
constexpr size_t kMaxMetadata = 1 << 20;

// Reads the header into the tensors, whose bytes are views of `data`, and the metadata.
class HeaderEvents final : private JsonEvents {
 public:
  HeaderEvents(const std::string& source, std::span<const std::byte> data, Tensors& tensors,
               std::map<std::string, std::string>& metadata)
      : JsonEvents(source, kMaxDepth),
        header_(object_, source + ": the header"),
        data_(data),
        tensors_(tensors),
        metadata_(metadata) {}

  using JsonEvents::read;

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
  Tensors& tensors_;
  std::map<std::string, std::string>& metadata_;
  bool has_metadata_ = false;

  // Of the member that is read.
  bool in_metadata_ = false;
  Tensors::value_type* tensor_ = nullptr;
  std::string key_;
  bool has_dtype_ = false;
  Numbers shape_{.values = {}, .most = SafetensorsFile::kMaxRank};
  Numbers offsets_{.values = {}, .most = 2};
};

// The tensors must cover `data` exactly.
void check_coverage(const std::map<std::string, StoredTensor, std::less<>>& tensors,
                    std::span<const std::byte> data, const std::string& source) {
  struct Extent {
    const std::byte* begin;
    size_t bytes;
    const std::string* name;
  };
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : tensors) {
    extents.push_back({tensor.bytes.data(), tensor.bytes.size(), &name});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
  });
  const std::byte* covered = data.data();
  for (const Extent& extent : extents) {
    require(extent.begin >= covered, "{}: tensor {} overlaps the tensor in front of it", source,
            quote(*extent.name));
    require(extent.begin == covered, "{}: {} bytes in front of tensor {} belong to no tensor",
            source, extent.begin - covered, quote(*extent.name));
    covered = extent.begin + extent.bytes;
  }
  const std::byte* end = data.data() + data.size();
  require(covered == end, "{}: {} bytes behind the last tensor belong to no tensor", source,
          end - covered);
}

bool has_pytorch_weights(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("pytorch_model") && name.ends_with(".bin")) {
      return true;
    }
  }
  return false;
}

// Reads which shard each tensor is in, by the tensor's name.
class IndexEvents final : private JsonEvents {
 public:
  explicit IndexEvents(const std::string& source)
      : JsonEvents(source, kMaxDepth), index_(object_, source) {}

  std::map<std::string, std::string> read(std::string_view text) {
    JsonEvents::read(text);
    if (!has_map_) {
      index_[kMap].keys();  // the error of what is missing
    }
    return std::move(shards_);
  }

 private:
  static constexpr int kMaxDepth = 16;
  static constexpr std::string_view kMap = "weight_map";

  void on_key(std::string& key) override {
    if (depth() == 1) {
      in_map_ = key == kMap;
      if (in_map_ && std::exchange(has_map_, true)) {
        refuse_second(key);
      }
    }
    key_ = std::move(key);
  }

  void on_value(json& value) override {
    if (depth() == 0) {
      JsonValue(value, index_.name()).keys();  // an object
    } else if (in_map_ && depth() == 1) {
      index_.member(kMap, &value).keys();
    } else if (in_map_) {
      add(value);
    }
  }

  void add(const json& value) {
    if (!value.is_string()) {
      index_.member(kMap, &object_).member(key_, &value).string();
    }
    const auto [place, is_new] = shards_.try_emplace(key_, value.get_ref<const std::string&>());
    if (!is_new) {
      refuse_second(place->first);
    }
  }

  void on_end() override {}

  const json object_ = json::object();
  JsonValue index_;
  bool has_map_ = false;
  bool in_map_ = false;
  std::string key_;
  std::map<std::string, std::string> shards_;
};

// The shards of the index, files of the same directory, and the tensors promised for each.
std::map<std::string, std::vector<std::string>> read_index(const fs::path& path) {
  const std::string source = path.string();
  const std::string text = read_text_file(path, SafetensorsFile::kMaxHeaderBytes);
  require_no_lfs_pointer(path, text);
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, shard] : IndexEvents(source).read(text)) {
    // A NUL would end the name early for the operating system.
    constexpr std::string_view kForbidden("/\0", 2);
    require(shard.ends_with(".safetensors") && shard.find_first_of(kForbidden) == std::string::npos,
            "{}: weight_map puts tensor {} into {}; expected a *.safetensors file of the directory",
            source, quote(tensor), quote(shard));
    shards[shard].push_back(tensor);
  }
  require(!shards.empty(), "{}: weight_map names no tensors", source);
  return shards;
}

}  // namespace

std::optional<int64_t> stored_item_bits(std::string_view dtype) {
  const auto* type = std::find_if(kStoredTypes.begin(), kStoredTypes.end(),
                                  [&](const StoredType& t) { return t.name == dtype; });
  return type == kStoredTypes.end() ? std::nullopt : std::optional(type->bits);
}

DType StoredTensor::float_dtype(std::string_view what) const {
  if (dtype == "F32") {
    return DType::f32;
  }
  if (dtype == "F16") {
    return DType::f16;
  }
  if (dtype == "BF16") {
    return DType::bf16;
  }
  fail("{} has the dtype {}; supported are F32, F16 and BF16", what, dtype);
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path) {
  const std::string source = path.string();
  const std::span<const std::byte> bytes = file_.bytes();
  uint64_t header_bytes = 0;
  require_no_lfs_pointer(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  require(bytes.size() >= sizeof(header_bytes), "{}: {} bytes are too few for a safetensors file",
          source, bytes.size());
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  require(header_bytes <= uint64_t{kMaxHeaderBytes},
          "{}: the header has {} bytes; at most {} are read; is it a safetensors file?", source,
          header_bytes, kMaxHeaderBytes);
  require(header_bytes <= bytes.size() - sizeof(header_bytes),
          "{}: the header has {} bytes, but the file only {}; it is cut off or damaged", source,
          header_bytes, bytes.size());
  const auto text = bytes.subspan(sizeof(header_bytes), static_cast<size_t>(header_bytes));
  const auto data = bytes.subspan(sizeof(header_bytes) + text.size());

  HeaderEvents(source, data, tensors_, metadata_)
      .read({reinterpret_cast<const char*>(text.data()), text.size()});
  check_coverage(tensors_, data, source);
  file_.require_intact();
}

Checkpoint::Checkpoint(const fs::path& directory) : directory_(directory) {
  const std::string source = directory.string();
  std::error_code error;
  require(is_there(directory), "the model directory {} does not exist", source);
  const bool is_directory = fs::is_directory(directory, error);
  require(!error, "cannot read the model directory {}: {}", source, error.message());
  require(is_directory, "{} is a file; expected a model directory", source);

  const fs::path single = directory / "model.safetensors";
  const fs::path index = directory / "model.safetensors.index.json";
  if (is_there(single)) {
    files_.emplace_back(single);
  } else if (is_there(index)) {
    for (const auto& [shard, names] : read_index(index)) {
      require(is_there(directory / shard), "{} names the shard {}, which is not there",
              index.string(), quote(shard));
      const SafetensorsFile& file = files_.emplace_back(directory / shard);
      for (const std::string& name : names) {
        require(file.tensors().contains(name), "{} promises tensor {}, which is not in {}",
                index.string(), quote(name), quote(shard));
      }
    }
  } else {
    require(!has_pytorch_weights(directory),
            "{} has its weights only as pytorch_model*.bin; convert them with "
            "tools/bin_to_safetensors.py",
            source);
    fail("{} has no weights: neither model.safetensors nor model.safetensors.index.json is there",
         source);
  }

  for (const SafetensorsFile& file : files_) {
    for (const auto& [name, tensor] : file.tensors()) {
      require(tensors_.emplace(name, &tensor).second, "{}: tensor {} is in another shard, too",
              file.path().string(), quote(name));
      bytes_ += std::ssize(tensor.bytes);
    }
  }
}

void Checkpoint::require_intact() const {
  for (const SafetensorsFile& file : files_) {
    file.file().require_intact();
  }
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    names.push_back(name);
  }
  return names;
}

const MappedFile* Checkpoint::find_file(std::span<const std::byte> bytes) const {
  for (const SafetensorsFile& file : files_) {
    if (is_inside(bytes, file.file().bytes())) {
      return &file.file();
    }
  }
  return nullptr;
}

const MappedFile& Checkpoint::file_of(std::span<const std::byte> bytes) const {
  const MappedFile* const file = find_file(bytes);
  require(file != nullptr, "{}: {} bytes belong to none of the files", directory_.string(),
          bytes.size());
  return *file;
}

}  // namespace sparsellm
