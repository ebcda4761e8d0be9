#include "tests/fuzz/record_input.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tca_bme/v1/paper_layout.h"

namespace sparsellm::fuzz {
namespace {

struct Head {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t nonzeros = 0;
  uint32_t most_bytes = 0;
  uint8_t dtype = 0;
  uint8_t seed = 0;
  uint16_t starts = 0;
};
static_assert(sizeof(Head) == 32, "there is no padding");

constexpr int64_t kLayoutWords = 2;

// Takes as many bytes from the front of the input as it has.
void take(std::string_view& input, void* to, size_t bytes) {
  const size_t taken = std::min(bytes, input.size());
  if (taken > 0) {
    std::memcpy(to, input.data(), taken);
  }
  if (taken < bytes) {
    std::memset(static_cast<char*>(to) + taken, 0, bytes - taken);
  }
  input.remove_prefix(taken);
}

template <class T>
EncodedPart take_part(std::string_view& input, std::string_view name, DType type, int64_t count) {
  NewPart<T> part = new_part<T>(std::string(name), type, count);
  take(input, part.values.data(), part.values.size_bytes());
  return std::move(part.part);
}

}  // namespace

RecordInput read_record_input(std::string_view input) {
  Head head;
  take(input, &head, sizeof(head));
  RecordInput result{.weight = {.format = std::string(tca_bme::kName),
                                .version = tca_bme::kRecordVersion,
                                .dtype = head.dtype == 0   ? DType::f16
                                         : head.dtype == 1 ? DType::bf16
                                                           : DType::f32,
                                .rows = head.rows,
                                .columns = head.columns,
                                .nonzeros = head.nonzeros,
                                .parts = {}},
                     .most_bytes = head.most_bytes,
                     .seed = head.seed};
  std::vector<EncodedPart>& parts = result.weight.parts;
  parts.push_back(take_part<uint32_t>(input, tca_bme::kLayout, DType::u32, kLayoutWords));
  parts.push_back(take_part<uint32_t>(input, tca_bme::kStarts, DType::u32, head.starts));
  const auto left = static_cast<int64_t>(input.size());
  parts.push_back(take_part<std::byte>(input, tca_bme::kRecords, DType::u8, left));
  return result;
}

std::string record_input(const RecordInput& input) {
  const EncodedWeight& e = input.weight;
  const Head head{.rows = e.rows,
                  .columns = e.columns,
                  .nonzeros = e.nonzeros,
                  .most_bytes = input.most_bytes,
                  .dtype = static_cast<uint8_t>(e.dtype == DType::f16    ? 0
                                                : e.dtype == DType::bf16 ? 1
                                                                         : 2),
                  .seed = input.seed,
                  .starts = static_cast<uint16_t>(e.part(tca_bme::kStarts).count())};
  std::string text(reinterpret_cast<const char*>(&head), sizeof(head));
  for (const std::string_view name : {tca_bme::kLayout, tca_bme::kStarts, tca_bme::kRecords}) {
    const std::span<const std::byte> bytes = e.part(name).bytes;
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return text;
}

}  // namespace sparsellm::fuzz
