#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "sparse/tiled_csl/format/record_plan.h"
#include "sparse/tiled_csl/format/tile_record.h"
#include "sparse/tiled_csl/format/tile_source.h"

namespace sparsellm::tiled_csl {

BankCounts count_banks(const TileSource& tile);

// Makes records of version 2 (tile_record.h). The nonzeros of a bank are in the order of their
// places; a lane has them in groups 1, 2, ... and then in group 0, and those of other banks follow
// there. Places that stay empty have a zero at the bank's lowest free location byte. Words go round
// the banks: first the next of each, then the ones after them.
//
// About 25 KB; one object serves many tiles, one after the other.
class RecordEncoder {
 public:
  // The bytes of the record are as many as those of plan_record(count_banks(tile)). Returns the
  // number of nonzeros.
  int encode(const TileSource& tile, std::span<std::byte> record);

 private:
  struct Nonzero {
    uint16_t value = 0;
    uint8_t location = 0;
  };
  void gather(const TileSource& tile);
  void fill_slots(const RecordPlan& plan);
  void list_words(const RecordPlan& plan);
  uint8_t free_location(int bank) const;
  void write(const RecordPlan& plan, std::span<std::byte> record) const;

  std::array<std::array<Nonzero, kBankElements>, kBanks> banks_;
  BankCounts counts_;
  std::array<std::array<Nonzero, kBankElements>, kWarp> slots_;  // of a lane, group by group
  std::array<int, kBanks> placed_;  // of a bank's nonzeros, in slots of any lane
  std::array<uint32_t, kTileElements> words_;
};

}  // namespace sparsellm::tiled_csl
