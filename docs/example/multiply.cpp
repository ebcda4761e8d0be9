// C = A * B of a sparse matrix of the Matrix Market and a dense B: multiply FILE.mtx [CHOICES.json]

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/kernel_cache.h"
#include "kernels/base/run_time_compiler.h"
#include "kernels/base/tune_cache.h"
#include "sparse/general_sparse/general_matrix.h"
#include "sparse/matrices/matrix_market.h"

using namespace sparsellm;

constexpr int64_t kColumns = 4;  // of B and C

// On a GPU, finds out by measurements which kernels are the fastest for this matrix and this N; the
// next time they are found in the file, and what was compiled in the folder beside it.
void tune(general_sparse::Matrix& a, const char* choices, ExecContext& context) {
  RunTimeCompiler compiler;
  KernelCache kernels(compiler, {.directory = kernel_cache_directory(choices)});
  TuneCache cache(choices);
  a.tune({.columns = {kColumns}, .kernels = &kernels}, cache, context);
  cache.save();
}

// Prints the first rows of C.
void multiply(const char* file, const char* choices, Device device) {
  ThreadPool threads;
  const auto a = general_sparse::load_matrix(read_matrix_market(file), device, threads);
  const auto cuda = device.is_cuda() ? std::make_unique<CudaContext>(device) : nullptr;
  if (choices != nullptr) {
    Workspace none(device, 0);
    ExecContext context{
        .device = device, .workspace = none, .threads = threads, .cuda = cuda.get()};
    tune(*a, choices, context);
  }

  std::vector<float> b(static_cast<size_t>(a->columns() * kColumns));
  for (size_t i = 0; i < b.size(); ++i) {
    b[i] = static_cast<float>(i % 10);
  }
  const OwnedTensor b_there = allocate_tensor(device, DType::f32, {a->columns(), kColumns}, "B");
  const OwnedTensor c_there = allocate_tensor(device, DType::f32, {a->rows(), kColumns}, "C");
  copy_bytes(device, b_there.view.raw(), {}, b.data(), b_there.view.bytes());

  constexpr auto kOrder = general_sparse::Order::rows;
  Workspace workspace(device, a->workspace_bytes(kColumns, kOrder));
  ExecContext context{
      .device = device, .workspace = workspace, .threads = threads, .cuda = cuda.get()};
  a->multiply(b_there.view, c_there.view, kOrder, context);
  if (cuda) {
    cuda->synchronize();  // until then the product is only enqueued
  }

  const Tensor first = c_there.view.rows(0, std::min<int64_t>(a->rows(), 5));
  std::vector<float> c(static_cast<size_t>(first.element_count()));
  copy_bytes({}, c.data(), device, first.raw(), first.bytes());
  for (size_t i = 0; i < c.size(); ++i) {
    std::printf("%g%c", c[i], (i + 1) % kColumns == 0 ? '\n' : ' ');
  }
}

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s FILE.mtx [CHOICES.json]\n", argv[0]);
    return 2;
  }
  try {
    multiply(argv[1], argc == 3 ? argv[2] : nullptr, parse_device("auto"));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
