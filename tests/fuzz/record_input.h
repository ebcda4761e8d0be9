#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sparse/encoded_weight.h"

namespace sparsellm::fuzz {

// An input of the target record_pieces: an encoding in tca_bme version 2 or 3 that has not been
// checked, and in what pieces it is. Little-endian:
//   i64 rows, i64 columns, i64 nonzeros
//   u32 bytes of a piece, at most
//   u8  dtype (0 f16, 1 bf16, else f32), plus 128 for version 3; u8 seed of the order of the pieces
//   u16 number of starts
//   u32 [2] the part layout, of version 3 u32 [3]
//   u32 [] starts
//   of version 3: u32 number of scales, f32 [] scales, as many of these as there are
//   u8 [] records: what is left
// Of an input that is too short, zeros are the rest. There is no part scales of i4 without scales.
struct RecordInput {
  EncodedWeight weight;
  uint32_t most_bytes = 0;
  uint8_t seed = 0;
};
RecordInput read_record_input(std::string_view input);

// The input that reads as this; for at most 65,535 starts.
std::string record_input(const RecordInput& input);

}  // namespace sparsellm::fuzz
