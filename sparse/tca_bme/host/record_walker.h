#pragma once

#include <bit>
#include <cstdint>

#include "sparse/encoded_weight.h"
#include "sparse/tca_bme/format/record_parts.h"

namespace sparsellm::tca_bme {

// The nonzeros of a block of 64 rows, for sparse/cpu/walk.h, in the order of the values.
template <class T>
class RecordWalker {
 public:
  static constexpr int64_t kBlockRows = kRecordRows;

  explicit RecordWalker(const EncodedWeight& e) : parts_(e) {}

  template <class F>
  void walk(int64_t block, F&& f) const {
    for (int64_t j = 0; j < parts_.grid.columns; ++j) {
      const std::byte* const record = parts_.record(parts_.grid.index(block, j)).data();
      if (parts_.layout.pairs()) {
        walk_record<true>(record, j * parts_.layout.columns(), f);
      } else {
        walk_record<false>(record, j * parts_.layout.columns(), f);
      }
    }
  }

 private:
  template <bool kPairs, class F>
  void walk_record(const std::byte* record, int64_t first_column, F& f) const {
    const std::byte* value = record + parts_.layout.header_bytes();
    for (int32_t chunk = 0; chunk < parts_.layout.chunks; ++chunk) {
      for (int32_t i = 0; i < kRowTiles; ++i) {
        for (int32_t par = 0; par < kHalves; ++par) {
          for (int32_t t = 0; t < kLanesInRow; ++t) {
            const int64_t row = 16 * i + 8 * par;
            const int64_t column = first_column + chunk * kChunkColumns + kHalves * t;
            for (uint32_t bits = value_bits(parts_.layout, record, chunk, i, par, t); bits != 0;
                 bits &= bits - 1) {
              const int bit = std::countr_zero(bits);
              if constexpr (kPairs) {
                for (int64_t e = 0; e < kHalves; ++e) {
                  const T element = load_from<T>(value);
                  if ((element.bits & 0x7fff) != 0) {
                    f(row + bit % 8, column + bit / 8 * 8 + e, element);
                  }
                  value += sizeof(T);
                }
              } else {
                f(row + bit / 2 % 8, column + bit / 16 * 8 + bit % 2, load_from<T>(value));
                value += sizeof(T);
              }
            }
          }
        }
      }
    }
  }

  RecordParts parts_;
};

}  // namespace sparsellm::tca_bme
