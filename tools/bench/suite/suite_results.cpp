#include "tools/bench/suite/suite_results.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/open_directory.h"
#include "tools/bench/suite/suite_result_line.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kResultsFile = "results.jsonl";
constexpr int64_t kMostResultBytes = int64_t{1} << 30;

// Throws Error with errno's reason unless a call was a success.
void check_results_call(bool good, const fs::path& path) {
  const int reason = errno;
  require(good, "cannot write {}: {}", path.string(), std::strerror(reason));
}

// A name in a folder is on the disk when the folder is.
void sync_results_folder(const fs::path& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  check_results_call(file.get() >= 0, folder);
  // EINVAL: the file system has no such thing.
  check_results_call(::fsync(file.get()) == 0 || errno == EINVAL, folder);
}

FileDescriptor open_results(const fs::path& path) {
  // O_NONBLOCK: not to wait at a named pipe.
  constexpr int kFlags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK;
  FileDescriptor file(::open(path.c_str(), kFlags, 0666));
  check_results_call(file.get() >= 0, path);
  struct stat info {};
  require(::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode),
          "cannot write {}: not a regular file", path.string());
  const bool locked = ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
  require(locked || errno != EWOULDBLOCK, "another process is writing {}", path.string());
  check_results_call(locked, path);
  return file;
}

struct WholeLines {
  std::vector<SuiteResult> results;
  int64_t bytes = 0;  // with their ends
};

WholeLines read_whole_lines(const fs::path& path) {
  const std::string text = read_text_file(path, kMostResultBytes);
  WholeLines lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      break;
    }
    lines.results.push_back(
        parse_suite_result(std::string_view(text).substr(begin, end - begin),
                           fmt::format("{}: line {}", path.string(), lines.results.size() + 1)));
    begin = end + 1;
    lines.bytes = static_cast<int64_t>(begin);
  }
  return lines;
}

}  // namespace

std::vector<SuiteResult> read_suite_results(const fs::path& directory) {
  const fs::path path = directory / kResultsFile;
  return is_there(path) ? read_whole_lines(path).results : std::vector<SuiteResult>();
}

SuiteResults::SuiteResults(const fs::path& directory) : path_(directory / kResultsFile) {
  std::error_code error;
  fs::create_directories(directory, error);
  require(!error, "cannot make {}: {}", directory.string(), error.message());
  file_ = open_results(path_);
  WholeLines lines = read_whole_lines(path_);
  results_ = std::move(lines.results);
  size_ = lines.bytes;
  struct stat info {};
  check_results_call(::fstat(file_.get(), &info) == 0, path_);
  cut_ = info.st_size - size_;
  check_results_call(::ftruncate(file_.get(), size_) == 0, path_);
  sync_results_folder(directory);
}

void SuiteResults::append(const SuiteResult& result) {
  const std::string line = to_json_line(result);
  SuiteResult read_again = parse_suite_result(line, path_.string());
  results_.reserve(results_.size() + 1);
  write_line(line + "\n");
  results_.push_back(std::move(read_again));
}

void SuiteResults::write_line(std::string_view line) {
  struct stat info {};
  check_results_call(::fstat(file_.get(), &info) == 0, path_);
  // A part of a line that could not be cut off when it had failed, or what others have done.
  require(info.st_nlink > 0 && info.st_size == size_,
          "cannot write {}: another program has changed it", path_.string());
  ssize_t written = 0;
  do {
    written = ::write(file_.get(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  // A disk that has room for a part of the line takes that part.
  if (written >= 0 && written < std::ssize(line)) {
    errno = ENOSPC;
  }
  const bool good = written == std::ssize(line) && ::fsync(file_.get()) == 0;
  const int reason = errno;
  if (!good) {
    // If this fails too, whoever opens the file next cuts the part off.
    [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), size_);
  }
  require(good, "cannot write {}: {}", path_.string(), std::strerror(reason));
  size_ += std::ssize(line);
}

const SuiteResult* SuiteResults::find_done(const SuiteResultKey& key) const {
  const auto found = std::find_if(results_.rbegin(), results_.rend(),
                                  [&](const SuiteResult& result) { return result.key == key; });
  return found != results_.rend() && found->error.empty() ? &*found : nullptr;
}

}  // namespace sparsellm
