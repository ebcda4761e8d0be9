#include "engine/device_tables.h"

#include <cstring>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr int64_t kWord = sizeof(int32_t);

// Offsets in words. The sample rows come first, since they have 64-bit fields.
struct Layout {
  int64_t sample_rows;
  int64_t logit_rows;
  int64_t token_ids;
  int64_t positions;
  int64_t kv_length;
  int64_t query_start;
  int64_t words;
};

Layout layout_of(int64_t rows, int64_t requests, int64_t logit_rows) {
  Layout layout{};
  layout.logit_rows = layout.sample_rows + logit_rows * kSampleRowWords;
  layout.token_ids = layout.logit_rows + logit_rows;
  layout.positions = layout.token_ids + rows;
  layout.kv_length = layout.positions + rows;
  layout.query_start = layout.kv_length + requests;
  layout.words = layout.query_start + requests + 1;
  return layout;
}

template <class T>
void stage(std::span<const T> values, std::byte* to) {
  if (!values.empty()) {
    std::memcpy(to, values.data(), values.size_bytes());
  }
}

}  // namespace

DeviceTables::DeviceTables(Device device, int64_t max_rows, int64_t max_requests,
                           int64_t pages_per_request)
    : device_(device) {
  const int64_t words = layout_of(max_rows, max_requests, max_rows).words;
  const int64_t pages = checked_mul(max_requests, pages_per_request, "entries of a page table");
  words_ = allocate_tensor(device, DType::i32, {words},
                           "the tables of a step (a smaller number of tokens per step takes less)");
  page_table_ =
      allocate_tensor(device, DType::i32, {max_requests, pages_per_request},
                      "the page tables of a step (fewer requests or a smaller context take less)");
  for (int slot = 0; slot < kSlots; ++slot) {
    staged_words_[static_cast<size_t>(slot)] = PinnedBuffer(words * kWord, "the tables of a step");
    staged_pages_[static_cast<size_t>(slot)] =
        PinnedBuffer(pages * kWord, "the page tables of a step");
  }
}

int64_t DeviceTables::bytes_of(int64_t max_rows, int64_t max_requests, int64_t pages_per_request) {
  return (layout_of(max_rows, max_requests, max_rows).words +
          checked_mul(max_requests, pages_per_request, "entries of a page table")) *
         kWord;
}

DeviceTables::Views DeviceTables::send(const StepTables& tables,
                                       std::span<const SampleRow> sample_rows, int slot,
                                       const CudaContext& cuda) {
  const int64_t logit_rows = std::ssize(sample_rows);
  const Layout layout = layout_of(tables.rows(), tables.requests(), logit_rows);
  require(layout.words <= words_.view.size(0) && tables.requests() <= page_table_.view.size(0) &&
              tables.page_stride <= page_table_.view.size(1),
          "a step of {} rows of {} requests is too large for its tables", tables.rows(),
          tables.requests());
  std::byte* words = staged_words_[static_cast<size_t>(slot)].data();
  const auto put = [words](const std::vector<int32_t>& values, int64_t at) {
    stage(std::span<const int32_t>(values), words + at * kWord);
  };
  stage(sample_rows, words + layout.sample_rows * kWord);
  put(tables.logit_rows, layout.logit_rows);
  put(tables.token_ids, layout.token_ids);
  put(tables.positions, layout.positions);
  put(tables.kv_length, layout.kv_length);
  put(tables.query_start, layout.query_start);
  cuda.copy_async(words_.view.raw(), words, layout.words * kWord);
  std::byte* pages = staged_pages_[static_cast<size_t>(slot)].data();
  stage(std::span<const int32_t>(tables.page_table), pages);
  if (tables.page_stride > 0) {
    cuda.copy_rows_async(page_table_.view.raw(), page_table_.view.row_stride() * kWord, pages,
                         tables.page_stride * kWord, tables.page_stride * kWord, tables.requests());
  }
  Views result = views(tables.rows(), tables.requests(), logit_rows);
  result.inputs.batch.generated = tables.generated;
  return result;
}

DeviceTables::Views DeviceTables::decode_views(int64_t rows) const {
  Views result = views(rows, rows, rows);
  result.inputs.batch.decode = true;
  result.inputs.batch.generated = rows;
  return result;
}

DeviceTables::Views DeviceTables::views(int64_t rows, int64_t requests, int64_t logit_rows) const {
  const Layout layout = layout_of(rows, requests, logit_rows);
  const auto list = [this](int64_t at, int64_t size) { return words_.view.rows(at, size); };
  const Tensor sample_words = list(layout.sample_rows, logit_rows * kSampleRowWords);
  return {.inputs = {.token_ids = list(layout.token_ids, rows),
                     .batch = {.query_start = list(layout.query_start, requests + 1),
                               .kv_length = list(layout.kv_length, requests),
                               .page_table = page_table_.view.rows(0, requests),
                               .positions = list(layout.positions, rows)}},
          .logit_rows = list(layout.logit_rows, logit_rows),
          .sample_rows =
              Tensor(sample_words.raw(), DType::i32, {logit_rows, kSampleRowWords}, device_)};
}

}  // namespace sparsellm
