#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_state.cuh"
#include "tools/bench/cold_cache.h"
#include "tools/bench/cusparse_handles.cuh"
#include "tools/bench/library_contenders.h"
#include "tools/bench/library_type.cuh"

namespace sparsellm {
namespace {

cudaDataType_t type_of(DType dtype) { return library_type(dtype, "cuSPARSE"); }

CusparseDense describe(const Tensor& x, cusparseOrder_t order) {
  return describe_dense(x, type_of(x.dtype()), order);
}

// Compressed rows on the device.
struct Csr {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t nonzeros = 0;
  DType dtype = DType::f16;
  Buffer row_offsets;     // i32 [rows + 1]
  Buffer column_indices;  // i32 [nonzeros]
  Buffer values;          // [nonzeros]
};

Csr allocate_csr(const Tensor& weight) {
  require(weight.element_count() <= std::numeric_limits<int32_t>::max(),
          "a weight {} has too many elements for the 32-bit indices of CSR", weight.shape_string());
  return {.rows = weight.size(0),
          .columns = weight.size(1),
          .nonzeros = 0,
          .dtype = weight.dtype(),
          .row_offsets = Buffer(weight.device(), (weight.size(0) + 1) * size_of(DType::i32),
                                "the row offsets of CSR"),
          .column_indices = {},
          .values = {}};
}

void allocate_nonzeros(Csr& csr, int64_t nonzeros) {
  require(nonzeros > 0, "a weight {}x{} of zeros alone is not multiplied by cuSPARSE", csr.rows,
          csr.columns);
  csr.nonzeros = nonzeros;
  const Device device = csr.row_offsets.device();
  csr.column_indices = Buffer(device, nonzeros * size_of(DType::i32), "the column indices of CSR");
  csr.values = Buffer(device, nonzeros * size_of(csr.dtype), "the values of CSR");
}

CusparseMatrix describe(const Csr& csr) {
  return describe_rows({.rows = csr.rows,
                        .columns = csr.columns,
                        .nonzeros = csr.nonzeros,
                        .type = type_of(csr.dtype),
                        .offsets = csr.row_offsets.data(),
                        .indices = csr.column_indices.data(),
                        .values = csr.values.data()});
}

Csr to_csr(const Tensor& weight, cusparseHandle_t handle, const CudaContext& cuda) {
  constexpr cusparseDenseToSparseAlg_t kAlgorithm = CUSPARSE_DENSETOSPARSE_ALG_DEFAULT;
  Csr csr = allocate_csr(weight);
  const CusparseDense dense = describe(weight, CUSPARSE_ORDER_ROW);
  const CusparseMatrix sparse = describe(csr);
  size_t bytes = 0;
  check_cusparse(
      cusparseDenseToSparse_bufferSize(handle, dense.get(), sparse.get(), kAlgorithm, &bytes));
  const Buffer scratch(weight.device(), static_cast<int64_t>(bytes), "the conversion to CSR");
  check_cusparse(cusparseDenseToSparse_analysis(handle, dense.get(), sparse.get(), kAlgorithm,
                                                scratch.data()));
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t nonzeros = 0;
  check_cusparse(cusparseSpMatGetSize(sparse.get(), &rows, &columns, &nonzeros));
  allocate_nonzeros(csr, nonzeros);
  check_cusparse(cusparseCsrSetPointers(sparse.get(), csr.row_offsets.data(),
                                        csr.column_indices.data(), csr.values.data()));
  check_cusparse(
      cusparseDenseToSparse_convert(handle, dense.get(), sparse.get(), kAlgorithm, scratch.data()));
  cuda.synchronize();
  return csr;
}

Csr copy_of(const Csr& csr, const Tensor& weight) {
  Csr copy = allocate_csr(weight);
  allocate_nonzeros(copy, csr.nonzeros);
  for (const auto& [to, from] : {std::pair(&copy.row_offsets, &csr.row_offsets),
                                 std::pair(&copy.column_indices, &csr.column_indices),
                                 std::pair(&copy.values, &csr.values)}) {
    copy_bytes(to->device(), to->data(), from->device(), from->data(), from->bytes());
  }
  return copy;
}

struct SpmmAlgorithm {
  cusparseSpMMAlg_t id;
  const char* name;
};
constexpr std::array kAlgorithms{
    SpmmAlgorithm{CUSPARSE_SPMM_CSR_ALG1, "CSR_ALG1"},
    SpmmAlgorithm{CUSPARSE_SPMM_CSR_ALG2, "CSR_ALG2"},
    SpmmAlgorithm{CUSPARSE_SPMM_CSR_ALG3, "CSR_ALG3"},
};

class CusparseKernel : public BoundKernel {
 public:
  CusparseKernel(cusparseHandle_t handle, const std::vector<Csr>& weights, const Tensor& x,
                 const Tensor& y, const SpmmAlgorithm& algorithm)
      : handle_(handle),
        weights_(weights),
        x_(describe(x, CUSPARSE_ORDER_COL)),
        y_(describe(y, CUSPARSE_ORDER_COL)),
        id_(algorithm.id),
        algorithm_(algorithm.name),
        prepared_(weights.size()) {}

