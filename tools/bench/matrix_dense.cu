#include <cublas_v2.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_state.cuh"
#include "tools/bench/cold_cache.h"
#include "tools/bench/library_handle.h"
#include "tools/bench/library_type.cuh"
#include "tools/bench/matrix_library_contenders.h"

namespace sparsellm {
namespace {

using general_sparse::Order;

constexpr int kMatrixProposals = 8;  // of cuBLASLt
// NVIDIA's advice for Hopper; kept by the contender, since proposals are chosen by it.
constexpr int64_t kDenseWorkspaceBytes = int64_t{32} << 20;

// C = A * B as a column-major product [m, n] = [m, k] * [k, n] of the libraries. A row-major matrix
// is the transposed column-major one, so of operands in rows C^T = B^T A^T is computed.
struct DenseProduct {
  cublasOperation_t left_operation = CUBLAS_OP_N;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t left_pitch = 0;
  int64_t right_pitch = 0;
  int64_t result_pitch = 0;
  bool a_is_left = false;
  cudaDataType_t type = CUDA_R_32F;
  void* b = nullptr;
  void* c = nullptr;

  const void* left(const void* a) const { return a_is_left ? a : b; }
  const void* right(const void* a) const { return a_is_left ? b : a; }
};

DenseProduct dense_product(int64_t rows, int64_t columns, const Tensor& b, const Tensor& c,
                           Order order) {
  const bool by_rows = order == Order::rows;
  const int64_t n = b.size(by_rows ? 1 : 0);
  return {.left_operation = by_rows ? CUBLAS_OP_N : CUBLAS_OP_T,
          .m = by_rows ? n : rows,
          .n = by_rows ? rows : n,
          .k = columns,
          .left_pitch = by_rows ? n : columns,
          .right_pitch = columns,
          .result_pitch = by_rows ? n : rows,
          .a_is_left = !by_rows,
          .type = matrix_library_type(b.dtype()),
          .b = b.raw(),
          .c = c.raw()};
}

// All copies of A.
class DenseMatrices {
 public:
  DenseMatrices(const Tensor& matrix, int64_t copies, Device device)
      : rows_(matrix.size(0)), columns_(matrix.size(1)) {
    for (int64_t copy = 0; copy < copies; ++copy) {
      copies_.emplace_back(device, matrix.bytes(), "the dense matrix");
      copy_bytes(device, copies_.back().data(), {}, matrix.raw(), matrix.bytes());
    }
  }

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t count() const { return std::ssize(copies_); }
  int64_t bytes() const { return copies_.front().bytes(); }
  const void* data(int64_t copy) const { return copies_[static_cast<size_t>(copy)].data(); }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<Buffer> copies_;
};

class CublasMatrixProduct : public BoundKernel {
 public:
  CublasMatrixProduct(cublasHandle_t handle, const DenseMatrices& matrices,
                      const DenseProduct& product)
      : handle_(handle), matrices_(matrices), product_(product) {
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    require(std::max({product.m, product.n, product.k}) <= kMost,
            "cuBLAS does not take a product of {} x {} x {}", product.m, product.n, product.k);
  }

