#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/comm_kernels.h"
#include "kernels/base/pdl.cuh"

// What kernels of several ranks have in common: the memory model's operations between GPUs (PTX
// ISA, "Memory Consistency Model"), the calls of a communicator one after the other, and the two
// forms in which data travel.
//
// Ranks write to each other's memory (CommLayout) and read their own alone. A call of a
// communicator is one kernel on each rank. Calls are numbered, and a call of an even number uses
// other slots than one of an odd number. That is enough to know when a slot may be written again:
// in every call each rank gets something from every other. Who is in call n + 2 has all of call
// n + 1; so all others have begun with call n + 1; so they are done with call n, whose slots are
// used again now.
//
// Blocks wait for other GPUs, but for no other block of their own: all of a kernel's blocks fit on
// the GPU at once, and nothing that they wait for waits for what comes after them in their queue.
namespace sparsellm {

// One access of 16 aligned bytes to memory that other GPUs write or read at the same time: all of
// it is old, or all of it is new.
__device__ inline void store_whole(void* to, const uint4& value) {
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 3)
  asm volatile(
      "{\n\t"
      ".reg .b64 low, high;\n\t"
      ".reg .b128 whole;\n\t"
      "mov.b64 low, {%1, %2};\n\t"
      "mov.b64 high, {%3, %4};\n\t"
      "mov.b128 whole, {low, high};\n\t"
      "st.relaxed.sys.global.b128 [%0], whole;\n\t"
      "}" ::"l"(to),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
#else  // older toolkits have no name for the same instruction
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
#endif
}

__device__ inline uint4 load_whole(const void* from) {
  uint4 value;
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 3)
  asm volatile(
      "{\n\t"
      ".reg .b64 low, high;\n\t"
      ".reg .b128 whole;\n\t"
      "ld.relaxed.sys.global.b128 whole, [%4];\n\t"
      "mov.b128 {low, high}, whole;\n\t"
      "mov.b64 {%0, %1}, low;\n\t"
      "mov.b64 {%2, %3}, high;\n\t"
      "}"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "l"(from)
      : "memory");
#else
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
#endif
  return value;
}

