// Preloaded into a program, makes one of its calls of the C library fail, or counts them:
//   FAILING_CALL=write:7:28   the 7th write() of the process returns -1 with errno 28
//   FAILING_CALL=write:7:kill the process gets SIGKILL in place of it
//   CALL_COUNTS=FILE          in the end FILE gets a line "write 12" for each function
// Counted from main() on: what is done before is not the program's. It allocates nothing itself.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace {

enum Function : int {
  kMalloc,
  kOpen,
  kOpenat,
  kFopen,
  kRead,
  kPread,
  kWrite,
  kPwrite,
  kFwrite,
  kFflush,
  kFsync,
  kMmap,
  kStat,
  kLstat,
  kFstat,
  kRename,
  kRenameat2,
  kUnlink,
  kUnlinkat,
  kRmdir,
  kMkdir,
  kChmod,
  kClose,
  kFtruncate,
  kFdopendir,
  kReaddir,
  kGetdents64,
  kFlock,
  kFunctions
};
constexpr std::array<const char*, kFunctions> kNames{
    "malloc", "open",   "openat",    "fopen",     "read",     "pread",      "write",
    "pwrite", "fwrite", "fflush",    "fsync",     "mmap",     "stat",       "lstat",
    "fstat",  "rename", "renameat2", "unlink",    "unlinkat", "rmdir",      "mkdir",
    "chmod",  "close",  "ftruncate", "fdopendir", "readdir",  "getdents64", "flock"};

std::array<std::atomic<long>, kFunctions> counts;
std::atomic<bool> counting = false;
int failing = -1;  // the function
long failing_call = 0;
int failing_errno = 0;  // 0: SIGKILL

// Whether this call is the one.
bool fails(Function function) {
  if (!counting.load(std::memory_order_relaxed)) {
    return false;
  }
  const long number = counts[function].fetch_add(1, std::memory_order_relaxed) + 1;
  if (function != failing || number != failing_call) {
    return false;
  }
  if (failing_errno == 0) {
    ::kill(::getpid(), SIGKILL);
    while (true) {
      ::pause();
    }
  }
  errno = failing_errno;
  return true;
}

template <class F>
F real(F, const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

// As a write that fails inside the C library leaves it, which calls none of these functions.
void fail_stream(FILE* file) {
  constexpr int kError = 0x20;  // _IO_ERR_SEEN
  if (file != nullptr) {
    file->_flags |= kError;
  }
}

void read_setting() {
  const char* setting = ::getenv("FAILING_CALL");
  if (setting == nullptr) {
    return;
  }
  const char* const colon = ::strchr(setting, ':');
  for (int i = 0; i < kFunctions && colon != nullptr; ++i) {
    const auto size = static_cast<size_t>(colon - setting);
    if (::strlen(kNames[i]) == size && ::strncmp(setting, kNames[i], size) == 0) {
      failing = i;
      char* end = nullptr;
      failing_call = ::strtol(colon + 1, &end, 10);
      failing_errno = ::strcmp(end, ":kill") == 0 ? 0 : ::atoi(end + 1);
    }
  }
}

void write_counts() {
  counting = false;
  const char* path = ::getenv("CALL_COUNTS");
  if (path == nullptr) {
    return;
  }
  const int file = ::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  for (int i = 0; i < kFunctions; ++i) {
    char line[64];
    const int size = ::snprintf(line, sizeof(line), "%s %ld\n", kNames[i], counts[i].load());
    [[maybe_unused]] const ssize_t ignored = ::write(file, line, static_cast<size_t>(size));
  }
  ::close(file);
}

using Main = int (*)(int, char**, char**);
Main real_main = nullptr;

int counted_main(int argc, char** argv, char** environment) {
  read_setting();
  counting = true;
  const int code = real_main(argc, argv, environment);
  write_counts();
  return code;
}

}  // namespace

#define REAL(name) static const auto real_##name = real(&::name, #name)

