#pragma once

#include <array>
#include <cstdint>

#include "sparse/tiled_csl/format/tile_record.h"

namespace sparsellm::tiled_csl {

using BankCounts = std::array<int, kBanks>;  // nonzeros of a tile

// What a record of version 2 consists of (tile_record.h), by the nonzeros in each bank: as many
// groups as take the fewest bytes, one more or less than would be best without hosts.
struct RecordPlan {
  int groups = 0;
  int words = 0;
  // Of lane l, whose bank has places to spare: the last `hosted` slots of group 0 are for values of
  // the bank `donor`. None: l itself and 0.
  std::array<int, kWarp> donor{};
  std::array<int, kWarp> hosted{};

  int bytes() const { return record_bytes(groups, words); }
};
RecordPlan plan_record(const BankCounts& counts);

}  // namespace sparsellm::tiled_csl
