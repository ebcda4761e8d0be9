#include <cublasLt.h>
#include <cublas_v2.h>

#include <array>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_state.cuh"
#include "tools/cold_cache.h"
#include "tools/library_contenders.h"
#include "tools/library_handle.h"

namespace sparsellm {
namespace {

cudaDataType_t cuda_type(DType dtype) {
  require(dtype == DType::f16 || dtype == DType::bf16,
          "cuBLAS is benchmarked with f16 and bf16, not with {}", name_of(dtype));
  return dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

// The weight as it is, as often as the caches ask for.
class DenseCopies {
 public:
  explicit DenseCopies(const ContenderInput& input)
      : weight_(input.weight),
        count_(cold_copies(weight_.bytes(), input.rotation_bytes)),
        memory_(weight_.device(), checked_mul(pitch(), count_, "bytes of the weights"),
                "the copies of the weight") {
    for (int64_t copy = 0; copy < count_; ++copy) {
      copy_bytes(weight_.device(), data(copy), weight_.device(), weight_.raw(), weight_.bytes());
    }
  }

  int64_t count() const { return count_; }
  int64_t bytes() const { return weight_.bytes(); }  // of one
  cudaDataType_t type() const { return cuda_type(weight_.dtype()); }
  int64_t out() const { return weight_.size(0); }
  int64_t in() const { return weight_.size(1); }
  void* data(int64_t copy) const {
    return static_cast<std::byte*>(memory_.data()) + copy * pitch();
  }

 private:
  // Aligned as an allocation of its own would be.
  int64_t pitch() const { return (weight_.bytes() + 255) / 256 * 256; }

  Tensor weight_;
  int64_t count_;
  Buffer memory_;
};

int int_size(int64_t size) {
  require(size <= std::numeric_limits<int>::max(), "cuBLAS does not take a size of {}", size);
  return static_cast<int>(size);
}

class CublasKernel : public BoundKernel {
 public:
  CublasKernel(cublasHandle_t handle, const DenseCopies& weights, const Tensor& x, const Tensor& y)
      : handle_(handle), weights_(weights), x_(x), y_(y) {}

  std::string algorithm(Launches) const override { return {}; }
  void enqueue(int64_t copy, Launches) override {
    const float one = 1.0f;
    const float zero = 0.0f;
    const int out = int_size(weights_.out());
    const int in = int_size(weights_.in());
    const int tokens = int_size(x_.size(0));
    const cudaDataType_t type = weights_.type();
    check_cublas(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, out, tokens, in, &one,
                              weights_.data(copy), type, in, x_.raw(), type, in, &zero, y_.raw(),
                              type, out, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT_TENSOR_OP));
  }

 private:
  cublasHandle_t handle_;
  const DenseCopies& weights_;
  Tensor x_;
  Tensor y_;
};

class CublasContender : public Contender {
 public:
  explicit CublasContender(const ContenderInput& input)
      : weights_(input),
        handle_(make_handle<Handle>([](auto* handle) { check_cublas(cublasCreate(handle)); })) {
    const CudaContext::State& cuda = cuda_state(input.ctx);
    check_cublas(cublasSetStream(handle_.get(), cuda.stream));
    check_cublas(cublasSetWorkspace(handle_.get(), cuda.blas_workspace,
                                    static_cast<size_t>(CudaContext::kWorkspaceBytes)));
    check_cublas(
        cublasSetMathMode(handle_.get(), CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
  }

  int64_t copies() const override { return weights_.count(); }
  int64_t bytes() const override { return weights_.bytes(); }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    kernels.push_back(std::make_unique<CublasKernel>(handle_.get(), weights_, x, y));
    return kernels;
  }

 private:
  using Handle = LibraryHandle<cublasHandle_t, cublasDestroy>;
  DenseCopies weights_;
  Handle handle_;
};

using Operation = LibraryHandle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = LibraryHandle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = LibraryHandle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

Layout make_layout(cudaDataType_t type, int64_t rows, int64_t columns) {
  return make_handle<Layout>([&](auto* layout) {
    check_cublas(cublasLtMatrixLayoutCreate(layout, type, static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns), rows));
  });
}

// The product as cuBLASLt describes it.
struct LtProduct {
  Operation operation;
  Layout w;
  Layout x;
  Layout y;
};

LtProduct make_product(const DenseCopies& weights, int64_t tokens) {
  LtProduct product;
  product.operation = make_handle<Operation>([](auto* operation) {
    check_cublas(cublasLtMatmulDescCreate(operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  });
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check_cublas(cublasLtMatmulDescSetAttribute(product.operation.get(), CUBLASLT_MATMUL_DESC_TRANSA,
                                              &transposed, sizeof(transposed)));
  product.w = make_layout(weights.type(), weights.in(), weights.out());
  product.x = make_layout(weights.type(), weights.in(), tokens);
  product.y = make_layout(weights.type(), weights.out(), tokens);
  return product;
}

class CublasLtKernel : public BoundKernel {
 public:
  CublasLtKernel(const CudaContext::State& cuda, const DenseCopies& weights, const Tensor& x,
                 const Tensor& y, const cublasLtMatmulAlgo_t& choice, std::string algorithm)
      : cuda_(cuda),
        weights_(weights),
        x_(x),
        y_(y),
        product_(make_product(weights, x.size(0))),
        choice_(choice),
        algorithm_(std::move(algorithm)) {}

  std::string algorithm(Launches) const override { return algorithm_; }
  void enqueue(int64_t copy, Launches) override {
    const float one = 1.0f;
    const float zero = 0.0f;
    check_cublas(cublasLtMatmul(
        cuda_.blas, product_.operation.get(), &one, weights_.data(copy), product_.w.get(), x_.raw(),
        product_.x.get(), &zero, y_.raw(), product_.y.get(), y_.raw(), product_.y.get(), &choice_,
        cuda_.blas_workspace, static_cast<size_t>(CudaContext::kWorkspaceBytes), cuda_.stream));
  }

 private:
  const CudaContext::State& cuda_;
  const DenseCopies& weights_;
  Tensor x_;
  Tensor y_;
  LtProduct product_;
  cublasLtMatmulAlgo_t choice_;
  std::string algorithm_;
};

class CublasLtContender : public Contender {
 public:
  explicit CublasLtContender(const ContenderInput& input)
      : cuda_(cuda_state(input.ctx)), weights_(input) {}

  int64_t copies() const override { return weights_.count(); }
  int64_t bytes() const override { return weights_.bytes(); }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    constexpr int kAlgorithms = 16;
    std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> proposals{};
    const int count = propose(x.size(0), proposals);
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulHeuristicResult_t& proposal = proposals[static_cast<size_t>(i)];
      if (proposal.state == CUBLAS_STATUS_SUCCESS) {
        kernels.push_back(std::make_unique<CublasLtKernel>(
            cuda_, weights_, x, y, proposal.algo, fmt::format("heuristic {} of {}", i + 1, count)));
      }
    }
    require(!kernels.empty(), "cuBLASLt has no algorithm for this shape");
    return kernels;
  }

 private:
  int propose(int64_t tokens, std::span<cublasLtMatmulHeuristicResult_t> proposals) const {
    const LtProduct product = make_product(weights_, tokens);
    const auto preference = make_handle<Preference>(
        [](auto* handle) { check_cublas(cublasLtMatmulPreferenceCreate(handle)); });
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_cublas(
          cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<size_t>(CudaContext::kWorkspaceBytes));
    int count = 0;
    check_cublas(cublasLtMatmulAlgoGetHeuristic(
        cuda_.blas, product.operation.get(), product.w.get(), product.x.get(), product.y.get(),
        product.y.get(), preference.get(), static_cast<int>(proposals.size()), proposals.data(),
        &count));
    return count;
  }

  const CudaContext::State& cuda_;
  DenseCopies weights_;
};

}  // namespace

std::unique_ptr<Contender> make_cublas_contender(const ContenderInput& input) {
  return std::make_unique<CublasContender>(input);
}

std::unique_ptr<Contender> make_cublaslt_contender(const ContenderInput& input) {
  return std::make_unique<CublasLtContender>(input);
}

}  // namespace sparsellm
