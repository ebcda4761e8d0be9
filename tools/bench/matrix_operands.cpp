#include "tools/bench/matrix_operands.h"

#include <algorithm>

#include "kernels/fill_random.h"

namespace sparsellm {
namespace {

using general_sparse::Order;

OwnedTensor allocate_in_order(int64_t rows, int64_t n, Order order, DType dtype, Device device,
                              std::string_view purpose) {
  return order == Order::rows ? allocate_tensor(device, dtype, {rows, n}, purpose)
                              : allocate_tensor(device, dtype, {n, rows}, purpose);
}

template <class T>
void copy_columns(const Tensor& from, const Tensor& to, int64_t n, Order order,
                  ThreadPool& threads) {
  constexpr int64_t kRowsAtATime = 256;
  threads.parallel_for(from.size(0), kRowsAtATime, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* const elements = from.row<T>(row);
      if (order == Order::rows) {
        std::copy_n(elements, n, to.row<T>(row));
        continue;
      }
      for (int64_t column = 0; column < n; ++column) {
        to.row<T>(column)[row] = elements[column];
      }
    }
  });
}

}  // namespace

DType dense_operand_dtype(DType dtype, Device device) {
  return device.is_cuda() ? dtype : DType::f32;
}

OwnedTensor random_dense(int64_t rows, int64_t columns, DType dtype, uint64_t seed,
                         ThreadPool& threads) {
  OwnedTensor made = allocate_tensor({}, dtype, {rows, columns}, "B");
  Workspace workspace({}, 0);
  ExecContext host{.device = {}, .workspace = workspace, .threads = threads};
  fill_random({.key = random_key(seed, "B"), .columns = columns},
              Tensor(made.view.raw(), dtype, {rows * columns}, {}), host);
  return made;
}

OwnedTensor first_columns(const Tensor& b, int64_t n, Order order, Device device,
                          ThreadPool& threads) {
  OwnedTensor host = allocate_in_order(b.size(0), n, order, b.dtype(), {}, "B on the host");
  visit_float(b.dtype(), [&]<class T>(T) { copy_columns<T>(b, host.view, n, order, threads); });
  if (!device.is_cuda()) {
    return host;
  }
  OwnedTensor made = allocate_in_order(b.size(0), n, order, b.dtype(), device, "B");
  copy_bytes(device, made.view.raw(), {}, host.view.raw(), host.view.bytes());
  return made;
}

OwnedTensor allocate_product(int64_t rows, int64_t n, Order order, DType dtype, Device device) {
  return allocate_in_order(rows, n, order, dtype, device, "C");
}

}  // namespace sparsellm
