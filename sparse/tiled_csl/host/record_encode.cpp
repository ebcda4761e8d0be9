#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/tiled_csl/host/record_encoder.h"
#include "sparse/tiled_csl/host/tile_records.h"
#include "sparse/tiled_csl/tiled_csl.h"

namespace sparsellm::tiled_csl {
namespace {

constexpr int64_t kTilesPerRange = 8;
constexpr int64_t kMaxBytes = int64_t{UINT32_MAX} * kRecordAlignment;  // of all records

int64_t bytes_of(const TileSource& tile) { return plan_record(count_banks(tile)).bytes(); }

}  // namespace

std::string why_too_large(int64_t bytes) {
  return bytes <= kMaxBytes ? std::string()
                            : fmt::format("its records have {} bytes; starts of 32 bits reach {}",
                                          bytes, kMaxBytes);
}

bool starts_hold_any(int64_t rows, int64_t columns) {
  // A record without groups, or one of groups alone, is one of those that the encoder looks at.
  constexpr int64_t kMost = record_bytes(kMaxGroups, 0);
  return tile_grid(rows, columns).count() <= kMaxBytes / kMost;
}

int64_t count_record_bytes(const Tensor& w) {
  int64_t bytes = 0;
  for (int64_t tile = 0; tile < tile_grid(w.size(0), w.size(1)).count(); ++tile) {
    bytes += bytes_of(tile_of(w, tile));
  }
  return bytes;
}

EncodedWeight encode_records(const Tensor& w, ThreadPool& threads) {
  EncodedWeight e = header_of(kRecordVersion, w.dtype(), w.size(0), w.size(1));
  const int64_t tiles = tile_grid(e.rows, e.columns).count();
  auto starts = new_part<uint32_t>(std::string(kStarts), DType::u32, tiles + 1);
  starts.values[0] = 0;
  threads.parallel_for(tiles, kTilesPerRange, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      starts.values[static_cast<size_t>(tile + 1)] =
          static_cast<uint32_t>(bytes_of(tile_of(w, tile)) / kRecordAlignment);
    }
  });
  int64_t units = 0;
  for (uint32_t& start : starts.values) {
    units += start;
    start = static_cast<uint32_t>(units);
  }
  const std::string too_large = why_too_large(units * kRecordAlignment);
  require(too_large.empty(), "a weight cannot be encoded: {}", too_large);

  auto records = new_part<std::byte>(std::string(kRecords), DType::u8, units * kRecordAlignment);
  std::atomic<int64_t> nonzeros = 0;
  threads.parallel_for(tiles, kTilesPerRange, [&](int64_t begin, int64_t end) {
    const auto encoder = std::make_unique<RecordEncoder>();
    for (int64_t tile = begin; tile < end; ++tile) {
      const size_t first = size_t{starts.values[static_cast<size_t>(tile)]} * kRecordAlignment;
      const size_t last = size_t{starts.values[static_cast<size_t>(tile + 1)]} * kRecordAlignment;
      nonzeros += encoder->encode(tile_of(w, tile), records.values.subspan(first, last - first));
    }
  });
  e.nonzeros = nonzeros;
  e.parts.push_back(std::move(starts.part));
  e.parts.push_back(std::move(records.part));
  return e;
}

int64_t expected_record_bytes(int64_t rows, int64_t columns, int64_t nonzeros) {
  // The banks of a tile have a binomial number of nonzeros: here quantiles of the normal
  // distribution with that mean and deviation stand for them.
  constexpr int kMax = kBankElements;
  const int64_t tiles = tile_grid(rows, columns).count();
  const double density = rows * columns == 0
                             ? 0.0
                             : static_cast<double>(nonzeros) /
                                   (static_cast<double>(rows) * static_cast<double>(columns));
  const double inside = static_cast<double>(rows) * static_cast<double>(columns) /
                        std::max(static_cast<double>(tiles) * kTileElements, 1.0);
  const double mean = density * inside * kMax;
  const double deviation = std::sqrt(mean * (1.0 - density));
  BankCounts counts{};
  for (int bank = 0; bank < kBanks; ++bank) {
    // The logistic distribution's quantile, scaled to the normal one's deviation, is close enough.
    const double share = (bank + 0.5) / kBanks;
    const double quantile = std::log(share / (1.0 - share)) / 1.702;
    counts[bank] = static_cast<int>(
        std::clamp(std::lround(mean + deviation * quantile), 0L, static_cast<long>(kMax)));
  }
  return 4 * (tiles + 1) + tiles * plan_record(counts).bytes();
}

}  // namespace sparsellm::tiled_csl
