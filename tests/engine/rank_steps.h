#pragma once

#include <cstdint>
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
  step.prefill.host_rows = {0, 1, 2};
  return step;
}

inline RankStep without_host_rows(RankStep step) {
  step.decode.host_rows.clear();
  step.prefill.host_rows.clear();
  return step;
}

}  // namespace sparsellm::testing
