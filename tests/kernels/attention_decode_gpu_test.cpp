// Attention of decode rows on the GPU against its CPU twin, in f16 and bf16.

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Heads {
  int64_t query;
  int64_t kv;
};

// Pages on both devices. Requests may share them: the first kFullPages are full, page
// kFullPages + n - 1 ends a request with n tokens in its last page, and holds NaN after them.
class Pool {
 public:
  static constexpr int64_t kFullPages = 24;
  static constexpr int64_t kPages = kFullPages + kPageSize - 1;

  Pool(DType dtype, int64_t kv_heads, int64_t head_dim, Random& random)
      : k_(dtype, {kPages, kv_heads, kPageSize, head_dim}, Layout::contiguous, kGpu),
        v_(dtype, {kPages, kv_heads, kPageSize, head_dim}, Layout::contiguous, kGpu),
        k_twin_(DType::f32, {kPages, kv_heads, kPageSize, head_dim}),
        v_twin_(DType::f32, {kPages, kv_heads, kPageSize, head_dim}) {
    for (int64_t page = 0; page < kPages; ++page) {
      const int64_t tokens = page < kFullPages ? kPageSize : page - kFullPages + 1;
      for (int64_t i = 0; i < kv_heads * kPageSize * head_dim; ++i) {
        const bool used = i / head_dim % kPageSize < tokens;
        k.push_back(used ? random.uniform(-1.0, 1.0) : kNan);
        v.push_back(used ? random.uniform(-1.0, 1.0) : kNan);
      }
    }
    upload();
  }

  // After a change of k or v.
  void upload() {
    set_values(k_.view(), k);
    set_values(v_.view(), v);
    set_values(k_twin_.view(), values_of(k_.view()));
    set_values(v_twin_.view(), values_of(v_.view()));
  }

  KvLayer gpu() const { return {.k = k_.view(), .v = v_.view()}; }
  KvLayer twin() const { return {.k = k_twin_.view(), .v = v_twin_.view()}; }
  size_t index(int64_t page, int64_t kv_head, int64_t slot, int64_t dim) const {
    const Tensor& pages = k_.view();
    return static_cast<size_t>(
        ((page * pages.size(1) + kv_head) * kPageSize + slot) * pages.size(3) + dim);
  }

  static StepRequest request(int64_t kv_length, Random& random) {
    StepRequest request{.pages = {}, .kv_length = kv_length, .rows = 1};
    for (int64_t i = 0; i < kv_length / kPageSize; ++i) {
      request.pages.push_back(static_cast<int32_t>(random.below(kFullPages)));
    }
    if (kv_length % kPageSize != 0) {
      request.pages.push_back(static_cast<int32_t>(kFullPages + kv_length % kPageSize - 1));
    }
    return request;
  }
  // kv_length 0 is padding.
  static std::vector<StepRequest> requests(const std::vector<int64_t>& kv_lengths, Random& random) {
    std::vector<StepRequest> all;
    for (int64_t kv_length : kv_lengths) {
      all.push_back(request(kv_length, random));
    }
    return all;
  }

  std::vector<double> k;  // [kPages, kv_heads, kPageSize, head_dim]
  std::vector<double> v;

 private:
  GuardedTensor k_;
  GuardedTensor v_;
  GuardedTensor k_twin_;
  GuardedTensor v_twin_;
};

class AttentionDecode : public GpuTest {
 protected:
  // With the workspace that the op says it needs.
  void decode(const Tensor& q, const KvLayer& kv, const std::vector<StepRequest>& requests,
              float scale, const Tensor& y) {
    const PagedStep step(requests, kGpu);
    PagedBatch batch = step.batch();
    batch.decode = true;
    const int64_t head_dim = kv.k.size(3);
    Workspace workspace(
        kGpu, attention_workspace_bytes(kGpu, q.size(1) / head_dim, kv.k.size(1), head_dim));
    ExecContext exec{
        .device = kGpu, .workspace = workspace, .threads = gpu->threads, .cuda = &gpu->cuda};
    attention(q, kv, batch, scale, y, exec);
    gpu->cuda.synchronize();
  }

