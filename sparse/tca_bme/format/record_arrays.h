#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "sparse/encoded_weight.h"
#include "sparse/tca_bme/format/record_layout.h"

namespace sparsellm::tca_bme {

// What encodings in records share, whatever a record is: a part that says the layout in a few
// words, where the records begin in units of kRecordAlignment, and their bytes.
inline constexpr std::string_view kLayout = "layout";    // u32
inline constexpr std::string_view kStarts = "starts";    // u32 [R + 1]
inline constexpr std::string_view kRecords = "records";  // u8

// Bytes from a file are aligned to nothing.
template <class T>
T load_from(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

EncodedPart layout_words_part(std::span<const uint32_t> words);
// Fills `words` from the layout part. Throws Error unless that has exactly as many.
void read_layout_words(const EncodedWeight& e, std::span<uint32_t> words);

// The arrays of a valid encoding.
struct RecordArrays {
  RecordArrays(const EncodedWeight& e, const RecordGrid& record_grid)
      : grid(record_grid),
        starts(e.part(kStarts).values<uint32_t>()),
        records(e.part(kRecords).bytes) {}

  std::span<const std::byte> record(int64_t index) const { return run(index, 1); }
  // Consecutive records.
  std::span<const std::byte> run(int64_t first, int64_t count) const {
    const size_t begin = size_t{starts[static_cast<size_t>(first)]} * kRecordAlignment;
    const size_t end = size_t{starts[static_cast<size_t>(first + count)]} * kRecordAlignment;
    return records.subspan(begin, end - begin);
  }

  RecordGrid grid;
  std::span<const uint32_t> starts;
  std::span<const std::byte> records;
};

// An encoding that is being made: `starts` are filled in, then `records`.
struct NewRecords {
  NewRecords(EncodedPart layout_part, int64_t count);
  void allocate_records();                            // as many as `starts` say
  EncodedWeight finish(const EncodedWeight& header);  // which has no parts; leaves nothing

  EncodedPart layout;
  NewPart<uint32_t> starts;
  NewPart<std::byte> records;
};

// Of all records together, in bytes, that starts reach.
inline constexpr int64_t kMaxBytesOfRecords = int64_t{UINT32_MAX} * kRecordAlignment;

// What a file may have wrong.

// The bytes that a record has at least and at most.
struct RecordLimits {
  int64_t least = 0;
  int64_t most = 0;
};
// Of `count` records and the bytes of all of them. Throws Error unless they follow each other, and
// each is as large as may be. Of types and sizes of the parts, require_parts() has been called.
std::vector<uint32_t> checked_starts(const EncodedWeight& e, int64_t count,
                                     const RecordLimits& limits);

// Throws Error unless `records` are as many bytes as the starts say that `count` records from
// `first` on have. Returns the sum of check(record, its bytes).
template <class Check>
int64_t check_records(std::span<const uint32_t> starts, int64_t first, int64_t count,
                      std::span<const std::byte> records, Check&& check) {
  const auto begin_of = [&](int64_t record) {  // from the first of all
    return int64_t{starts[static_cast<size_t>(record)]} * kRecordAlignment;
  };
  const int64_t stated = begin_of(first + count) - begin_of(first);
  require(std::ssize(records) == stated, "tca_bme: {} bytes of the {} records from {} on, not {}",
          records.size(), count, first, stated);
  int64_t sum = 0;
  for (int64_t r = first; r < first + count; ++r) {
    sum += check(r, records.subspan(static_cast<size_t>(begin_of(r) - begin_of(first)),
                                    static_cast<size_t>(begin_of(r + 1) - begin_of(r))));
  }
  return sum;
}

// Throws Error unless what follows the `used` bytes of a record is 0.
void check_padding(int64_t index, std::span<const std::byte> record, int64_t used);

// Checks all records by checker.check() (sparse/record_upload.h), on all threads. Throws Error if
// the header states another number of nonzeros.
template <class Checker>
void check_all_records(const EncodedWeight& e, const RecordArrays& arrays, const Checker& checker,
                       ThreadPool& threads) {
  std::atomic<int64_t> nonzeros = 0;
  constexpr int64_t kCheckedAtOnce = 16;
  threads.parallel_for(arrays.grid.count(), kCheckedAtOnce, [&](int64_t begin, int64_t end) {
    nonzeros += checker.check(begin, end - begin, arrays.run(begin, end - begin));
  });
  require(nonzeros == e.nonzeros, "{}: {} nonzeros, but {} are stored", e.format, e.nonzeros,
          nonzeros.load());
}

}  // namespace sparsellm::tca_bme
