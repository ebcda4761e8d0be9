#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace sparsellm {

// Choices that were measured on this machine: text by key, in a JSON file that several processes
// may share. A key names everything that the choice depends on. What is in the file is only a hint:
// whoever takes a value out checks it, and measures again if it does not fit. Not thread-safe.
class TuneCache {
 public:
  TuneCache() = default;  // in memory only
  // Reads the file; a missing one is an empty cache. One that cannot be used is, too, but is never
  // replaced. An empty path is a cache in memory.
  explicit TuneCache(std::filesystem::path path);

  // Why the file was not used, in one line; empty if it was, or was not there.
  const std::string& problem() const { return problem_; }

  std::optional<std::string> find(std::string_view key) const;
  void put(std::string_view key, std::string_view value);

  // Writes what was put since the last time into the file, beside what other processes have
  // written meanwhile; does nothing if that is nothing. The file changes in one step: readers see
  // the old or the new one. What another process writes in the same instant may be lost. Throws
  // Error naming the file.
  void save();

  // All choices as text, for another rank of the same model; what that takes with add() stands
  // before its own, and is not saved there. Throws Error for other text.
  std::string text() const;
  void add(std::string_view text);

 private:
  using Entries = std::map<std::string, std::string, std::less<>>;

  std::filesystem::path path_;
  std::string problem_;
  Entries entries_;
  Entries unsaved_;  // what was put since the last save()
};

}  // namespace sparsellm
