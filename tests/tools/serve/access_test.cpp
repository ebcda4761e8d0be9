#include "tools/serve/access.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sparsellm {
namespace {

HttpHead head_with(std::vector<HttpHeader> headers) {
  return {.method = "POST", .target = "/v1/completions", .headers = std::move(headers)};
}

// The status of what refuses it; 0: nothing does.
int status_of(const Access& access, const HttpHead& head, bool needs_key = false) {
  const auto refused = access.refuse(head, needs_key);
  return refused ? refused->status : 0;
}

int status_of_host(const Access& access, const std::string& host) {
  return status_of(access, head_with({{.name = "host", .value = host}}));
}

int status_of_origin(const Access& access, const std::string& origin) {
  return status_of(access, head_with({{.name = "Host", .value = "localhost:8000"},
                                      {.name = "Origin", .value = origin}}));
}

int status_of_key(const Access& access, const std::string& authorization) {
  return status_of(access,
                   head_with({{.name = "Host", .value = "localhost"},
                              {.name = "Authorization", .value = authorization}}),
                   true);
}

TEST(Access, TextsAreComparedToTheirEnd) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("sesame", "sesame"));
  const std::string key(64, 'k');
  for (size_t i = 0; i < key.size(); ++i) {
    for (const char other : {'\0', 'K', '\xeb'}) {
      std::string wrong = key;
      wrong[i] = other;
      EXPECT_FALSE(equal_in_constant_time(key, wrong)) << i;
    }
  }
  EXPECT_FALSE(equal_in_constant_time("sesame", "sesam"));
  EXPECT_FALSE(equal_in_constant_time("", "s"));
}

TEST(Access, KeysAreOnesOfTheFile) {
  const Access access({.keys = {"first", "second"}, .cors_origin = {}});
  EXPECT_EQ(status_of_key(access, "Bearer first"), 0);
  EXPECT_EQ(status_of_key(access, "bearer second"), 0);
  for (const char* wrong :
       {"", "first", "Bearer", "Bearer ", "Bearer  first", "Bearer first ", "Bearer firs",
        "Bearer firsts", "Bearer First", "Basic first", "Bearer first second", "Bearer=first"}) {
    EXPECT_EQ(status_of_key(access, wrong), 401) << wrong;
  }
  EXPECT_EQ(status_of(access, head_with({{.name = "Host", .value = "localhost"}}), true), 401);
  EXPECT_EQ(status_of(access, head_with({{.name = "Host", .value = "localhost"}}), false), 0);
}

TEST(Access, WithoutKeysNoneIsAskedFor) {
  const Access access({.keys = {}, .cors_origin = {}});
  EXPECT_EQ(status_of(access, head_with({{.name = "Host", .value = "localhost"}}), true), 0);
}

// A page of another name that resolves to this machine would else be of one origin with it.
TEST(Access, OnLoopbackHostsAreItsNames) {
  const Access access({.keys = {}, .cors_origin = {}});
  for (const char* host :
       {"localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000", ""}) {
    EXPECT_EQ(status_of_host(access, host), 0) << host;
  }
  for (const char* host :
       {"example.org", "example.org:8000", "localhost.example.org", "127.0.0.1.example.org",
        "127.0.0.2", "localhost:80:80", "[::1]x", "[::2]", "::1", " localhost", "localhost."}) {
    EXPECT_EQ(status_of_host(access, host), 403) << host;
  }
}

TEST(Access, ElsewhereAnyHostWillDo) {
  const Access access({.keys = {}, .cors_origin = {}, .on_loopback = false});
  EXPECT_EQ(status_of_host(access, "example.org"), 0);
  EXPECT_EQ(status_of_origin(access, "https://example.org"), 0);
}

TEST(Access, OnLoopbackPagesAreItsOwn) {
  const Access access({.keys = {}, .cors_origin = {}});
  EXPECT_EQ(status_of_origin(access, "http://localhost:8000"), 0);
  for (const char* origin :
       {"https://example.org", "http://localhost", "http://localhost:8001", "null",
        "https://localhost:8000", "http://127.0.0.1:8000", "http://localhost:8000.example.org"}) {
    EXPECT_EQ(status_of_origin(access, origin), 403) << origin;
  }
  EXPECT_TRUE(access.cors_headers().empty());
}

TEST(Access, OneOriginMayBeAllowed) {
  const Access access({.keys = {}, .cors_origin = "https://example.org"});
  EXPECT_EQ(status_of_origin(access, "https://example.org"), 0);
  EXPECT_EQ(status_of_origin(access, "http://localhost:8000"), 0);
  EXPECT_EQ(status_of_origin(access, "http://example.org"), 403);
  EXPECT_EQ(status_of_origin(access, "https://example.org.example.com"), 403);
  const auto headers = access.cors_headers();
  ASSERT_EQ(headers.size(), 2u);
  EXPECT_EQ(headers[0].name, "Access-Control-Allow-Origin");
  EXPECT_EQ(headers[0].value, "https://example.org");
  EXPECT_EQ(headers[1].name, "Vary");
}

TEST(Access, AnyOriginMayBeAllowed) {
  const Access access({.keys = {}, .cors_origin = "*"});
  EXPECT_EQ(status_of_origin(access, "https://example.org"), 0);
  EXPECT_EQ(access.cors_headers()[0].value, "*");
  EXPECT_EQ(status_of_host(access, "example.org"), 403);  // of a name for this machine all the same
}

}  // namespace
}  // namespace sparsellm
