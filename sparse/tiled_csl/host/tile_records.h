#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/encoded_weight.h"
#include "sparse/record_slice.h"
#include "sparse/tiled_csl/host/record_view.h"

namespace sparsellm::tiled_csl {

// Encodings of version 2 (tile_record.h) on the host.

// The parts of a valid encoding.
struct TileRecords {
  explicit TileRecords(const EncodedWeight& e)
      : grid(tile_grid(e.rows, e.columns)),
        starts(e.part(kStarts).values<uint32_t>()),
        records(e.part(kRecords).bytes) {}

  const std::byte* record(int64_t tile) const { return run(tile, 1).data(); }
  // Of consecutive tiles.
  std::span<const std::byte> run(int64_t first, int64_t count) const {
    const size_t begin = size_t{starts[static_cast<size_t>(first)]} * kRecordAlignment;
    const size_t end = size_t{starts[static_cast<size_t>(first + count)]} * kRecordAlignment;
    return records.subspan(begin, end - begin);
  }

  TileGrid grid;
  std::span<const uint32_t> starts;
  std::span<const std::byte> records;
};

inline RecordTiling record_tiling(int64_t rows, int64_t columns) {
  return {
      .rows = rows, .columns = columns, .record_rows = kTileRows, .record_columns = kTileColumns};
}

// What a file may have wrong. Starts and sizes are checked at once; then the records, a few at a
// time, wherever their bytes have been copied to.
class RecordChecker {
 public:
  explicit RecordChecker(const EncodedWeight& e);  // throws Error; keeps no view of e

  std::span<const uint32_t> starts() const { return starts_; }
  RecordTiling tiling() const { return record_tiling(rows_, columns_); }
  // Throws Error if one of the records of `count` tiles from `first` on, which have these bytes, is
  // wrong, or if these are not as many as the starts say. Returns how many nonzeros they have.
  int64_t check(int64_t first, int64_t count, std::span<const std::byte> records) const;

 private:
  int64_t start(int64_t tile) const { return starts_[static_cast<size_t>(tile)]; }

  int64_t rows_;
  int64_t columns_;
  TileGrid grid_;
  std::vector<uint32_t> starts_;
};

// As the functions of WeightFormat, for encodings of this version.
EncodedWeight encode_records(const Tensor& w, ThreadPool& threads);  // f16 or bf16
void validate_records(const EncodedWeight& e, ThreadPool& threads);
// Of a matrix whose nonzeros are anywhere.
int64_t expected_record_bytes(int64_t rows, int64_t columns, int64_t nonzeros);

// Whether `starts` reach all records of any matrix of this size.
bool starts_hold_any(int64_t rows, int64_t columns);
// Bytes of the records of w.
int64_t count_record_bytes(const Tensor& w);
// Why starts do not reach that many bytes of records; empty if they do.
std::string why_too_large(int64_t bytes);

}  // namespace sparsellm::tiled_csl
