#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace sparsellm {

// All that the results of a run depend on, by name: "--temp" is "0.7", and files of the model and
// the prompts are what file_entry() says of them. Neither times nor paths.
using RunEntries = std::map<std::string, std::string>;

// The entry of the file of prompts; names of flags begin with a dash, others are files of the
// model.
inline constexpr char kPromptsEntry[] = "prompts";

// What is known of a file: its size and, unless it is empty, its checksum.
std::string file_entry(int64_t bytes, const std::string& checksum);

// Where an entry is in only one of two runs.
enum class MissingEntries : uint8_t { differ, ignored };

// The first difference between two runs in words, such as "--temp was 0.7, is 1" or "the model's
// config.json has changed"; empty if there is none.
std::string difference(const RunEntries& before, const RunEntries& now, MissingEntries missing);

// Stands beside the partial file of a run (tools/run/partial_file.h) until its output has its name,
// and says what that file is.
struct RunMark {
  enum class Partial : uint8_t {
    older,     // the partial file is of another run, and none of it is to be kept
    own,       // its lines, if it has any, are results of this run
    complete,  // they are all results; the next thing is that the file becomes the output
  };
  Partial partial = Partial::own;
  bool replaces = false;  // the run may replace an output
  // The first bytes of the partial file, which were written before the run ended, and their
  // CRC-32C. What follows them a run has written that ended without a word.
  int64_t bytes = 0;
  uint32_t checksum = 0;
  RunEntries run;

  bool operator==(const RunMark&) const = default;
};

// The file of a mark. Whoever uses it holds the partial file.
class RunMarkFile {
 public:
  explicit RunMarkFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& new_path() const { return new_path_; }  // while it is written

  // Nothing if there is no such file. Throws Error of one line for one that cannot be read or is no
  // mark, also for a link.
  std::optional<RunMark> read() const;
  // Replaces the file in one step; the new one is durable when this returns. Throws Error.
  void write(const RunMark& mark) const;
  // Throws Error.
  void remove() const;

 private:
  std::filesystem::path path_;
  std::filesystem::path new_path_;
};

}  // namespace sparsellm
