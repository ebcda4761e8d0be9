#include "sparse/tca_bme/format/record_arrays.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sparsellm::tca_bme {

EncodedPart layout_words_part(std::span<const uint32_t> words) {
  NewPart<uint32_t> made = new_part<uint32_t>(kLayout, DType::u32, std::ssize(words));
  std::ranges::copy(words, made.values.begin());
  return std::move(made.part);
}

void read_layout_words(const EncodedWeight& e, std::span<uint32_t> words) {
  const EncodedPart& part = e.part(kLayout);
  require(part.dtype == DType::u32 && part.bytes.size() == words.size_bytes(),
          "{}: the part layout has {} bytes of {}, not {} of U32", e.format, part.bytes.size(),
          safetensors_name(part.dtype), words.size_bytes());
  std::memcpy(words.data(), part.bytes.data(), part.bytes.size());
}

NewRecords::NewRecords(EncodedPart layout_part, int64_t count)
    : layout(std::move(layout_part)), starts(new_part<uint32_t>(kStarts, DType::u32, count + 1)) {}

void NewRecords::allocate_records() {
  records =
      new_part<std::byte>(kRecords, DType::u8, int64_t{starts.values.back()} * kRecordAlignment);
}

EncodedWeight NewRecords::finish(const EncodedWeight& header) {
  EncodedWeight e{.format = header.format,
                  .version = header.version,
                  .dtype = header.dtype,
                  .rows = header.rows,
                  .columns = header.columns,
                  .nonzeros = header.nonzeros,
                  .parts = {}};
  e.parts.push_back(std::move(layout));
  e.parts.push_back(std::move(starts.part));
  e.parts.push_back(std::move(records.part));
  return e;
}

std::vector<uint32_t> checked_starts(const EncodedWeight& e, int64_t count,
                                     const RecordLimits& limits) {
  const auto stored = e.part(kStarts).values<uint32_t>();
  std::vector<uint32_t> starts(stored.begin(), stored.end());
  require(starts.front() == 0, "{}: the first start is {}, not 0", e.format, starts.front());
  const int64_t bytes = e.part(kRecords).count();
  for (int64_t r = 0; r < count; ++r) {
    const int64_t begin = starts[static_cast<size_t>(r)];
    const int64_t end = starts[static_cast<size_t>(r) + 1];
    require(begin <= end && end <= bytes / kRecordAlignment,
            "{}: record {} goes from start {} to {} of {} bytes", e.format, r, begin, end, bytes);
    // Here, since records without bytes are never copied, and so never checked one by one.
    require((end - begin) * kRecordAlignment >= limits.least,
            "{}: record {} has {} bytes, fewer than any of its layout", e.format, r,
            (end - begin) * kRecordAlignment);
    require((end - begin) * kRecordAlignment <= limits.most,
            "{}: record {} has {} bytes, more than any of its layout", e.format, r,
            (end - begin) * kRecordAlignment);
  }
  require(bytes == int64_t{starts.back()} * kRecordAlignment,
          "{}: {} bytes of records, but the last start is {}", e.format, bytes, starts.back());
  return starts;
}

void check_padding(int64_t index, std::span<const std::byte> record, int64_t used) {
  require(std::ranges::all_of(record.subspan(static_cast<size_t>(used)),
                              [](std::byte byte) { return byte == std::byte{0}; }),
          "tca_bme: the padding of record {} is not 0", index);
}

}  // namespace sparsellm::tca_bme
