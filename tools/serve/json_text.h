#pragma once

#include <string>
#include <string_view>

namespace sparsellm {

// Appends a string of JSON, in quotes; what is not UTF-8 becomes U+FFFD.
void append_json(std::string_view text, std::string& out);

// The body of an error, in the form of OpenAI's API:
//   {"error": {"message": ..., "type": ..., "param": null, "code": ...}}
std::string error_body(int status, std::string_view message);

}  // namespace sparsellm
