#include "kernels/checks.h"

#include <algorithm>
#include <functional>
#include <string>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

bool dtype_fits(DType dtype, Elements elements, Device device) {
  switch (elements) {
    case Elements::activation:
      return device.is_cuda() ? dtype == DType::f16 || dtype == DType::bf16 : dtype == DType::f32;
    case Elements::floating:
      return is_floating(dtype);
    case Elements::f32:
      return dtype == DType::f32;
    case Elements::i32:
      return dtype == DType::i32;
    case Elements::u8:
      return dtype == DType::u8;
    case Elements::u32:
      return dtype == DType::u32;
  }
  return false;
}

std::string_view dtypes_of(Elements elements, Device device) {
  switch (elements) {
    case Elements::activation:
      return device.is_cuda() ? "f16 or bf16" : "f32";
    case Elements::floating:
      return "f32, f16 or bf16";
    case Elements::f32:
      return "f32";
    case Elements::i32:
      return "i32";
    case Elements::u8:
      return "u8";
    case Elements::u32:
      return "u32";
  }
  return "?";
}

bool sizes_fit(const Tensor& x, std::initializer_list<int64_t> sizes) {
  if (x.rank() != static_cast<int>(sizes.size())) {
    return false;
  }
  int dimension = 0;
  for (int64_t size : sizes) {
    if (size != kAnySize && size != x.size(dimension)) {
      return false;
    }
    ++dimension;
  }
  return true;
}

// As Tensor::shape_string, with * for any size.
std::string shape_string(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (int64_t size : sizes) {
    text += (text.empty() ? "[" : ", ") + (size == kAnySize ? "*" : std::to_string(size));
  }
  return text + "]";
}

std::string describe(const Tensor& x) {
  return x.rank() == 0 ? "missing"
                       : fmt::format("{} {} on {}", name_of(x.dtype()), x.shape_string(),
                                     to_string(x.device()));
}

// The bytes from a tensor's first to past its last element, and between its rows.
struct Extent {
  const std::byte* begin;
  const std::byte* end;
  int64_t row_bytes;
  int64_t stride_bytes;
};

Extent extent_of(const Tensor& x) {
  const auto* begin = static_cast<const std::byte*>(x.raw());
  const int64_t size = size_of(x.dtype());
  const int64_t elements =
      x.element_count() == 0 ? 0 : (x.size(0) - 1) * x.row_stride() + x.row_size();
  return {begin, begin + elements * size, x.row_size() * size, x.row_stride() * size};
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.element_count() == 0 || b.element_count() == 0 || a.device() != b.device()) {
    return false;
  }
  const Extent p = extent_of(a);
  const Extent q = extent_of(b);
  const std::less<const std::byte*> before;
  if (!before(p.begin, q.end) || !before(q.begin, p.end)) {
    return false;
  }
  if (p.stride_bytes != q.stride_bytes) {
    return true;
  }
  // Both are columns of one matrix; `shift` is where b's begin after a's, modulo a row.
  const int64_t stride = p.stride_bytes;
  const int64_t shift = ((q.begin - p.begin) % stride + stride) % stride;
  return shift < p.row_bytes || shift + q.row_bytes > stride;
}

// The first page that a request's rows reach, the first of which stands at `position`.
int64_t first_page(int64_t position, int64_t window) {
  return window == 0 ? 0 : std::max<int64_t>(position - window + 1, 0) / kPageSize;
}

void check_tables(std::string_view op, const PagedBatch& batch, int64_t pages, int64_t window) {
  const int32_t* query_start = batch.query_start.data<int32_t>();
  const int32_t* kv_length = batch.kv_length.data<int32_t>();
  const int32_t* positions = batch.positions.data<int32_t>();
  const int64_t requests = batch.requests();
  require(query_start[0] == 0 && query_start[requests] == batch.tokens(),
          "{}: query_start goes from {} to {}; expected 0 to {}", op, query_start[0],
          query_start[requests], batch.tokens());
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t begin = query_start[r];
    const int64_t end = query_start[r + 1];
    require(begin <= end && end <= batch.tokens() && end - begin <= kv_length[r],
            "{}: request {} has the rows [{}, {}) of {} and kv_length {}", op, r, begin, end,
            batch.tokens(), kv_length[r]);
    for (int64_t i = begin; i < end; ++i) {
      require(positions[i] == kv_length[r] - (end - i),
              "{}: row {} stands at position {}; its request's kv_length {} says {}", op, i,
              positions[i], kv_length[r], kv_length[r] - (end - i));
    }
    const int64_t used = pages_for(kv_length[r]);
    require(used <= batch.page_table.size(1),
            "{}: request {} has {} tokens, its page table {} pages", op, r, kv_length[r],
            batch.page_table.size(1));
    for (int64_t i = first_page(kv_length[r] - (end - begin), window); i < used; ++i) {
      const int32_t page = batch.page_table.row<int32_t>(r)[i];
      require(page >= 0 && page < pages, "{}: request {} uses page {} of a pool of {}", op, r, page,
              pages);
    }
  }
}

}  // namespace

