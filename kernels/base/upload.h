#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/mapped_file.h"

namespace sparsellm {

// Numbers in the host's memory, and where on a CUDA device they go.
struct Upload {
  std::string what;                   // names the numbers in an Error
  std::span<const std::byte> source;  // whole numbers, not necessarily aligned
  // Rows of a matrix some columns of which are copied, one after the other: as many as the source,
  // which is the first one, every `pitch` bytes.
  int64_t rows = 1;
  int64_t pitch = 0;
  DType from = DType::f32;
  void* destination = nullptr;       // not necessarily aligned
  DType to = DType::f32;             // the same as `from`, or both are floating
  const MappedFile* file = nullptr;  // that the source is mapped from; none: it is in memory
  // Called with the bytes that are about to go to the device, on any thread: throws Error if they
  // must not. Then there are at most Uploader::kPieceBytes, which are not converted; also of none.
  std::function<void(std::span<const std::byte>)> check = {};

  int64_t bytes() const { return rows * std::ssize(source); }  // of all rows
  std::span<const std::byte> row(int64_t i) const {
    return {source.data() + i * pitch, source.size()};
  }
};

// Brings the numbers of an upload to host memory that may be written to, converted: through the
// mapping of its file only where they are. Pages of that which it brings in do not stay in memory.
// Throws Error that begins with upload.what if a finite number is too large.
void read_source(const Upload& upload, std::byte* to);

// Whether a's source comes before b's: a file that is not in the page cache is read from its begin
// to its end.
inline bool is_read_before(const Upload& a, const Upload& b) {
  return std::less<>()(a.source.data(), b.source.data());
}

// Copies large amounts of memory to a CUDA device: several threads fill page-locked buffers, each
// one buffer while its other one is on its way, so that neither page faults and conversions nor the
// driver's own staging hold up the bus. Uploads are held until they are copied together, in the
// order of their sources. Threads and buffers are made as they are needed and live as long as the
// object. Not thread-safe. In a CPU-only build the constructor throws.
class Uploader {
 public:
  using Progress = std::function<void()>;

  // Of sources, since the object was made; what was dropped or broken off does not count.
  struct Bytes {
    int64_t submitted = 0;
    int64_t done = 0;  // that are on the device
  };

  // What is copied at once: large enough that the fixed cost of a copy (some 10 us) does not show,
  // small enough that the buffers of all threads are quickly page-locked.
  static constexpr int64_t kPieceBytes = 2 << 20;

  explicit Uploader(Device device);  // throws Error
  // Uploads that are held are dropped.
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Holds the upload; source and destination stay as they are until it has been copied, or this
  // object is gone. Throws Error for a source that is no whole number of elements, and for a check
  // of too many bytes or of converted ones.
  void submit(Upload upload);
  int64_t held() const;  // uploads
  // Drops all that is held except the first ones: for destinations that go without values.
  void drop(int64_t first) noexcept;

  // Copies all that is held, and returns when it is on the device, for every stream. Throws the
  // first Error of an upload: CUDA's, its check's, that a finite number is too large for its new
  // dtype, or that there are no threads. `progress` is called at once, now and then, and at the
  // end, on the calling thread; what it throws is thrown on. Whatever is thrown, all that was
  // submitted is broken off, no source is read and no destination written to any more, and new
  // uploads may be submitted.
  void finish(const Progress& progress = {});
  // The same for all except the `first` uploads that are held, which stay so: for values that are
  // needed before the others.
  void flush(int64_t first);

  Bytes bytes() const;
  Bytes file_bytes() const;  // of these, of uploads with a file

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
