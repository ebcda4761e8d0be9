#include "engine/rank_message.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/engine/rank_steps.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using Bytes = std::vector<std::byte>;
using Kind = RankMessage::Kind;
using testing::device_limits;
using testing::device_step;
using testing::host_step;
using testing::throws_error;
using testing::without_host_rows;

Bytes bytes_of(const RankStep& step, int64_t number = 3) {
  Bytes bytes;
  write_launch(number, step, bytes);
  return bytes;
}

RankLimits host_limits() {
  RankLimits limits = device_limits();
  limits.samples = false;
  return limits;
}

TEST(RankMessage, ALaunchIsWhatItWas) {
  RankMessage message;
  for (int again = 0; again < 2; ++again) {
    parse_message(bytes_of(device_step(), 1 + again), device_limits(), message);
    EXPECT_EQ(message.kind, Kind::launch);
    EXPECT_EQ(message.step, 1 + again);
    EXPECT_EQ(message.launch, without_host_rows(device_step()));
    parse_message(bytes_of(host_step()), host_limits(), message);
    EXPECT_EQ(message.launch, without_host_rows(host_step()));
  }
  RankStep decode = device_step();
  decode.prefill = {};
  decode.prefill.tables.clear();
  parse_message(bytes_of(decode), device_limits(), message);
  EXPECT_EQ(message.launch, without_host_rows(decode));
}

TEST(RankMessage, OtherKinds) {
  RankMessage message;
  Bytes bytes = bytes_of(device_step());  // whose memory is used again
  for (const Kind kind : {Kind::finish, Kind::counts, Kind::stop}) {
    write_message(kind, 77, bytes);
    EXPECT_EQ(bytes.size(), 9u);
    parse_message(bytes, device_limits(), message);
    EXPECT_EQ(message.kind, kind);
    EXPECT_EQ(message.step, 77);
    bytes.pop_back();
    EXPECT_THROW(parse_message(bytes, device_limits(), message), Error);
    write_message(kind, 77, bytes);
    bytes.push_back({});
    EXPECT_TRUE(throws_error([&] { parse_message(bytes, device_limits(), message); },
                             "a message of rank 0 has 1 bytes too many"));
  }
  for (const int kind : {0, 5, 255}) {
    write_message(static_cast<Kind>(kind), 0, bytes);
    EXPECT_TRUE(throws_error([&] { parse_message(bytes, device_limits(), message); },
                             "a message of rank 0 is of kind"));
  }
  write_message(Kind::finish, -1, bytes);
  EXPECT_TRUE(throws_error([&] { parse_message(bytes, device_limits(), message); },
                           "a message of rank 0 is of step -1"));
}

TEST(RankMessage, OneThatIsCutIsRefused) {
  RankMessage message;
  const Bytes whole = bytes_of(device_step());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse_message(std::span(whole).first(size), device_limits(), message), Error)
        << size;
  }
  Bytes longer = whole;
  longer.push_back({});
  EXPECT_THROW(parse_message(longer, device_limits(), message), Error);
}

// Whatever a byte is turned into: refused in one line, or read as what it then says.
TEST(RankMessage, EveryDamagedByte) {
  RankMessage message;
  RankMessage again;
  Bytes bytes = bytes_of(device_step());
  for (std::byte& byte : bytes) {
    const std::byte before = byte;
    for (const int change : {1, 128, 255}) {
      byte = before ^ static_cast<std::byte>(change);
      try {
        parse_message(bytes, device_limits(), message);
        if (message.kind == Kind::launch) {
          parse_message(bytes_of(message.launch, message.step), device_limits(), again);
          EXPECT_EQ(again.launch, message.launch);
          EXPECT_EQ(bytes_of(message.launch, message.step), bytes);
        }
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      }
    }
    byte = before;
  }
}

// Sizes that would take all memory are seen before memory is allocated.
TEST(RankMessage, HugeSizesAreRefused) {
  RankMessage message;
  for (size_t at = 17; at < 17 + 32; at += 4) {  // of the decode part
    Bytes bytes = bytes_of(device_step());
    for (size_t i = 0; i < 4; ++i) {
      bytes[at + i] = std::byte{0xff};
    }
    EXPECT_THROW(parse_message(bytes, device_limits(), message), Error) << at;
  }
}

struct Damage {
  const char* message;
  std::function<void(RankStep&)> damage;
};

