#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/parallel.h"
#include "kernels/base/upload.h"
#include "sparse/encoded_weight.h"
#include "sparse/format.h"
#include "sparse/load_context.h"
#include "sparse/record_slice.h"

namespace sparsellm {

// Encodings whose last part, `records`, is cut into pieces that can be checked by themselves, and
// whose part `starts`, u32 [R + 1], says where each begins in units of 16 bytes. A format brings a
//   class Checker {
//    public:
//     explicit Checker(const EncodedWeight& e);  // throws Error if starts or sizes are wrong
//     std::span<const uint32_t> starts() const;  // its own copy
//     RecordTiling tiling() const;               // how the records cut the matrix
//     // Throws Error if one of the `count` records from `first` on, which have these bytes, is
//     // wrong. Returns how many nonzeros they have.
//     int64_t check(int64_t first, int64_t count, std::span<const std::byte> records) const;
//     // If there is a part besides with something for each row, which it has checked: that of some
//     // rows, as it was checked; nothing for a part of another name.
//     std::optional<EncodedPart> of_rows(std::string_view name, Range rows) const;
//   };

inline constexpr int64_t kRecordUnit = 16;  // bytes, which starts count

// The records of a weight, or of a slice of it, on their way to a device, for the checks of all of
// their copies: what WeightFormat::validate() checks, a few records at a time, on any thread and in
// any order. Records are counted in the slice.
template <class Checker>
class RecordUpload {
 public:
  // A view of the records of the part, whose slice cuts through none. Throws Error if the checker
  // does.
  explicit RecordUpload(const WeightPart& part)
      : checker_(*part.weight),
        records_(part.weight->part("records").bytes),
        format_(part.weight->format),
        dtype_(part.weight->dtype),
        rows_(slice_of(part).rows),
        columns_(part.columns()),
        is_slice_(part.slice.has_value()),
        slice_(record_slice(checker_.tiling(), checker_.starts(), slice_of(part))),
        stated_nonzeros_(part.weight->nonzeros),
        name_(part.name),
        file_(part.file_of(records_)) {}

  const Checker& checker() const { return checker_; }
  std::span<const uint32_t> starts() const { return slice_.starts; }
  std::span<const RecordSlice::Run> runs() const { return slice_.runs; }
  DType dtype() const { return dtype_; }
  Range row_range() const { return rows_; }  // of the weight
  int64_t rows() const { return rows_.count; }
  int64_t columns() const { return columns_; }
  // By the header; of a slice what its share of the bytes is worth.
  int64_t stated_nonzeros() const {
    return proportional(stated_nonzeros_, bytes(), std::ssize(records_));
  }
  const std::string& name() const { return name_; }
  const MappedFile* file() const { return file_; }  // that the records are mapped from, or none

  int64_t count() const { return slice_.count(); }
  // Of records from one up to another.
  int64_t bytes(int64_t begin, int64_t end) const {
    const std::span<const uint32_t> all = starts();
    return int64_t{all[static_cast<size_t>(end)] - all[static_cast<size_t>(begin)]} * kRecordUnit;
  }
  int64_t bytes() const { return bytes(0, count()); }
  // Of `count` records of a run, from its record i on.
  std::span<const std::byte> source(const RecordSlice::Run& run, int64_t i, int64_t count) const {
    const int64_t begin = checker_.starts()[static_cast<size_t>(run.first + i)] * kRecordUnit;
    return records_.subspan(static_cast<size_t>(begin),
                            static_cast<size_t>(bytes(run.begin + i, run.begin + i + count)));
  }

  // What the encoding of these rows has of a part that is neither `starts` nor `records`.
  EncodedPart other_part(const EncodedPart& of_all) const {
    if constexpr (requires { checker_.of_rows(of_all.name, rows_); }) {
      if (std::optional<EncodedPart> part = checker_.of_rows(of_all.name, rows_)) {
        return std::move(*part);
      }
    }
    auto copy = new_part<std::byte>(of_all.name, of_all.dtype, std::ssize(of_all.bytes));
    std::ranges::copy(of_all.bytes, copy.values.begin());
    return std::move(copy.part);
  }

  // Of the same records, which have these bytes where they have been copied to. Throws Error if one
  // is wrong, and with the last records of all if the header of the weight states another number of
  // nonzeros, or of a slice fewer.
  void check(const RecordSlice::Run& run, int64_t i, int64_t some,
             std::span<const std::byte> bytes) {
    nonzeros_ += checker_.check(run.first + i, some, bytes);
    if ((checked_ += some) == count()) {
      require(is_slice_ ? nonzeros_ <= stated_nonzeros_ : nonzeros_ == stated_nonzeros_,
              "{}: {} nonzeros, but {} are stored", format_, stated_nonzeros_, nonzeros_.load());
    }
  }
  int64_t nonzeros() const { return nonzeros_; }  // in the records that have been checked

