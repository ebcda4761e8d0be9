// A model is converted tensor by tensor: what the converter holds in memory does not grow with the
// model. A program of its own: what other tests leave free in the heap would be measured too.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "engine/conversion/convert.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/temp_dir.h"
#include "tests/tools/synthetic_model.h"

namespace sparsellm {
namespace {

using testing::SyntheticModel;

// Bytes of this process that no file backs; nothing where the system does not say.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kKey = "RssAnon:";
    if (line.starts_with(kKey)) {
      return std::stoll(line.substr(kKey.size())) * 1024;
    }
  }
  return 0;
}

// The most that is in memory between its begin and peak().
class MemoryWatch {
 public:
  MemoryWatch() : thread_([this] { watch(); }) {}
  ~MemoryWatch() { stop(); }
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  int64_t peak() {
    stop();
    return peak_;
  }

 private:
  void watch() {
    while (!stop_) {
      peak_ = std::max(peak_, anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  std::atomic<bool> stop_ = false;
  int64_t peak_ = 0;
  std::thread thread_;
};

struct MemoryCase {
  const char* name;
  double density;  // of the input
  const char* prune;
  double sparsity;
  const char* format;
  bool verify;
  std::optional<DType> dtype = {};
};

std::ostream& operator<<(std::ostream& stream, const MemoryCase& c) { return stream << c.name; }

class ConvertMemory : public ::testing::TestWithParam<MemoryCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, ConvertMemory,
    ::testing::Values(
        // Full matrices make the largest encodings.
        MemoryCase{"NoneTiledCslVerify", 1.0, "none", 0.0, "tiled_csl", true},
        MemoryCase{"NoneTcaBme", 1.0, "none", 0.0, "tca_bme", false},
        MemoryCase{"NoneAutoVerify", 0.1, "none", 0.0, "auto", true},
        MemoryCase{"MagnitudeAuto", 1.0, "magnitude", 0.5, "auto", false},
        MemoryCase{"MagnitudeTiledCslVerify", 1.0, "magnitude", 0.5, "tiled_csl", true},
        MemoryCase{"MagnitudeTcaBmeVerify", 1.0, "magnitude", 0.1, "tca_bme", true},
        MemoryCase{"NoneSmallest", 1.0, "none", 0.0, "smallest", false},
        MemoryCase{"MagnitudeSmallestVerify", 1.0, "magnitude", 0.1, "smallest", true},
        MemoryCase{"NoneToBf16TiledCslVerify", 1.0, "none", 0.0, "tiled_csl", true, DType::bf16},
        MemoryCase{"MagnitudeToBf16TiledCslVerify", 1.0, "magnitude", 0.1, "tiled_csl", true,
                   DType::bf16}),
    [](const auto& use) { return std::string(use.param.name); });

TEST_P(ConvertMemory, StaysBelowFourOfTheLargestTensor) {
  if (testing::kSanitized) {
    GTEST_SKIP() << "sanitizers have memory of their own, and keep what is freed";
  }
  if (anonymous_bytes() == 0) {
    GTEST_SKIP() << "the system does not say how much memory is used";
  }
  const MemoryCase c = GetParam();
  const testing::TempDir directory;
  const SyntheticModel model{
      .hidden = 1024, .intermediate = 2048, .blocks = 6, .density = c.density};
  testing::write_synthetic_model(directory.path() / "in", model);
  // Else the allocator, when it has seen a large block freed, keeps the next ones.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 16);
  ::malloc_trim(0);
  const int64_t before = anonymous_bytes();
  MemoryWatch watch;
  const Conversion conversion =
      convert_model({.input = directory.path() / "in",
                     .output = directory.path() / "out",
                     .plan = SparsityPlan::uniform({.method = parse_prune_method(c.prune),
                                                    .scope = PruneScope::row,
                                                    .sparsity = c.sparsity,
                                                    .seed = 0,
                                                    .norms = {}},
                                                   c.format),
                     .dtype = c.dtype,
                     .threads = 2,
                     .verify = c.verify});
  const int64_t grown = watch.peak() - before;
  EXPECT_LT(grown, 4 * model.largest_tensor_bytes());
  // The watch sees at least what a pruned or encoded matrix takes.
  EXPECT_GT(grown, model.largest_tensor_bytes() / 8);
  EXPECT_GT(conversion.dense_bytes(), 18 * model.largest_tensor_bytes());
}

}  // namespace
}  // namespace sparsellm
