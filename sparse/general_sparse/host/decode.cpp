#include "sparse/cpu/walk.h"
#include "sparse/cpu/walked_rows.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/host/walker.h"

namespace sparsellm::general_sparse {

OwnedTensor decode(const EncodedWeight& e, ThreadPool& threads) {
  OwnedTensor dense = allocate_tensor({}, e.dtype, {e.rows, e.columns}, "a decoded weight");
  if (dense.view.bytes() > 0) {
    visit_float(e.dtype, [&]<class T>(T) {
      expand_walked_rows<T>(Walker<T>(e), {.begin = 0, .count = e.rows}, dense.view, threads);
    });
  }
  return dense;
}

CompressedRows to_compressed_rows(const EncodedWeight& e, ThreadPool& threads) {
  CompressedRows m(e.dtype, 0, 0, 0);
  visit_float(e.dtype, [&]<class T>(T) { m = rows_of_walk<T>(Walker<T>(e), e, threads); });
  return m;
}

}  // namespace sparsellm::general_sparse
