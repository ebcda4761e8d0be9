#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/comm_cuda.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/exec.h"
#include "tests/testing/guarded_tensor.h"

namespace sparsellm::testing {

// What the program was started with.
struct CommTestFlags {
  // All ranks on the first GPU, as threads: a quick look where there is one GPU alone. Kernels of
  // several ranks then have to run there at once, which CUDA does not promise.
  bool one_gpu = false;
  int stress_seconds = 0;  // random calls for so long; 0: not
  // A process that is one rank, instead of the tests.
  std::string body;
  std::string address;
  int rank = 0;
  int size = 1;
};
CommTestFlags& comm_test_flags();

// A tensor on a rank's device, of which the memory around it and between its rows is filled with
// ones: NaN.
class RankTensor {
 public:
  const Tensor& view() const { return view_; }

 private:
  friend struct GpuRank;
  Tensor view_;
  std::byte* begin_ = nullptr;  // of the memory that belongs to it
  int64_t bytes_ = 0;
};

// One rank of a test: its device, and what ops there need. All memory is there from the beginning:
// to allocate and to free may wait for other ranks' kernels, which wait for this rank.
struct GpuRank {
  explicit GpuRank(Device device);

  Device device;
  Workspace workspace;
  ThreadPool threads;
  Buffer memory;
  CudaContext cuda;
  ExecContext exec;
  std::unique_ptr<CudaCommunicator> comm;

  // At `place` of the memory, in bytes; what was there before is gone.
  RankTensor tensor(DType dtype, std::initializer_list<int64_t> sizes,
                    Layout layout = Layout::contiguous, int64_t place = 0) const;
  // After what was enqueued, and complete on return: row after row, as stored.
  void set_bytes(const Tensor& x, const std::vector<std::byte>& bytes) const;
  std::vector<std::byte> bytes_of(const Tensor& x) const;
  bool is_intact_around(const RankTensor& x) const;
};

using GpuRankBody = std::function<void(GpuRank& rank)>;

// Runs `body` as each of the ranks, in threads; returns what they threw, "" for nothing. A rank
// that throws aborts.
std::vector<std::string> run_gpu_ranks(int ranks, const GpuRankBody& body,
                                       const CudaCommOptions& options = {});
// As the one rank that this process is.
std::string run_gpu_rank_process(const CommTestFlags& flags, const GpuRankBody& body,
                                 const CudaCommOptions& options = {});

// Tests of two ranks, each on a GPU of its own.
class CommGpu2 : public ::testing::Test {
 protected:
  void SetUp() override;
  // Expects that nothing is thrown.
  void run(int ranks, const GpuRankBody& body, const CudaCommOptions& options = {}) const;
  // Numbers of ranks that this machine has GPUs for.
  std::vector<int> rank_counts() const;
};

// Values that all ranks know: in [-2, 2], of which the parts of different ranks differ. Kept in the
// dtype, since a rank's own part is rounded as its peers see it.
class CommValues {
 public:
  CommValues(DType dtype, uint64_t seed);

  // `count` of a rank, for call number `call`, as stored.
  std::vector<std::byte> part(int rank, int64_t call, int64_t count) const;
  // Their sum in f32 in the order of the ranks, rounded once.
  std::vector<std::byte> sum(int ranks, int64_t call, int64_t count) const;

 private:
  static constexpr int64_t kValues = 1 << 16;
  int64_t first(int rank, int64_t call) const;

  DType dtype_;
  std::vector<float> values_;  // twice, so that runs need not begin anew
  std::vector<std::byte> stored_;
};

// The first element that differs, or nothing.
std::string difference(const std::vector<std::byte>& found, const std::vector<std::byte>& expected,
                       int64_t element_bytes);

// What all tests of ranks do: whatever the processes are, and whatever the way.
void check_sums(GpuRank& rank, bool exact);
void check_gathers(GpuRank& rank);
void check_broadcasts(GpuRank& rank);
// Calls of random kinds and sizes, the same on all ranks; until `goes_on` says no.
void check_random_calls(GpuRank& rank, uint64_t seed, const std::function<bool(int64_t)>& goes_on);
void check_graphs(GpuRank& rank);
// Two sums under way at a time, as of a long prompt, and others between them.
void check_deferred_sums(GpuRank& rank);

}  // namespace sparsellm::testing
