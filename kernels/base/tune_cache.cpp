#include "kernels/base/tune_cache.h"

#include <system_error>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/file_replacement.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "sparsellm tune cache";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxBytes = 16 << 20;  // tens of thousands of choices
constexpr int kMaxDepth = 2;

using Entries = std::map<std::string, std::string, std::less<>>;

struct Contents {
  Entries entries;
  std::string problem;
};

Entries entries_of(const JsonValue& file) {
  file.allow_only({"format", "version", "entries"});
  if (file["format"].string() != kFormat) {
    file["format"].refuse("expected " + quote(kFormat));
  }
  file["version"].integer(kVersion, kVersion);
  Entries entries;
  entries.merge(file["entries"].string_map());
  return entries;
}

std::string text_of(const Entries& entries) {
  JsonWriter writer(/*indent=*/1);
  writer.object().member("format", kFormat).member("version", kVersion).key("entries").object();
  for (const auto& [key, value] : entries) {
    writer.member(key, value);
  }
  writer.end().end();
  return std::move(writer).text();
}

Contents read(const fs::path& path) {
  std::error_code unknown;
  if (path.empty() || fs::status(path, unknown).type() == fs::file_type::not_found) {
    return {};
  }
  try {
    const JsonDocument document = read_json_file(path, kMaxBytes, kMaxDepth);
    return {.entries = entries_of({document, path.string()}), .problem = {}};
  } catch (const Error& error) {
    return {.entries = {}, .problem = error.what()};
  }
}

}  // namespace

TuneCache::TuneCache(fs::path path) : path_(std::move(path)) {
  Contents contents = read(path_);
  entries_ = std::move(contents.entries);
  problem_ = std::move(contents.problem);
}

std::optional<std::string> TuneCache::find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : std::optional(found->second);
}

void TuneCache::put(std::string_view key, std::string_view value) {
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second == value) {
    return;
  }
  entries_.insert_or_assign(std::string(key), std::string(value));
  unsaved_.insert_or_assign(std::string(key), std::string(value));
}

void TuneCache::save() {
  if (path_.empty() || unsaved_.empty()) {
    return;
  }
  Contents contents = read(path_);
  require(contents.problem.empty(), "{}; it is not replaced", contents.problem);
  Entries merged = std::move(contents.entries);
  for (const auto& [key, value] : unsaved_) {
    merged.insert_or_assign(key, value);
  }
  std::error_code unknown;  // the opening of the file tells
  fs::create_directories(path_.parent_path(), unknown);
  FileReplacement file(path_);
  file.write(text_of(merged) + "\n");
  file.sync();
  file.commit();
  entries_ = std::move(merged);
  unsaved_.clear();
}

std::string TuneCache::text() const { return text_of(entries_); }

void TuneCache::add(std::string_view text) {
  constexpr char kSource[] = "choices of kernels of another rank";
  const JsonDocument document = parse_json(text, kSource, kMaxDepth);
  for (auto& [key, value] : entries_of({document, kSource})) {
    entries_.insert_or_assign(key, value);
  }
}

}  // namespace sparsellm
