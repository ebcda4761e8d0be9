#include "sparse/encoded_weight.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sparsellm {

int64_t size_of(PartType type) {
  switch (type) {
    case PartType::u8:
      return 1;
    case PartType::u16:
    case PartType::f16:
    case PartType::bf16:
      return 2;
    case PartType::u32:
    case PartType::f32:
      return 4;
    case PartType::u64:
      return 8;
  }
  return 1;
}

std::string_view safetensors_name(PartType type) {
  switch (type) {
    case PartType::u8:
      return "U8";
    case PartType::u16:
      return "U16";
    case PartType::u32:
      return "U32";
    case PartType::u64:
      return "U64";
    case PartType::f16:
      return "F16";
    case PartType::bf16:
      return "BF16";
    case PartType::f32:
      return "F32";
  }
  return "?";
}

PartType part_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return PartType::f16;
    case DType::bf16:
      return PartType::bf16;
    case DType::f32:
      return PartType::f32;
    default:
      fail("a weight of {} values", name_of(dtype));
  }
}

int64_t EncodedWeight::bytes() const {
  int64_t sum = 0;
  for (const EncodedPart& part : parts) {
    sum += std::ssize(part.bytes);
  }
  return sum;
}

const EncodedPart* EncodedWeight::find(std::string_view name) const {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const EncodedPart& part) { return part.name == name; });
  return found == parts.end() ? nullptr : &*found;
}

const EncodedPart& EncodedWeight::part(std::string_view name) const {
  const EncodedPart* const found = find(name);
  require(found != nullptr, "the encoding {} has no part {}", format, name);
  return *found;
}

void require_parts(const EncodedWeight& weight, std::initializer_list<ExpectedPart> expected) {
  for (const ExpectedPart& wanted : expected) {
    const EncodedPart& part = weight.part(wanted.name);
    require(part.type == wanted.type, "the part {} of the encoding {} is {}, not {}", part.name,
            weight.format, safetensors_name(part.type), safetensors_name(wanted.type));
    require(wanted.count >= 0 && std::ssize(part.bytes) / size_of(part.type) == wanted.count &&
                std::ssize(part.bytes) % size_of(part.type) == 0,
            "the part {} of the encoding {} has {} bytes, not {} elements of {}", part.name,
            weight.format, part.bytes.size(), wanted.count, size_of(part.type));
    require(reinterpret_cast<uintptr_t>(part.bytes.data()) %
                    static_cast<uintptr_t>(size_of(part.type)) ==
                0,
            "the part {} of the encoding {} is not aligned", part.name, weight.format);
  }
  require(weight.parts.size() == expected.size(), "the encoding {} has {} parts, not {}",
          weight.format, weight.parts.size(), expected.size());
}

}  // namespace sparsellm
