#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/comm_op.h"

namespace sparsellm {

// What ranks in several processes send to each other: messages of a header and a body, numbers
// little-endian. The functions here are all that reads them.
//
//   header  char[8] "SparseTP", u16 version, u8 MessageKind, u8 CommKind (0: none), u32 root,
//           i64 rows, i64 bytes of a row (both of CommOp), u64 bytes of the body
//   hello   u32 rank, u32 ranks, u8 channel, texts: device, model
//   welcome u32 ranks, their texts: device
//   data    the bytes of an operation: rows of a tensor one after the other, or bytes of the host
//   refusal, abort: the reason, one line
//   late, goodbye: nothing
// A text is u32 length and as many bytes of printable ASCII.
//
// The header is read before there is anything else, so that a message of another version or
// program, or one that is too long, is refused before memory is allocated for it.

enum class MessageKind : uint8_t {
  hello = 1,  // of every connection to rank 0, the first message
  welcome,    // of rank 0, on data connections, when all have come
  refusal,    // of rank 0, instead
  data,       // of an operation
  abort,      // on control connections, like those below
  late,       // to rank 0: this rank has waited too long; for whom?
  goodbye,    // this rank is destroyed, and nothing is wrong
};

inline constexpr uint16_t kMessageVersion = 1;
inline constexpr size_t kHeaderBytes = 40;
inline constexpr int kMaxRanks = 64;
inline constexpr size_t kMaxDeviceBytes = 128;
inline constexpr size_t kMaxModelBytes = 256;
// The longest body of a message of this kind; of data it is the tensor.
uint64_t max_body_bytes(MessageKind kind, const CommOp& op);

struct MessageHeader {
  MessageKind kind = MessageKind::data;
  CommOp op;  // of MessageKind::data
  uint64_t bytes = 0;
};

enum class Channel : uint8_t {
  data,     // operations, one after the other
  control,  // aborts, at any time
};

struct Hello {
  int rank = 0;
  int size = 0;
  Channel channel = Channel::data;
  std::string device;
  std::string model;  // what all ranks must have in common
};

// A whole header and a body.
std::vector<std::byte> message(MessageKind kind, std::span<const std::byte> body = {});
std::array<std::byte, kHeaderBytes> header_bytes(const MessageHeader& header);
std::vector<std::byte> hello_body(const Hello& hello);
std::vector<std::byte> welcome_body(std::span<const std::string> devices);

// Whether bytes, of which there may be fewer than a header has, are or may become a header of this
// program, whatever its version.
bool is_ours(std::span<const std::byte> bytes);

// These throw Error for anything that is not as described above. `header` has kHeaderBytes, and the
// body that it announces at most max_body_bytes().
MessageHeader parse_header(std::span<const std::byte> header);
Hello parse_hello(std::span<const std::byte> body);
std::vector<std::string> parse_welcome(std::span<const std::byte> body);
// Control characters become spaces; not empty.
std::string parse_reason(std::span<const std::byte> body);

// Throws Error unless the hello could be sent: device and model are printable and not too long.
void check_hello(const Hello& hello);

}  // namespace sparsellm
