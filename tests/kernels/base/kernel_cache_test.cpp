#include "kernels/base/kernel_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (fs::exists(folder)) {
    std::transform(fs::directory_iterator(folder), fs::directory_iterator(),
                   std::back_inserter(files), [](const auto& entry) { return entry.path(); });
  }
  return files;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Its code is a text of what it got.
class FakeCompiler final : public KernelCompiler {
 public:
  std::string version() override { return release; }
  std::vector<std::byte> compile(const KernelSource& source) override {
    ++compilations;
    if (before) {
      before();
    }
    const std::string code = code_of(source);
    const auto bytes = std::as_bytes(std::span(code));
    return {bytes.begin(), bytes.end()};
  }
  std::string code_of(const KernelSource& source) const {
    return fmt::format("{} of {} for {} by {}", source.name, source.text, source.architecture,
                       release);
  }

  std::string release = "fake 1.0";
  std::function<void()> before;
  std::atomic<int> compilations = 0;
};

class KernelCacheTest : public ::testing::Test {
 protected:
  // As another process does.
  std::string get(const KernelSource& one) {
    KernelCache cache(compiler, options());
    return text_of(cache.get(one));
  }
  KernelCache::Options options() {
    return {.directory = directory(), .warn = [this](const std::string& line) {
              const std::lock_guard lock(mutex_);
              warnings.push_back(line);
            }};
  }
  fs::path directory() const { return folder.path() / "caches" / "kernels"; }
  // Of the only file.
  fs::path only_file() const {
    const std::vector<fs::path> files = files_in(directory());
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? fs::path() : files.front();
  }
  // That the file, as it is now, costs a line with this text and a compilation, and is in order
  // afterwards.
  void expect_unusable(std::string_view what, const std::string& problem) {
    const int before = compiler.compilations;
    warnings.clear();
    EXPECT_EQ(get(source), compiler.code_of(source)) << what;
    EXPECT_EQ(compiler.compilations, before + 1) << what;
    ASSERT_EQ(warnings.size(), 1u) << what;
    EXPECT_NE(warnings[0].find(problem), std::string::npos) << what << ": " << warnings[0];
    EXPECT_NE(warnings[0].find(directory().string()), std::string::npos) << warnings[0];
    EXPECT_EQ(warnings[0].find('\n'), std::string::npos) << warnings[0];
    expect_usable(what);
  }
  void expect_usable(std::string_view what) {
    const int before = compiler.compilations;
    warnings.clear();
    EXPECT_EQ(get(source), compiler.code_of(source)) << what;
    EXPECT_EQ(compiler.compilations, before) << what;
    EXPECT_EQ(warnings, std::vector<std::string>{}) << what;
  }

  const TempDir folder;
  const KernelSource source{
      .name = "axpy", .text = "some text", .architecture = 90, .defines = {"A=1"}};
  FakeCompiler compiler;
  std::vector<std::string> warnings;

 private:
  std::mutex mutex_;
};

TEST_F(KernelCacheTest, CompilesOnce) {
  KernelCache cache(compiler, options());
  const auto code = cache.get(source);
  EXPECT_EQ(text_of(code), compiler.code_of(source));
  EXPECT_EQ(cache.get(source).data(), code.data());
  EXPECT_EQ(compiler.compilations, 1);
  EXPECT_EQ(get(source), compiler.code_of(source));
  EXPECT_EQ(compiler.compilations, 1);
  EXPECT_EQ(files_in(directory()).size(), 1u);
  EXPECT_EQ(warnings, std::vector<std::string>{});
}

TEST_F(KernelCacheTest, AllThatCodeDependsOnIsInTheKey) {
  std::vector<KernelSource> sources(8, source);
  sources[1].name = "axp";
  sources[2].text = "other text";
  sources[3].architecture = 80;
  sources[4].defines = {};
  sources[5].defines = {"A=1", ""};
  sources[6].defines = {"A=", "1"};
  sources[7].name = "axpys";  // the letter moves from the text to the name
  sources[7].text = "ome text";
  for (int round = 0; round < 2; ++round) {
    for (const KernelSource& one : sources) {
      EXPECT_EQ(get(one), compiler.code_of(one));
    }
    EXPECT_EQ(compiler.compilations, 8);
  }
  compiler.release = "fake 1.1";
  EXPECT_EQ(get(source), compiler.code_of(source));
  EXPECT_EQ(compiler.compilations, 9);
  EXPECT_EQ(files_in(directory()).size(), 9u);
  EXPECT_EQ(warnings, std::vector<std::string>{});
}

