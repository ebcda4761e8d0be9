#include "kernels/base/open_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <system_error>
#include <thread>

#include "kernels/base/error.h"

namespace sparsellm {

namespace fs = std::filesystem;

namespace {

struct Entry {
  std::shared_ptr<const FileDescriptor> file;  // nullptr: opened when it is needed
  int error = 0;                               // of opening it
};

}  // namespace

struct DirectoryEntries {
  fs::path path;
  FileDescriptor directory;
  std::map<std::string, Entry, std::less<>> entries;
};

namespace {

// Without O_NONBLOCK the opening of a named pipe waits for somebody to write.
constexpr int kReadOnly = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

constexpr int kMaxOthers = 64;

// What a model is loaded from, in whatever order: opened before the directory can go away. Of the
// others (the model card and licences, which --verify compares, and files of other programs) there
// may be too many to keep all open: kMaxOthers are.
bool is_loaded(std::string_view name) {
  constexpr std::array<std::string_view, 11> kNames{"added_tokens.json",
                                                    "config.json",
                                                    "generation_config.json",
                                                    "merges.txt",
                                                    "model.safetensors.index.json",
                                                    "sparsellm_manifest.json",
                                                    "special_tokens_map.json",
                                                    "tokenizer.json",
                                                    "tokenizer.model",
                                                    "tokenizer_config.json",
                                                    "vocab.json"};
  return name.ends_with(".safetensors") ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

[[noreturn]] void refuse(const fs::path& path, int error) {
  require(error != ENOENT, "the model directory {} does not exist", path.string());
  require(error != ENOTDIR, "{} is a file; expected a model directory", path.string());
  fail("cannot read the model directory {}: {}", path.string(), std::strerror(error));
}

std::map<std::string, Entry, std::less<>> read_entries(const fs::path& path, int directory) {
  const int copy = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = copy >= 0 ? ::fdopendir(copy) : nullptr;
  if (stream == nullptr) {
    const int error = errno;
    const FileDescriptor closed(copy);
    refuse(path, error == ENOENT ? EIO : error);
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> closed(stream, ::closedir);
  std::map<std::string, Entry, std::less<>> entries;
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(stream);
    if (entry == nullptr) {
      if (errno != 0) {
        refuse(path, errno);
      }
      return entries;
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") {
      entries.emplace(name, Entry{});
    }
  }
}

// nullptr if the path means something else in the end.
std::shared_ptr<const DirectoryEntries> open_once(const fs::path& path, FileDescriptor directory) {
  auto result = std::make_shared<DirectoryEntries>(
      DirectoryEntries{.path = path, .directory = std::move(directory), .entries = {}});
  const int fd = result->directory.get();
  struct stat opened {};
  if (::fstat(fd, &opened) != 0) {
    refuse(path, errno);
  }
  const auto is_current = [&] {
    struct stat now {};
    return ::stat(path.c_str(), &now) == 0 && is_same(now, opened);
  };
  // A directory that has been removed has no entry "." any more.
  try {
    result->entries = read_entries(path, fd);
  } catch (const Error&) {
    if (!is_current()) {
      return nullptr;
    }
    throw;
  }
  int others = 0;
  for (auto& [name, entry] : result->entries) {
    if (is_loaded(name) || ++others <= kMaxOthers) {
      const int file = ::openat(fd, name.c_str(), kReadOnly);
      entry.error = file < 0 ? errno : 0;
      entry.file = file < 0 ? nullptr : std::make_shared<const FileDescriptor>(file);
    }
  }
  return is_current() ? result : nullptr;
}

bool is_now_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Whether another program is in the middle of replacing the directory by renaming it twice.
bool is_being_replaced(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  const std::string prefix = "." + real.filename().string() + ".partial-";
  for (fs::directory_iterator it(real.parent_path(), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with(prefix)) {
      return true;
    }
  }
  return false;
}

}  // namespace

OpenDirectory::OpenDirectory(const fs::path& path, int) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kPatience(5);
  // A replacement that ends, or begins, between two looks may leave no trace in either of them.
  constexpr int kLooks = 3;
  const Clock::time_point begin = Clock::now();
  bool is_replaced = false;
  for (int look = 1;; ++look) {
    FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const int error = directory.get() < 0 ? errno : 0;
    if (error == 0) {
      entries_ = open_once(path, std::move(directory));
      if (entries_ != nullptr) {
        return;
      }
    }
    is_replaced = is_replaced || error == 0 || is_being_replaced(path) || is_now_directory(path);
    const bool may_come = error == 0 || (error == ENOENT && (is_replaced || look < kLooks));
    if (!may_come || Clock::now() - begin > kPatience) {
      require(error != 0, "cannot read the model directory {}: it is replaced again and again",
              path.string());
      refuse(path, error);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

const fs::path& OpenDirectory::path() const { return entries_->path; }

std::vector<std::string> OpenDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_->entries) {
    names.push_back(name);
  }
  return names;
}

InputFile OpenDirectory::operator/(std::string_view name) const {
  InputFile file(path() / name);
  file.directory_ = entries_;
  return file;
}

std::shared_ptr<const FileDescriptor> InputFile::open() const {
  const auto failed = [&](int error) {
    fail("cannot open {}: {}", path_.string(), std::strerror(error));
  };
  int fd = -1;
  if (directory_ == nullptr) {
    fd = ::open(path_.c_str(), kReadOnly);
  } else {
    const std::string name = path_.filename().string();
    const auto found = directory_->entries.find(name);
    if (found == directory_->entries.end()) {
      failed(ENOENT);
    }
    const Entry& entry = found->second;
    if (entry.error != 0) {
      failed(entry.error);
    }
    if (entry.file != nullptr) {
      return entry.file;
    }
    fd = ::openat(directory_->directory.get(), name.c_str(), kReadOnly);
  }
  if (fd < 0) {
    failed(errno);
  }
  return std::make_shared<const FileDescriptor>(fd);
}

bool is_there(const InputFile& file) {
  if (file.directory_ != nullptr) {
    return file.directory_->entries.contains(file.path().filename().string());
  }
  struct stat info {};
  return ::lstat(file.path().c_str(), &info) == 0 || errno != ENOENT;
}

}  // namespace sparsellm
