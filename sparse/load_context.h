#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/error.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

struct EncodedWeight;  // sparse/encoded_weight.h
struct ExecContext;    // kernels/base/exec.h
class MappedFile;      // kernels/base/mapped_file.h
class ThreadPool;      // kernels/base/parallel.h
class Uploader;        // kernels/base/upload.h

// What it takes to load weights to a device.
struct LoadContext {
  Device device = {};
  // What products on a CUDA device compute in, which is the dtype of all weights there. On the CPU
  // each weight keeps its own.
  DType compute = DType::f32;
  ThreadPool& threads;
  // The context of encoders and other kernels on a CUDA device. A function, which makes it in the
  // first call: weights that are only copied do without the time and the memory that it takes.
  std::function<ExecContext&()> exec = {};
  // Takes the copies to a CUDA device, each under the name of its weight. None on the CPU.
  Uploader* uploads = nullptr;
};

// One of the encodings that, one below the other, make up a weight.
struct WeightPart {
  // On a CUDA device it stays, with all that it views, until the copies that are held are done.
  EncodedWeight* weight = nullptr;
  std::string name = "an encoded weight";  // in errors
  // The file that the weight comes from: its arrays are views of the mapping, or have memory of
  // their own, and it has not been validated. None: a valid weight in memory.
  const MappedFile* file = nullptr;
  // What is to be loaded of it, inside of it; none: all. Where it falls at borders of the format no
  // other values are read.
  std::optional<Slice> slice = {};

  // Of what is to be loaded.
  int64_t rows() const;
  int64_t columns() const;
  // `file`, if these bytes are a view of it.
  const MappedFile* file_of(std::span<const std::byte> bytes) const;
};

// Returns f(), whose Error then begins with the name; OutOfMemory and DeviceLost, which are no
// fault of what has the name, stay as they are.
template <class F>
auto naming_errors(const std::string& name, F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const OutOfMemory&) {
    throw;
  } catch (const DeviceLost&) {
    throw;
  } catch (const Error& error) {
    fail("{}: {}", name, error.what());
  }
}

}  // namespace sparsellm
