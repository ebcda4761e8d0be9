#include "sparse/count_nonzeros.h"

#include <atomic>

namespace sparsellm {

int64_t count_nonzeros(const Tensor& w, ThreadPool& threads) {
  std::atomic<int64_t> total = 0;
  visit_float(w.dtype(), [&]<class T>(T) {
    threads.parallel_for(w.size(0), 16, [&](int64_t begin, int64_t end) {
      int64_t zeros = 0;
      for (int64_t row = begin; row < end; ++row) {
        const T* const values = w.row<T>(row);
        for (int64_t column = 0; column < w.size(1); ++column) {
          zeros += is_zero(values[column]) ? 1 : 0;
        }
      }
      total += (end - begin) * w.size(1) - zeros;
    });
  });
  return total;
}

}  // namespace sparsellm
