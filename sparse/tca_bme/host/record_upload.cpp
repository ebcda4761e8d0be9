#include "sparse/tca_bme/host/record_upload.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace sparsellm::tca_bme {

RecordUpload::RecordUpload(const WeightPart& part)
    : checker_(*part.weight),
      records_(part.weight->part(kRecords).bytes),
      dtype_(part.weight->dtype),
      rows_(part.weight->rows),
      columns_(part.weight->columns),
      stated_nonzeros_(part.weight->nonzeros),
      name_(part.name),
      file_(part.file_of(records_)) {}

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
    require_nonzeros(stated_nonzeros_, nonzeros_);
  }
}

RecordUploads record_uploads(std::span<const WeightPart> parts) {
  RecordUploads uploads;
  for (const WeightPart& part : parts) {
    uploads.push_back(
        naming_errors(part.name, [&] { return std::make_shared<RecordUpload>(part); }));
  }
  return uploads;
}

bool can_be_joined(const RecordUploads& parts) {
  int64_t rows = 0;
  int64_t end = 0;  // of the starts
  for (const auto& part : parts) {
    if (part->checker().layout() != parts.front()->checker().layout() || rows % kRecordRows != 0) {
      return false;
    }
    rows += part->rows();
    end += part->checker().starts().back();
  }
  return end <= UINT32_MAX;
}

std::vector<uint32_t> joined_starts(const RecordUploads& parts) {
  std::vector<uint32_t> starts{0};
  for (const auto& part : parts) {
    const std::span<const uint32_t> added = part->checker().starts();
    const uint32_t first = starts.back();
    std::transform(added.begin() + 1, added.end(), std::back_inserter(starts),
                   [&](uint32_t start) { return first + start; });
  }
  return starts;
}

void add_copies(const std::shared_ptr<RecordUpload>& part, int64_t max_bytes,
                std::byte* destination, std::vector<Upload>& copies) {
  int64_t end = 0;
  while (end < part->count()) {
    const int64_t first = end++;
    while (end < part->count() && part->bytes(first, end + 1) <= max_bytes) {
      ++end;
    }
    copies.push_back({.what = part->name(),
                      .source = part->source(first, end),
                      .from = DType::i32,  // of whole words: they are not converted
                      .destination = destination + part->bytes(0, first),
                      .to = DType::i32,
                      .file = part->file(),
                      .check = [part, first, some = end - first](std::span<const std::byte> bytes) {
                        part->check(first, some, bytes);
                      }});
  }
}

}  // namespace sparsellm::tca_bme
