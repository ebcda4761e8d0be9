#pragma once

#include <cstdint>

#include "sparse/activation/cpu/vote_kernels.h"
#include "sparse/activation/sign_predictor.h"

namespace sparsellm::token_votes {

inline int planes_of(Votes votes) { return votes == Votes::sign ? 1 : vote_kernels::kMaxPlanes; }

// u32 of a token: its sign words, and as many of each plane, in whole vectors.
int64_t words_of(int64_t columns, Votes votes);

// Packs the votes of x [columns] into words[words_of(columns, votes)].
vote_kernels::TokenVotes pack(const float* x, int64_t columns, Votes votes, uint32_t* words);

}  // namespace sparsellm::token_votes
