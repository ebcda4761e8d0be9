#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/dtype.h"

namespace sparsellm {

// One of the arrays that make up an encoding.
struct EncodedPart {
  std::string name;
  DType dtype = DType::u8;
  std::span<const std::byte> bytes;  // aligned to the elements; little-endian
  Buffer memory;                     // that `bytes` views; empty if it is somebody else's

  int64_t count() const { return std::ssize(bytes) / size_of(dtype); }
  template <class T>
  std::span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// A part with memory of its own, not initialised, and a writable view of it.
template <class T>
struct NewPart {
  EncodedPart part;
  std::span<T> values;
};
template <class T>
NewPart<T> new_part(std::string_view name, DType dtype, int64_t count) {
  NewPart<T> result;
  result.part.name = name;
  result.part.dtype = dtype;
  const int64_t bytes = checked_mul(count, int64_t{sizeof(T)}, "bytes of an encoding");
  result.part.memory = Buffer(Device{}, bytes, "an encoded weight");
  auto* const data = static_cast<std::byte*>(result.part.memory.data());
  result.part.bytes = {data, static_cast<size_t>(bytes)};
  result.values = {reinterpret_cast<T*>(data), static_cast<size_t>(count)};
  return result;
}

// A weight [rows, columns] (out, in) in one of the formats of sparse/registry.h, in host memory.
struct EncodedWeight {
  std::string format;
  int32_t version = 0;  // of the format's layout
  DType dtype = DType::f16;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t nonzeros = 0;
  std::vector<EncodedPart> parts;

  int64_t bytes() const;
  const EncodedPart* find(std::string_view name) const;  // nullptr if there is none
  const EncodedPart& part(std::string_view name) const;  // throws Error if there is none
};

// What a part has to be; for the validation of encodings from files.
struct ExpectedPart {
  std::string_view name;
  DType dtype = DType::u8;
  int64_t count = 0;
};
// Throws Error that names the part unless `weight` has exactly these parts, aligned.
void require_parts(const EncodedWeight& weight, std::initializer_list<ExpectedPart> expected);

}  // namespace sparsellm
