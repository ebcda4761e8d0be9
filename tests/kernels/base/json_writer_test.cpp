#include "kernels/base/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using nlohmann::ordered_json;

TEST(JsonWriter, WritesEveryKindOfValue) {
  JsonWriter json;
  json.object()
      .member("text", "a\"\n\u00e9")
      .member("bad", std::string("\xff"))
      .member("number", -7)
      .member("large", std::numeric_limits<uint64_t>::max())
      .member("least", std::numeric_limits<int64_t>::min())
      .member("real", 0.1)
      .member("whole", 2.0)
      .member("nan", std::nan(""))
      .member("infinite", INFINITY)
      .member("yes", true)
      .member("no", false)
      .key("nothing")
      .null()
      .key("empty")
      .array()
      .end()
      .key("list")
      .array()
      .value(1)
      .object()
      .end()
      .array()
      .value("x")
      .end()
      .end()
      .end();
  EXPECT_EQ(std::move(json).text(),
            "{\"text\":\"a\\\"\\n\u00e9\",\"bad\":\"\ufffd\",\"number\":-7,"
            "\"large\":18446744073709551615,\"least\":-9223372036854775808,\"real\":0.1,"
            "\"whole\":2.0,\"nan\":null,\"infinite\":null,\"yes\":true,\"no\":false,"
            "\"nothing\":null,\"empty\":[],\"list\":[1,{},[\"x\"]]}");
}

TEST(JsonWriter, RefusesInvalidUtf8IfRequested) {
  JsonWriter json(/*indent=*/-1, InvalidUtf8::refused);
  json.object();
  const std::string good("\u00e9\0", 3);
  const std::string bad = "\xe9";
  json.member(good, good);
  EXPECT_TRUE(testing::throws_error([&] { json.key(bad); }, "is not UTF-8"));
  EXPECT_TRUE(testing::throws_error([&] { JsonWriter(json).value(bad); }, "is not UTF-8"));
}

// The library is the reference.
TEST(JsonWriter, IndentsAsTheLibraryDoes) {
  const ordered_json tree = {
      {"a", 1}, {"empty", ordered_json::object()}, {"list", {1, {{"b", "c"}}, {2, 3}}}};
  for (int indent : {-1, 0, 1, 2, 5}) {
    JsonWriter json(indent);
    json.object().member("a", 1).key("empty").object().end().key("list").array().value(1);
    json.object().member("b", "c").end().array().value(2).value(3).end().end().end();
    EXPECT_EQ(std::move(json).text(), tree.dump(indent)) << indent;
  }
  JsonWriter scalar(2);
  scalar.value("a");
  EXPECT_EQ(std::move(scalar).text(), "\"a\"");
}

}  // namespace
}  // namespace sparsellm
