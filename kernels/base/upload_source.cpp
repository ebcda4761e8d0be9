#include <cstring>
#include <optional>

#include "kernels/base/convert.h"
#include "kernels/base/error.h"
#include "kernels/base/upload.h"

namespace sparsellm {
namespace {

void read_converted(const Upload& upload, std::span<const std::byte> source, std::byte* to) {
  if (upload.file != nullptr) {
    populate_pages(source);
  }
  const std::optional<float> overflow =
      convert(upload.from, source.data(), upload.to, to, std::ssize(source) / size_of(upload.from));
  require(!overflow, "{}: the value {} is too large for {}", upload.what, overflow.value_or(0),
          name_of(upload.to));
  if (upload.file != nullptr) {
    release_pages(source);
  }
}

}  // namespace

void read_source(const Upload& upload, std::byte* to) {
  const int64_t count = std::ssize(upload.source) / size_of(upload.from);
  if (count == 0) {
    return;
  }
  for (int64_t i = 0; i < upload.rows; ++i, to += count * size_of(upload.to)) {
    const std::span<const std::byte> source = upload.row(i);
    if (upload.from != upload.to) {
      read_converted(upload, source, to);
    } else if (upload.file != nullptr) {
      upload.file->read(source, to);
    } else {
      std::memcpy(to, source.data(), source.size());
    }
  }
}

}  // namespace sparsellm
