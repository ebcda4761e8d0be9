#include "tests/sparse/encodings.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sparse/format.h"
#include "tests/testing/compare.h"

namespace sparsellm::testing {

::testing::AssertionResult same_encoding(const EncodedWeight& got, const EncodedWeight& expected) {
  const auto header = [](const EncodedWeight& e) {
    return fmt::format("{} version {}, {} [{}, {}], {} nonzeros, {} parts", e.format, e.version,
                       name_of(e.dtype), e.rows, e.columns, e.nonzeros, e.parts.size());
  };
  if (header(got) != header(expected)) {
    return ::testing::AssertionFailure() << "got " << header(got) << ", not " << header(expected);
  }
  for (size_t i = 0; i < got.parts.size(); ++i) {
    const EncodedPart& a = got.parts[i];
    const EncodedPart& b = expected.parts[i];
    if (a.name != b.name || a.dtype != b.dtype || a.bytes.size() != b.bytes.size()) {
      return ::testing::AssertionFailure()
             << "got the part " << a.name << " of " << a.bytes.size() << " bytes of "
             << safetensors_name(a.dtype) << ", not " << b.name << " of " << b.bytes.size()
             << " bytes of " << safetensors_name(b.dtype);
    }
    const auto differ = std::mismatch(a.bytes.begin(), a.bytes.end(), b.bytes.begin()).first;
    if (differ != a.bytes.end()) {
      return ::testing::AssertionFailure()
             << "byte " << differ - a.bytes.begin() << " of " << a.bytes.size() << " of the part "
             << a.name << " differs";
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult same_matrix(const Tensor& got, const Tensor& expected) {
  const bool same = got.dtype() == expected.dtype() && got.rank() == 2 && expected.rank() == 2 &&
                    got.size(0) == expected.size(0) && got.size(1) == expected.size(1) &&
                    got.contiguous() && expected.contiguous() &&
                    (got.bytes() == 0 ||
                     std::memcmp(got.raw(), expected.raw(), static_cast<size_t>(got.bytes())) == 0);
  return same ? ::testing::AssertionSuccess() : same_bits(got, expected);
}

EncodedWeight copy_of(const EncodedWeight& e) { return with_own_memory(view_of(e)); }

EncodedWeight damaged_copy_of(const EncodedWeight& e, Random& random) {
  EncodedWeight damaged = copy_of(e);
  damaged.rows += random.below(2) * (random.below(9) - 4);
  damaged.columns += random.below(2) * (random.below(9) - 4);
  damaged.nonzeros += random.below(2) * (random.below(3) - 1);
  for (int64_t count = random.below(4); count > 0; --count) {
    EncodedPart& part = damaged.parts[static_cast<size_t>(random.below(std::ssize(e.parts)))];
    const int64_t byte = random.below(std::ssize(part.bytes));
    static_cast<std::byte*>(part.memory.data())[byte] = std::byte(random.below(256));
  }
  return damaged;
}

}  // namespace sparsellm::testing