TEST_F(KernelCacheTest, WithoutADirectoryNothingIsWritten) {
  KernelCache cache(compiler, {});
  EXPECT_EQ(text_of(cache.get(source)), compiler.code_of(source));
  EXPECT_EQ(text_of(cache.get(source)), compiler.code_of(source));
  EXPECT_EQ(compiler.compilations, 1);
  EXPECT_EQ(files_in(folder.path()).size(), 0u);
}

TEST_F(KernelCacheTest, ADamagedByteAnywhereIsFound) {
  get(source);
  const fs::path path = only_file();
  const std::string good = text_of(path);
  EXPECT_EQ(good.size(), 40 + compiler.code_of(source).size());
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0, 7}) {
      std::string damaged = good;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      write(path, damaged);
      const std::string what = fmt::format("bit {} of byte {}", bit, i);
      expect_unusable(what, i < 8               ? "is no compiled kernel"
                            : i < 12            ? "has version "
                            : i >= 32 && i < 40 ? "; its header says "
                                                : "its checksum differs");
      EXPECT_EQ(text_of(path), good);
    }
  }
}

TEST_F(KernelCacheTest, AFileThatIsCutOffIsFound) {
  get(source);
  const fs::path path = only_file();
  const std::string good = text_of(path);
  for (size_t size = 0; size < good.size(); ++size) {
    write(path, good.substr(0, size));
    expect_unusable(fmt::format("{} bytes", size),
                    size < 40 ? "is no compiled kernel" : "; its header says ");
  }
  write(path, good + "x");
  expect_unusable("a byte more", "; its header says ");
}

TEST_F(KernelCacheTest, AnotherFileIsNotTaken) {
  get(source);
  const fs::path path = only_file();
  KernelSource other = source;
  other.architecture = 80;
  const TempDir elsewhere;
  KernelCache(compiler, {.directory = elsewhere.path(), .warn = {}}).get(other);
  fs::copy_file(files_in(elsewhere.path()).at(0), path, fs::copy_options::overwrite_existing);
  expect_unusable("of another source", "is of another kernel");
  write(path, "{\"format\": \"sparsellm tune cache\", \"version\": 1, \"entries\": {}}\n");
  expect_unusable("of something else", "is no compiled kernel");
  write(path, "SpKernel");
  fs::resize_file(path, uintmax_t{1} << 33);  // sparse: takes no room
  expect_unusable("8 GiB", "bytes");
}

TEST_F(KernelCacheTest, WhatIsNoFileIsReplacedIfItCanBe) {
  get(source);
  const fs::path path = only_file();
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0666), 0);
  expect_unusable("a named pipe", "not a regular file");
  fs::remove(path);
  fs::create_symlink("nowhere", path);
  warnings.clear();
  get(source);
  expect_usable("a link that led nowhere");
  fs::remove(path);
  fs::create_directories(path / "folder");
  warnings.clear();
  EXPECT_EQ(get(source), compiler.code_of(source));
  ASSERT_EQ(warnings.size(), 2u);  // it can be neither read nor replaced
  EXPECT_NE(warnings[0].find("; it is compiled again"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[1].find("; no more kernels are kept"), std::string::npos) << warnings[1];
  EXPECT_EQ(files_in(directory()).size(), 1u);
}

TEST_F(KernelCacheTest, AFileThatMayNotBeReadIsReplaced) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root may read all files";
  }
  get(source);
  fs::permissions(only_file(), fs::perms::none);
  expect_unusable("no permission", "Permission denied");
}

// One line, however many kernels there are.
TEST_F(KernelCacheTest, ADirectoryThatCannotBeWrittenCostsALine) {
  fs::create_directories(directory().parent_path());
  write(directory(), "not a folder");
  KernelCache cache(compiler, options());
  for (int architecture = 80; architecture < 90; ++architecture) {
    KernelSource one = source;
    one.architecture = architecture;
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(text_of(cache.get(one)), compiler.code_of(one));
    }
  }
  EXPECT_EQ(compiler.compilations, 10);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("cannot write " + directory().string()), std::string::npos)
      << warnings[0];
  EXPECT_EQ(text_of(directory()), "not a folder");
}

