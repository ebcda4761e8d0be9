#pragma once

#include <cstddef>

namespace sparsellm {

// For calls of libraries that do not survive std::bad_alloc: they go on with what they have not
// initialised, or end the program. While one of these lives, the first operator new of its thread
// that fails gives the reserve to the heap and tries again, so that the call comes to an end.
//
// It only works with an operator new that asks the new handler, as the standard's does. Of those in
// one thread the last one made counts.
class MemoryReserve {
 public:
  // Throws std::bad_alloc if there are not that many bytes, a bound of what the calls take.
  explicit MemoryReserve(size_t bytes);
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  // After the calls: throws std::bad_alloc if the reserve was needed. The bound is not exact, and
  // the next call may need as much.
  void require_unused() const;

 private:
  static void give_to_heap();  // the new handler
  void release() noexcept;

  size_t bytes_;
  void* memory_;
  MemoryReserve* outer_;
};

}  // namespace sparsellm
