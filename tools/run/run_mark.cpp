#include "tools/run/run_mark.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"
#include "models/storage/model_metadata.h"
#include "models/storage/output_file.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "sparsellm run mark";
constexpr int64_t kVersion = 1;
constexpr size_t kMaxBytes = 16 << 20;  // flags may be some megabytes
constexpr int kMarkDepth = 2;

constexpr std::array kPartials{std::pair{"older", RunMark::Partial::older},
                               std::pair{"own", RunMark::Partial::own},
                               std::pair{"complete", RunMark::Partial::complete}};

RunMark::Partial read_partial(const JsonValue& value) {
  for (const auto& [name, partial] : kPartials) {
    if (value.string() == name) {
      return partial;
    }
  }
  value.refuse("expected older, own or complete");
}

std::string_view name_of(RunMark::Partial partial) {
  return std::find_if(kPartials.begin(), kPartials.end(),
                      [&](const auto& known) { return known.second == partial; })
      ->first;
}

uint32_t read_checksum(const JsonValue& value) {
  const std::string& text = value.string();
  uint32_t checksum = 0;
  std::from_chars(text.data(), text.data() + text.size(), checksum, 16);
  if (checksum_text(checksum) != text) {
    value.refuse("expected 8 hexadecimal digits");
  }
  return checksum;
}

RunMark parse(std::string_view text, const std::string& source) {
  const JsonDocument document = parse_json(text, source, kMarkDepth);
  const JsonValue file(document, source);
  if (file["format"].string() != kFormat) {
    file["format"].refuse("expected " + quote(kFormat));
  }
  file["version"].integer(kVersion, kVersion);
  file.allow_only({"format", "version", "partial", "replaces", "bytes", "crc32c", "run"});
  RunMark mark{.partial = read_partial(file["partial"]),
               .replaces = file["replaces"].boolean(),
               .bytes = file["bytes"].integer(0, std::numeric_limits<int64_t>::max()),
               .checksum = read_checksum(file["crc32c"]),
               .run = {}};
  mark.run.merge(file["run"].string_map());
  return mark;
}

std::string to_json(const RunMark& mark) {
  JsonWriter json(/*indent=*/0);
  json.object()
      .member("format", kFormat)
      .member("version", kVersion)
      .member("partial", name_of(mark.partial))
      .member("replaces", mark.replaces)
      .member("bytes", mark.bytes)
      .member("crc32c", checksum_text(mark.checksum))
      .key("run")
      .object();
  for (const auto& [name, value] : mark.run) {
    json.member(name, value);
  }
  json.end().end();
  return std::move(json).text() + "\n";
}

// Closes a file at the end of a scope.
struct OpenFile {
  explicit OpenFile(int opened) : file(opened) {}
  ~OpenFile() {
    if (file >= 0) {
      ::close(file);
    }
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const int file;
};

// As it is in a message, where the text of a flag stands without quotes if it may.
std::string shown(const std::string& text) {
  constexpr size_t kMaxPlain = 40;
  const bool plain =
      !text.empty() && text.size() <= kMaxPlain &&
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
  return plain ? text : quote(text);
}

const std::string* find(const RunEntries& entries, const std::string& name) {
  const auto found = entries.find(name);
  return found == entries.end() ? nullptr : &found->second;
}

std::string in_words(const std::string& name, const std::string* before, const std::string* now) {
  if (name == kPromptsEntry) {
    return "the prompts have changed";
  }
  if (name.starts_with('-')) {
    return fmt::format("{} was {}, is {}", shown(name),
                       before != nullptr ? shown(*before) : "not set",
                       now != nullptr ? shown(*now) : "not set");
  }
  if (before == nullptr || now == nullptr) {
    return fmt::format("the model {} {}", before == nullptr ? "has a new" : "no longer has",
                       shown(name));
  }
  return name.ends_with(".safetensors")
             ? fmt::format("the model's weights have changed: {}", shown(name))
             : fmt::format("the model's {} has changed", shown(name));
}

}  // namespace

std::string file_entry(int64_t bytes, const std::string& checksum) {
  return checksum.empty() ? fmt::format("{} bytes", bytes)
                          : fmt::format("{} bytes, crc32c {}", bytes, checksum);
}

std::string difference(const RunEntries& before, const RunEntries& now, MissingEntries missing) {
  std::set<std::string> names;
  for (const RunEntries* entries : {&before, &now}) {
    for (const auto& [name, value] : *entries) {
      names.insert(name);
    }
  }
  for (const std::string& name : names) {
    const std::string* const old_value = find(before, name);
    const std::string* const new_value = find(now, name);
    const bool in_both = old_value != nullptr && new_value != nullptr;
    if (in_both ? *old_value != *new_value : missing == MissingEntries::differ) {
      return in_words(name, old_value, new_value);
    }
  }
  return {};
}

RunMarkFile::RunMarkFile(fs::path path) : path_(std::move(path)), new_path_(path_) {
  new_path_ += ".new";
}

std::optional<RunMark> RunMarkFile::read() const {
  const std::string source = path_.string();
  // O_NONBLOCK: not to wait at a named pipe.
  const OpenFile opened(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (opened.file < 0 && errno == ENOENT) {
    return std::nullopt;
  }
  require(opened.file >= 0 || errno != ELOOP, "cannot read {}: a symbolic link", source);
  require(opened.file >= 0, "cannot read {}: {}", source, std::strerror(errno));
  struct stat info {};
  require(::fstat(opened.file, &info) == 0 && S_ISREG(info.st_mode),
          "cannot read {}: not a regular file", source);
  std::string text;
  std::array<char, 1 << 14> block;
  for (;;) {
    const ssize_t count = ::read(opened.file, block.data(), block.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    require(count >= 0, "cannot read {}: {}", source, std::strerror(errno));
    if (count == 0) {
      return parse(text, source);
    }
    text.append(block.data(), static_cast<size_t>(count));
    require(text.size() <= kMaxBytes, "{} has more than {} bytes, which no mark of a run has",
            source, kMaxBytes);
  }
}

void RunMarkFile::write(const RunMark& mark) const {
  const std::string text = to_json(mark);
  ::unlink(new_path_.c_str());  // of a run that was killed just here
  OutputFile file(new_path_);
  try {
    file.write(std::as_bytes(std::span(text)), 0);
    file.close();
    const bool done = std::rename(new_path_.c_str(), path_.c_str()) == 0;  // before strerror
    require(done, "cannot replace {}: {}; remove it", path_.native(), std::strerror(errno));
  } catch (...) {
    ::unlink(new_path_.c_str());
    throw;
  }
  sync_directory(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

void RunMarkFile::remove() const {
  const bool done = ::unlink(path_.c_str()) == 0 || errno == ENOENT;
  require(done, "cannot remove {}: {}", path_.native(), std::strerror(errno));
}

}  // namespace sparsellm