TEST_F(KernelCacheTest, AReadOnlyDirectoryIsRead) {
  if (::geteuid() == 0) {
    GTEST_SKIP() << "root may write all directories";
  }
  get(source);
  fs::permissions(directory(), fs::perms::owner_read | fs::perms::owner_exec);
  expect_usable("read-only");
  KernelSource other = source;
  other.architecture = 80;
  EXPECT_EQ(get(other), compiler.code_of(other));
  EXPECT_EQ(warnings.size(), 1u);
  fs::permissions(directory(), fs::perms::owner_all);
}

// Of a full disk there is half a file, which must not stay.
TEST_F(KernelCacheTest, WhatCannotBeWrittenWholeIsNotThere) {
  KernelSource large = source;
  large.text = std::string(10'000, 'x');
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit low { .rlim_cur = 1000, .rlim_max = old.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string code = get(large);
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(code, compiler.code_of(large));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("File too large"), std::string::npos) << warnings[0];
  EXPECT_EQ(files_in(directory()).size(), 0u);
}

TEST_F(KernelCacheTest, AnErrorOfTheCompilerIsThrownAndNotKept) {
  KernelCache cache(compiler, options());
  compiler.before = [] { fail("axpy(3): error: a test"); };
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(throws_error([&] { cache.get(source); }, "axpy(3): error: a test"));
  }
  EXPECT_EQ(compiler.compilations, 2);
  EXPECT_EQ(files_in(directory()).size(), 0u);
  EXPECT_EQ(warnings, std::vector<std::string>{});
  compiler.before = {};
  EXPECT_EQ(text_of(cache.get(source)), compiler.code_of(source));
  EXPECT_EQ(files_in(directory()).size(), 1u);
}

void in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    threads.emplace_back(body, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(KernelCacheTest, ThreadsShareACompilation) {
  KernelCache cache(compiler, options());
  compiler.before = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  std::atomic<int> right = 0;
  in_threads(8, [&](int) { right += text_of(cache.get(source)) == compiler.code_of(source); });
  EXPECT_EQ(right, 8);
  EXPECT_EQ(compiler.compilations, 1);
}

TEST_F(KernelCacheTest, ThreadsThatHaveWaitedForAnErrorTryAgain) {
  KernelCache cache(compiler, options());
  compiler.before = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    fail("a test");
  };
  std::atomic<int> errors = 0;
  in_threads(8, [&](int) { errors += throws_error([&] { cache.get(source); }, "a test") ? 1 : 0; });
  EXPECT_EQ(errors, 8);
  EXPECT_EQ(compiler.compilations, 8);
}

// None would end before the others have begun.
TEST_F(KernelCacheTest, DifferentKernelsAreCompiledAtOnce) {
  constexpr int kThreads = 3;
  KernelCache cache(compiler, options());
  std::mutex mutex;
  std::condition_variable all_here;
  int here = 0;
  std::atomic<int> met = 0;
  compiler.before = [&] {
    std::unique_lock lock(mutex);
    ++here;
    all_here.notify_all();
    met += all_here.wait_for(lock, std::chrono::seconds(60), [&] { return here == kThreads; });
  };
  in_threads(kThreads, [&](int i) {
    KernelSource one = source;
    one.architecture += i;
    cache.get(one);
  });
  EXPECT_EQ(met, kThreads);
  EXPECT_EQ(compiler.compilations, kThreads);
}

TEST_F(KernelCacheTest, SeveralProcessesMayShareADirectory) {
  constexpr int kSources = 20;
  std::atomic<int> right = 0;
  in_threads(4, [&](int) {
    KernelCache cache(compiler, options());
    for (int i = 0; i < kSources; ++i) {
      KernelSource one = source;
      one.architecture = i;
      right += text_of(cache.get(one)) == compiler.code_of(one);
    }
  });
  EXPECT_EQ(right, 4 * kSources);
  EXPECT_EQ(warnings, std::vector<std::string>{});
  EXPECT_EQ(files_in(directory()).size(), static_cast<size_t>(kSources));  // nothing half written
  compiler.compilations = 0;
  for (int i = 0; i < kSources; ++i) {
    KernelSource one = source;
    one.architecture = i;
    EXPECT_EQ(get(one), compiler.code_of(one));
  }
  EXPECT_EQ(compiler.compilations, 0);
}

TEST_F(KernelCacheTest, IsBesideTheTuneCache) {
  EXPECT_EQ(kernel_cache_directory("/caches/kernels.json"), "/caches/kernels.json.compiled");
  EXPECT_EQ(kernel_cache_directory("tune"), "tune.compiled");
  EXPECT_EQ(kernel_cache_directory({}), "");
}

}  // namespace
}  // namespace sparsellm
