#include "sparse/encoded_weight.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sparsellm {

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
    require(part.dtype == wanted.dtype, "the part {} of the encoding {} is {}, not {}", part.name,
            weight.format, safetensors_name(part.dtype), safetensors_name(wanted.dtype));
    require(wanted.count >= 0 && std::ssize(part.bytes) / size_of(part.dtype) == wanted.count &&
                std::ssize(part.bytes) % size_of(part.dtype) == 0,
            "the part {} of the encoding {} has {} bytes, not {} elements of {}", part.name,
            weight.format, part.bytes.size(), wanted.count, size_of(part.dtype));
    require(reinterpret_cast<uintptr_t>(part.bytes.data()) %
                    static_cast<uintptr_t>(size_of(part.dtype)) ==
                0,
            "the part {} of the encoding {} is not aligned", part.name, weight.format);
  }
  require(weight.parts.size() == expected.size(), "the encoding {} has {} parts, not {}",
          weight.format, weight.parts.size(), expected.size());
}

}  // namespace sparsellm
