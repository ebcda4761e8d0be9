#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda_state.cuh"
#include "tools/bench/cold_cache.h"
#include "tools/bench/cusparse_handles.cuh"
#include "tools/bench/library_type.cuh"
#include "tools/bench/matrix_library_contenders.h"

namespace sparsellm {
namespace {

using general_sparse::Order;

constexpr int64_t kIndexBytes = size_of(DType::i32);

// What cuSPARSE calls the format of a matrix.
enum class CusparseFormat : uint8_t { csr, coo, bsr };

struct MatrixSpmm {
  cusparseSpMMAlg_t id;
  const char* name;
  CusparseFormat format;
};
constexpr std::array kMatrixSpmms{
    MatrixSpmm{CUSPARSE_SPMM_CSR_ALG1, "CSR_ALG1", CusparseFormat::csr},
    MatrixSpmm{CUSPARSE_SPMM_CSR_ALG2, "CSR_ALG2", CusparseFormat::csr},
    MatrixSpmm{CUSPARSE_SPMM_CSR_ALG3, "CSR_ALG3", CusparseFormat::csr},
    MatrixSpmm{CUSPARSE_SPMM_COO_ALG1, "COO_ALG1", CusparseFormat::coo},
    MatrixSpmm{CUSPARSE_SPMM_COO_ALG2, "COO_ALG2", CusparseFormat::coo},
    MatrixSpmm{CUSPARSE_SPMM_COO_ALG3, "COO_ALG3", CusparseFormat::coo},
    MatrixSpmm{CUSPARSE_SPMM_COO_ALG4, "COO_ALG4", CusparseFormat::coo},
    MatrixSpmm{CUSPARSE_SPMM_BSR_ALG1, "BSR_ALG1", CusparseFormat::bsr},
};

struct MatrixSpmv {
  cusparseSpMVAlg_t id;
  const char* name;
  CusparseFormat format;
};
constexpr std::array kMatrixSpmvs{
    MatrixSpmv{CUSPARSE_SPMV_CSR_ALG1, "SpMV CSR_ALG1", CusparseFormat::csr},
    MatrixSpmv{CUSPARSE_SPMV_CSR_ALG2, "SpMV CSR_ALG2", CusparseFormat::csr},
    MatrixSpmv{CUSPARSE_SPMV_COO_ALG1, "SpMV COO_ALG1", CusparseFormat::coo},
    MatrixSpmv{CUSPARSE_SPMV_COO_ALG2, "SpMV COO_ALG2", CusparseFormat::coo},
};

// The same matrix in all formats, in host memory.
struct HostFormats {
  std::vector<int32_t> offsets;      // [rows + 1]
  std::vector<int32_t> row_indices;  // [nonzeros]
  std::vector<int32_t> block_offsets;
  std::vector<int32_t> block_columns;
  std::vector<std::byte> block_values;  // block after block, each row after row
};

std::vector<int32_t> offsets_of(const CompressedRows& m) {
  const std::span<const int64_t> starts = m.starts();
  return {starts.begin(), starts.end()};
}

std::vector<int32_t> row_indices_of(const CompressedRows& m, ThreadPool& threads) {
  constexpr int64_t kRowsAtATime = 1024;
  std::vector<int32_t> indices(static_cast<size_t>(m.nonzeros()));
  threads.parallel_for(m.rows(), kRowsAtATime, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::fill(indices.begin() + m.starts()[static_cast<size_t>(row)],
                indices.begin() + m.starts()[static_cast<size_t>(row) + 1],
                static_cast<int32_t>(row));
    }
  });
  return indices;
}

