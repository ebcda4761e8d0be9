#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/file_descriptor.h"

namespace sparsellm {

// What a cell was measured with: results that differ in any of these are never compared.
struct SuiteResultKey {
  std::string suite;
  std::string cell;             // SuiteCell::name
  std::string commit;           // of the program
  std::string gpu;              // its name; "cpu" without one
  std::string gpu_memory = {};  // of --gpu-memory, as it was given; empty: what the GPU has

  bool operator==(const SuiteResultKey&) const = default;
};

// A line of a file of results:
//   {"suite": "flash_llm_fig13", "cell": "opt-30b/dense/1gpu/b8/o512", "commit": "33a8e32",
//    "gpu": "NVIDIA H200", "gpu_memory": "80G", "row": {...}, "groups": [...],
//    "environment": {...}}
// with "error": "..." in place of the row where it failed.
struct SuiteResult {
  SuiteResultKey key;
  std::string row = {};          // a JSON object: of the report; empty if there is an error
  std::string groups = {};       // a JSON array of objects: those of a breakdown; empty: none
  std::string environment = {};  // a JSON object
  std::string error = {};        // one that is empty is none

  bool operator==(const SuiteResult&) const = default;
};

// On one line, without its end. Throws Error for parts that are not the JSON that they should be.
std::string to_json_line(const SuiteResult& result);

// Of a folder of results; all whole lines, in their order. A file that is not there has none, and a
// last line without its end, which a program that was killed has left, or is writing just now, does
// not count. Throws Error that names the file and the number of a line that is not a result.
std::vector<SuiteResult> read_suite_results(const std::filesystem::path& directory);

// The file of results of a folder, to which one process at a time adds lines. However a process
// ends, and if the machine does, the file has all lines for which append() returned, and perhaps a
// part of one more, which the next process cuts off.
class SuiteResults {
 public:
  // Makes what is not there. Throws Error: another process writes to it, or the file is not right.
  explicit SuiteResults(const std::filesystem::path& directory);

  // Adds a line, which is on the disk when this returns. Throws Error, also for want of space; then
  // the file is as it was.
  void append(const SuiteResult& result);

  // All, those that were there first.
  const std::vector<SuiteResult>& all() const { return results_; }
  // Bytes of a line without its end that were there, and are cut off.
  int64_t cut() const { return cut_; }
  // The latest of a key; nullptr if there is none, or if it is an error.
  const SuiteResult* find_done(const SuiteResultKey& key) const;

 private:
  void write_line(std::string_view line);

  std::filesystem::path path_;
  FileDescriptor file_;
  int64_t size_ = 0;  // bytes of whole lines
  int64_t cut_ = 0;
  std::vector<SuiteResult> results_;
};

}  // namespace sparsellm