extern "C" {

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*rtld_fini)(), void* stack_end) {
  real_main = main;
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

void* malloc(size_t size) { return fails(kMalloc) ? nullptr : __libc_malloc(size); }
void* calloc(size_t count, size_t size) {
  return fails(kMalloc) ? nullptr : __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  return fails(kMalloc) ? nullptr : __libc_realloc(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  return fails(kMalloc) ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** result, size_t alignment, size_t size) {
  if (fails(kMalloc)) {
    return ENOMEM;
  }
  *result = __libc_memalign(alignment, size);
  return *result == nullptr ? ENOMEM : 0;
}

int open(const char* path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
  va_end(args);
  return fails(kOpen) ? -1 : static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int openat(int directory, const char* path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
  va_end(args);
  return fails(kOpenat) ? -1
                        : static_cast<int>(::syscall(SYS_openat, directory, path, flags, mode));
}
FILE* fopen(const char* path, const char* mode) {
  REAL(fopen);
  return fails(kFopen) ? nullptr : real_fopen(path, mode);
}
ssize_t read(int file, void* to, size_t size) {
  return fails(kRead) ? -1 : ::syscall(SYS_read, file, to, size);
}
ssize_t pread(int file, void* to, size_t size, off_t offset) {
  return fails(kPread) ? -1 : ::syscall(SYS_pread64, file, to, size, offset);
}
ssize_t write(int file, const void* from, size_t size) {
  return fails(kWrite) ? -1 : ::syscall(SYS_write, file, from, size);
}
ssize_t pwrite(int file, const void* from, size_t size, off_t offset) {
  return fails(kPwrite) ? -1 : ::syscall(SYS_pwrite64, file, from, size, offset);
}
size_t fwrite(const void* from, size_t size, size_t count, FILE* file) {
  REAL(fwrite);
  return fails(kFwrite) ? fail_stream(file), 0 : real_fwrite(from, size, count, file);
}
int fflush(FILE* file) {
  REAL(fflush);
  return fails(kFflush) ? fail_stream(file), EOF : real_fflush(file);
}
int fsync(int file) { return fails(kFsync) ? -1 : static_cast<int>(::syscall(SYS_fsync, file)); }
void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  REAL(mmap);
  return fails(kMmap) ? MAP_FAILED : real_mmap(at, size, protection, flags, file, offset);
}
int stat(const char* path, struct stat* info) {
  REAL(stat);
  return fails(kStat) ? -1 : real_stat(path, info);
}
int lstat(const char* path, struct stat* info) {
  REAL(lstat);
  return fails(kLstat) ? -1 : real_lstat(path, info);
}
int fstat(int file, struct stat* info) {
  REAL(fstat);
  return fails(kFstat) ? -1 : real_fstat(file, info);
}
int rename(const char* from, const char* to) {
  REAL(rename);
  return fails(kRename) ? -1 : real_rename(from, to);
}
int renameat2(int from_directory, const char* from, int to_directory, const char* to,
              unsigned flags) {
  REAL(renameat2);
  return fails(kRenameat2) ? -1 : real_renameat2(from_directory, from, to_directory, to, flags);
}
int unlink(const char* path) {
  REAL(unlink);
  return fails(kUnlink) ? -1 : real_unlink(path);
}
int unlinkat(int directory, const char* path, int flags) {
  REAL(unlinkat);
  return fails(kUnlinkat) ? -1 : real_unlinkat(directory, path, flags);
}
int rmdir(const char* path) {
  REAL(rmdir);
  return fails(kRmdir) ? -1 : real_rmdir(path);
}
int mkdir(const char* path, mode_t mode) {
  REAL(mkdir);
  return fails(kMkdir) ? -1 : real_mkdir(path, mode);
}
int chmod(const char* path, mode_t mode) {
  REAL(chmod);
  return fails(kChmod) ? -1 : real_chmod(path, mode);
}
int close(int file) {
  const bool failed = fails(kClose);
  const int error = errno;
  const int result = static_cast<int>(::syscall(SYS_close, file));
  errno = failed ? error : errno;
  return failed ? -1 : result;
}
int ftruncate(int file, off_t size) {
  REAL(ftruncate);
  return fails(kFtruncate) ? -1 : real_ftruncate(file, size);
}
DIR* fdopendir(int file) {
  REAL(fdopendir);
  return fails(kFdopendir) ? nullptr : real_fdopendir(file);
}
struct dirent* readdir(DIR* directory) {
  REAL(readdir);
  return fails(kReaddir) ? nullptr : real_readdir(directory);
}
ssize_t getdents64(int directory, void* entries, size_t size) {
  REAL(getdents64);
  return fails(kGetdents64) ? -1 : real_getdents64(directory, entries, size);
}
int flock(int file, int operation) {
  REAL(flock);
  return fails(kFlock) ? -1 : real_flock(file, operation);
}

}  // extern "C"