// Of a matrix whose rows have whole blocks, the same in all rows of one.
void add_blocks(const CompressedRows& m, int64_t size, HostFormats& formats) {
  const int64_t element_bytes = size_of(m.dtype());
  formats.block_values.resize(static_cast<size_t>(m.nonzeros() * element_bytes));
  formats.block_offsets.push_back(0);
  visit_float(m.dtype(), [&]<class T>(T) {
    auto* const values = reinterpret_cast<T*>(formats.block_values.data());
    for (int64_t top = 0; top < m.rows(); top += size) {
      const std::span<const uint32_t> columns = m.columns_of(top);
      const int64_t blocks = std::ssize(columns) / size;
      const int64_t first = std::ssize(formats.block_columns);
      for (int64_t i = 0; i < size; ++i) {
        require(std::ranges::equal(columns, m.columns_of(top + i)) &&
                    blocks * size == std::ssize(columns),
                "row {} has no blocks of {} x {}", top + i, size, size);
        const std::span<const T> row = m.values_of<T>(top + i);
        for (int64_t block = 0; block < blocks; ++block) {
          std::copy_n(row.begin() + block * size, size,
                      values + ((first + block) * size + i) * size);
        }
      }
      for (int64_t block = 0; block < blocks; ++block) {
        formats.block_columns.push_back(
            static_cast<int32_t>(columns[static_cast<size_t>(block * size)] / size));
      }
      formats.block_offsets.push_back(static_cast<int32_t>(formats.block_columns.size()));
    }
  });
}

template <class T>
Buffer upload(const T& from, Device device, std::string_view purpose) {
  const auto bytes = static_cast<int64_t>(std::span(from).size_bytes());
  Buffer buffer(device, bytes, purpose);
  copy_bytes(device, buffer.data(), {}, std::span(from).data(), bytes);
  return buffer;
}

// A on the device in every format; coordinates and compressed rows share columns and values.
struct DeviceFormats {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t nonzeros = 0;
  int64_t block_size = 0;  // 0: without blocks
  cudaDataType_t type = CUDA_R_32F;
  Buffer offsets = {};
  Buffer row_indices = {};
  Buffer column_indices = {};
  Buffer values = {};
  Buffer block_offsets = {};
  Buffer block_columns = {};
  Buffer block_values = {};

  int64_t bytes(CusparseFormat format) const {
    switch (format) {
      case CusparseFormat::csr:
        return offsets.bytes() + column_indices.bytes() + values.bytes();
      case CusparseFormat::coo:
        return row_indices.bytes() + column_indices.bytes() + values.bytes();
      case CusparseFormat::bsr:
        return block_offsets.bytes() + block_columns.bytes() + block_values.bytes();
    }
    return 0;
  }

  CusparseMatrix describe(CusparseFormat format) const {
    switch (format) {
      case CusparseFormat::csr:
        return describe_rows({.rows = rows,
                              .columns = columns,
                              .nonzeros = nonzeros,
                              .type = type,
                              .offsets = offsets.data(),
                              .indices = column_indices.data(),
                              .values = values.data()});
      case CusparseFormat::coo:
        return make_handle<CusparseMatrix>([&](auto* matrix) {
          check_cusparse(cusparseCreateCoo(matrix, rows, columns, nonzeros, row_indices.data(),
                                           column_indices.data(), values.data(), CUSPARSE_INDEX_32I,
                                           CUSPARSE_INDEX_BASE_ZERO, type));
        });
      case CusparseFormat::bsr:
        return make_handle<CusparseMatrix>([&](auto* matrix) {
          check_cusparse(cusparseCreateBsr(
              matrix, rows / block_size, columns / block_size, block_columns.bytes() / kIndexBytes,
              block_size, block_size, block_offsets.data(), block_columns.data(),
              block_values.data(), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
              type, CUSPARSE_ORDER_ROW));
        });
    }
    fail("a matrix in no format");
  }
};

DeviceFormats upload_formats(const CompressedRows& m, const HostFormats& host, int64_t block_size,
                             Device device) {
  DeviceFormats made{.rows = m.rows(),
                     .columns = m.columns(),
                     .nonzeros = m.nonzeros(),
                     .block_size = block_size,
                     .type = matrix_library_type(m.dtype())};
  made.offsets = upload(host.offsets, device, "the row offsets of CSR");
  made.row_indices = upload(host.row_indices, device, "the row indices of COO");
  made.column_indices = upload(m.column_indices(), device, "the column indices of CSR");
  visit_float(m.dtype(), [&]<class T>(T) {
    made.values = upload(m.values<T>(), device, "the values of CSR");
  });
  made.block_offsets = upload(host.block_offsets, device, "the row offsets of BSR");
  made.block_columns = upload(host.block_columns, device, "the column indices of BSR");
  made.block_values = upload(host.block_values, device, "the values of BSR");
  return made;
}

