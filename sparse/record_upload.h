#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/upload.h"
#include "sparse/encoded_weight.h"
#include "sparse/load_context.h"

namespace sparsellm {

// Encodings whose last part, `records`, is cut into pieces that can be checked by themselves, and
// whose part `starts`, u32 [R + 1], says where each begins in units of 16 bytes. A format brings a
//   class Checker {
//    public:
//     explicit Checker(const EncodedWeight& e);  // throws Error if starts or sizes are wrong
//     std::span<const uint32_t> starts() const;  // its own copy
//     // Throws Error if one of the `count` records from `first` on, which have these bytes, is
//     // wrong. Returns how many nonzeros they have.
//     int64_t check(int64_t first, int64_t count, std::span<const std::byte> records) const;
//   };

// The records of a weight on their way to a device, for the checks of all of their copies: what
// WeightFormat::validate() checks, a few records at a time, on any thread and in any order.
template <class Checker>
class RecordUpload {
 public:
  // A view of the records of the part. Throws Error if the checker does.
  explicit RecordUpload(const WeightPart& part)
      : checker_(*part.weight),
        records_(part.weight->part("records").bytes),
        format_(part.weight->format),
        dtype_(part.weight->dtype),
        rows_(part.weight->rows),
        columns_(part.weight->columns),
        stated_nonzeros_(part.weight->nonzeros),
        name_(part.name),
        file_(part.file_of(records_)) {}

  const Checker& checker() const { return checker_; }
  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t stated_nonzeros() const { return stated_nonzeros_; }  // by the header
  const std::string& name() const { return name_; }
  const MappedFile* file() const { return file_; }  // that the records are mapped from, or none

  int64_t count() const { return std::ssize(checker_.starts()) - 1; }
  // Of records from one up to another.
  int64_t bytes(int64_t begin, int64_t end) const {
    constexpr int64_t kUnit = 16;
    const std::span<const uint32_t> starts = checker_.starts();
    return int64_t{starts[static_cast<size_t>(end)] - starts[static_cast<size_t>(begin)]} * kUnit;
  }
  int64_t bytes() const { return bytes(0, count()); }
  std::span<const std::byte> source(int64_t begin, int64_t end) const {
    return records_.subspan(static_cast<size_t>(bytes(0, begin)),
                            static_cast<size_t>(bytes(begin, end)));
  }

  // Of the `some` records from `first` on, which have these bytes where they have been copied to.
  // Throws Error if one is wrong, and with the last records of all if the header of the weight
  // states another number of nonzeros.
  void check(int64_t first, int64_t some, std::span<const std::byte> bytes) {
    nonzeros_ += checker_.check(first, some, bytes);
    if ((checked_ += some) == count()) {
      require(nonzeros_ == stated_nonzeros_, "{}: {} nonzeros, but {} are stored", format_,
              stated_nonzeros_, nonzeros_.load());
    }
  }

 private:
  Checker checker_;
  std::span<const std::byte> records_;
  std::string format_;
  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  int64_t stated_nonzeros_;
  std::string name_;
  const MappedFile* file_;
  std::atomic<int64_t> nonzeros_{0};  // in the records that have been checked
  std::atomic<int64_t> checked_{0};
};

// Those of a joined weight; the checks of their copies keep them.
template <class Checker>
using RecordUploadsOf = std::vector<std::shared_ptr<RecordUpload<Checker>>>;

template <class Checker>
RecordUploadsOf<Checker> record_uploads(std::span<const WeightPart> parts) {  // Error names a part
  RecordUploadsOf<Checker> uploads;
  for (const WeightPart& part : parts) {
    uploads.push_back(
        naming_errors(part.name, [&] { return std::make_shared<RecordUpload<Checker>>(part); }));
  }
  return uploads;
}

// Whether their records, one part's after the other's, are those of the joined weight: not if the
// rows of a part but the last are no multiple of a record's, nor if starts do not reach all.
template <class Checker>
bool records_follow_each_other(const RecordUploadsOf<Checker>& parts, int64_t record_rows) {
  int64_t rows = 0;
  int64_t end = 0;  // of the starts
  for (const auto& part : parts) {
    if (rows % record_rows != 0) {
      return false;
    }
    rows += part->rows();
    end += part->checker().starts().back();
  }
  return end <= UINT32_MAX;
}

// The starts of the records of the joined weight.
template <class Checker>
std::vector<uint32_t> joined_starts(const RecordUploadsOf<Checker>& parts) {
  std::vector<uint32_t> starts{0};
  for (const auto& part : parts) {
    const std::span<const uint32_t> added = part->checker().starts();
    const uint32_t first = starts.back();
    std::transform(added.begin() + 1, added.end(), std::back_inserter(starts),
                   [&](uint32_t start) { return first + start; });
  }
  return starts;
}

// Adds copies to `destination`, each of as many records as have at most `max_bytes`, or of one,
// with their checks, which keep `part`.
template <class Checker>
void add_copies(const std::shared_ptr<RecordUpload<Checker>>& part, int64_t max_bytes,
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

// Submits the copies of all records, one part's after the other's, to `destination`.
template <class Checker>
void submit_records(const RecordUploadsOf<Checker>& parts, std::byte* destination,
                    Uploader& uploads) {
  std::vector<Upload> copies;
  for (const auto& part : parts) {
    add_copies(part, Uploader::kPieceBytes, destination, copies);
    destination += part->bytes();
  }
  for (Upload& copy : copies) {
    uploads.submit(std::move(copy));
  }
}

}  // namespace sparsellm
