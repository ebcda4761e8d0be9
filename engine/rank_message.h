#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/rank_step.h"

namespace sparsellm {

// What rank 0 tells the others to do, as bytes; numbers are little-endian.
//
//   message  u8 kind, u64 step; then, of a launch:
//            i64 choices, part decode, part prefill
//   part     u32 rows, u32 requests, u32 page_stride, u32 logit rows, u32 samples, u32 generated,
//            u32 adjusted rows, u32 adjustments
//            i32 token_ids [rows], positions [rows], query_start [requests + 1],
//                kv_length [requests], page_table [requests, page_stride], logit_rows [logit rows]
//            SampleRow [samples], AdjustedRow [adjusted rows], LogitAdjustment [adjustments], as
//            they lie in memory
//
// A rank computes a step as rank 0 does, except for logits on the host and log-probabilities, which
// rank 0 alone returns: host_rows and log_prob_rows stay with it.
struct RankMessage {
  enum class Kind : uint8_t {
    launch = 1,  // this step
    finish,      // wait for this step, and show the tokens that the device chose
    counts,      // show what the MLPs have counted
    stop,
  };
  Kind kind = Kind::stop;
  int64_t step = 0;  // its number, from 1 on; 0 where there is none
  RankStep launch;   // without host_rows and log_prob_rows
};

// What a rank can compute.
struct RankLimits {
  int64_t max_requests = 0;
  int64_t step_tokens = 0;
  int64_t pages_per_request = 0;
  int64_t kv_pages = 0;
  int64_t vocabulary = 0;
  bool samples = false;  // on the device: then decode rows are a part of their own
};

// The bytes of a launch, in memory that is used again.
void write_launch(int64_t step, const RankStep& launch, std::vector<std::byte>& bytes);
// Of the other kinds.
void write_message(RankMessage::Kind kind, int64_t step, std::vector<std::byte>& bytes);

// Throws Error, in one line that says what is wrong, for bytes that are not exactly a message as
// above, or that name a row, page, token or place which a rank with these limits does not have. The
// memory of `message` is used again.
void parse_message(std::span<const std::byte> bytes, const RankLimits& limits,
                   RankMessage& message);

}  // namespace sparsellm