// What every product has: a descriptor for each copy of A, in which the analysis is kept, and
// scratch memory.
class CusparseProduct : public BoundKernel {
 public:
  CusparseProduct(cusparseHandle_t handle, const std::vector<DeviceFormats>& matrices,
                  const char* name, CusparseFormat format)
      : handle_(handle),
        matrices_(matrices),
        name_(name),
        format_(format),
        prepared_(matrices.size()) {}

  std::string algorithm(Launches) const override { return name_; }
  void enqueue(int64_t copy, Launches) override {
    std::optional<Prepared>& prepared = prepared_[static_cast<size_t>(copy)];
    if (!prepared) {
      const DeviceFormats& matrix = matrices_[static_cast<size_t>(copy)];
      Prepared made{.matrix = matrix.describe(format_), .scratch = {}};
      made.scratch = Buffer(matrix.values.device(), scratch_bytes(made.matrix.get()),
                            "the scratch memory of cuSPARSE");
      preprocess(made.matrix.get(), made.scratch.data());
      prepared = std::move(made);
    }
    multiply(prepared->matrix.get(), prepared->scratch.data());
  }

 protected:
  static constexpr cusparseOperation_t kPlain = CUSPARSE_OPERATION_NON_TRANSPOSE;

  virtual int64_t scratch_bytes(cusparseSpMatDescr_t a) const = 0;
  virtual void preprocess(cusparseSpMatDescr_t a, void* scratch) const = 0;
  virtual void multiply(cusparseSpMatDescr_t a, void* scratch) const = 0;

  cusparseHandle_t handle() const { return handle_; }
  const float* one() const { return &one_; }
  const float* zero() const { return &zero_; }

 private:
  struct Prepared {
    CusparseMatrix matrix;
    Buffer scratch;
  };

  const float one_ = 1.0f;
  const float zero_ = 0.0f;
  cusparseHandle_t handle_;
  const std::vector<DeviceFormats>& matrices_;
  std::string name_;
  CusparseFormat format_;
  std::vector<std::optional<Prepared>> prepared_;
};

class SpmmProduct : public CusparseProduct {
 public:
  SpmmProduct(cusparseHandle_t handle, const std::vector<DeviceFormats>& matrices, const Tensor& b,
              const Tensor& c, Order order, const MatrixSpmm& algorithm)
      : CusparseProduct(handle, matrices, algorithm.name, algorithm.format),
        b_(describe_in_order(b, order)),
        c_(describe_in_order(c, order)),
        id_(algorithm.id) {}

 private:
  static CusparseDense describe_in_order(const Tensor& x, Order order) {
    return describe_dense(x, matrix_library_type(x.dtype()),
                          order == Order::rows ? CUSPARSE_ORDER_ROW : CUSPARSE_ORDER_COL);
  }

  int64_t scratch_bytes(cusparseSpMatDescr_t a) const override {
    size_t bytes = 0;
    check_cusparse(cusparseSpMM_bufferSize(handle(), kPlain, kPlain, one(), a, b_.get(), zero(),
                                           c_.get(), CUDA_R_32F, id_, &bytes));
    return static_cast<int64_t>(bytes);
  }
  void preprocess(cusparseSpMatDescr_t a, void* scratch) const override {
    check_cusparse_preprocess(cusparseSpMM_preprocess(handle(), kPlain, kPlain, one(), a, b_.get(),
                                                      zero(), c_.get(), CUDA_R_32F, id_, scratch));
  }
  void multiply(cusparseSpMatDescr_t a, void* scratch) const override {
    check_cusparse(cusparseSpMM(handle(), kPlain, kPlain, one(), a, b_.get(), zero(), c_.get(),
                                CUDA_R_32F, id_, scratch));
  }

  CusparseDense b_;
  CusparseDense c_;
  cusparseSpMMAlg_t id_;
};

