#include "models/storage/model_directory.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr char kGguf[] =
    "GGUF is not read; give the directory of the Hugging Face checkpoint that it was made from";

bool is_gguf(const fs::path& path) { return path.extension() == ".gguf"; }

// "organisation/model", as the Hub names models.
bool looks_like_hub_name(std::string_view text) {
  const size_t slash = text.find('/');
  const auto is_word = [](std::string_view word) {
    return !word.empty() && word.front() != '.' &&
           std::all_of(word.begin(), word.end(), [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '_' || c == '.';
           });
  };
  return slash != std::string_view::npos && is_word(text.substr(0, slash)) &&
         is_word(text.substr(slash + 1));
}

[[noreturn]] void refuse_missing(const fs::path& path) {
  const std::string name = path.string();
  require(!is_gguf(path), "{} does not exist, and {}", name, kGguf);
  require(!looks_like_hub_name(name) || is_there(path.parent_path()),
          "the model directory {} does not exist; if that is a model of the Hugging Face Hub, "
          "download it first ('hf download {} --local-dir DIR') and give DIR",
          name, name);
  fail("the model directory {} does not exist", name);
}

[[noreturn]] void refuse_file(const fs::path& path) {
  const std::string name = path.string();
  require(!is_gguf(path), "{} is a file, and {}", name, kGguf);
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  require(!is_there(parent / "config.json"),
          "{} is a file; expected a model directory: give {}, which has its config.json", name,
          parent.string());
  fail(
      "{} is a file; expected a model directory, with config.json, the tokenizer's files and "
      "*.safetensors",
      name);
}

// The newest of a directory that the Hub's own programs keep a model in; empty if it is none.
fs::path cached_snapshot(const fs::path& path) {
  fs::path newest;
  fs::file_time_type time;
  std::error_code error;
  for (fs::directory_iterator it(path / "snapshots", error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    const fs::file_time_type written = fs::last_write_time(it->path(), ignored);
    if (is_there(it->path() / "config.json") && (newest.empty() || written > time)) {
      newest = it->path();
      time = written;
    }
  }
  return newest;
}

[[noreturn]] void refuse_directory(const OpenDirectory& directory) {
  const std::string name = directory.string();
  const fs::path snapshot = cached_snapshot(directory.path());
  require(snapshot.empty(), "{} has no config.json, but {} has: give that", name,
          snapshot.string());
  for (const std::string& file : directory.names()) {
    require(!is_gguf(file), "{} has no config.json but {}; {}", name, file, kGguf);
  }
  fail(
      "{} has no config.json; a model directory has that, the tokenizer's files and *.safetensors "
      "of a Hugging Face checkpoint",
      name);
}

}  // namespace

OpenDirectory open_model_directory(const fs::path& path) {
  try {
    OpenDirectory directory(path);
    if (!is_there(directory / "config.json")) {
      refuse_directory(directory);
    }
    return directory;
  } catch (const Error&) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found) {
      refuse_missing(path);
    }
    if (fs::exists(status) && status.type() != fs::file_type::directory) {
      refuse_file(path);
    }
    throw;
  }
}

}  // namespace sparsellm