  // The CPU twin's results; 0 for padding.
  Expected twin(const Tensor& q, const KvLayer& kv, const std::vector<StepRequest>& requests,
                float scale) {
    std::vector<StepRequest> real;
    for (const StepRequest& request : requests) {
      if (request.kv_length > 0) {
        real.push_back(request);
      }
    }
    const int64_t features = q.size(1);
    const auto rows = static_cast<int64_t>(real.size());
    const GuardedTensor q_twin = cpu_twin(q);
    const GuardedTensor q_real(DType::f32, {rows, features});
    const GuardedTensor y(DType::f32, {rows, features});
    int64_t row = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].kv_length > 0) {
        set_values(q_real.view().rows(row++, 1),
                   values_of(q_twin.view().rows(static_cast<int64_t>(i), 1)));
      }
    }
    const PagedStep step(real);
    attention(q_real.view(), kv, step.batch(), scale, y.view(), cpu.exec);

    Expected expected;
    row = 0;
    for (const StepRequest& request : requests) {
      const bool padding = request.kv_length == 0;
      for (int64_t i = 0; i < features; ++i) {
        const double value = padding ? 0.0 : double{y.view().row<float>(row)[i]};
        expected.values.push_back(value);
        expected.magnitudes.push_back(padding ? 0.0 : std::abs(value) + 4.0);
      }
      row += padding ? 0 : 1;
    }
    return expected;
  }

  void expect_twin(const Pool& pool, const std::vector<StepRequest>& requests,
                   const GuardedTensor& q, float scale, double factor = 16.0) {
    const auto rows = static_cast<int64_t>(requests.size());
    const int64_t features = q.view().size(1);
    const GuardedTensor y(GetParam(), {rows, features}, next_layout(), kGpu);
    const GuardedTensor again(GetParam(), {rows, features}, Layout::contiguous, kGpu);
    decode(q.view(), pool.gpu(), requests, scale, y.view());
    decode(q.view(), pool.gpu(), requests, scale, again.view());
    EXPECT_TRUE(all_close(y.view(), twin(q.view(), pool.twin(), requests, scale), factor));
    EXPECT_TRUE(y.guards_intact());
    EXPECT_TRUE(same_bits(again.view(), y.view()));
  }

  void expect_twin(const Pool& pool, const std::vector<int64_t>& kv_lengths, int64_t heads,
                   double factor = 16.0) {
    const int64_t head_dim = pool.gpu().k.size(3);
    const auto rows = static_cast<int64_t>(kv_lengths.size());
    SCOPED_TRACE(fmt::format("head_dim {}, {} heads, {} key/value heads, {} rows, kv_length {}",
                             head_dim, heads, pool.gpu().k.size(1), rows, kv_lengths[0]));
    const std::vector<StepRequest> requests = Pool::requests(kv_lengths, random);
    const GuardedTensor q =
        random.tensor(GetParam(), {rows, heads * head_dim}, next_layout(), -3.0, 3.0, kGpu);
    expect_twin(pool, requests, q, 1.0f / std::sqrt(static_cast<float>(head_dim)), factor);
  }

  // Rows of all lengths with padding among them; few of them are long.
  static std::vector<int64_t> mixed_lengths(int64_t rows) {
    constexpr int64_t kLengths[] = {1, 15, 0, 16, 17, 33};
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < rows; ++i) {
      lengths.push_back(i % 100 == 5 ? 3000 : i % 20 == 7 ? 300 : kLengths[i % 6]);
    }
    return lengths;
  }

  Random random{91};

 private:
  Layout next_layout() { return ++layouts_ % 3 == 0 ? Layout::contiguous : Layout::strided; }

  int layouts_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Gpu, AttentionDecode, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(AttentionDecode, FewRowsInSplits) {
  const std::vector<Heads> all = {{4, 4}, {8, 2}, {6, 1}, {32, 8}, {40, 1}};
  const std::vector<Heads> some = {{4, 4}, {6, 1}};
  for (int64_t head_dim : {8, 64, 80, 96, 128, 192, 256}) {
    for (const Heads& heads : head_dim == 64 || head_dim == 128 ? all : some) {
      const Pool pool(GetParam(), heads.kv, head_dim, random);
      for (int64_t kv_length : {1, 15, 16, 17, 33, 300, 3000}) {
        expect_twin(pool, {kv_length}, heads.query);
      }
      expect_twin(pool, {300, 0, 17}, heads.query);
      expect_twin(pool, mixed_lengths(64), heads.query);
    }
  }
}

