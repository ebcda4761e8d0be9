#include "tools/bench/sse_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using testing::throws_error;
using Events = std::vector<std::string>;

// The events of a stream that comes in these parts.
Events events_of(const std::vector<std::string>& parts) {
  SseParser parser;
  Events events;
  for (const std::string& part : parts) {
    parser.add(part, [&](std::string_view data) { events.emplace_back(data); });
  }
  return events;
}

TEST(SseParser, EventsEndWithABlankLine) {
  EXPECT_EQ(events_of({"data: {\"a\":1}\n\ndata: [DONE]\n\n"}), (Events{"{\"a\":1}", "[DONE]"}));
  EXPECT_EQ(events_of({"data: one\n\ndata: not complete\n"}), Events{"one"});
  EXPECT_EQ(events_of({""}), Events{});
  EXPECT_EQ(events_of({"\n\n\n"}), Events{});
}

TEST(SseParser, FieldsAsTheStandardHasThem) {
  EXPECT_EQ(events_of({"data:a\n\n"}), Events{"a"});
  EXPECT_EQ(events_of({"data:  a \n\n"}), Events{" a "});  // one space is dropped
  EXPECT_EQ(events_of({"data: a:b\n\n"}), Events{"a:b"});
  EXPECT_EQ(events_of({"data: a\ndata: b\n\n"}), Events{"a\nb"});
  EXPECT_EQ(events_of({"data\n\n"}), Events{""});
  EXPECT_EQ(events_of({"data:\ndata:\n\n"}), Events{"\n"});
  EXPECT_EQ(events_of({": waiting\n\nevent: error\nid: 7\nretry: 3\ndata: x\nother: y\n\n"}),
            Events{"x"});
  EXPECT_EQ(events_of({"event: ping\n\ndata: a\n\n"}), Events{"a"});
  EXPECT_EQ(events_of({"database: a\n data: b\nDATA: c\n\n"}), Events{});
}

TEST(SseParser, AllKindsOfLineEnds) {
  EXPECT_EQ(events_of({"data: a\r\ndata: b\r\n\r\ndata: c\r\rdata: d\n\n"}),
            (Events{"a\nb", "c", "d"}));
  EXPECT_EQ(events_of({"data: a\r\n\ndata: b\n\r\n"}), (Events{"a", "b"}));
  EXPECT_EQ(events_of({"data: a\r", "\n\r", "\ndata: b\r", "\r"}), (Events{"a", "b"}));
  EXPECT_EQ(events_of({"data: a\r", "", "\n", "data: b\n\n"}), Events{"a\nb"});
}

TEST(SseParser, AByteOrderMarkIsPassedOver) {
  EXPECT_EQ(events_of({"\xef\xbb\xbf"
                       "data: a\n\n"}),
            Events{"a"});
  EXPECT_EQ(events_of({"\xef", "\xbb", "\xbf", "data: a\n\n"}), Events{"a"});
  EXPECT_EQ(events_of({"data: a\n\n\xef\xbb\xbf"
                       "data: b\n\n"}),
            Events{"a"});
}

// Whatever the parts, the events are the same.
TEST(SseParser, PartsAreCutAnywhere) {
  const std::string stream =
      ": hello\r\n\r\ndata: {\"text\":\"\xc3\xa4\"}\n\ndata: a\r\ndata:b\r\n\r\n:\n"
      "data\r\rdata: [DONE]\n\n";
  const Events whole = events_of({stream});
  ASSERT_EQ(whole, (Events{"{\"text\":\"\xc3\xa4\"}", "a\nb", "", "[DONE]"}));
  for (size_t first = 0; first <= stream.size(); ++first) {
    for (size_t second = first; second <= stream.size(); ++second) {
      ASSERT_EQ(events_of({stream.substr(0, first), stream.substr(first, second - first),
                           stream.substr(second)}),
                whole)
          << first << " " << second;
    }
  }
  Events bytes;
  SseParser parser;
  for (const char byte : stream) {
    parser.add({&byte, 1}, [&](std::string_view data) { bytes.emplace_back(data); });
  }
  EXPECT_EQ(bytes, whole);
}

TEST(SseParser, EventsHaveALargestSize) {
  const std::string line = "data: " + std::string(SseParser::kMaxBytes - 7, 'x') + "\n";
  EXPECT_EQ(events_of({line, "\n"}).size(), 1u);
  EXPECT_TRUE(throws_error([&] { events_of({line, line}); }, "an event has more than"));
  const std::string endless(SseParser::kMaxBytes, 'x');
  EXPECT_TRUE(throws_error([&] { events_of({endless, "x"}); }, "a line of more than"));
}

}  // namespace
}  // namespace sparsellm
