#pragma once

#include <cstdint>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "sparse/encoded_weight.h"

// Valid encodings of version 2 (tile_record.h) that the format's encoder does not make: all
// nonzeros are words of 4 bytes, as in the paper, whose places may be in any bank.
namespace sparsellm::tiled_csl {

enum class WordOrder : uint8_t {
  round_banks,  // the first nonzero of each bank, then the second one, and so on: the stores of a
                // warp conflict only where banks have run out (Flash-LLM's reordering)
  random,       // the same order in each run
};

// w [rows, columns], f16 or bf16, in host memory. Throws Error for more bytes of records than
// starts reach.
EncodedWeight encode_as_words(const Tensor& w, WordOrder order, ThreadPool& threads);

}  // namespace sparsellm::tiled_csl
