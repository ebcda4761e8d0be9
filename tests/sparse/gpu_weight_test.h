#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/upload.h"
#include "sparse/format.h"
#include "tests/sparse/product_reference.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/wait_for_device.h"

namespace sparsellm::testing {

struct Shape {
  int64_t rows;
  int64_t columns;
};

// Products of sparse weights on the first CUDA device, in the dtype of the test.
class GpuWeightTest : public GpuTest {
 protected:
  static constexpr uint64_t kSeed = 72;
  static constexpr double kTolerance = 8.0;  // epsilons of sum |w||x|

  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) {
      workspace = std::make_unique<Workspace>(kGpu, int64_t{96} << 20);
      exec.emplace(ExecContext{
          .device = kGpu, .workspace = *workspace, .threads = gpu->threads, .cuda = &gpu->cuda});
      uploads = std::make_unique<Uploader>(kGpu);
    }
  }

  LoadContext load_context() {
    return {.device = kGpu,
            .compute = GetParam(),
            .threads = cpu.threads,
            .exec = [this]() -> ExecContext& { return *exec; },
            .uploads = uploads.get()};
  }

  // One below the other; the values are there.
  std::unique_ptr<WeightMatrix> load(const WeightFormat& format, std::span<EncodedWeight> parts) {
    std::vector<WeightPart> named;
    for (EncodedWeight& part : parts) {
      named.push_back({.weight = &part});
    }
    std::unique_ptr<WeightMatrix> weight = format.load(named, load_context());
    uploads->finish();
    return weight;
  }

  OwnedTensor weight(const Shape& shape, double density, Pattern pattern = Pattern::random) {
    return make_weight({.dtype = GetParam(),
                        .rows = shape.rows,
                        .columns = shape.columns,
                        .density = density,
                        .pattern = pattern},
                       kSeed);
  }

  // None of the numbers near 0.
  std::vector<double> values(int64_t count) {
    std::vector<double> all(static_cast<size_t>(count));
    for (double& x : all) {
      x = random.uniform(0.25, 1.0) * (random.below(2) == 0 ? 1.0 : -1.0);
    }
    return all;
  }
  GuardedTensor numbers(int64_t tokens, int64_t columns, Layout layout = Layout::contiguous) {
    GuardedTensor x(GetParam(), {tokens, columns}, layout, kGpu);
    set_values(x.view(), values(tokens * columns));
    return x;
  }

  OwnedTensor bias_of(int64_t size) {
    OwnedTensor bias = allocate_tensor(kGpu, GetParam(), {size}, "a bias");
    random.fill(bias.view);
    return bias;
  }

  struct Product {
    Layout layout = Layout::contiguous;  // of y
    bool has_bias = false;
    Activation::Kind activation = Activation::Kind::none;
  };
  // multiply(y, epilogue): y [tokens, rows] is the expected product + bias, or the greater of that
  // and 0, and nothing else is written.
  template <class Multiply>
  ::testing::AssertionResult gives(int64_t tokens, int64_t rows, const Expected& expected,
                                   const Product& product, Multiply&& multiply) {
    const OwnedTensor bias = bias_of(rows);
    const GuardedTensor y(GetParam(), {tokens, rows}, product.layout, kGpu);
    multiply(y.view(), Epilogue{.bias = product.has_bias ? bias.view : Tensor(),
                                .activation = {.kind = product.activation}});
    gpu->cuda.synchronize();
    if (!y.guards_intact()) {
      return ::testing::AssertionFailure() << "something beside y was written";
    }
    return all_close(
        y.view(),
        with_epilogue(expected, product.has_bias ? values_of(bias.view) : std::vector<double>(),
                      product.activation),
        kTolerance);
  }

  // matmul() is right.
  ::testing::AssertionResult multiplies(const WeightMatrix& weight, const Tensor& x,
                                        const Expected& expected, const Product& product) {
    return gives(
        x.size(0), weight.out(), expected, product,
        [&](const Tensor& y, const Epilogue& epilogue) { weight.matmul(x, y, epilogue, *exec); });
  }

  Expected expected_of(const Tensor& x, const Tensor& w) {
    return product(cpu_twin(x).view(), w, cpu.threads);
  }

  static std::vector<std::byte> bytes_of_buffer(const Buffer& buffer) {
    std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes()));
    wait_for_device(buffer.device());
    copy_bytes({}, bytes.data(), buffer.device(), buffer.data(), buffer.bytes());
    return bytes;
  }

  std::unique_ptr<Workspace> workspace;
  std::optional<ExecContext> exec;
  std::unique_ptr<Uploader> uploads;
  Random random{kSeed};
};

}  // namespace sparsellm::testing