 private:
  static Slice slice_of(const WeightPart& part) {
    return part.slice.value_or(Slice{.rows = {.begin = 0, .count = part.weight->rows},
                                     .columns = {.begin = 0, .count = part.weight->columns}});
  }

  Checker checker_;
  std::span<const std::byte> records_;
  std::string format_;
  DType dtype_;
  Range rows_;  // of the weight
  int64_t columns_;
  bool is_slice_;
  RecordSlice slice_;
  int64_t stated_nonzeros_;
  std::string name_;
  const MappedFile* file_;
  std::atomic<int64_t> nonzeros_{0};
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
    end += part->starts().back();
  }
  return end <= UINT32_MAX;
}

// The starts of the records of the joined weight.
template <class Checker>
std::vector<uint32_t> joined_starts(const RecordUploadsOf<Checker>& parts) {
  std::vector<uint32_t> starts{0};
  for (const auto& part : parts) {
    const std::span<const uint32_t> added = part->starts();
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
  for (const RecordSlice::Run& run : part->runs()) {
    const auto bytes = [&](int64_t begin, int64_t end) {
      return part->bytes(run.begin + begin, run.begin + end);
    };
    int64_t end = 0;
    while (end < run.count) {
      const int64_t first = end++;
      while (end < run.count && bytes(first, end + 1) <= max_bytes) {
        ++end;
      }
      copies.push_back(
          {.what = part->name(),
           .source = part->source(run, first, end - first),
           .from = DType::i32,  // of whole words: they are not converted
           .destination = destination + part->bytes(0, run.begin + first),
           .to = DType::i32,
           .file = part->file(),
           .check = [part, run, first, some = end - first](std::span<const std::byte> copied) {
             part->check(run, first, some, copied);
           }});
    }
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

// WeightFormat::expected_size() of a slice that cuts through no record.
template <class Checker>
EncodedSize record_slice_size(const EncodedWeight& e, const Slice& slice) {
  EncodedWeight view = view_of(e);
  const RecordUpload<Checker> records({.weight = &view, .slice = slice});
  int64_t bytes = records.bytes() + std::ssize(records.starts()) * int64_t{sizeof(uint32_t)};
  for (const EncodedPart& other : e.parts) {
    if (other.name != "starts" && other.name != "records") {
      bytes += std::ssize(records.other_part(other).bytes);
    }
  }
  return {.bytes = bytes, .nonzeros = records.stated_nonzeros()};
}

// WeightFormat::read_slice() of a part whose slice cuts through no record.
template <class Checker>
EncodedWeight read_record_slice(const WeightPart& part, ThreadPool& threads) {
  const EncodedWeight& from = *part.weight;
  RecordUpload<Checker> records(part);
  const std::span<const uint32_t> starts = records.starts();
  EncodedWeight e{.format = from.format,
                  .version = from.version,
                  .dtype = from.dtype,
                  .rows = part.rows(),
                  .columns = part.columns(),
                  .nonzeros = 0,
                  .parts = {}};
  auto bytes = new_part<std::byte>("records", DType::u8, records.bytes());
  constexpr int64_t kReadAtOnce = 64;
  for (const RecordSlice::Run& run : records.runs()) {
    threads.parallel_for(run.count, kReadAtOnce, [&](int64_t begin, int64_t end) {
      const std::span<const std::byte> source = records.source(run, begin, end - begin);
      const auto copied = bytes.values.subspan(
          static_cast<size_t>(records.bytes(0, run.begin + begin)), source.size());
      if (records.file() != nullptr) {
        records.file()->read(source, copied.data());
      } else {
        std::ranges::copy(source, copied.begin());
      }
      records.check(run, begin, end - begin, copied);
    });
  }
  e.nonzeros = records.nonzeros();
  for (const EncodedPart& other : from.parts) {
    if (other.name == "starts") {
      auto sliced = new_part<uint32_t>(other.name, other.dtype, std::ssize(starts));
      std::ranges::copy(starts, sliced.values.begin());
      e.parts.push_back(std::move(sliced.part));
    } else if (other.name == "records") {
      e.parts.push_back(std::move(bytes.part));
    } else {
      e.parts.push_back(records.other_part(other));
    }
  }
  return e;
}

}  // namespace sparsellm
