#include "tests/fuzz/model_edits.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"
#include "models/storage/model_manifest.h"
#include "models/storage/model_metadata.h"
#include "models/storage/safetensors.h"

namespace sparsellm::fuzz {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Kind = EditedEntry::Kind;

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kLengthBytes = 8;  // in front of the header of a safetensors file

bool is_safetensors(std::string_view name) { return name.ends_with(".safetensors"); }

// The next word of a line; the rest of the line without it.
std::string_view take_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(word.size() + 1, line.size()));
  return word;
}

int64_t number(std::string_view word) {
  int64_t value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

size_t letter(std::string_view word) {
  return word.empty() ? 0 : static_cast<size_t>(static_cast<unsigned char>(word.front() - 'a'));
}

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (; digits.size() >= 2; digits.remove_prefix(2)) {
    unsigned value = 0;
    std::from_chars(digits.data(), digits.data() + 2, value, 16);
    bytes += static_cast<char>(value);
  }
  return bytes;
}

// A place in this many bytes.
std::optional<size_t> place(int64_t at, size_t bytes) {
  const int64_t from_begin = at < 0 ? at + static_cast<int64_t>(bytes) : at;
  return from_begin >= 0 && from_begin < static_cast<int64_t>(bytes)
             ? std::optional(static_cast<size_t>(from_begin))
             : std::nullopt;
}

void overwrite(std::string& bytes, size_t begin, size_t end, std::string_view at,
               std::string_view hex) {
  const std::optional<size_t> offset = place(number(at), end - begin);
  if (offset) {
    const std::string now = from_hex(hex);
    const size_t from = begin + *offset;
    bytes.replace(from, std::min(now.size(), end - from), now, 0, std::min(now.size(), end - from));
  }
}

// The header of a safetensors file, and its data.
struct Parts {
  json header;
  std::string data;
};

std::optional<Parts> split(const std::string& file) {
  uint64_t length = 0;
  if (file.size() < kLengthBytes) {
    return {};
  }
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > file.size() - kLengthBytes) {
    return {};
  }
  json header =
      json::parse(file.begin() + kLengthBytes,
                  file.begin() + static_cast<int64_t>(kLengthBytes + length), nullptr, false);
  if (!header.is_object()) {
    return {};
  }
  return Parts{.header = std::move(header), .data = file.substr(kLengthBytes + length)};
}