void check_tensor(const Operand& what, const Tensor& x, Elements elements,
                  std::initializer_list<int64_t> sizes, const ExecContext& ctx) {
  if (x.device() != ctx.device || !dtype_fits(x.dtype(), elements, ctx.device) ||
      !sizes_fit(x, sizes)) {
    fail("{}: {} is {}; expected {} {} on {}", what.op, what.name, describe(x),
         dtypes_of(elements, ctx.device), shape_string(sizes), to_string(ctx.device));
  }
}

void check_same_dtype(const Operand& what, const Tensor& a, const Tensor& b) {
  require(a.dtype() == b.dtype(), "{}: {} are {} and {}", what.op, what.name, name_of(a.dtype()),
          name_of(b.dtype()));
}

void check_disjoint(const Operand& what, const Tensor& a, const Tensor& b) {
  if (overlap(a, b)) {
    fail("{}: {} overlap: {} and {}", what.op, what.name, describe(a), describe(b));
  }
}

void check_same_or_disjoint(const Operand& what, const Tensor& a, const Tensor& b) {
  if (a.raw() != b.raw() || a.row_stride() != b.row_stride() || a.dtype() != b.dtype()) {
    check_disjoint(what, a, b);
  }
}

void check_tally(std::string_view op, const NeuronTally& tally, const Tensor& h,
                 const ExecContext& ctx) {
  if (!tally.positions.empty()) {
    check_tensor({op, "positions"}, tally.positions, Elements::i32, {h.size(0)}, ctx);
  }
  if (!tally.active.empty()) {
    check_tensor({op, "active"}, tally.active, Elements::u8, {h.size(0), h.size(1)}, ctx);
  }
}

void check_kv_dtype(const Operand& what, const Tensor& activations, const KvLayer& kv,
                    const ExecContext& ctx) {
  if (ctx.device.is_cuda() || kv.k.dtype() != DType::f16) {
    check_same_dtype(what, activations, kv.k);
  }
}

void check_paged_batch(std::string_view op, const PagedBatch& batch, const KvLayer& kv,
                       int64_t window, const ExecContext& ctx) {
  const Elements elements = ctx.device.is_cuda() ? Elements::activation : Elements::floating;
  check_tensor({op, "pages of k"}, kv.k, elements, {kAnySize, kAnySize, kPageSize, kAnySize}, ctx);
  check_tensor({op, "pages of v"}, kv.v, elements,
               {kv.k.size(0), kv.k.size(1), kPageSize, kv.k.size(3)}, ctx);
  check_same_dtype({op, "pages of k and v"}, kv.k, kv.v);
  check_tensor({op, "positions"}, batch.positions, Elements::i32, {kAnySize}, ctx);
  check_tensor({op, "kv_length"}, batch.kv_length, Elements::i32, {kAnySize}, ctx);
  check_tensor({op, "query_start"}, batch.query_start, Elements::i32, {batch.requests() + 1}, ctx);
  check_tensor({op, "page_table"}, batch.page_table, Elements::i32, {batch.requests(), kAnySize},
               ctx);
  require(
      batch.generated >= (batch.decode ? batch.tokens() : 0) && batch.generated <= batch.tokens(),
      "{}: {} of {} rows are generated{}", op, batch.generated, batch.tokens(),
      batch.decode ? ", but all are decode rows" : "");
  if (!ctx.device.is_cuda()) {
    check_tables(op, batch, kv.k.size(0), window);
  }
}

}  // namespace sparsellm
