#pragma once

#include <cusparse.h>

#include <source_location>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/error.h"
#include "kernels/base/exec.h"
#include "kernels/base/source_path.h"
#include "tools/bench/library_handle.h"

namespace sparsellm {

// What all that calls cuSPARSE shares.

using CusparseHandle = LibraryHandle<cusparseHandle_t, cusparseDestroy>;
using CusparseMatrix = LibraryHandle<cusparseSpMatDescr_t, cusparseDestroySpMat>;
using CusparseDense = LibraryHandle<cusparseDnMatDescr_t, cusparseDestroyDnMat>;
using CusparseVector = LibraryHandle<cusparseDnVecDescr_t, cusparseDestroyDnVec>;

inline void check_cusparse(cusparseStatus_t status,
                           std::source_location where = std::source_location::current()) {
  require(status == CUSPARSE_STATUS_SUCCESS, "cuSPARSE failed at {}:{}: {}",
          source_path(where.file_name()), where.line(), cusparseGetErrorString(status));
}

// Of an analysis that not every algorithm has.
inline void check_cusparse_preprocess(
    cusparseStatus_t status, std::source_location where = std::source_location::current()) {
  if (status != CUSPARSE_STATUS_NOT_SUPPORTED) {
    check_cusparse(status, where);
  }
}

// On the stream of the context.
inline CusparseHandle make_cusparse(const ExecContext& ctx) {
  CusparseHandle handle =
      make_handle<CusparseHandle>([](auto* made) { check_cusparse(cusparseCreate(made)); });
  check_cusparse(cusparseSetStream(handle.get(), cuda_queue(ctx).stream));
  return handle;
}

// A row-major tensor [rows, columns] as it is, or as a column-major matrix [columns, rows].
inline CusparseDense describe_dense(const Tensor& x, cudaDataType_t type, cusparseOrder_t order) {
  const bool by_rows = order == CUSPARSE_ORDER_ROW;
  return make_handle<CusparseDense>([&](auto* matrix) {
    check_cusparse(cusparseCreateDnMat(matrix, x.size(by_rows ? 0 : 1), x.size(by_rows ? 1 : 0),
                                       x.size(1), x.raw(), type, order));
  });
}

// Compressed rows (CSR) with 32-bit indices on the device.
struct CusparseRows {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t nonzeros = 0;
  cudaDataType_t type = CUDA_R_32F;
  void* offsets = nullptr;  // i32 [rows + 1]
  void* indices = nullptr;  // i32 [nonzeros]
  void* values = nullptr;   // [nonzeros]
};

inline CusparseMatrix describe_rows(const CusparseRows& m) {
  return make_handle<CusparseMatrix>([&](auto* matrix) {
    check_cusparse(cusparseCreateCsr(matrix, m.rows, m.columns, m.nonzeros, m.offsets, m.indices,
                                     m.values, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                                     CUSPARSE_INDEX_BASE_ZERO, m.type));
  });
}

}  // namespace sparsellm
