#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sparse/encoded_weight.h"

namespace sparsellm::fuzz {

// An input of the target record_pieces: an encoding in tca_bme version 2 that has not been checked,
// and in what pieces it is. Little-endian:
//   i64 rows, i64 columns, i64 nonzeros
//   u32 bytes of a piece, at most
//   u8  dtype (0 f16, 1 bf16, else f32), u8 seed of the order of the pieces
//   u16 number of starts
//   u32 [2] the part layout, u32 [] starts, u8 [] records: what is left
// Of an input that is too short, zeros are the rest.
struct RecordInput {
  EncodedWeight weight;
  uint32_t most_bytes = 0;
  uint8_t seed = 0;
};
RecordInput read_record_input(std::string_view input);

// The input that reads as this; for at most 65,535 starts.
std::string record_input(const RecordInput& input);

}  // namespace sparsellm::fuzz
