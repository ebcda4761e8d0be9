#include "sparse/tca_bme/host/record_upload.h"

namespace sparsellm::tca_bme {

RecordUpload::RecordUpload(const EncodedWeight& e)
    : checker_(e), records_(e.part(kRecords).bytes), told_nonzeros_(e.nonzeros) {}

int64_t RecordUpload::bytes(int64_t begin, int64_t end) const {
  const std::span<const uint32_t> starts = checker_.starts();
  return int64_t{starts[static_cast<size_t>(end)] - starts[static_cast<size_t>(begin)]} *
         kRecordAlignment;
}

std::span<const std::byte> RecordUpload::source(int64_t begin, int64_t end) const {
  return records_.subspan(static_cast<size_t>(bytes(0, begin)),
                          static_cast<size_t>(bytes(begin, end)));
}

void RecordUpload::check(int64_t first, int64_t some, std::span<const std::byte> bytes) {
  nonzeros_ += checker_.check(first, some, bytes);
  if ((checked_ += some) == count()) {
    require_nonzeros(told_nonzeros_, nonzeros_);
  }
}

void add_copies(const std::shared_ptr<RecordUpload>& part, int64_t most_bytes,
                std::byte* destination, std::vector<Upload>& copies) {
  int64_t end = 0;
  while (end < part->count()) {
    const int64_t first = end++;
    while (end < part->count() && part->bytes(first, end + 1) <= most_bytes) {
      ++end;
    }
    copies.push_back({.what = "an encoded weight",
                      .source = part->source(first, end),
                      .from = DType::i32,  // of whole words: they are not converted
                      .destination = destination + part->bytes(0, first),
                      .to = DType::i32,
                      .file = nullptr,
                      .check = [part, first, some = end - first](std::span<const std::byte> bytes) {
                        part->check(first, some, bytes);
                      }});
  }
}

}  // namespace sparsellm::tca_bme