TEST_P(AttentionDecode, ManyRowsWithoutSplits) {
  for (int64_t head_dim : {64, 128, 256}) {
    for (const Heads& heads : {Heads{4, 4}, Heads{10, 1}}) {
      const Pool pool(GetParam(), heads.kv, head_dim, random);
      expect_twin(pool, mixed_lengths(300), heads.query);
    }
  }
}

TEST_P(AttentionDecode, LongContext) {
  const Pool pool(GetParam(), 1, 64, random);
  // The twin adds all weights up one after another, and the same ones hundreds of times.
  expect_twin(pool, {131072, 100001}, 2, 128.0);
}

TEST_P(AttentionDecode, PaddingAlone) {
  const Pool pool(GetParam(), 2, 64, random);
  for (int64_t rows : {1, 2, 600}) {
    const std::vector<StepRequest> padding(static_cast<size_t>(rows),
                                           {.pages = {}, .kv_length = 0, .rows = 1});
    const GuardedTensor q = random.tensor(GetParam(), {rows, 256}, Layout::strided, -1, 1, kGpu);
    const GuardedTensor y(GetParam(), {rows, 256}, Layout::strided, kGpu);
    decode(q.view(), pool.gpu(), padding, 1.0f, y.view());
    const std::vector<double> zeros(static_cast<size_t>(rows * 256), 0.0);
    EXPECT_TRUE(all_close(y.view(), zeros, zeros)) << rows;
  }
}

// Scores that are whole numbers of up to +-20,000: nothing overflows, and differences of scores
// are exact.
TEST_P(AttentionDecode, LargeScores) {
  for (double offset : {0.0, -20000.0, 20000.0}) {
    Pool pool(GetParam(), 1, 64, random);
    for (size_t i = 0; i < pool.k.size(); ++i) {
      if (!std::isnan(pool.k[i])) {
        pool.k[i] = i % 64 == 0    ? offset
                    : i % 64 == 63 ? static_cast<double>(random.below(9)) - 4.0
                                   : 0.0;
      }
    }
    pool.upload();
    for (int64_t kv_length : {1, 40, 700}) {
      const GuardedTensor q(GetParam(), {1, 64}, Layout::contiguous, kGpu);
      set_values(q.view(), std::vector<double>(64, 1.0));
      SCOPED_TRACE(fmt::format("offset {}, kv_length {}", offset, kv_length));
      expect_twin(pool, Pool::requests({kv_length}, random), q, 1.0f);
    }
  }
}

TEST_P(AttentionDecode, OneScoreFarAboveTheOthersPicksItsValue) {
  constexpr int64_t kLength = 17 * kPageSize;
  StepRequest request{.pages = {}, .kv_length = kLength, .rows = 1};
  for (int32_t i = 0; i < pages_for(kLength); ++i) {
    request.pages.push_back(20 - i);
  }
  for (int64_t winner : {0, 15, 16, 40, 200, 271}) {
    Pool pool(GetParam(), 1, 64, random);
    const int64_t page = request.pages[static_cast<size_t>(winner / kPageSize)];
    pool.k[pool.index(page, 0, winner % kPageSize, 3)] = 1000.0;
    pool.upload();
    const GuardedTensor q(GetParam(), {1, 64}, Layout::contiguous, kGpu);
    set_values(q.view(), std::vector<double>(64, 2.0));
    const GuardedTensor y(GetParam(), {1, 64}, Layout::contiguous, kGpu);
    decode(q.view(), pool.gpu(), {request}, 1.0f, y.view());
    const std::vector<double> values = values_of(pool.gpu().v);
    const auto first = static_cast<std::ptrdiff_t>(pool.index(page, 0, winner % kPageSize, 0));
    const std::vector<double> expected(values.begin() + first, values.begin() + first + 64);
    EXPECT_TRUE(all_close(y.view(), expected, std::vector<double>(64, 0.0))) << winner;
  }
}