class SpmvProduct : public CusparseProduct {
 public:
  SpmvProduct(cusparseHandle_t handle, const std::vector<DeviceFormats>& matrices, const Tensor& b,
              const Tensor& c, const MatrixSpmv& algorithm)
      : CusparseProduct(handle, matrices, algorithm.name, algorithm.format),
        b_(describe_vector(b)),
        c_(describe_vector(c)),
        id_(algorithm.id) {}

 private:
  static CusparseVector describe_vector(const Tensor& x) {
    return make_handle<CusparseVector>([&](auto* vector) {
      check_cusparse(
          cusparseCreateDnVec(vector, x.element_count(), x.raw(), matrix_library_type(x.dtype())));
    });
  }

  int64_t scratch_bytes(cusparseSpMatDescr_t a) const override {
    size_t bytes = 0;
    check_cusparse(cusparseSpMV_bufferSize(handle(), kPlain, one(), a, b_.get(), zero(), c_.get(),
                                           CUDA_R_32F, id_, &bytes));
    return static_cast<int64_t>(bytes);
  }
  void preprocess(cusparseSpMatDescr_t a, void* scratch) const override {
    check_cusparse_preprocess(cusparseSpMV_preprocess(handle(), kPlain, one(), a, b_.get(), zero(),
                                                      c_.get(), CUDA_R_32F, id_, scratch));
  }
  void multiply(cusparseSpMatDescr_t a, void* scratch) const override {
    check_cusparse(cusparseSpMV(handle(), kPlain, one(), a, b_.get(), zero(), c_.get(), CUDA_R_32F,
                                id_, scratch));
  }

  CusparseVector b_;
  CusparseVector c_;
  cusparseSpMVAlg_t id_;
};

class CusparseMatrixContender : public MatrixContender {
 public:
  explicit CusparseMatrixContender(const MatrixInput& input) : handle_(make_cusparse(input.ctx)) {
    const CompressedRows& m = input.matrix;
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    require(m.nonzeros() > 0 && m.nonzeros() < kMost && m.rows() < kMost && m.columns() < kMost,
            "a matrix {} x {} with {} nonzeros is not multiplied by cuSPARSE with indices of 32 "
            "bits",
            m.rows(), m.columns(), m.nonzeros());
    HostFormats host;
    host.offsets = offsets_of(m);
    host.row_indices = row_indices_of(m, input.threads);
    if (input.block_size > 0) {
      add_blocks(m, input.block_size, host);
    }
    do {
      matrices_.push_back(upload_formats(m, host, input.block_size, input.ctx.device));
    } while (std::ssize(matrices_) < cold_copies(smallest_bytes(), input.copy_bytes));
  }

  int64_t copies() const override { return std::ssize(matrices_); }
  std::vector<MatrixProduct> bind(const Tensor& b, const Tensor& c, Order order) override {
    std::vector<MatrixProduct> products;
    const auto add = [&](CusparseFormat format, const auto& make) {
      if (format != CusparseFormat::bsr || matrices_.front().block_size > 0) {
        products.push_back({.kernel = make(), .bytes = matrices_.front().bytes(format)});
      }
    };
    for (const MatrixSpmm& algorithm : kMatrixSpmms) {
      add(algorithm.format, [&] {
        return std::make_unique<SpmmProduct>(handle_.get(), matrices_, b, c, order, algorithm);
      });
    }
    if (b.size(order == Order::rows ? 1 : 0) == 1) {
      for (const MatrixSpmv& algorithm : kMatrixSpmvs) {
        add(algorithm.format, [&] {
          return std::make_unique<SpmvProduct>(handle_.get(), matrices_, b, c, algorithm);
        });
      }
    }
    return products;
  }

 private:
  // Of the formats.
  int64_t smallest_bytes() const {
    const DeviceFormats& matrix = matrices_.front();
    const int64_t csr = matrix.bytes(CusparseFormat::csr);
    return matrix.block_size == 0 ? csr : std::min(csr, matrix.bytes(CusparseFormat::bsr));
  }

  CusparseHandle handle_;
  std::vector<DeviceFormats> matrices_;
};

}  // namespace

std::unique_ptr<MatrixContender> make_cusparse_matrix_contender(const MatrixInput& input) {
  return std::make_unique<CusparseMatrixContender>(input);
}

}  // namespace sparsellm
