// The input is what a rank is told to do (engine/rank_message.h): "d", for one whose device
// samples, or "h", and the bytes of a message.

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "engine/rank_message.h"
#include "kernels/base/error.h"
#include "kernels/paged_kv.h"
#include "tests/engine/rank_steps.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"

namespace sparsellm::fuzz {
namespace {

// What the ops take for granted of the tables, and do not look at.
void check_tables(const StepTables& tables, const RankLimits& limits) {
  for (int64_t r = 0; r < tables.requests(); ++r) {
    const auto at = static_cast<size_t>(r);
    for (int64_t i = 0; i < pages_for(tables.kv_length[at]); ++i) {
      const int32_t page = tables.page_table.at(static_cast<size_t>(r * tables.page_stride + i));
      expect(page >= 0 && page < limits.kv_pages, "pages that there are");
    }
    expect(tables.query_start[at] < tables.query_start[at + 1], "requests with rows");
  }
  expect(tables.query_start.back() == tables.rows(), "requests that have all rows");
  for (const int32_t id : tables.token_ids) {
    expect(id < limits.vocabulary && -1 - id < limits.max_requests, "ids that there are");
  }
  for (const int32_t row : tables.logit_rows) {
    expect(row >= 0 && row < tables.rows(), "rows that there are");
  }
}

void check_adjusted_rows(const RankStep::Part& part, const RankLimits& limits) {
  for (const AdjustedRow& row : part.adjusted_rows) {
    expect(row.row >= 0 && row.row < std::ssize(part.samples), "rows of logits that there are");
    expect(row.last >= 0 && row.last < part.tables.rows(), "latest tokens that there are");
    expect(row.first >= 0 && row.count >= 1 &&
               int64_t{row.first} + row.count <= std::ssize(part.adjustments),
           "adjustments that there are");
  }
  for (const LogitAdjustment& one : part.adjustments) {
    expect(one.token < limits.vocabulary, "tokens that there are");
  }
}

}  // namespace

void fuzz_one(std::string_view input) {
  require(!input.empty() && (input[0] == 'd' || input[0] == 'h'), "neither of the two devices");
  RankLimits limits = testing::device_limits();
  limits.samples = input[0] == 'd';
  const auto bytes = std::as_bytes(std::span(input.substr(1)));
  RankMessage message;
  parse_message(bytes, limits, message);
  std::vector<std::byte> again;
  if (message.kind != RankMessage::Kind::launch) {
    write_message(message.kind, message.step, again);
  } else {
    check_tables(message.launch.decode.tables, limits);
    check_tables(message.launch.prefill.tables, limits);
    check_adjusted_rows(message.launch.decode, limits);
    check_adjusted_rows(message.launch.prefill, limits);
    write_launch(message.step, message.launch, again);
  }
  expect(std::ranges::equal(again, bytes), "a message that is written as it was read");
}

}  // namespace sparsellm::fuzz
