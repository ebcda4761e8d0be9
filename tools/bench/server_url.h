#pragma once

#include <string>

namespace sparsellm {

// Where a server is.
struct ServerUrl {
  std::string host;       // a name or an address, without brackets
  std::string port;       // a number
  std::string unix_path;  // of a socket file; then there are neither host nor port
  std::string prefix;     // of all paths: "" or "/of/a/proxy"
  std::string shown;      // as it was given

  std::string host_header() const;
};

// "http://HOST[:PORT][/PREFIX]", where the prefix may end in the /v1 of the API, or "unix:PATH".
// Throws UsageError that names `flag`.
ServerUrl parse_server_url(const std::string& flag, const std::string& text);

}  // namespace sparsellm
