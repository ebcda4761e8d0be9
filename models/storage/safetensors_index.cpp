#include "models/storage/safetensors_index.h"

#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_events.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/lfs_pointer.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/safetensors.h"

namespace sparsellm {
namespace {

using nlohmann::json;

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

}  // namespace

std::map<std::string, std::vector<std::string>> read_safetensors_index(const InputFile& file) {
  const std::string source = file.string();
  const std::string text = read_text_file(file, SafetensorsFile::kMaxHeaderBytes);
  require_no_lfs_pointer(file.path(), text);
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

}  // namespace sparsellm
