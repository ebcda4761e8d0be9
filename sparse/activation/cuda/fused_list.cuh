#pragma once

#include <cstdint>

#include "sparse/activation/cuda/fused_parameters.cuh"

// Which neurons are active, from the words of all blocks: this block's share of them for gate and
// up, and those of its half for down.
namespace sparsellm::fused {

constexpr uint16_t kIdle = 0x8000;  // a neuron of a whole unit that no token needs

class FusedList {
 public:
  __device__ FusedList(const FusedParameters& p, const FusedBlock& b, FusedShared& shared,
                       uint8_t* memory)
      : p_(p),
        b_(b),
        shared_(shared),
        bits_(reinterpret_cast<uint32_t*>(memory + p.at.bits)),
        any_(reinterpret_cast<uint16_t*>(memory + p.at.any)),
        before_(reinterpret_cast<uint16_t*>(memory + p.at.before)),
        list_(reinterpret_cast<uint16_t*>(memory + p.at.list)) {}

  // Waits for all words. All threads, which have some units each.
  __device__ void read(uint64_t generation) const {
    const int units_of_thread = (b_.units + kThreads - 1) / kThreads;
    const int begin = min(static_cast<int>(threadIdx.x) * units_of_thread, b_.units);
    const int end = min(begin + units_of_thread, b_.units);
    read_words(generation, begin, end);
    uint32_t mine = 0;  // active neurons, and above them those of the lower half
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
      const uint32_t count = __popc(any_[unit]);
      mine += count + (unit < b_.units / 2 ? count << 16 : 0);
    }
    uint32_t all = 0;
    const int before = sum_before(mine, all) & 0xffff;
    const int active = all & 0xffff;
    const int lower = all >> 16;
    const int share_begin = begin_of_share(active, b_.block);
    const int share_end = begin_of_share(active, b_.block + 1);
    const int half_start = b_.half == 0 ? 0 : lower;
    if (threadIdx.x == 0) {
      shared_.count = share_end - share_begin;
      shared_.share_begin = share_begin;
      shared_.half_start = half_start;
      shared_.half_count = b_.half == 0 ? lower : active - lower;
    }
    int whole_before = 0;
    if (p_.whole_units) {
      uint32_t units = 0;
#pragma unroll 1
      for (int unit = begin; unit < end; ++unit) {
        units += is_of_half(unit) && any_[unit] != 0;
      }
      __syncthreads();
      uint32_t unused = 0;
      whole_before = sum_before(units, unused) * kUnit;
    }
    write(begin, end, before, share_begin, share_end, half_start, whole_before);
    __syncthreads();
  }

  // Entries of this block's half before those of warp `warp`. Of whole units the number of the unit
  // decides.
  __device__ int begin_of_warp(int warp) const {
    return p_.whole_units ? before_[b_.units_of_half * warp / kWarpsOfBlock]
                          : shared_.half_count * warp / kWarpsOfBlock;
  }
  // Each warp may change its own.
  __device__ uint16_t* entries() const { return list_; }

 private:
  // active * block / blocks: the product is below 2^24, so that what per_block is too large by does
  // not reach the next integer.
  __device__ int begin_of_share(int active, int block) const {
    static_assert(int64_t{kMostNeurons} * kMostBlocks < (1 << 24));
    return static_cast<int>(__umulhi(static_cast<uint32_t>(active * block), p_.per_block));
  }

  // Of [begin, end), some at a time, so that not each of them is waited for.
  __device__ void read_words(uint64_t generation, int begin, int end) const {
    constexpr int kAtOnce = 4;
    const int units = end - begin;
    const int all = p_.shape.token_pairs() * units;  // pair by pair
    int unit = 0;
    int first_of_pair = begin;
#pragma unroll 1
    for (int first = 0; first < all; first += kAtOnce) {
      uint64_t words[kAtOnce];
      int from[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        from[k] = first_of_pair + unit;
        if (first + k + 1 < all && ++unit == units) {
          unit = 0;
          first_of_pair += b_.units;
        }
      }
      bool waits = true;
      do {
        waits = false;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                       : "=l"(words[k])
                       : "l"(p_.active + from[k])
                       : "memory");
        }
#pragma unroll
        for (const uint64_t word : words) {
          waits |= word >> 32 != (generation & 0xffffffff);
        }
      } while (waits);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        bits_[from[k]] = static_cast<uint32_t>(words[k]);
      }
    }
#pragma unroll 1
    for (int u = begin; u < end; ++u) {
      uint32_t any = 0;
#pragma unroll 1
      for (int pair = 0; pair < p_.shape.token_pairs(); ++pair) {
        any |= bits_[pair * b_.units + u];
      }
      any_[u] = static_cast<uint16_t>(any | any >> kUnit);
    }
  }

  __device__ bool is_of_half(int unit) const {
    return unit >= b_.first_of_half && unit < b_.first_of_half + b_.units_of_half;
  }

  // Of the threads before this one; `all`: of all threads. Another call needs a barrier first.
  __device__ uint32_t sum_before(uint32_t mine, uint32_t& all) const {
    uint32_t sum = mine;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, sum, d);
      sum += b_.lane >= d ? other : 0;
    }
    if (b_.lane == kWarp - 1) {
      shared_.active_of_warp[b_.warp] = sum;
    }
    __syncthreads();
    const uint32_t of_warp = b_.lane < kWarpsOfBlock ? shared_.active_of_warp[b_.lane] : 0;
    all = __reduce_add_sync(~0u, of_warp);
    return sum - mine + __reduce_add_sync(~0u, b_.lane < b_.warp ? of_warp : 0);
  }

  __device__ void write(int begin, int end, int at, int share_begin, int share_end, int half_start,
                        int whole_at) const {
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
      const uint32_t any = any_[unit];
      const bool of_half = is_of_half(unit);
      const int own_unit = unit - b_.first_of_half;
      if (of_half && p_.whole_units) {
        whole_at = write_whole(own_unit, any, whole_at);
      }
#pragma unroll 1
      for (uint32_t left = any; left != 0; left &= left - 1, ++at) {
        const int bit = __ffs(left) - 1;
        if (of_half && !p_.whole_units) {
          list_[at - half_start] = static_cast<uint16_t>(own_unit * kUnit + bit);
        }
        if (at >= share_begin && at < share_end) {
          shared_.list[at - share_begin] = static_cast<uint16_t>(unit * kUnit + bit);
        }
      }
    }
  }

  // Entries of all neurons of a unit, if any is active; returns where those of the next one begin.
  __device__ int write_whole(int own_unit, uint32_t any, int at) const {
    before_[own_unit] = static_cast<uint16_t>(at);
    if (any != 0) {
#pragma unroll 1
      for (int k = 0; k < kUnit; ++k) {
        list_[at++] = static_cast<uint16_t>((own_unit * kUnit + k) | (any >> k & 1 ? 0 : kIdle));
      }
    }
    if (own_unit == b_.units_of_half - 1) {
      before_[b_.units_of_half] = static_cast<uint16_t>(at);
    }
    return at;
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  FusedShared& shared_;
  uint32_t* bits_;
  uint16_t* any_;
  uint16_t* before_;
  uint16_t* list_;
};

}  // namespace sparsellm::fused
