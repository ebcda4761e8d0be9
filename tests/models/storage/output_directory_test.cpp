#include "models/storage/output_directory.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>

#include "tests/models/expect_error.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_message;
using testing::TempDir;
using Existing = OutputDirectory::Existing;

std::set<std::string> entries(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(OutputDirectory, TellsOfWhatAnotherRunLeft) {
  const TempDir dir;
  const OutputDirectory output(dir.path() / "out", Existing::refuse, {});
  EXPECT_TRUE(fs::is_directory(output.partial_path()));
  for (const char* name : {"out", "out.partial-1", ".out2.partial-1", "x.out.partial-1"}) {
    dir.write(fs::path(name) / "x", "");
  }
  EXPECT_EQ(output.left_over(), fs::path());
  fs::create_directory(dir.path() / ".out.partial-1");
  EXPECT_EQ(output.left_over(), dir.path() / ".out.partial-1");
}

// The hidden one beside it has a longer name.
TEST(OutputDirectory, SaysWhyItCannotBeMade) {
  const TempDir dir;
  const fs::path path = dir.path() / std::string(250, 'x');
  const std::string error = error_of([&] { OutputDirectory output(path, Existing::refuse, {}); });
  expect_message(error, "cannot make " + (dir.path() / ".xxx").string());
  expect_message(error, ": File name too long");
}

TEST(ExchangeDirectories, WorksInOneAndInThreeSteps) {
  for (ExchangeBy how : {ExchangeBy::one_step, ExchangeBy::three_renames}) {
    const TempDir dir;
    dir.write("a/x", "");
    dir.write("b/y", "");
    exchange_directories(dir.path() / "a", dir.path() / "b", how);
    EXPECT_EQ(entries(dir.path()), (std::set<std::string>{"a", "b"}));
    EXPECT_EQ(entries(dir.path() / "a"), std::set<std::string>{"y"});
    EXPECT_EQ(entries(dir.path() / "b"), std::set<std::string>{"x"});
    expect_message(error_of([&] { exchange_directories(dir.path() / "c", dir.path() / "b", how); }),
                   "No such file or directory");
    expect_message(error_of([&] { exchange_directories(dir.path() / "b", dir.path() / "c", how); }),
                   "No such file or directory");
    EXPECT_EQ(entries(dir.path()), (std::set<std::string>{"a", "b"}));
    EXPECT_EQ(entries(dir.path() / "b"), std::set<std::string>{"x"});
  }
}

enum class Outcome : uint8_t { passed, failed, no_filter };

// Of expectations in a process in which renameat2() fails with this errno if it has flags, as on
// file systems that do not know them.
Outcome without_rename_flags(int error, const std::function<void()>& body) {
  const pid_t child = ::fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_renameat2, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[4])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{.len = std::size(filter), .filter = filter};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      std::_Exit(static_cast<int>(Outcome::no_filter));
    }
    EXPECT_NO_THROW(body());
    std::_Exit(static_cast<int>(::testing::Test::HasFailure() ? Outcome::failed : Outcome::passed));
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? static_cast<Outcome>(WEXITSTATUS(status)) : Outcome::failed;
}

void write_model(const fs::path& path, Existing existing, const char* text) {
  OutputDirectory output(path, existing, {});
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::ofstream(output.partial_path() / name) << text;
  }
  errno = EINVAL;  // of something else
  output.publish();
}

std::string config_of(const fs::path& model) {
  std::string text;
  std::ifstream(model / "config.json") >> text;
  return text;
}

TEST(OutputDirectory, WorksOnFileSystemsThatOnlyRename) {
  for (const int error : {EINVAL, ENOSYS}) {
    SCOPED_TRACE(error);
    const TempDir dir;
    const Outcome outcome = without_rename_flags(error, [&] {
      const fs::path path = dir.path() / "out";
      write_model(path, Existing::refuse, "first");
      EXPECT_EQ(config_of(path), "first");
      write_model(path, Existing::replace, "second");
      EXPECT_EQ(config_of(path), "second");
      EXPECT_EQ(entries(dir.path()), std::set<std::string>{"out"});
      // An empty directory that appears on the way is not replaced.
      OutputDirectory late(dir.path() / "late", Existing::refuse, {});
      fs::create_directory(dir.path() / "late");
      expect_message(error_of([&] { late.publish(); }),
                     "to " + (dir.path() / "late").string() + ": it exists");
    });
    if (outcome == Outcome::no_filter) {
      GTEST_SKIP() << "may not filter system calls";
    }
    EXPECT_EQ(outcome, Outcome::passed);
  }
}

TEST(OutputDirectory, OtherErrorsOfRenameAreErrors) {
  const TempDir dir;
  const fs::path path = dir.path() / "out";
  write_model(path, Existing::refuse, "first");
  const Outcome outcome = without_rename_flags(EIO, [&] {
    expect_message(error_of([&] { write_model(dir.path() / "new", Existing::refuse, "new"); }),
                   "new: Input/output error");
    expect_message(error_of([&] { write_model(path, Existing::replace, "second"); }),
                   "out: Input/output error");
    EXPECT_EQ(config_of(path), "first");
    EXPECT_EQ(entries(dir.path()), std::set<std::string>{"out"});
    fs::create_directory(dir.path() / "other");
    expect_message(
        error_of([&] { exchange_directories(path, dir.path() / "other", ExchangeBy::one_step); }),
        "cannot exchange " + path.string());
    EXPECT_EQ(config_of(path), "first");
    exchange_directories(path, dir.path() / "other", ExchangeBy::three_renames);
    EXPECT_EQ(config_of(dir.path() / "other"), "first");
  });
  if (outcome == Outcome::no_filter) {
    GTEST_SKIP() << "may not filter system calls";
  }
  EXPECT_EQ(outcome, Outcome::passed);
}

}  // namespace
}  // namespace sparsellm
