#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  DType from = DType::f32;
  void* destination = nullptr;       // not necessarily aligned
  DType to = DType::f32;             // the same as `from`, or both are floating
  const MappedFile* file = nullptr;  // that the source is mapped from; none: it is in memory
  // Called with the bytes that are about to go to the device, on any thread: throws Error if they
  // must not. Then there are at most Uploader::kPieceBytes, which are not converted; also of none.
  std::function<void(std::span<const std::byte>)> check = {};
};

// Copies large amounts of memory to a CUDA device: several threads fill page-locked buffers, each
// one buffer while its other one is on its way, so that neither page faults and conversions nor the
// driver's own staging hold up the bus. Threads and buffers are made as they are needed and live as
// long as the object. Not thread-safe. In a CPU-only build the constructor throws.
class Uploader {
 public:
  using Progress = std::function<void(int64_t bytes_done)>;

  // What is copied at once: large enough that the fixed cost of a copy (some 10 us) does not show,
  // small enough that the buffers of all threads are quickly page-locked.
  static constexpr int64_t kPieceBytes = 2 << 20;

  explicit Uploader(Device device);  // throws Error
  // Uploads that are not finished are broken off; afterwards nobody reads a source or writes to a
  // destination.
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Returns at once; source and destination stay as they are until finish() or the destructor. If
  // it throws for want of threads, all uploads are broken off.
  void submit(Upload upload);

  // Returns when all uploads are on the device, for every stream. Throws the first Error of an
  // upload: CUDA's, its check's, or that a finite number is too large for its new dtype; then the
  // others are broken off, and new ones may be submitted. `progress` is called at once, now and
  // then, and at the end, on the calling thread, with the bytes of all sources that are on the
  // device; what it throws is thrown on in the same way. Whatever is thrown, nobody reads a source
  // or writes to a destination any more.
  void finish(const Progress& progress = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
