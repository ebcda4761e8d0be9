#include "tests/fuzz/record_input.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
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

constexpr uint8_t kVersion3 = 128;

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

DType dtype_from(uint8_t code) {
  return code == 0 ? DType::f16 : code == 1 ? DType::bf16 : DType::f32;
}

uint8_t code_of(const EncodedWeight& e) {
  const int code = e.dtype == DType::f16 ? 0 : e.dtype == DType::bf16 ? 1 : 2;
  return static_cast<uint8_t>(tca_bme::is_quantized(e) ? code + kVersion3 : code);
}

void append_bytes(std::string& text, const void* bytes, size_t count) {
  text.append(static_cast<const char*>(bytes), count);
}
void append_part(std::string& text, const EncodedWeight& e, std::string_view name) {
  append_bytes(text, e.part(name).bytes.data(), e.part(name).bytes.size());
}

}  // namespace

RecordInput read_record_input(std::string_view input) {
  Head head;
  take(input, &head, sizeof(head));
  const bool is_version3 = head.dtype >= kVersion3;
  RecordInput result{
      .weight = {.format = std::string(tca_bme::kName),
                 .version = is_version3 ? tca_bme::kQuantizedVersion : tca_bme::kRecordVersion,
                 .dtype = dtype_from(head.dtype % kVersion3),
                 .rows = head.rows,
                 .columns = head.columns,
                 .nonzeros = head.nonzeros,
                 .parts = {}},
      .most_bytes = head.most_bytes,
      .seed = head.seed};
  std::vector<EncodedPart>& parts = result.weight.parts;
  parts.push_back(
      take_part<uint32_t>(input, tca_bme::kLayout, DType::u32,
                          is_version3 ? tca_bme::kQuantizedLayoutWords : tca_bme::kLayoutWords));
  parts.push_back(take_part<uint32_t>(input, tca_bme::kStarts, DType::u32, head.starts));
  std::optional<EncodedPart> scales;
  if (is_version3) {
    uint32_t count = 0;
    take(input, &count, sizeof(count));
    const auto there = std::min<size_t>(count, input.size() / sizeof(float));
    const uint32_t type = parts.front().values<uint32_t>().front();
    if (there > 0 || type != static_cast<uint32_t>(tca_bme::QuantizedLayout::Values::i4)) {
      scales = take_part<float>(input, tca_bme::kScales, DType::f32, static_cast<int64_t>(there));
    }
  }
  const auto left = static_cast<int64_t>(input.size());
  parts.push_back(take_part<std::byte>(input, tca_bme::kRecords, DType::u8, left));
  if (scales) {
    parts.push_back(*std::move(scales));
  }
  return result;
}

std::string record_input(const RecordInput& input) {
  const EncodedWeight& e = input.weight;
  const Head head{.rows = e.rows,
                  .columns = e.columns,
                  .nonzeros = e.nonzeros,
                  .most_bytes = input.most_bytes,
                  .dtype = code_of(e),
                  .seed = input.seed,
                  .starts = static_cast<uint16_t>(e.part(tca_bme::kStarts).count())};
  std::string text;
  append_bytes(text, &head, sizeof(head));
  append_part(text, e, tca_bme::kLayout);
  append_part(text, e, tca_bme::kStarts);
  if (tca_bme::is_quantized(e)) {
    const auto scales = std::ranges::find(e.parts, tca_bme::kScales, &EncodedPart::name);
    const auto count =
        static_cast<uint32_t>(scales == e.parts.end() ? 0 : scales->values<float>().size());
    append_bytes(text, &count, sizeof(count));
    if (count > 0) {
      append_part(text, e, tca_bme::kScales);
    }
  }
  append_part(text, e, tca_bme::kRecords);
  return text;
}

}  // namespace sparsellm::fuzz