__device__ inline void store_release(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline uint64_t load_acquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline uint64_t load_relaxed(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline uint32_t load_relaxed_sys(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Calls arrived() until it is true; false: everything has ended meanwhile.
template <class Arrived>
__device__ bool poll_until(const uint32_t* abort_word, Arrived&& arrived) {
  constexpr uint32_t kPolls = 4096;  // about a millisecond, so that the host's memory has peace
  for (uint32_t polls = 1; !arrived(); ++polls) {
    if (polls % kPolls == 0 && load_relaxed_sys(abort_word) != 0) {
      return false;
    }
  }
  return true;
}

// A call of the communicator, on one rank. begin() and finish() are called by all threads of all
// blocks; begin() waits for the kernels before.
class CommCall {
 public:
  __device__ static CommCall begin(const CommWorld& world) {
    launch_dependents();
    wait_on_dependencies();
    return CommCall(world);
  }

  __device__ uint64_t number() const { return number_; }
  __device__ uint32_t short_number() const { return static_cast<uint32_t>(number_); }
  __device__ int turn() const { return static_cast<int>(number_ & 1); }
  // False once everything has ended: then nothing comes any more, and there is no result.
  __device__ bool goes_on() const { return number_ != kEnded; }

  // As poll_until().
  template <class Arrived>
  __device__ bool wait_until(Arrived&& arrived) const {
    return poll_until(world_.abort_word, arrived);
  }

  // complete: whether this thread has got all that it waited for. Those who have not, and all that
  // come after them, end at once.
  __device__ void finish(bool complete) {
    const bool ended = __syncthreads_or(!complete) != 0;
    for (unsigned block = blockIdx.x + threadIdx.x * gridDim.x; block < CommLayout::kMaxBlocks;
         block += blockDim.x * gridDim.x) {
      numbers()[block] = ended ? kEnded : number_ + 1;
    }
    // Twice in 2^32 calls, once for each turn.
    if (!ended && short_number() < 2) {
      forget_old_packets();
    }
  }

 private:
  static constexpr uint64_t kEnded = ~uint64_t{0};

  __device__ explicit CommCall(const CommWorld& world)
      : world_(world), number_(load_relaxed(numbers() + blockIdx.x)) {}

  __device__ std::byte* own() const { return world_.memory[world_.rank]; }
  __device__ uint64_t* numbers() const { return reinterpret_cast<uint64_t*>(own()); }

  // Packets bear the lower half of the number of their call. One that lies there unused since 2^32
  // calls would be taken for one of today, so all of this turn get a number of the other turn, as
  // they have at first (CommArea). The last block does so: then this rank has all packets of this
  // call, and others will not write here before it has sent some of the next.
  __device__ void forget_old_packets() const {
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
      auto* const done = reinterpret_cast<uint32_t*>(own() + CommLayout::kDoneOffset);
      __threadfence();
      is_last = atomicAdd(done, 1) == gridDim.x - 1;
      if (is_last) {
        *done = 0;
      }
    }
    __syncthreads();
    if (is_last) {
      const CommSlots& slots = world_.layout.packets;
      const int64_t bytes = (world_.ranks - 1) * slots.slot_bytes;
      std::byte* const first = own() + slots.offset + turn() * bytes;
      const uint32_t word = turn() == 0 ? ~0u : 0u;
      for (int64_t at = threadIdx.x * sizeof(uint4); at < bytes; at += blockDim.x * sizeof(uint4)) {
        *reinterpret_cast<uint4*>(first + at) = make_uint4(word, word, word, word);
      }
    }
  }

  const CommWorld& world_;
  uint64_t number_;
};

// The slot of `from` in the memory of `at`.
__device__ inline std::byte* comm_slot(const CommWorld& world, const CommSlots& slots, int turn,
                                       int at, int from) {
  const int index = from > at ? from - at - 1 : from - at - 1 + world.ranks;
  return world.memory[at] + slots.offset + (turn * (world.ranks - 1) + index) * slots.slot_bytes;
}

// The two forms. A lane has kVectors of the 16 * 32 * kVectors bytes of a unit, 512 bytes apart; it
// is active if there is something in its first. All lanes of a warp call send() and receive().
struct CommPackets {
  static constexpr CommUnit kUnit = kPacketUnit;
  static constexpr int kVectors = 3;
  __device__ static const CommSlots& slots(const CommWorld& world) { return world.layout.packets; }

  __device__ static void send(const CommCall& call, std::byte* slot, int unit, bool active,
                              const uint4 (&data)[kVectors]) {
    if (active) {
      std::byte* const to = place(slot, unit);
      const uint32_t number = call.short_number();
      store_whole(to, make_uint4(data[0].x, data[0].y, data[0].z, number));
      store_whole(to + kStep, make_uint4(data[1].x, data[1].y, data[1].z, number));
      store_whole(to + 2 * kStep, make_uint4(data[2].x, data[2].y, data[2].z, number));
      store_whole(to + 3 * kStep, make_uint4(data[0].w, data[1].w, data[2].w, number));
    }
  }

  // Whether it has come.
  __device__ static bool receive(const CommCall& call, std::byte* slot, int unit, bool active,
                                 uint4 (&data)[kVectors]) {
    if (!active) {
      return true;
    }
    const std::byte* const from = place(slot, unit);
    const uint32_t number = call.short_number();
    uint4 rest;
    const bool come = call.wait_until([&] {
      data[0] = load_whole(from);
      data[1] = load_whole(from + kStep);
      data[2] = load_whole(from + 2 * kStep);
      rest = load_whole(from + 3 * kStep);
      return data[0].w == number && data[1].w == number && data[2].w == number && rest.w == number;
    });
    data[0].w = rest.x;
    data[1].w = rest.y;
    data[2].w = rest.z;
    return come;
  }

 private:
  static constexpr int kStep = 32 * sizeof(uint4);
  __device__ static std::byte* place(std::byte* slot, int unit) {
    return slot + unit * kUnit.wire_bytes + threadIdx.x % 32 * sizeof(uint4);
  }
};

struct CommTiles {
  static constexpr CommUnit kUnit = kTileUnit;
  static constexpr int kVectors = 4;
  __device__ static const CommSlots& slots(const CommWorld& world) { return world.layout.tiles; }

  __device__ static void send(const CommCall& call, std::byte* slot, int unit, bool active,
                              const uint4 (&data)[kVectors]) {
    std::byte* const to = place(slot, unit);
    if (active) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        store_whole(to + i * kStep, data[i]);
      }
    }
    __syncwarp();  // what all lanes have stored is released by one
    if (threadIdx.x % 32 == 0) {
      store_release(flag(slot, unit), call.number());
    }
  }

  __device__ static bool receive(const CommCall& call, std::byte* slot, int unit, bool active,
                                 uint4 (&data)[kVectors]) {
    bool come = true;
    if (threadIdx.x % 32 == 0) {
      come = call.wait_until([&] { return load_acquire(flag(slot, unit)) == call.number(); });
    }
    come = __shfl_sync(~0u, static_cast<int>(come), 0) != 0;
    __syncwarp();
    if (come && active) {
      const std::byte* const from = place(slot, unit);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        data[i] = load_whole(from + i * kStep);
      }
    }
    return come;
  }

 private:
  static constexpr int kStep = 32 * sizeof(uint4);
  __device__ static std::byte* place(std::byte* slot, int unit) {
    return slot + unit * kUnit.wire_bytes + threadIdx.x % 32 * sizeof(uint4);
  }
  __device__ static uint64_t* flag(std::byte* slot, int unit) {
    return reinterpret_cast<uint64_t*>(slot + unit * kUnit.wire_bytes + kUnit.data_bytes);
  }
};

}  // namespace sparsellm