TEST(RankMessage, WhatARankDoesNotHaveIsRefused) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Damage cases[] = {
      {"a step has a number of choices 6, which is not in [0, 5]",
       [](RankStep& s) { s.choices = 6; }},
      {"the token id 50", [](RankStep& s) { s.prefill.tables.token_ids[2] = 50; }},
      {"the token id -6", [](RankStep& s) { s.decode.tables.token_ids[0] = -6; }},
      {"the position 3", [](RankStep& s) { s.prefill.tables.positions[2] = 3; }},
      {"the position 5", [](RankStep& s) { s.decode.tables.positions[0] = 5; }},
      {"the position 0", [](RankStep& s) { s.decode.tables.positions[3] = 0; }},
      {"the end of a request 0", [](RankStep& s) { s.prefill.tables.query_start[1] = 0; }},
      {"the end of a request 8", [](RankStep& s) { s.prefill.tables.query_start[2] = 8; }},
      {"the first row 1", [](RankStep& s) { s.prefill.tables.query_start[0] = 1; }},
      {"the last row 6",
       [](RankStep& s) {
         s.prefill.tables.query_start[2] = 6;
         s.prefill.tables.kv_length[1] = 33;
       }},
      {"the length 49", [](RankStep& s) { s.prefill.tables.kv_length[1] = 49; }},
      {"the length 2", [](RankStep& s) { s.prefill.tables.kv_length[0] = 2; }},
      {"the page 9", [](RankStep& s) { s.prefill.tables.page_table[0] = 9; }},
      {"the page -1", [](RankStep& s) { s.decode.tables.page_table[3] = -1; }},
      {"the page -2", [](RankStep& s) { s.decode.tables.page_table[1] = -2; }},
      {"the row of logits 1", [](RankStep& s) { s.prefill.tables.logit_rows[1] = 1; }},
      {"the row of logits 7", [](RankStep& s) { s.prefill.tables.logit_rows[2] = 7; }},
      {"a number of generated rows 8", [](RankStep& s) { s.prefill.tables.generated = 8; }},
      {"a number of generated decode rows 3", [](RankStep& s) { s.decode.tables.generated = 3; }},
      {"a number of samples 2", [](RankStep& s) { s.prefill.samples.pop_back(); }},
      {"a number of decode samples 3", [](RankStep& s) { s.decode.samples.pop_back(); }},
      {"the place of a token 5", [](RankStep& s) { s.prefill.samples[0].slot = 5; }},
      {"the place of a token -2", [](RankStep& s) { s.prefill.samples[0].slot = -2; }},
      {"a step chooses its token 3 twice", [](RankStep& s) { s.prefill.samples[0].slot = 3; }},
      {"a step samples with temperature nan",
       [](RankStep& s) { s.prefill.samples[0].temperature = kNan; }},
      {"a step samples with temperature -1",
       [](RankStep& s) { s.prefill.samples[0].temperature = -1.0f; }},
      {"top_p 0", [](RankStep& s) { s.prefill.samples[0].top_p = 0.0f; }},
      {"min_p 1.5", [](RankStep& s) { s.prefill.samples[0].min_p = 1.5f; }},
      {"the top_k -1", [](RankStep& s) { s.prefill.samples[0].top_k = -1; }},
      {"the use of banned ids 2", [](RankStep& s) { s.prefill.samples[0].use_banned = 2; }},
      {"the index of a token -1", [](RankStep& s) { s.prefill.samples[0].index = -1; }},
      {"the adjusted row 3", [](RankStep& s) { s.prefill.adjusted_rows[0].row = 3; }},
      {"the adjusted row 0, which is not in [1, 3]",
       [](RankStep& s) { s.decode.adjusted_rows[1].row = 0; }},
      {"the place of an adjusted row's token -1",
       [](RankStep& s) { s.prefill.adjusted_rows[0].row = 0; }},
      {"the place of the latest token 7", [](RankStep& s) { s.prefill.adjusted_rows[0].last = 7; }},
      {"the place of the latest token -1",
       [](RankStep& s) { s.prefill.adjusted_rows[0].last = -1; }},
      {"the first of a row's adjustments 2",
       [](RankStep& s) { s.decode.adjusted_rows[1].first = 2; }},
      {"a number of a row's adjustments 3, which is not in [1, 2]",
       [](RankStep& s) { s.prefill.adjusted_rows[0].count = 3; }},
      {"a number of a row's adjustments 0",
       [](RankStep& s) { s.prefill.adjusted_rows[0].count = 0; }},
      {"a number of a row's adjustments 52, which is not in [1, 51]",
       [](RankStep& s) {
         s.prefill.adjustments.resize(52);
         s.prefill.adjusted_rows[0].count = 52;
       }},
      {"the token of a row's last adjustment 5",
       [](RankStep& s) { s.prefill.adjustments[1].token = 5; }},
      {"a number of adjustments 3, which is not in [2, 2]",
       [](RankStep& s) { s.prefill.adjustments.emplace_back(); }},
      {"whether the latest token is generated 2",
       [](RankStep& s) { s.prefill.adjusted_rows[0].generated = 2; }},
      {"a step has the penalties 0, 0.25 and 0",
       [](RankStep& s) { s.prefill.adjusted_rows[0].penalties.repetition = 0.0f; }},
      {"a step has the penalties 1, nan and 0",
       [](RankStep& s) { s.prefill.adjusted_rows[0].penalties.frequency = kNan; }},
      {"a step has the penalties 1, 0.25 and inf",
       [](RankStep& s) {
         s.prefill.adjusted_rows[0].penalties.presence = std::numeric_limits<float>::infinity();
       }},
      {"the adjusted token 50", [](RankStep& s) { s.prefill.adjustments[0].token = 50; }},
      {"how often a token was seen -2", [](RankStep& s) { s.prefill.adjustments[0].count = -2; }},
      {"a step has the bias nan", [](RankStep& s) { s.prefill.adjustments[0].bias = kNan; }},
      {"a step has the bias inf",
       [](RankStep& s) { s.prefill.adjustments[0].bias = std::numeric_limits<float>::infinity(); }},
      {"a step has padding among rows that are not decode rows",
       [](RankStep& s) {
         s.prefill.tables = {.token_ids = {0},
                             .positions = {-1},
                             .query_start = {0, 1},
                             .kv_length = {0},
                             .page_table = {},
                             .logit_rows = {}};
         s.prefill.samples.clear();
         s.prefill.adjusted_rows.clear();
         s.prefill.adjustments.clear();
       }},
      {"a padded number of decode rows 3",
       [](RankStep& s) {
         StepTables& t = s.decode.tables;
         for (auto* list : {&t.token_ids, &t.positions, &t.query_start, &t.kv_length}) {
           list->pop_back();
         }
         t.page_table.resize(6);
         t.generated = 3;
         s.decode.samples.pop_back();
       }},
      {"a number of rows 0",
       [](RankStep& s) {
         s.decode.clear();
         s.prefill.clear();
       }},
  };
  RankMessage message;
  for (const Damage& c : cases) {
    SCOPED_TRACE(c.message);
    RankStep step = device_step();
    c.damage(step);
    EXPECT_TRUE(
        throws_error([&] { parse_message(bytes_of(step), device_limits(), message); }, c.message));
  }
}

