#include "kernels/base/comm_messages.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/base/comm.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

using Bytes = std::vector<std::byte>;

const Hello kHello{
    .rank = 1, .size = 3, .channel = Channel::control, .device = "cuda:1", .model = "sha256 00ff"};

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes header_of(const MessageHeader& header) {
  const auto bytes = header_bytes(header);
  return {bytes.begin(), bytes.end()};
}

template <class T>
Bytes with(Bytes bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

const MessageHeader kSum{
    .kind = MessageKind::data, .op = {CommKind::all_reduce_sum, 0, 2, 64}, .bytes = 128};

TEST(CommMessages, AreLaidOutAsTheHeaderSays) {
  const Bytes sum = header_of(kSum);
  ASSERT_EQ(sum.size(), 40u);
  EXPECT_EQ(
      std::memcmp(sum.data(), "SparseTP\1\0\4\1\0\0\0\0\2\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0", 32), 0);
  EXPECT_EQ(std::memcmp(sum.data() + 32, "\x80\0\0\0\0\0\0\0", 8), 0);
  const Bytes hello = hello_body(kHello);
  EXPECT_EQ(hello, bytes_of(std::string_view("\1\0\0\0\3\0\0\0\1\6\0\0\0cuda:1\13\0\0\0sha256 00ff",
                                             9 + 4 + 6 + 4 + 11)));
}

TEST(CommMessages, ComeBackAsTheyWereSent) {
  const MessageHeader sum = parse_header(header_of(kSum));
  EXPECT_EQ(sum.kind, kSum.kind);
  EXPECT_EQ(sum.op, kSum.op);
  EXPECT_EQ(sum.bytes, kSum.bytes);

  const Hello hello = parse_hello(hello_body(kHello));
  EXPECT_EQ(hello.rank, kHello.rank);
  EXPECT_EQ(hello.size, kHello.size);
  EXPECT_EQ(hello.channel, kHello.channel);
  EXPECT_EQ(hello.device, kHello.device);
  EXPECT_EQ(hello.model, kHello.model);

  const std::vector<std::string> devices{"cpu", "", "host7 cuda:1"};
  EXPECT_EQ(parse_welcome(welcome_body(devices)), devices);
  EXPECT_EQ(parse_reason(bytes_of("rank 1 (cpu): a\nb\x7f")), "rank 1 (cpu): a b ");

  const Bytes abort = message(MessageKind::abort, bytes_of("why"));
  ASSERT_EQ(abort.size(), kHeaderBytes + 3);
  const MessageHeader header = parse_header(std::span(abort).first(kHeaderBytes));
  EXPECT_EQ(header.kind, MessageKind::abort);
  EXPECT_EQ(header.bytes, 3u);
}

TEST(CommMessages, OthersAreToldByTheirFirstBytes) {
  const Bytes header = header_of(kSum);
  for (size_t count = 0; count <= kHeaderBytes; ++count) {
    EXPECT_TRUE(is_ours(std::span(header).first(count)));
  }
  EXPECT_FALSE(is_ours(bytes_of("G")));
  EXPECT_FALSE(is_ours(bytes_of("GET / HTTP/1.1\r\n")));
  EXPECT_FALSE(is_ours(bytes_of("SparseTx")));
}

TEST(CommMessages, WrongHeadersAreRefused) {
  const auto refused = [](const Bytes& header, std::string_view why) {
    return throws_error([&] { (void)parse_header(header); }, why);
  };
  const Bytes header = header_of(kSum);
  for (size_t count = 0; count < kHeaderBytes; ++count) {
    EXPECT_TRUE(refused({header.begin(), header.begin() + static_cast<std::ptrdiff_t>(count)},
                        "this is no message of a rank"));
  }
  EXPECT_TRUE(refused(with(header, 7, 'x'), "this is no message of a rank"));
  EXPECT_TRUE(refused(with(header, 8, uint16_t{2}), "it has version 2 of the protocol, not 1"));
  EXPECT_TRUE(refused(with(header, 10, uint8_t{0}), "of the unknown kind 0"));
  EXPECT_TRUE(refused(with(header, 10, uint8_t{8}), "of the unknown kind 8"));
  EXPECT_TRUE(refused(with(header, 11, uint8_t{0}), "of the unknown operation 0"));
  EXPECT_TRUE(refused(with(header, 11, uint8_t{6}), "of the unknown operation 6"));
  EXPECT_TRUE(refused(with(header, 12, uint32_t{64}), "from rank 64"));
  EXPECT_TRUE(refused(with(header, 16, int64_t{-1}), "of -1 rows of 64 bytes"));
  EXPECT_TRUE(refused(with(header, 24, int64_t{-5}), "of 2 rows of -5 bytes"));
  EXPECT_TRUE(refused(with(with(header, 16, int64_t{1} << 40), 24, int64_t{1} << 40),
                      "does not fit 64 bits"));
  EXPECT_TRUE(refused(with(header, 32, uint64_t{129}),
                      "a message has 129 bytes, at most 128 are expected"));
  EXPECT_TRUE(refused(with(header, 32, ~uint64_t{0}), "at most 128 are expected"));
  // Other kinds have no operation, and bodies of their own sizes.
  EXPECT_TRUE(refused(with(header, 10, uint8_t{5}), "has an operation, and is none"));
  const auto kind = [](MessageKind of, uint64_t bytes) {
    return header_of({.kind = of, .op = {}, .bytes = bytes});
  };
  EXPECT_TRUE(refused(kind(MessageKind::hello, 1 << 20), "a message has 1048576 bytes"));
  EXPECT_TRUE(refused(kind(MessageKind::welcome, 1 << 20), "a message has 1048576 bytes"));
  EXPECT_TRUE(refused(kind(MessageKind::refusal, 1501), "at most 1500"));
  EXPECT_TRUE(refused(kind(MessageKind::abort, 1501), "at most 1500"));
  EXPECT_TRUE(refused(kind(MessageKind::late, 1), "at most 0"));
  EXPECT_TRUE(refused(kind(MessageKind::goodbye, 1), "at most 0"));
  EXPECT_TRUE(refused(header_of({.kind = MessageKind::data,
                                 .op = {CommKind::gather_bytes},
                                 .bytes = Communicator::kMaxBytes + 1}),
                      "a message has 268435457 bytes"));
}

TEST(CommMessages, TheLargestBodiesAreTaken) {
  Hello hello = kHello;
  hello.device.assign(kMaxDeviceBytes, 'd');
  hello.model.assign(kMaxModelBytes, 'm');
  check_hello(hello);
  EXPECT_EQ(hello_body(hello).size(), max_body_bytes(MessageKind::hello, {}));
  EXPECT_EQ(parse_hello(hello_body(hello)).model, hello.model);
  const std::vector<std::string> devices(kMaxRanks, hello.device);
  EXPECT_EQ(welcome_body(devices).size(), max_body_bytes(MessageKind::welcome, {}));
  EXPECT_EQ(parse_welcome(welcome_body(devices)), devices);
  EXPECT_EQ(parse_reason(bytes_of(std::string(kMaxReasonBytes, 'r'))).size(), kMaxReasonBytes);
}

TEST(CommMessages, WrongBodiesAreRefused) {
  const Bytes hello = hello_body(kHello);
  for (size_t count = 0; count < hello.size(); ++count) {
    EXPECT_TRUE(throws_error([&] { (void)parse_hello(std::span(hello).first(count)); },
                             "a hello ends too early"));
  }
  const auto refused = [](const Bytes& body, std::string_view why) {
    return throws_error([&] { (void)parse_hello(body); }, why);
  };
  Bytes longer = hello;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(refused(longer, "a hello has 1 bytes too many"));
  EXPECT_TRUE(refused(with(hello, 0, uint32_t{65}), "a hello has 65 as rank, at most 64"));
  EXPECT_TRUE(refused(with(hello, 4, ~uint32_t{0}), "a hello has 4294967295 ranks, at most 64"));
  EXPECT_TRUE(refused(with(hello, 8, uint8_t{2}), "the unknown channel 2"));
  EXPECT_TRUE(refused(with(hello, 9, uint32_t{129}), "a text of 129 bytes, at most 128"));
  EXPECT_TRUE(refused(with(hello, 9, ~uint32_t{0}), "a text of 4294967295 bytes"));
  EXPECT_TRUE(refused(with(hello, 9, uint32_t{100}), "a hello ends too early"));
  EXPECT_TRUE(refused(with(hello, 13, '\n'), "a text that is not printable"));
  EXPECT_TRUE(refused(with(hello, 13, '\x80'), "a text that is not printable"));

  const Bytes welcome = welcome_body(std::vector<std::string>{"cpu", "cuda:0"});
  for (size_t count = 0; count < welcome.size(); ++count) {
    EXPECT_TRUE(throws_error([&] { (void)parse_welcome(std::span(welcome).first(count)); },
                             "a welcome ends too early"));
  }
  EXPECT_TRUE(throws_error([&] { (void)parse_welcome(with(welcome, 0, uint32_t{65})); },
                           "a welcome is for 65 ranks, at most 64"));
  EXPECT_TRUE(throws_error([&] { (void)parse_welcome(with(welcome, 0, uint32_t{1})); },
                           "a welcome has 10 bytes too many"));
  EXPECT_TRUE(throws_error([] { (void)parse_reason({}); }, "a reason has 0 bytes"));
}

TEST(CommMessages, HellosThatCannotBeSentAreRefused) {
  const auto refused = [](auto change, std::string_view why) {
    Hello hello = kHello;
    change(hello);
    return throws_error([&] { check_hello(hello); }, why);
  };
  EXPECT_TRUE(refused([](Hello& hello) { hello.size = 0; }, "0 ranks, but 1 to 64 can be"));
  EXPECT_TRUE(refused([](Hello& hello) { hello.size = 65; }, "65 ranks, but 1 to 64 can be"));
  EXPECT_TRUE(refused([](Hello& hello) { hello.rank = 3; }, "rank 3 of 3"));
  EXPECT_TRUE(refused([](Hello& hello) { hello.rank = -1; }, "rank -1 of 3"));
  EXPECT_TRUE(refused([](Hello& hello) { hello.device.assign(129, 'd'); }, "the name of a device"));
  EXPECT_TRUE(refused([](Hello& hello) { hello.model.assign(257, 'm'); }, "the fingerprint"));
  EXPECT_TRUE(refused([](Hello& hello) { hello.model = "a\nb"; }, "the fingerprint"));
}

}  // namespace
}  // namespace sparsellm
