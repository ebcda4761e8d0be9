#include "tools/serve/http.h"

#include <algorithm>
#include <array>

namespace sparsellm {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

struct StatusText {
  int status;
  std::string_view text;
};
constexpr std::array kStatusTexts{
    StatusText{200, "OK"},
    StatusText{204, "No Content"},
    StatusText{400, "Bad Request"},
    StatusText{401, "Unauthorized"},
    StatusText{403, "Forbidden"},
    StatusText{404, "Not Found"},
    StatusText{405, "Method Not Allowed"},
    StatusText{408, "Request Timeout"},
    StatusText{411, "Length Required"},
    StatusText{413, "Content Too Large"},
    StatusText{415, "Unsupported Media Type"},
    StatusText{417, "Expectation Failed"},
    StatusText{431, "Request Header Fields Too Large"},
    StatusText{500, "Internal Server Error"},
    StatusText{501, "Not Implemented"},
    StatusText{503, "Service Unavailable"},
    StatusText{505, "HTTP Version Not Supported"},
};

int64_t fields_named(const HttpHead& head, std::string_view name) {
  return std::count_if(head.headers.begin(), head.headers.end(), [name](const HttpHeader& header) {
    return equal_without_case(header.name, name);
  });
}

bool has_digits_alone(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string_view HttpHead::path() const {
  return std::string_view(target).substr(0, target.find('?'));
}

std::string_view HttpHead::header(std::string_view name) const {
  const auto found = std::find_if(headers.begin(), headers.end(), [name](const HttpHeader& h) {
    return equal_without_case(h.name, name);
  });
  return found == headers.end() ? std::string_view() : std::string_view(found->value);
}

std::string_view ambiguity(const HttpHead& head) {
  const int64_t hosts = fields_named(head, "Host");
  if (hosts > 1 || (hosts == 0 && head.version >= 11)) {
    return "a request has one Host";
  }
  const int64_t lengths = fields_named(head, "Content-Length");
  if (lengths > 1 || (lengths == 1 && !has_digits_alone(head.header("Content-Length")))) {
    return "Content-Length is not one number";
  }
  const int64_t encodings = fields_named(head, "Transfer-Encoding");
  if (encodings == 0) {
    return {};
  }
  if (lengths > 0) {
    return "there are Content-Length and Transfer-Encoding";
  }
  if (encodings > 1 || head.version < 11 ||
      !equal_without_case(head.header("Transfer-Encoding"), "chunked")) {
    return "Transfer-Encoding is not chunked";
  }
  return {};
}

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view status_text(int status) {
  const auto* const found =
      std::find_if(kStatusTexts.begin(), kStatusTexts.end(),
                   [status](const StatusText& entry) { return entry.status == status; });
  return found == kStatusTexts.end() ? std::string_view("Unknown") : found->text;
}

}  // namespace sparsellm
