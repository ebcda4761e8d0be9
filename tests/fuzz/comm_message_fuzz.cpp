// The input is a message between ranks: a header and its body.

#include <algorithm>
#include <span>
#include <string_view>

#include "kernels/base/comm_messages.h"
#include "kernels/base/error.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"

namespace sparsellm::fuzz {
namespace {

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void read_body(MessageKind kind, std::span<const std::byte> body) {
  switch (kind) {
    case MessageKind::hello:
      expect(same(hello_body(parse_hello(body)), body), "a hello of the same bytes");
      return;
    case MessageKind::welcome:
      expect(same(welcome_body(parse_welcome(body)), body), "a welcome of the same bytes");
      return;
    case MessageKind::refusal:
    case MessageKind::abort:
      throw Error(parse_reason(body));  // as the one who is told so does
    case MessageKind::data:
    case MessageKind::late:
    case MessageKind::goodbye:
      return;
  }
  expect(false, "a kind that there is");
}

}  // namespace

void fuzz_one(std::string_view input) {
  const auto bytes = std::as_bytes(std::span(input));
  const auto raw_header = bytes.first(std::min(bytes.size(), kHeaderBytes));
  const MessageHeader header = parse_header(raw_header);
  expect(is_ours(raw_header), "one of ours");
  expect(same(header_bytes(header), raw_header), "a header of the same bytes");
  expect(header.bytes <= max_body_bytes(header.kind, header.op), "a body that is not too long");
  const auto body = bytes.subspan(kHeaderBytes);
  require(body.size() >= header.bytes, "the body has not come yet");
  read_body(header.kind, body.first(header.bytes));
}

}  // namespace sparsellm::fuzz