  std::string algorithm(Launches) const override { return "cublas"; }
  void enqueue(int64_t copy, Launches) override {
    const float one = 1.0f;
    const float zero = 0.0f;
    const DenseProduct& p = product_;
    const void* const a = matrices_.data(copy);
    check_cublas(cublasGemmEx(
        handle_, p.left_operation, CUBLAS_OP_N, static_cast<int>(p.m), static_cast<int>(p.n),
        static_cast<int>(p.k), &one, p.left(a), p.type, static_cast<int>(p.left_pitch), p.right(a),
        p.type, static_cast<int>(p.right_pitch), &zero, p.c, p.type,
        static_cast<int>(p.result_pitch), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }

 private:
  cublasHandle_t handle_;
  const DenseMatrices& matrices_;
  DenseProduct product_;
};

using DenseLayout = LibraryHandle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using DenseOperation = LibraryHandle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using DensePreference = LibraryHandle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

DenseLayout dense_layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t pitch) {
  return make_handle<DenseLayout>([&](auto* layout) {
    check_cublas(cublasLtMatrixLayoutCreate(layout, type, static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns), pitch));
  });
}

// The same for all proposals.
struct CublasLtDescription {
  DenseOperation operation;
  DenseLayout left;
  DenseLayout right;
  DenseLayout result;
};

std::shared_ptr<const CublasLtDescription> describe_product(const DenseProduct& p) {
  auto made = std::make_shared<CublasLtDescription>();
  made->operation = make_handle<DenseOperation>([](auto* operation) {
    check_cublas(cublasLtMatmulDescCreate(operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  });
  check_cublas(cublasLtMatmulDescSetAttribute(made->operation.get(), CUBLASLT_MATMUL_DESC_TRANSA,
                                              &p.left_operation, sizeof(p.left_operation)));
  const bool transposed = p.left_operation == CUBLAS_OP_T;
  made->left = dense_layout(p.type, transposed ? p.k : p.m, transposed ? p.m : p.k, p.left_pitch);
  made->right = dense_layout(p.type, p.k, p.n, p.right_pitch);
  made->result = dense_layout(p.type, p.m, p.n, p.result_pitch);
  return made;
}

class CublasLtMatrixProduct : public BoundKernel {
 public:
  struct Proposal {
    int index = 0;
    cublasLtMatmulAlgo_t algorithm = {};
    std::shared_ptr<const CublasLtDescription> description = {};
  };

  CublasLtMatrixProduct(const DenseMatrices& matrices, const DenseProduct& product,
                        Proposal proposal, void* workspace, const ExecContext& ctx)
      : matrices_(matrices),
        product_(product),
        proposal_(std::move(proposal)),
        workspace_(workspace),
        ctx_(ctx) {}

  std::string algorithm(Launches) const override {
    return fmt::format("cublaslt, proposal {}", proposal_.index);
  }
  void enqueue(int64_t copy, Launches) override {
    const float one = 1.0f;
    const float zero = 0.0f;
    const void* const a = matrices_.data(copy);
    const CublasLtDescription& d = *proposal_.description;
    check_cublas(cublasLtMatmul(cuda_state(ctx_).blas, d.operation.get(), &one, product_.left(a),
                                d.left.get(), product_.right(a), d.right.get(), &zero, product_.c,
                                d.result.get(), product_.c, d.result.get(), &proposal_.algorithm,
                                workspace_, static_cast<size_t>(kDenseWorkspaceBytes),
                                cuda_queue(ctx_).stream));
  }

 private:
  const DenseMatrices& matrices_;
  DenseProduct product_;
  Proposal proposal_;
  void* workspace_;
  const ExecContext& ctx_;
};

class DenseMatrixContender : public MatrixContender {
 public:
  DenseMatrixContender(const Tensor& matrix, const MatrixInput& input)
      : ctx_(input.ctx),
        matrices_(matrix, cold_copies(matrix.bytes(), input.copy_bytes), input.ctx.device),
        workspace_(input.ctx.device, kDenseWorkspaceBytes, "the workspace of cuBLAS"),
        handle_(make_handle<BlasHandle>([](auto* handle) { check_cublas(cublasCreate(handle)); })) {
    check_cublas(cublasSetStream(handle_.get(), cuda_queue(ctx_).stream));
    check_cublas(cublasSetWorkspace(handle_.get(), workspace_.data(),
                                    static_cast<size_t>(kDenseWorkspaceBytes)));
    // Sums in f32, and f32 not in TF32.
    check_cublas(cublasSetMathMode(
        handle_.get(),
        static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
  }

  int64_t copies() const override { return matrices_.count(); }
  std::vector<MatrixProduct> bind(const Tensor& b, const Tensor& c, Order order) override {
    const DenseProduct product = dense_product(matrices_.rows(), matrices_.columns(), b, c, order);
    std::vector<MatrixProduct> products;
    products.push_back(
        {.kernel = std::make_unique<CublasMatrixProduct>(handle_.get(), matrices_, product),
         .bytes = matrices_.bytes()});
    add_proposals(product, products);
    return products;
  }

 private:
  using BlasHandle = LibraryHandle<cublasHandle_t, cublasDestroy>;

  void add_proposals(const DenseProduct& product, std::vector<MatrixProduct>& products) const {
    const std::shared_ptr<const CublasLtDescription> description = describe_product(product);
    const DensePreference preference = make_handle<DensePreference>(
        [](auto* made) { check_cublas(cublasLtMatmulPreferenceCreate(made)); });
    const auto workspace_bytes = static_cast<size_t>(kDenseWorkspaceBytes);
    // Of f16 and bf16: none whose partial sums are rounded.
    const auto schemes = static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_cublas(
          cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    std::array<cublasLtMatmulHeuristicResult_t, kMatrixProposals> results = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        cuda_state(ctx_).blas, description->operation.get(), description->left.get(),
        description->right.get(), description->result.get(), description->result.get(),
        preference.get(), kMatrixProposals, results.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) {  // cuBLAS remains
      return;
    }
    check_cublas(status);
    for (int i = 0; i < count; ++i) {
      products.push_back(
          {.kernel = std::make_unique<CublasLtMatrixProduct>(
               matrices_, product,
               CublasLtMatrixProduct::Proposal{.index = i,
                                               .algorithm = results[static_cast<size_t>(i)].algo,
                                               .description = description},
               workspace_.data(), ctx_),
           .bytes = matrices_.bytes()});
    }
  }

  ExecContext& ctx_;
  DenseMatrices matrices_;
  Buffer workspace_;
  BlasHandle handle_;
};

}  // namespace

std::unique_ptr<MatrixContender> make_dense_matrix_contender(const MatrixInput& input) {
  const CompressedRows& m = input.matrix;
  if (m.rows() > kMaxDenseMatrixBytes / size_of(m.dtype()) / std::max(m.columns(), int64_t{1})) {
    return nullptr;
  }
  const OwnedTensor matrix = dense_matrix(m, input.threads);
  return std::make_unique<DenseMatrixContender>(matrix.view, input);
}

}  // namespace sparsellm
