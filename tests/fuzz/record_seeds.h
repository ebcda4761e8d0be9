#pragma once

#include <string>
#include <vector>

namespace sparsellm::fuzz {

struct Seed {
  std::string name;
  std::string input;
};

// Inputs of the target record_pieces (tests/fuzz/record_input.h): valid encodings of small
// matrices, of each layout, with edges, without nonzeros and without elements.
std::vector<Seed> record_seeds();

}  // namespace sparsellm::fuzz
