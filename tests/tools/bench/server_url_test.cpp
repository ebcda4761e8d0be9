#include "tools/bench/server_url.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/testing/throws_error.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

ServerUrl url(const std::string& text) { return parse_server_url("--url", text); }

TEST(ServerUrl, HostPortAndPrefix) {
  struct Case {
    const char* text;
    const char* host;
    const char* port;
    const char* prefix;
    const char* header;
  };
  const std::vector<Case> cases{
      {"http://127.0.0.1:8000", "127.0.0.1", "8000", "", "127.0.0.1:8000"},
      {"http://localhost", "localhost", "80", "", "localhost"},
      {"http://[::1]:8000/", "::1", "8000", "", "[::1]:8000"},
      {"http://example.org:8000/v1", "example.org", "8000", "", "example.org:8000"},
      {"http://example.org:8000/v1/", "example.org", "8000", "", "example.org:8000"},
      {"http://example.org/of/a/proxy/v1", "example.org", "80", "/of/a/proxy", "example.org"},
  };
  for (const Case& expected : cases) {
    const ServerUrl parsed = url(expected.text);
    EXPECT_EQ(parsed.host, expected.host) << expected.text;
    EXPECT_EQ(parsed.port, expected.port) << expected.text;
    EXPECT_EQ(parsed.prefix, expected.prefix) << expected.text;
    EXPECT_EQ(parsed.unix_path, "") << expected.text;
    EXPECT_EQ(parsed.shown, expected.text);
    EXPECT_EQ(parsed.host_header(), expected.header);
  }
}

TEST(ServerUrl, SocketFile) {
  const ServerUrl parsed = url("unix:/run/of a model.sock");
  EXPECT_EQ(parsed.unix_path, "/run/of a model.sock");
  EXPECT_EQ(parsed.host_header(), "localhost");
}

TEST(ServerUrl, RefusesOthers) {
  for (const char* text :
       {"", "127.0.0.1:8000", "http://", "http://:8000", "http://a:", "http://a:0",
        "http://a:65536", "http://a:8000x", "http://[::1", "http://[::1]8000", "http://::1",
        "http://a b", "http://a/?x=1", "http://a/\r\nX: y", "ftp://a", "unix:"}) {
    EXPECT_THROW(url(text), UsageError) << text;
  }
  EXPECT_TRUE(testing::throws_error([] { url("https://a"); }, "no TLS"));
  EXPECT_TRUE(testing::throws_error([] { url("http://me:word@a"); }, "--api-key-file"));
}

}  // namespace
}  // namespace sparsellm
