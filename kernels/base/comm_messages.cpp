#include "kernels/base/comm_messages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/base/comm.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are copied as they are");

constexpr std::string_view kMagic = "SparseTP";

class BodyWriter {
 public:
  template <class T>
  void number(T value) {
    const auto* const data = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), data, data + sizeof(T));
  }
  void text(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    raw(value);
  }
  void raw(std::string_view value) {
    const auto* const data = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), data, data + value.size());
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class BodyReader {
 public:
  BodyReader(std::span<const std::byte> bytes, const char* what) : bytes_(bytes), what_(what) {}

  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text(size_t max_bytes) {
    const auto size = number<uint32_t>();
    require(size <= max_bytes, "a {} has a text of {} bytes, at most {}", what_, size, max_bytes);
    const auto bytes = take(size);
    std::string value(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    require(is_printable(value), "a {} has a text that is not printable", what_);
    return value;
  }
  void end() const { require(bytes_.empty(), "a {} has {} bytes too many", what_, bytes_.size()); }

  static bool is_printable(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
  }

 private:
  std::span<const std::byte> take(size_t count) {
    require(count <= bytes_.size(), "a {} ends too early", what_);
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  std::span<const std::byte> bytes_;
  const char* what_;
};

int rank_number(uint32_t value, const char* what) {
  require(value <= kMaxRanks, "a hello has {} {}, at most {}", value, what, kMaxRanks);
  return static_cast<int>(value);
}

CommKind parse_op_kind(uint8_t kind) {
  require(kind >= static_cast<uint8_t>(CommKind::all_reduce_sum) &&
              kind <= static_cast<uint8_t>(CommKind::gather_bytes),
          "a message is of the unknown operation {}", kind);
  return static_cast<CommKind>(kind);
}

}  // namespace

std::array<std::byte, kHeaderBytes> header_bytes(const MessageHeader& header) {
  const bool data = header.kind == MessageKind::data;
  BodyWriter writer;
  writer.raw(kMagic);
  writer.number(kMessageVersion);
  writer.number(static_cast<uint8_t>(header.kind));
  writer.number(data ? static_cast<uint8_t>(header.op.kind) : uint8_t{0});
  writer.number(static_cast<uint32_t>(header.op.root));
  writer.number(header.op.rows);
  writer.number(header.op.row_bytes);
  writer.number(header.bytes);
  const std::vector<std::byte> bytes = writer.take();
  std::array<std::byte, kHeaderBytes> result{};
  std::copy(bytes.begin(), bytes.end(), result.begin());
  return result;
}

std::vector<std::byte> message(MessageKind kind, std::span<const std::byte> body) {
  const auto header = header_bytes({.kind = kind, .op = {}, .bytes = body.size()});
  std::vector<std::byte> bytes(header.size() + body.size());
  std::copy(header.begin(), header.end(), bytes.begin());
  std::copy(body.begin(), body.end(), bytes.begin() + kHeaderBytes);
  return bytes;
}

std::vector<std::byte> hello_body(const Hello& hello) {
  BodyWriter writer;
  writer.number(static_cast<uint32_t>(hello.rank));
  writer.number(static_cast<uint32_t>(hello.size));
  writer.number(static_cast<uint8_t>(hello.channel));
  writer.text(hello.device);
  writer.text(hello.model);
  return writer.take();
}

std::vector<std::byte> welcome_body(std::span<const std::string> devices) {
  BodyWriter writer;
  writer.number(static_cast<uint32_t>(devices.size()));
  for (const std::string& device : devices) {
    writer.text(device);
  }
  return writer.take();
}

bool is_ours(std::span<const std::byte> bytes) {
  const size_t count = std::min(bytes.size(), kMagic.size());
  return std::memcmp(bytes.data(), kMagic.data(), count) == 0;
}

uint64_t max_body_bytes(MessageKind kind, const CommOp& op) {
  switch (kind) {
    case MessageKind::hello:
      return 17 + kMaxDeviceBytes + kMaxModelBytes;
    case MessageKind::welcome:
      return 4 + kMaxRanks * (4 + kMaxDeviceBytes);
    case MessageKind::refusal:
    case MessageKind::abort:
      return kMaxReasonBytes;
    case MessageKind::data:
      return static_cast<uint64_t>(op.rows > 0
                                       ? checked_mul(op.rows, op.row_bytes, "bytes of a message")
                                       : Communicator::kMaxBytes);
    case MessageKind::late:
    case MessageKind::goodbye:
      return 0;
  }
  return 0;
}

MessageHeader parse_header(std::span<const std::byte> header) {
  require(header.size() == kHeaderBytes && is_ours(header), "this is no message of a rank");
  BodyReader reader(header.subspan(kMagic.size()), "header");
  const auto version = reader.number<uint16_t>();
  require(version == kMessageVersion, "it has version {} of the protocol, not {}", version,
          kMessageVersion);
  const auto kind = reader.number<uint8_t>();
  require(kind >= static_cast<uint8_t>(MessageKind::hello) &&
              kind <= static_cast<uint8_t>(MessageKind::goodbye),
          "a message is of the unknown kind {}", kind);
  MessageHeader result{.kind = static_cast<MessageKind>(kind), .op = {}, .bytes = 0};
  const auto op_kind = reader.number<uint8_t>();
  const auto root = reader.number<uint32_t>();
  require(root < kMaxRanks, "a message is from rank {}", root);
  result.op.root = static_cast<int>(root);
  result.op.rows = reader.number<int64_t>();
  result.op.row_bytes = reader.number<int64_t>();
  require(result.op.rows >= 0 && result.op.row_bytes >= 0, "a message is of {} rows of {} bytes",
          result.op.rows, result.op.row_bytes);
  if (result.kind == MessageKind::data) {
    result.op.kind = parse_op_kind(op_kind);
  } else {
    require(op_kind == 0 && result.op == CommOp{}, "a message has an operation, and is none");
  }
  result.bytes = reader.number<uint64_t>();
  const uint64_t max_bytes = max_body_bytes(result.kind, result.op);
  require(result.bytes <= max_bytes, "a message has {} bytes, at most {} are expected",
          result.bytes, max_bytes);
  return result;
}

Hello parse_hello(std::span<const std::byte> body) {
  BodyReader reader(body, "hello");
  Hello hello;
  hello.rank = rank_number(reader.number<uint32_t>(), "as rank");
  hello.size = rank_number(reader.number<uint32_t>(), "ranks");
  const auto channel = reader.number<uint8_t>();
  require(channel <= static_cast<uint8_t>(Channel::control), "a hello has the unknown channel {}",
          channel);
  hello.channel = static_cast<Channel>(channel);
  hello.device = reader.text(kMaxDeviceBytes);
  hello.model = reader.text(kMaxModelBytes);
  reader.end();
  return hello;
}

std::vector<std::string> parse_welcome(std::span<const std::byte> body) {
  BodyReader reader(body, "welcome");
  const auto count = reader.number<uint32_t>();
  require(count <= kMaxRanks, "a welcome is for {} ranks, at most {}", count, kMaxRanks);
  std::vector<std::string> devices;
  for (uint32_t i = 0; i < count; ++i) {
    devices.push_back(reader.text(kMaxDeviceBytes));
  }
  reader.end();
  return devices;
}

std::string parse_reason(std::span<const std::byte> body) {
  require(!body.empty() && body.size() <= kMaxReasonBytes, "a reason has {} bytes", body.size());
  std::string text(reinterpret_cast<const char*>(body.data()), body.size());
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

void check_hello(const Hello& hello) {
  require(hello.size > 0 && hello.size <= kMaxRanks, "{} ranks, but 1 to {} can be", hello.size,
          kMaxRanks);
  require(hello.rank >= 0 && hello.rank < hello.size, "rank {} of {}", hello.rank, hello.size);
  require(hello.device.size() <= kMaxDeviceBytes && BodyReader::is_printable(hello.device),
          "the name of a device is not at most {} printable characters", kMaxDeviceBytes);
  require(hello.model.size() <= kMaxModelBytes && BodyReader::is_printable(hello.model),
          "the fingerprint of a model is not at most {} printable characters", kMaxModelBytes);
}

}  // namespace sparsellm
