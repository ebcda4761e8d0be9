#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "engine/rank_message.h"
#include "engine/rank_step.h"

namespace sparsellm::testing {

// A step of a device that samples: three decode rows and one of padding, of which two choose a
// token, and two prompts with seven rows, of which the last ones choose.
inline RankStep device_step() {
  RankStep step;
  step.choices = 5;
  step.decode.tables = {.token_ids = {5, -2, 9, 0},
                        .positions = {4, 17, 0, -1},
                        .query_start = {0, 1, 2, 3, 4},
                        .kv_length = {5, 18, 1, 0},
                        .page_table = {7, -1, 4, 0, 3, -1, -1, -1},
                        .page_stride = 2,
                        .logit_rows = {0, 1, 2},
                        .has_unknown_ids = true,
                        .generated = 4};
  step.decode.samples.resize(4);
  step.decode.samples[0] = {.slot = 3, .temperature = 0.5f, .top_k = 4, .seed = 11, .index = 5};
  step.decode.samples[1] = {.slot = 1, .top_p = 0.25f, .min_p = 0.5f, .use_banned = 1, .index = 18};
  step.decode.adjusted_rows = {
      {.row = 0, .last = 0, .first = 0, .count = 3, .penalties = {.repetition = 1.5f}},
      {.row = 1,
       .last = 1,
       .first = 3,
       .count = 1,
       .penalties = {.presence = -0.5f},
       .generated = 1}};
  step.decode.adjustments = {{.token = 7, .count = 0},
                             {.token = 49, .bias = -std::numeric_limits<float>::infinity()},
                             {},
                             {}};
  step.decode.log_prob_rows = {{.row = 1, .token = -2, .top = 3}};
  step.decode.host_rows = {2};
  step.prefill.tables = {.token_ids = {1, 2, 3, 4, 49, 0, 7},
                         .positions = {0, 1, 2, 30, 31, 32, 33},
                         .query_start = {0, 3, 7},
                         .kv_length = {3, 34},
                         .page_table = {8, -1, -1, 1, 2, 5},
                         .page_stride = 3,
                         .logit_rows = {1, 2, 6},
                         .generated = 3};
  step.prefill.samples.resize(3);
  step.prefill.samples[1] = {.slot = 0, .index = 3};
  step.prefill.samples[2] = {.slot = 4, .temperature = 2.0f, .seed = ~uint64_t{0}, .index = 34};
  step.prefill.adjusted_rows = {{.row = 2,
                                 .last = 6,
                                 .first = 0,
                                 .count = 2,
                                 .penalties = {.frequency = 0.25f},
                                 .generated = 1}};
  step.prefill.adjustments = {{.token = 3, .count = 4, .bias = 2.5f}, {}};
  step.prefill.log_prob_rows = {{.row = 0, .token = 11, .top = 20}, {.row = 2, .token = -5}};
  step.prefill.host_rows = {0};
  return step;
}

inline RankLimits device_limits() {
  return {.max_requests = 5,
          .step_tokens = 8,
          .pages_per_request = 3,
          .kv_pages = 9,
          .vocabulary = 50,
          .samples = true};
}

// The same without decode rows, on a device that does not sample.
inline RankStep host_step() {
  RankStep step = device_step();
  step.decode.clear();
  step.prefill.samples.assign(3, SampleRow{});
  step.prefill.adjusted_rows.clear();
  step.prefill.adjustments.clear();
  step.prefill.log_prob_rows.clear();
  step.prefill.host_rows = {0, 1, 2};
  return step;
}

// As other ranks than the first get it.
inline RankStep without_host_rows(RankStep step) {
  for (RankStep::Part* part : {&step.decode, &step.prefill}) {
    part->host_rows.clear();
    part->log_prob_rows.clear();
  }
  return step;
}

}  // namespace sparsellm::testing