  std::string algorithm(Launches) const override { return algorithm_; }
  void enqueue(int64_t copy, Launches) override {
    std::optional<Prepared>& prepared = prepared_[static_cast<size_t>(copy)];
    if (!prepared) {
      prepared = prepare(weights_[static_cast<size_t>(copy)]);
    }
    check_cusparse(cusparseSpMM(handle_, kAsIs, kAsIs, &one_, prepared->matrix.get(), x_.get(),
                                &zero_, y_.get(), CUDA_R_32F, id_, prepared->scratch.data()));
  }

 private:
  // The analysis of one copy is kept in its descriptor and its scratch memory.
  struct Prepared {
    CusparseMatrix matrix;
    Buffer scratch;
  };

  Prepared prepare(const Csr& weight) const {
    Prepared prepared{.matrix = describe(weight), .scratch = {}};
    size_t bytes = 0;
    check_cusparse(cusparseSpMM_bufferSize(handle_, kAsIs, kAsIs, &one_, prepared.matrix.get(),
                                           x_.get(), &zero_, y_.get(), CUDA_R_32F, id_, &bytes));
    prepared.scratch = Buffer(weight.values.device(), static_cast<int64_t>(bytes),
                              "the scratch memory of cuSPARSE");
    check_cusparse_preprocess(
        cusparseSpMM_preprocess(handle_, kAsIs, kAsIs, &one_, prepared.matrix.get(), x_.get(),
                                &zero_, y_.get(), CUDA_R_32F, id_, prepared.scratch.data()));
    return prepared;
  }

  static constexpr cusparseOperation_t kAsIs = CUSPARSE_OPERATION_NON_TRANSPOSE;
  const float one_ = 1.0f;
  const float zero_ = 0.0f;
  cusparseHandle_t handle_;
  const std::vector<Csr>& weights_;
  CusparseDense x_;
  CusparseDense y_;
  cusparseSpMMAlg_t id_;
  std::string algorithm_;
  std::vector<std::optional<Prepared>> prepared_;
};

class CusparseContender : public Contender {
 public:
  explicit CusparseContender(const ContenderInput& input) : handle_(make_cusparse(input.ctx)) {
    weights_.push_back(to_csr(input.weight, handle_.get(), *input.ctx.cuda));
    const int64_t copies = cold_copies(bytes(), input.rotation_bytes);
    while (std::ssize(weights_) < copies) {
      weights_.push_back(copy_of(weights_.front(), input.weight));
    }
  }

  int64_t copies() const override { return std::ssize(weights_); }
  int64_t bytes() const override {
    const Csr& csr = weights_.front();
    return (csr.rows + 1 + csr.nonzeros) * size_of(DType::i32) + csr.nonzeros * size_of(csr.dtype);
  }
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override {
    std::vector<std::unique_ptr<BoundKernel>> kernels;
    for (const SpmmAlgorithm& algorithm : kAlgorithms) {
      kernels.push_back(std::make_unique<CusparseKernel>(handle_.get(), weights_, x, y, algorithm));
    }
    return kernels;
  }

 private:
  CusparseHandle handle_;
  std::vector<Csr> weights_;
};

}  // namespace

std::unique_ptr<Contender> make_cusparse_contender(const ContenderInput& input) {
  return std::make_unique<CusparseContender>(input);
}

}  // namespace sparsellm
