#include "engine/step_tables.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace sparsellm {
namespace {

using Ints = std::vector<int32_t>;

// A prompt 100, 101, ... of which `known` tokens, with those that were chosen, are there.
std::unique_ptr<Sequence> sequence_of(Request request, int64_t prompt, int64_t known,
                                      int64_t max_length, Ints pages = {}) {
  request.prompt.resize(static_cast<size_t>(prompt));
  std::iota(request.prompt.begin(), request.prompt.end(), 100);
  auto sequence = std::make_unique<Sequence>();
  sequence->tokens.resize(static_cast<size_t>(known));
  std::iota(sequence->tokens.begin(), sequence->tokens.end(), 100);
  sequence->max_length = max_length;
  sequence->pages = std::move(pages);
  sequence->submission = std::make_shared<const Submission>(
      Submission{.id = 1, .request = std::move(request), .on_token = {}});
  return sequence;
}

Scheduler::Chunk chunk_of(const std::unique_ptr<Sequence>& sequence, int64_t first, int64_t count,
                          std::optional<int64_t> choice = {},
                          std::optional<int64_t> token_from = {}) {
  return {.sequence = sequence.get(),
          .first = first,
          .count = count,
          .token_from = token_from,
          .choice = choice,
          .decode = count == 1};
}

struct Tables : StepTables {
  std::vector<LogitRow> logits;
};

Tables tables_of(std::span<const Scheduler::Chunk> chunks, std::span<const Choice> before = {}) {
  Tables tables;
  make_step_tables(chunks, before, tables, tables.logits);
  return tables;
}

// Two decode rows, of which the second continues a token that the step before has yet to choose,
// and a part of a prompt.
TEST(StepTables, HaveARowForEachToken) {
  const auto known = sequence_of({}, 3, 5, 10, {7});
  const auto unknown = sequence_of({}, 17, 17, 30, {4, 0, 9});
  const auto prompt = sequence_of({}, 20, 20, 30, {2, 3});
  unknown->pending = 1;
  const std::vector<Scheduler::Chunk> chunks{
      chunk_of(known, 4, 1, 0), chunk_of(unknown, 17, 1, 1, 6), chunk_of(prompt, 15, 3)};
  const Tables tables = tables_of(chunks);
  EXPECT_EQ(tables.rows(), 5);
  EXPECT_EQ(tables.generated, 2);
  EXPECT_EQ(tables.requests(), 3);
  EXPECT_EQ(tables.token_ids, (Ints{104, -7, 115, 116, 117}));
  EXPECT_EQ(tables.positions, (Ints{4, 17, 15, 16, 17}));
  EXPECT_EQ(tables.query_start, (Ints{0, 1, 2, 5}));
  EXPECT_EQ(tables.kv_length, (Ints{5, 18, 18}));
  EXPECT_EQ(tables.page_stride, 3);
  EXPECT_EQ(tables.page_table, (Ints{7, -1, -1, 4, 0, 9, 2, 3, -1}));
  EXPECT_TRUE(tables.has_unknown_ids);
  EXPECT_EQ(tables.logit_rows, (Ints{0, 1}));
  ASSERT_EQ(tables.logits.size(), 2u);
  EXPECT_EQ(tables.logits[0].sequence, known.get());
  EXPECT_EQ(tables.logits[0].position, 4);
  EXPECT_EQ(tables.logits[0].choice, 0);
  EXPECT_EQ(tables.logits[1].sequence, unknown.get());
  EXPECT_EQ(tables.logits[1].position, 17);
  EXPECT_EQ(tables.logits[1].choice, 1);
  const Tables of_prompt = tables_of(std::span(chunks).subspan(2));
  EXPECT_FALSE(of_prompt.has_unknown_ids);
  EXPECT_EQ(of_prompt.generated, 0);
}

// By their positions: decode rows, those that are recomputed, and tokens of a prompt from
// decode_from on.
TEST(StepTables, CountGeneratedRows) {
  const auto decoding = sequence_of({}, 3, 5, 10);
  const auto recomputed = sequence_of({}, 6, 11, 20);
  const auto forced = sequence_of({.prompt = {}, .decode_from = 4}, 9, 9, 20);
  const auto prompt = sequence_of({.prompt = {}, .decode_from = 4}, 9, 9, 20);
  const std::vector<Scheduler::Chunk> chunks{chunk_of(decoding, 4, 1), chunk_of(recomputed, 6, 3),
                                             chunk_of(forced, 4, 2), chunk_of(prompt, 0, 4)};
  const Tables tables = tables_of(chunks);
  EXPECT_EQ(tables.positions, (Ints{4, 6, 7, 8, 4, 5, 0, 1, 2, 3}));
  EXPECT_EQ(tables.generated, 6);
  EXPECT_EQ(tables_of(std::span(chunks).subspan(1, 2)).generated, 5);
  EXPECT_EQ(tables_of(std::span(chunks).subspan(2)).generated, 2);
  EXPECT_EQ(tables_of(std::span(chunks).subspan(3)).generated, 0);
}

TEST(StepTables, OfNoChunks) {
  const Tables tables = tables_of({});
  EXPECT_EQ(tables.rows(), 0);
  EXPECT_EQ(tables.requests(), 0);
  EXPECT_EQ(tables.generated, 0);
  EXPECT_EQ(tables.query_start, Ints{0});
  EXPECT_EQ(tables.page_stride, 0);
  EXPECT_TRUE(tables.page_table.empty());
  EXPECT_FALSE(tables.has_unknown_ids);
}

// Of a prompt of six tokens, whose first three have been computed before.
struct PromptCase {
  const char* what;
  Request request;
  int32_t sample = 0;
  int64_t max_length = 8;
  int64_t reported = 0;
  bool chooses = false;
  Ints positions;  // whose logits are wanted
};

TEST(StepTables, LogitsOfThePromptAreThoseThatAreAskedFor) {
  const auto listener = [](int64_t, std::span<const float>) {};
  const Request plain{};
  const Request listens{.prompt = {}, .on_logits = listener};
  const Request scores{.prompt = {}, .on_logits = listener, .score_prompt = true};
  const Request log_probs{.prompt = {}, .log_probs = 0, .prompt_log_probs = true};
  const PromptCase cases[] = {
      {.what = "none", .request = plain, .positions = {}},
      {.what = "choice", .request = plain, .chooses = true, .positions = {5}},
      {.what = "on_logits", .request = listens, .positions = {}},
      {.what = "on_logits of no tokens", .request = listens, .max_length = 6, .positions = {5}},
      {.what = "no tokens", .request = plain, .max_length = 6, .positions = {}},
      {.what = "reported", .request = listens, .max_length = 6, .reported = 6, .positions = {}},
      {.what = "score", .request = scores, .positions = {3, 4, 5}},
      {.what = "score and choice", .request = scores, .chooses = true, .positions = {3, 4, 5}},
      {.what = "the rest", .request = scores, .reported = 5, .positions = {5}},
      {.what = "all reported", .request = scores, .reported = 6, .positions = {}},
      {.what = "log_probs", .request = log_probs, .positions = {3, 4, 5}},
      {.what = "another sample", .request = log_probs, .sample = 1, .positions = {}},
  };
  for (const PromptCase& c : cases) {
    SCOPED_TRACE(c.what);
    const auto sequence = sequence_of(c.request, 6, 6, c.max_length);
    sequence->sample = c.sample;
    sequence->reported = c.reported;
    const std::optional<int64_t> choice = c.chooses ? std::optional<int64_t>(2) : std::nullopt;
    const Scheduler::Chunk chunk = chunk_of(sequence, 3, 3, choice);
    const Tables tables = tables_of({&chunk, 1});
    Ints positions;
    for (size_t i = 0; i < tables.logits.size(); ++i) {
      const LogitRow& row = tables.logits[i];
      positions.push_back(static_cast<int32_t>(row.position));
      EXPECT_EQ(tables.logit_rows[i], row.position - 3);
      EXPECT_EQ(row.choice, row.position == 5 ? choice : std::nullopt);
    }
    EXPECT_EQ(positions, c.positions);
    EXPECT_EQ(tables.logit_rows.size(), tables.logits.size());
  }
}

// Tokens after the prompt have logits only to choose from, also where a preempted sequence is
// computed again.
TEST(StepTables, RecomputedTokensHaveNoLogits) {
  const auto sequence = sequence_of(
      {.prompt = {}, .on_logits = [](int64_t, std::span<const float>) {}, .score_prompt = true}, 2,
      6, 5);
  const Scheduler::Chunk prompt = chunk_of(sequence, 0, 2);
  const Scheduler::Chunk generated = chunk_of(sequence, 2, 3);
  sequence->reported = 1;
  EXPECT_EQ(tables_of({&prompt, 1}).logit_rows, Ints{1});
  EXPECT_TRUE(tables_of({&generated, 1}).logits.empty());
  sequence->reported = 2;
  EXPECT_TRUE(tables_of({&prompt, 1}).logits.empty());
}

// Decode rows of a prompt (decode_from) choose nothing but at its end.
TEST(StepTables, DecodeRowsOfAPromptHaveLogitsIfAskedFor) {
  const auto silent = sequence_of({.prompt = {}, .decode_from = 2}, 6, 6, 9);
  const auto scored = sequence_of({.prompt = {},
                                   .on_logits = [](int64_t, std::span<const float>) {},
                                   .score_prompt = true,
                                   .decode_from = 2},
                                  6, 6, 9);
  const auto last = sequence_of({.prompt = {}, .decode_from = 2}, 6, 6, 9);
  const std::vector<Scheduler::Chunk> chunks{chunk_of(silent, 3, 1), chunk_of(scored, 3, 1),
                                             chunk_of(last, 5, 1, 0)};
  const Tables tables = tables_of(chunks);
  EXPECT_EQ(tables.generated, 3);
  EXPECT_EQ(tables.token_ids, (Ints{103, 103, 105}));
  EXPECT_EQ(tables.logit_rows, (Ints{1, 2}));
  EXPECT_FALSE(tables.logits.at(0).choice.has_value());
  EXPECT_EQ(tables.logits.at(1).choice, 0);
}

// What kernels see of padding (PagedBatch::decode).
TEST(StepTables, DecodeRowsArePadded) {
  const auto a = sequence_of({}, 3, 5, 10, {7});
  const auto b = sequence_of({}, 17, 18, 30, {4, 0});
  const std::vector<Scheduler::Chunk> chunks{chunk_of(a, 4, 1, 0), chunk_of(b, 17, 1, 1)};
  Tables tables = tables_of(chunks);
  pad_decode_rows(tables, 2);  // as many as there are
  EXPECT_EQ(tables.token_ids, (Ints{104, 117}));
  EXPECT_EQ(tables.page_table, (Ints{7, -1, 4, 0}));
  EXPECT_EQ(tables.generated, 2);
  pad_decode_rows(tables, 4);
  EXPECT_EQ(tables.generated, 4);
  EXPECT_EQ(tables.rows(), 4);
  EXPECT_EQ(tables.requests(), 4);
  EXPECT_EQ(tables.token_ids, (Ints{104, 117, 0, 0}));
  EXPECT_EQ(tables.positions, (Ints{4, 17, -1, -1}));
  EXPECT_EQ(tables.kv_length, (Ints{5, 18, 0, 0}));
  EXPECT_EQ(tables.query_start, (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(tables.page_stride, 2);
  EXPECT_EQ(tables.page_table, (Ints{7, -1, 4, 0, -1, -1, -1, -1}));
  EXPECT_EQ(tables.logit_rows, (Ints{0, 1}));
  EXPECT_FALSE(tables.has_unknown_ids);
}

}  // namespace
}  // namespace sparsellm