std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string join(const Parts& parts) {
  std::string text = text_of(parts.header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string file(kLengthBytes, '\0');
  std::memcpy(file.data(), &length, kLengthBytes);
  return file + text + parts.data;
}

// A tensor of a header that has a name, a type, a shape and a place in the data.
struct Stored {
  std::string name;
  StoredTensor tensor;
  size_t begin = 0;
  size_t end = 0;
};

// The library converts any number, also those that no integer holds.
size_t to_size(const json& value) {
  return value.is_number_unsigned() ? value.get<size_t>() : SIZE_MAX;
}

// Throws json::exception for what is none.
Stored read_tensor(const std::string& name, const json& entry) {
  Stored stored;
  stored.name = name;
  stored.tensor.dtype = entry.at("dtype").get<std::string>();
  for (const json& size : entry.at("shape")) {
    stored.tensor.shape.push_back(static_cast<int64_t>(to_size(size)));
  }
  stored.begin = to_size(entry.at("data_offsets").at(0));
  stored.end = to_size(entry.at("data_offsets").at(1));
  return stored;
}

std::vector<Stored> tensors_of(const Parts& parts) {
  std::vector<Stored> found;
  for (const auto& [name, entry] : parts.header.items()) {
    try {
      Stored stored = read_tensor(name, entry);
      if (stored.begin <= stored.end && stored.end <= parts.data.size()) {
        found.push_back(std::move(stored));
      }
    } catch (const json::exception&) {
      continue;  // the metadata, or what an edit made of an entry
    }
  }
  return found;
}

std::map<std::string, std::string> metadata_of(const Parts& parts) {
  std::map<std::string, std::string> metadata;
  const auto found = parts.header.find("__metadata__");
  if (found != parts.header.end() && found->is_object()) {
    for (const auto& [key, value] : found->items()) {
      if (value.is_string()) {
        metadata[key] = value.get<std::string>();
      }
    }
  }
  return metadata;
}

std::string crc_of(std::string_view bytes) {
  return checksum_text(crc32c(std::as_bytes(std::span(bytes))));
}

void make_checksums_right(Parts& parts) {
  json& metadata = parts.header["__metadata__"];
  if (!metadata.is_object()) {
    metadata = json::object();
  }
  std::map<std::string, StoredTensor, std::less<>> by_name;
  for (const Stored& stored : tensors_of(parts)) {
    metadata[checksum_key(stored.name)] =
        crc_of(std::string_view(parts.data).substr(stored.begin, stored.end - stored.begin));
    by_name[stored.name] = stored.tensor;
  }
  const uint32_t checksum = header_checksum(by_name, metadata_of(parts));
  metadata[std::string(kHeaderChecksumKey)] = checksum_text(checksum);
}

void make_manifest_right(EditedModel& model) {
  ModelManifest manifest;
  for (const auto& [name, entry] : model) {
    if (entry.kind != Kind::file || name == kManifestName) {
      continue;
    }
    std::string checksum = crc_of(entry.bytes);
    if (const auto parts = is_safetensors(name) ? split(entry.bytes) : std::nullopt) {
      const auto metadata = metadata_of(*parts);
      const auto of_header = metadata.find(std::string(kHeaderChecksumKey));
      checksum = of_header != metadata.end() ? of_header->second : checksum;
    }
    manifest.files[name] = {.bytes = std::ssize(entry.bytes), .crc32c = checksum};
  }
  // All ids have as many digits, so that sizes stay.
  manifest.id = conversion_id(manifest.files);
  for (auto& [name, entry] : model) {
    auto parts = is_safetensors(name) ? split(entry.bytes) : std::nullopt;
    if (parts && parts->header["__metadata__"].is_object()) {
      parts->header["__metadata__"][std::string(kConversionKey)] = manifest.id;
      entry.bytes = join(*parts);
      manifest.files[name].bytes = std::ssize(entry.bytes);
    }
  }
  manifest.id = conversion_id(manifest.files);
  for (auto& [name, entry] : model) {
    auto parts = is_safetensors(name) ? split(entry.bytes) : std::nullopt;
    if (parts && parts->header["__metadata__"].is_object()) {
      parts->header["__metadata__"][std::string(kConversionKey)] = manifest.id;
      entry.bytes = join(*parts);
    }
  }
  try {
    model[std::string(kManifestName)] = {.kind = Kind::file, .bytes = to_json(manifest)};
  } catch (const Error&) {
    // A name that is not UTF-8 has no place in a manifest.
  }
}

json value_of(std::string_view text) {
  json value = json::parse(text, nullptr, false);
  return value.is_discarded() ? json(std::string(text)) : value;
}

// Whether a member at this path would be in an array that json fills up to a large index.
bool makes_long_array(const json& document, json::json_pointer pointer) {
  constexpr size_t kMaxDigits = 5;  // of an index
  for (; !pointer.empty(); pointer.pop_back()) {
    const std::string& index = pointer.back();
    const json::json_pointer parent = pointer.parent_pointer();
    const bool in_object = document.contains(parent) && document.at(parent).is_object();
    if (!in_object && index.size() > kMaxDigits &&
        index.find_first_not_of("0123456789") == std::string::npos) {
      return true;
    }
  }
  return false;
}

void set_member(json& document, std::string_view path, std::string_view value) {
  const json::json_pointer pointer{std::string(path)};
  if (!makes_long_array(document, pointer)) {
    document[pointer] = value_of(value);
  }
}

void remove_member(json& document, std::string_view path) {
  const json::json_pointer pointer{std::string(path)};
  if (pointer.empty() || !document.contains(pointer)) {
    return;
  }
  json& parent = document[pointer.parent_pointer()];
  if (parent.is_array()) {
    parent.erase(std::stoul(pointer.back()));
  } else {
    parent.erase(pointer.back());
  }
}

// Calls change(document) on what a file holds as JSON.
template <class Change>
void change_json(const std::string& name, std::string& bytes, Change&& change) {
  try {
    if (!is_safetensors(name)) {
      json document = json::parse(bytes, nullptr, false);
      if (!document.is_discarded()) {
        change(document);
        bytes = text_of(document);
      }
    } else if (std::optional<Parts> parts = split(bytes)) {
      change(parts->header);
      bytes = join(*parts);
    }
  } catch (const json::exception&) {
    // A path that leads nowhere.
  }
}

template <class Change>
void change_tensors(const std::string& name, std::string& bytes, Change&& change) {
  if (std::optional<Parts> parts = is_safetensors(name) ? split(bytes) : std::nullopt) {
    const std::vector<Stored> tensors = tensors_of(*parts);
    if (!tensors.empty()) {
      change(*parts, tensors);
      bytes = join(*parts);
    }
  }
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 60 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

bool is_target(std::string_view target) {
  return target == "." || target == "/dev/zero" || is_file_name(target);
}

template <class Map>
auto at_letter(Map& map, std::string_view word) {
  return std::next(map.begin(), static_cast<int64_t>(letter(word) % map.size()));
}

void swap_data(Parts& parts, const Stored& a, const Stored& b) {
  const size_t bytes = a.end - a.begin;
  if (bytes == b.end - b.begin && (a.end <= b.begin || b.end <= a.begin)) {
    std::swap_ranges(parts.data.begin() + static_cast<int64_t>(a.begin),
                     parts.data.begin() + static_cast<int64_t>(a.end),
                     parts.data.begin() + static_cast<int64_t>(b.begin));
  }
}

void edit_file(EditedModel& model, char what, const std::string& name, EditedEntry& entry,
               std::string_view line) {
  std::string& bytes = entry.bytes;
  switch (what) {
    case 'B': {
      const std::string_view at = take_word(line);
      overwrite(bytes, 0, bytes.size(), at, line);
      break;
    }
    case 'R': {
      const int64_t size = number(line);
      const int64_t now = size < 0 ? std::max<int64_t>(std::ssize(bytes) + size, 0) : size;
      bytes.resize(std::min(static_cast<size_t>(now), kMaxFileBytes));
      break;
    }
    case 'J': {
      const std::string_view path = take_word(line);
      change_json(name, bytes, [&](json& document) { set_member(document, path, line); });
      break;
    }
    case 'N': {
      const std::string key(take_word(line));
      const std::string_view path = take_word(line);
      change_json(name, bytes, [&](json& document) {
        json& text = document.at("__metadata__").at(key);
        json inner = json::parse(text.get<std::string>());
        set_member(inner, path, line);
        text = text_of(inner);
      });
      break;
    }
    case 'D':
      change_json(name, bytes, [&](json& document) { remove_member(document, line); });
      break;
    case 'T':
      bytes = line;
      break;
    case 'S':
    case 'X':
      change_tensors(name, bytes, [&](Parts& parts, const std::vector<Stored>& tensors) {
        const Stored& a = *at_letter(tensors, take_word(line));
        const Stored& b = *at_letter(tensors, take_word(line));
        if (what == 'S') {
          swap_data(parts, a, b);
        } else {
          std::swap(parts.header[a.name], parts.header[b.name]);
        }
      });
      break;
    case 'E':
      change_tensors(name, bytes, [&](Parts& parts, const std::vector<Stored>& tensors) {
        const Stored& tensor = *at_letter(tensors, take_word(line));
        const std::string_view at = take_word(line);
        overwrite(parts.data, tensor.begin, tensor.end, at, line);
      });
      break;
    case 'H':
      change_tensors(name, bytes, [&](Parts& parts, const std::vector<Stored>&) {
        make_checksums_right(parts);
      });
      break;
    case 'L':
      if (is_target(line)) {
        entry = {.kind = Kind::link, .bytes = std::string(line)};
      }
      break;
    case 'M':
      entry = {.kind = Kind::directory, .bytes = {}};
      break;
    case 'P':
      entry = {.kind = Kind::pipe, .bytes = {}};
      break;
    case 'C': {
      const std::string_view from = take_word(line);
      const size_t base = static_cast<size_t>(std::max<int64_t>(number(line), 0));
      const ModelFiles& files = model_bases()[base % model_bases().size()];
      entry = {.kind = Kind::file, .bytes = at_letter(files, from)->second};
      break;
    }
    case 'U':
      model.erase(name);
      break;
    default:
      break;
  }
}

void edit(EditedModel& model, std::string_view line) {
  const std::string_view what = take_word(line);
  if (what == "I") {
    make_manifest_right(model);
  } else if (what == "W") {
    const std::string_view name = take_word(line);
    if (is_file_name(name)) {
      model[std::string(name)] = {.kind = Kind::file, .bytes = std::string(line)};
    }
  } else if (what.size() == 1 && !model.empty()) {
    const auto found = at_letter(model, take_word(line));
    const bool replaces = std::string_view("LMPCU").find(what) != std::string_view::npos;
    if (replaces || found->second.kind == Kind::file) {
      const std::string name = found->first;
      edit_file(model, what.front(), name, found->second, line);
    }
  }
}

void make(const fs::path& path, const EditedEntry& entry) {
  switch (entry.kind) {
    case Kind::file: {
      std::ofstream file(path, std::ios::binary);
      file.write(entry.bytes.data(), std::ssize(entry.bytes));
      file.close();
      require(!file.fail(), "cannot write {}", path.string());
      break;
    }
    case Kind::link:
      fs::create_symlink(entry.bytes, path);
      break;
    case Kind::directory:
      fs::create_directory(path);
      break;
    case Kind::pipe:
      require(::mkfifo(path.c_str(), 0600) == 0, "cannot make {}", path.string());
      break;
  }
}

}  // namespace

EditedModel edited_model(const ModelFiles& base, std::string_view script) {
  EditedModel model;
  for (const auto& [name, bytes] : base) {
    model[name] = {.kind = Kind::file, .bytes = bytes};
  }
  constexpr int kMaxEdits = 40;
  for (int edits = 0; edits < kMaxEdits && !script.empty(); ++edits) {
    const std::string_view line = script.substr(0, script.find('\n'));
    script.remove_prefix(std::min(line.size() + 1, script.size()));
    edit(model, line);
  }
  return model;
}

EditedFolder::EditedFolder(fs::path path) : path_(std::move(path)) {
  fs::create_directories(path_);
}

void EditedFolder::write(const EditedModel& model) {
  for (const auto& [name, entry] : on_disk_) {
    const auto wanted = model.find(name);
    if (wanted == model.end() || wanted->second != entry) {
      fs::remove(path_ / name);
    }
  }
  for (const auto& [name, entry] : model) {
    const auto there = on_disk_.find(name);
    if (there == on_disk_.end() || there->second != entry) {
      make(path_ / name, entry);
    }
  }
  on_disk_ = model;
}

}  // namespace sparsellm::fuzz
