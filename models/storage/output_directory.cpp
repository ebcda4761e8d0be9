#include "models/storage/output_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <system_error>

#include "kernels/base/error.h"
#include "kernels/base/file_descriptor.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/open_directory.h"
#include "models/storage/model_files.h"
#include "models/storage/model_manifest.h"
#include "models/storage/output_file.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// The absolute path of the directory that `path` means, whether it is there or not.
fs::path resolve(const fs::path& path) {
  require(!path.empty(), "the output has no name");
  std::error_code error;
  if (is_there(path)) {
    fs::path real = fs::canonical(path, error);
    require(!error, "cannot write {}: {}", path.string(), error.message());
    return real;
  }
  const fs::path plain = path.has_filename() ? path : path.parent_path();  // "model/"
  const fs::path parent = plain.has_parent_path() ? plain.parent_path() : fs::path(".");
  const fs::path real_parent = fs::canonical(parent, error);
  require(!error, "cannot write {}: {}: {}", path.string(), parent.string(), error.message());
  return real_parent / plain.filename();
}

bool is_regular(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool is_model(const fs::path& path) {
  return is_regular(path / "config.json") && (is_regular(path / "model.safetensors") ||
                                              is_regular(path / "model.safetensors.index.json"));
}

// Throws Error for a directory in which something would be lost.
void require_replaceable(const fs::path& path) {
  require(is_model(path),
          "{} is not replaced: it is no model directory (config.json and model.safetensors or its "
          "index)",
          path.string());
  const OpenDirectory directory(path);
  const std::optional<ModelManifest> manifest = read_manifest(directory);
  for (const std::string& name : directory.names()) {
    const bool is_known = manifest ? manifest->files.contains(name) || name == kManifestName
                                   : is_converted_file(name);
    std::error_code ignored;
    require(is_known && !fs::is_directory(fs::symlink_status(path / name, ignored)),
            "{} is not replaced: it has {}, which no conversion wrote; move that away first",
            path.string(), quote(name));
  }
}

// Whether `inner` is `outer` or in it; both canonical.
bool contains(const fs::path& outer, const fs::path& inner) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

std::string partial_prefix(const fs::path& path) {
  return "." + path.filename().string() + ".partial-";
}

// A name that is not taken, beside `path`.
fs::path hidden_sibling(const fs::path& path) {
  std::random_device random;
  return path.parent_path() / fmt::format("{}{:08x}", partial_prefix(path), random());
}

// mkdtemp would deny it to everybody else, whatever the umask.
fs::path make_partial(const fs::path& path) {
  while (true) {
    fs::path partial = hidden_sibling(path);
    const bool done = ::mkdir(partial.c_str(), 0777) == 0;  // before strerror is evaluated
    if (done) {
      return partial;
    }
    require(errno == EEXIST, "cannot make {}: {}", partial.string(), std::strerror(errno));
  }
}

void rename_path(const fs::path& from, const fs::path& to) {
  const bool done = std::rename(from.c_str(), to.c_str()) == 0;  // before strerror is evaluated
  require(done, "cannot rename {} to {}: {}", from.native(), to.native(), std::strerror(errno));
}

// Whether the last call of renameat2 failed since the file system, or the kernel, cannot do it.
bool is_unsupported() { return errno == EINVAL || errno == ENOSYS; }

// An empty directory of that name would be replaced in silence by a plain rename.
void rename_to_new(const fs::path& from, const fs::path& to) {
  const bool done =
      ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0;
  if (!done && is_unsupported()) {
    require(!is_there(to), "cannot rename {} to {}: it exists", from.string(), to.string());
    rename_path(from, to);
    return;
  }
  require(done, "cannot rename {} to {}: {}", from.native(), to.native(), std::strerror(errno));
}

// Removes a directory and the files in it; 0, or the errno. Where something has failed for want of
// memory there may still be none: unlike fs::remove_all() it takes none.
int remove_directory(const fs::path& path) noexcept {
  const FileDescriptor directory(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (directory.get() < 0) {
    return errno;
  }
  alignas(dirent64) std::array<std::byte, 1 << 15> entries;
  while (true) {
    const ssize_t bytes = ::getdents64(directory.get(), entries.data(), entries.size());
    if (bytes < 0) {
      return errno;
    }
    if (bytes == 0) {
      return ::rmdir(path.c_str()) == 0 ? 0 : errno;
    }
    for (ssize_t at = 0; at < bytes;) {
      const auto* const entry =
          reinterpret_cast<const dirent64*>(&entries[static_cast<size_t>(at)]);
      at += entry->d_reclen;
      const std::string_view name = entry->d_name;
      if (name != "." && name != ".." &&
          ::unlinkat(directory.get(), entry->d_name, /*flags=*/0) != 0) {
        return errno;
      }
    }
  }
}

}  // namespace

void exchange_directories(const fs::path& a, const fs::path& b, ExchangeBy how) {
  if (how == ExchangeBy::one_step) {
    const bool done = ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
    if (done) {
      return;
    }
    require(is_unsupported(), "cannot exchange {} and {}: {}", a.string(), b.string(),
            std::strerror(errno));
  }
  const fs::path aside = hidden_sibling(b);
  rename_path(b, aside);
  try {
    rename_path(a, b);
  } catch (...) {
    rename_path(aside, b);
    throw;
  }
  rename_path(aside, a);
}

OutputDirectory::OutputDirectory(const fs::path& path, Existing existing, const fs::path& input)
    : path_(resolve(path)), existing_(existing) {
  require(path_.has_filename() && path_ != path_.root_path(),
          "cannot write {}: not a new directory", path.string());
  if (!input.empty()) {
    std::error_code error;
    const fs::path real_input = fs::canonical(input, error);
    require(!error, "cannot read {}: {}", input.string(), error.message());
    require(!contains(path_, real_input), "the output {} would replace the input {}", path.string(),
            input.string());
    require(!contains(real_input, path_), "the output {} is inside the input {}", path.string(),
            input.string());
  }
  if (is_there(path_)) {
    std::error_code ignored;
    require(fs::is_directory(path_, ignored), "cannot write {}: it is a file", path.string());
    require(existing == Existing::replace || !is_model(path_), "{} exists; --force replaces it",
            path.string());
    require(existing == Existing::replace,
            "{} exists, and is no model directory that could be replaced; give another name",
            path.string());
    require_replaceable(path_);
  }
  partial_path_ = make_partial(path_);
}

OutputDirectory::~OutputDirectory() {
  if (!published_) {
    remove_directory(partial_path_);
  }
}

void OutputDirectory::publish() {
  sync_directory(partial_path_);
  const fs::path parent = path_.parent_path();
  const bool replaces = existing_ == Existing::replace && is_there(path_);
  if (replaces) {
    require_replaceable(path_);
    struct stat old {};
    if (::stat(path_.c_str(), &old) == 0) {
      const bool done = ::chmod(partial_path_.c_str(), old.st_mode & 0777) == 0;
      require(done, "cannot set the mode of {}: {}", partial_path_.string(), std::strerror(errno));
    }
    exchange_directories(partial_path_, path_, ExchangeBy::one_step);
  } else {
    rename_to_new(partial_path_, path_);
  }
  published_ = true;  // from here on only messages need memory
  try {
    sync_directory(parent);
  } catch (const Error& error) {
    // Without power now, the name might mean the older one again: it has to stay.
    require(!replaces, "{} is written, but may not be on disk yet ({}); the older one stays in {}",
            path_.string(), error.what(), partial_path_.string());
    throw;
  }
  if (replaces) {
    const int error = remove_directory(partial_path_);
    require(error == 0, "{} is written, but the older one, now {}, cannot be removed: {}",
            path_.native(), partial_path_.native(), std::strerror(error));
  }
}

fs::path OutputDirectory::left_over() const {
  const std::string prefix = partial_prefix(path_);
  std::error_code error;
  for (fs::directory_iterator it(path_.parent_path(), error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with(prefix) && it->path() != partial_path_) {
      return it->path();
    }
  }
  return {};
}

}  // namespace sparsellm
