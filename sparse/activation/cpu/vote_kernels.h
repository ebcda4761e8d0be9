#pragma once

#include <cstdint>

// The kernels of sign_predictor.h on the CPU. Their files are compiled for instruction sets that
// not every CPU has, and the linker may take any file's copy of an inline function for the whole
// program: this header has none, and neither do those that the files include besides it.
namespace sparsellm::vote_kernels {

inline constexpr int kMaxPlanes = 4;
inline constexpr int64_t kVectorWords = 16;  // u32 of the widest vector

// The votes of a token as bits, 32 elements a word: their signs, then plane b of 1 or kMaxPlanes,
// `stride` words after the one before (whole vectors, with zeros at the end), which has bit b of
// what each vote counts.
struct TokenVotes {
  const uint32_t* signs;
  int64_t stride;
  int planes;
  int32_t total;  // of all votes
};

// Sign words of some rows of a weight, and where elements are not zero: `words` of each.
struct SignRows {
  const uint32_t* signs;
  int64_t signs_stride;
  const uint32_t* nonzero;  // or null: no element is zero
  int64_t nonzero_stride;
  int64_t words;
  int64_t rows;
};

// The votes where the signs of the token and of a row differ, and all that the row admits; [rows].
using CountVotes = void (*)(const TokenVotes& token, const SignRows& w, int32_t* negative,
                            int32_t* total);

extern const CountVotes kCountPortable;
extern const CountVotes kCountAvx2;
extern const CountVotes kCountAvx512;       // F, BW, DQ and VL
extern const CountVotes kCountAvx512Vbmi2;  // VBMI2 and VPOPCNTDQ as well

}  // namespace sparsellm::vote_kernels