// Among few rows, which are split, and among many, which are not.
TEST_P(AttentionDecode, NanStaysInItsHeadAndItsRequest) {
  constexpr int64_t kHeads = 4;
  constexpr int64_t kDim = 32;
  for (size_t healthy : {1u, 400u}) {
    Pool pool(GetParam(), 2, kDim, random);
    // Row 0 has a NaN in the query of head 2; row 1 in the key of token 105, key/value head 1; row
    // 2 in element 7 of the value of token 70, key/value head 0.
    std::vector<StepRequest> requests = {
        {.pages = {0, 1, 2, 3, 4, 5, 6}, .kv_length = 112, .rows = 1},
        {.pages = {0, 1, 2, 3, 4, 5, 7}, .kv_length = 112, .rows = 1},
        {.pages = {0, 1, 2, 3, 8, 5, 6}, .kv_length = 112, .rows = 1}};
    requests.resize(3 + healthy, requests[0]);
    pool.k[pool.index(7, 1, 105 % kPageSize, 5)] = kNan;
    pool.v[pool.index(8, 0, 70 % kPageSize, 7)] = kNan;
    pool.upload();
    const auto rows = static_cast<int64_t>(requests.size());
    std::vector<double> queries;
    for (int64_t i = 0; i < rows * kHeads * kDim; ++i) {
      queries.push_back(i == 2 * kDim + 9 ? kNan : random.uniform(-3.0, 3.0));
    }
    const GuardedTensor q(GetParam(), {rows, kHeads * kDim}, Layout::contiguous, kGpu);
    set_values(q.view(), queries);
    const GuardedTensor y(GetParam(), {rows, kHeads * kDim}, Layout::contiguous, kGpu);
    decode(q.view(), pool.gpu(), requests, 0.25f, y.view());
    const std::vector<double> values = values_of(y.view());
    for (int64_t i = 0; i < rows * kHeads * kDim; ++i) {
      const int64_t row = i / (kHeads * kDim);
      const int64_t head = i / kDim % kHeads;
      const bool sick = (row == 0 && head == 2) || (row == 1 && head >= 2) ||
                        (row == 2 && head < 2 && i % kDim == 7);
      ASSERT_EQ(std::isnan(values[static_cast<size_t>(i)]), sick) << row << " " << i;
    }
  }
}

TEST_P(AttentionDecode, AKeyOfNanMakesAllOfItsHeadNan) {
  Pool pool(GetParam(), 1, 64, random);
  for (double& value : pool.k) {
    value = kNan;
  }
  pool.upload();
  const GuardedTensor q = random.tensor(GetParam(), {1, 64}, Layout::contiguous, -1.0, 1.0, kGpu);
  const GuardedTensor y(GetParam(), {1, 64}, Layout::contiguous, kGpu);
  set_values(y.view(), std::vector<double>(64, 0.0));
  decode(q.view(), pool.gpu(), {Pool::request(200, random)}, 1.0f, y.view());
  EXPECT_TRUE(all_close(y.view(), std::vector<double>(64, kNan), std::vector<double>(64, 0.0)));
}

TEST_P(AttentionDecode, RefusesRowsThatAreNotOneARequest) {
  const Pool pool(GetParam(), 1, 64, random);
  const GuardedTensor q = random.tensor(GetParam(), {2, 64}, Layout::contiguous, -1.0, 1.0, kGpu);
  const GuardedTensor y(GetParam(), {2, 64}, Layout::contiguous, kGpu);
  const StepRequest two_rows{.pages = {0}, .kv_length = 16, .rows = 2};
  EXPECT_TRUE(throws_error([&] { decode(q.view(), pool.gpu(), {two_rows}, 1.0f, y.view()); },
                           "2 rows for 1 requests"));
}

}  // namespace
}  // namespace sparsellm
