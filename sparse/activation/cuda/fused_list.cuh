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
        bits_(reinterpret_cast<uint16_t*>(memory + p.at.bits)),
        any_(p.shape.tokens == 1 ? bits_ : bits_ + p.shape.tokens * b.units),
        before_(reinterpret_cast<uint16_t*>(memory + p.at.before)),
        list_(reinterpret_cast<uint16_t*>(memory + p.at.list)) {}

  // Waits for all words. All threads.
  __device__ void read(uint64_t generation) const {
    read_words(generation);
    __syncthreads();
    if (p_.shape.tokens > 1) {
#pragma unroll 1
      for (int unit = threadIdx.x; unit < b_.units; unit += kThreads) {
        uint32_t any = 0;
#pragma unroll 1
        for (int t = 0; t < p_.shape.tokens; ++t) {
          any |= bits_[t * b_.units + unit];
        }
        any_[unit] = static_cast<uint16_t>(any);
      }
      __syncthreads();
    }
    const int units_of_thread = (b_.units + kThreads - 1) / kThreads;
    const int begin = min(static_cast<int>(threadIdx.x) * units_of_thread, b_.units);
    const int end = min(begin + units_of_thread, b_.units);
    int mine = 0;
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
      mine += __popc(any_of(unit));
    }
    int all = 0;
    const int before = sum_before(mine, all);
    if (begin <= b_.first_of_half && b_.first_of_half < end) {
      int at = before;
#pragma unroll 1
      for (int unit = begin; unit < b_.first_of_half; ++unit) {
        at += __popc(any_of(unit));
      }
      shared_.half_start = at;
    }
    const int blocks = static_cast<int>(gridDim.x);
    const int share_begin = all * b_.block / blocks;
    const int share_end = all * (b_.block + 1) / blocks;
    if (threadIdx.x == 0) {
      shared_.count = share_end - share_begin;
      shared_.share_begin = share_begin;
    }
    __syncthreads();
    int whole_before = 0;
    if (p_.whole_units) {
      int units = 0;
#pragma unroll 1
      for (int unit = begin; unit < end; ++unit) {
        units += is_of_half(unit) && any_of(unit) != 0;
      }
      int unused = 0;
      whole_before = sum_before(units, unused) * kUnit;
    }
    write(begin, end, before, share_begin, share_end, whole_before);
    __syncthreads();
  }

  // Of the units [begin, end) of this block's half: entries of the list.
  __device__ int begin_of(int unit) const { return before_[unit]; }
  __device__ const uint16_t* entries() const { return list_; }

 private:
  // Some at a time, so that not each of them is waited for.
  __device__ void read_words(uint64_t generation) const {
    constexpr int kAtOnce = 4;
    const int all = p_.shape.tokens * b_.units;
#pragma unroll 1
    for (int first = threadIdx.x; first < all; first += kAtOnce * kThreads) {
      uint64_t words[kAtOnce];
      bool waits = true;
      do {
        waits = false;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = min(first + k * kThreads, all - 1);
          asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                       : "=l"(words[k])
                       : "l"(p_.active + i)
                       : "memory");
        }
#pragma unroll
        for (const uint64_t word : words) {
          waits |= word >> kUnit != generation;
        }
      } while (waits);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = first + k * kThreads;
        if (i < all) {
          bits_[i] = static_cast<uint16_t>(words[k]);
        }
      }
    }
  }

  __device__ uint32_t any_of(int unit) const { return any_[unit]; }
  __device__ bool is_of_half(int unit) const {
    return unit >= b_.first_of_half && unit < b_.first_of_half + b_.units_of_half;
  }

  // Of the threads before this one; `all`: of all threads. Another call needs a barrier first.
  __device__ int sum_before(int mine, int& all) const {
    int sum = mine;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      sum += b_.lane >= d ? other : 0;
    }
    if (b_.lane == kWarp - 1) {
      shared_.active_of_warp[b_.warp] = sum;
    }
    __syncthreads();
    const int of_warp = b_.lane < kWarpsOfBlock ? shared_.active_of_warp[b_.lane] : 0;
    int total = of_warp;
#pragma unroll
    for (int d = 1; d < kWarp; d *= 2) {
      const int other = __shfl_up_sync(~0u, total, d);
      total += b_.lane >= d ? other : 0;
    }
    all = __shfl_sync(~0u, total, kWarp - 1);
    return sum - mine + __shfl_sync(~0u, total - of_warp, b_.warp);
  }

  __device__ void write(int begin, int end, int at, int share_begin, int share_end,
                        int whole_at) const {
    const int half_start = shared_.half_start;
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
      const uint32_t any = any_of(unit);
      const bool of_half = is_of_half(unit);
      const int own_unit = unit - b_.first_of_half;
      int entry = p_.whole_units ? whole_at : at - half_start;
      if (of_half) {
        before_[own_unit] = static_cast<uint16_t>(entry);
      }
      if (of_half && p_.whole_units && any != 0) {
#pragma unroll 1
        for (int k = 0; k < kUnit; ++k) {
          list_[entry++] =
              static_cast<uint16_t>((own_unit * kUnit + k) | (any >> k & 1 ? 0 : kIdle));
        }
        whole_at = entry;
      }
#pragma unroll 1
      for (uint32_t left = any; left != 0; left &= left - 1, ++at) {
        const int bit = __ffs(left) - 1;
        if (of_half && !p_.whole_units) {
          list_[entry++] = static_cast<uint16_t>(own_unit * kUnit + bit);
        }
        if (at >= share_begin && at < share_end) {
          shared_.list[at - share_begin] = static_cast<uint16_t>(unit * kUnit + bit);
        }
      }
      if (own_unit == b_.units_of_half - 1) {
        before_[b_.units_of_half] = static_cast<uint16_t>(entry);
      }
    }
  }

  const FusedParameters& p_;
  const FusedBlock& b_;
  FusedShared& shared_;
  uint16_t* bits_;
  uint16_t* any_;
  uint16_t* before_;
  uint16_t* list_;
};

}  // namespace sparsellm::fused