TEST(RankMessage, LargerThanTheRankIsRefused) {
  RankMessage message;
  const Bytes bytes = bytes_of(device_step());
  const auto refused = [&](const RankLimits& limits, const char* what) {
    EXPECT_TRUE(throws_error([&] { parse_message(bytes, limits, message); }, what)) << what;
  };
  RankLimits limits = device_limits();
  limits.step_tokens = 6;
  refused(limits, "a number of rows 7, which is not in [0, 6]");
  limits = device_limits();
  limits.pages_per_request = 2;
  refused(limits, "a number of pages 3, which is not in [0, 2]");
  limits = device_limits();
  limits.max_requests = 1;
  refused(limits, "a number of choices 5");
  refused(host_limits(), "a number of decode rows 4, which is not in [0, 0]");
}

// Where the host samples, it knows all tokens and chooses all of them.
TEST(RankMessage, ARankThatDoesNotSampleIsToldToChooseNothing) {
  RankMessage message;
  RankStep step = host_step();
  step.prefill.samples[0].slot = 0;
  EXPECT_TRUE(throws_error([&] { parse_message(bytes_of(step), host_limits(), message); },
                           "the place of a token 0"));
  step = host_step();
  step.prefill.tables.token_ids[0] = -1;
  EXPECT_TRUE(throws_error([&] { parse_message(bytes_of(step), host_limits(), message); },
                           "the token id -1"));
}

}  // namespace
}  // namespace sparsellm
