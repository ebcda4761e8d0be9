#pragma once

#include <cuda.h>

#include <cstdint>

// Barriers in shared memory, copies that they count, and clusters of blocks, as the PTX ISA has
// them ("mbarrier", "cp.async", "cp.async.bulk", "st.async", "barrier.cluster"). Addresses in
// shared memory are 32-bit. All but copy16() takes compute capability 9.0.
namespace sparsellm {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void barrier_init(uint32_t b, uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(b), "r"(count));
}
__device__ inline void barrier_expect(uint32_t b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive(uint32_t b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ inline void barrier_wait(uint32_t b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nW%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra D%=;\n"
      "bra W%=;\nD%=:\n}" ::"r"(b),
      "r"(parity)
      : "memory");
}
__device__ inline uint64_t evict_first() {
  uint64_t p;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  return p;
}
// The same as a constant, which takes no registers.
inline constexpr uint64_t kEvictFirst = 0x12f0000000000000;
__device__ inline void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// The 128 bytes around an address, to the L2 only.
__device__ inline void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}
// To the L2 only.
__device__ inline void bulk_prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// The same of what is read once.
__device__ inline void bulk_prefetch_once(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(from),
               "r"(bytes), "l"(kEvictFirst)
               : "memory");
}
// A box of a tensor of 2 dimensions, from the element in `column` of `row`; what is outside of the
// tensor as zeros.
__device__ inline void bulk_load_box(uint32_t to, const CUtensorMap* tensor, int column, int row,
                                     uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(tensor), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ inline void bulk_load_box(uint32_t to, const CUtensorMap* tensor, int column, int row,
                                     uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(tensor), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ inline void prefetch_map(const CUtensorMap* tensor) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(tensor) : "memory");
}
// 16 bytes to shared memory, not in the queue of the bulk copies.
__device__ inline void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same for the first `bytes` of them, and zeros.
__device__ inline void copy16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// The same of what is read once: nothing in the L2 should give way to it.
__device__ inline void copy16_once(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(from), "r"(bytes), "l"(kEvictFirst)
               : "memory");
}
// Arrives when what this thread copied and stored is there.
__device__ inline void arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
template <class T>
__device__ inline void store_shared16(uint32_t to, T v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(reinterpret_cast<const uint16_t&>(v))
               : "memory");
}
__device__ inline uint4 load_shared16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Before what this thread knows to be in shared memory, by whatever kind of store, is read by bulk
// copies or warpgroup products.
__device__ inline void shared_stores_done() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// By whole warps.
__device__ inline void cluster_started() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ inline uint32_t cluster_id() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(r));
  return r;
}
// To shared memory of a block of the cluster, counted by its barrier; addresses as in this block.
__device__ inline void send(uint32_t address, uint32_t barrier, uint32_t rank, float4 v) {
  asm volatile(
      "{\n.reg .b32 a, b;\nmapa.shared::cluster.u32 a, %0, %2;\nmapa.shared::cluster.u32 b, %1, "
      "%2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [a], {%3, %4, %5, %6}, "
      "[b];\n}" ::"r"(address),
      "r"(barrier), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
// Relaxed, for send() releases what it stores; a releasing arrival would fence the whole device.
__device__ inline void barrier_expect_remote(uint32_t barrier, uint32_t rank, uint32_t bytes) {
  asm volatile(
      "{\n.reg .b32 b;\nmapa.shared::cluster.u32 b, %0, %1;\n"
      "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [b], %2;\n}" ::"r"(barrier),
      "r"(rank), "r"(bytes)
      : "memory");
}
__device__ inline void barrier_arrive_remote(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 b;\nmapa.shared::cluster.u32 b, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [b];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
__device__ inline void barrier_wait_cluster(uint32_t b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nW%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], "
      "%1;\n@p bra "
      "D%=;\nbra W%=;\nD%=:\n}" ::"r"(b),
      "r"(parity)
      : "memory");
}
// What another thread of the cluster wrote, from shared or global memory.
__device__ inline float4 load_tile(const float4* p) {
  float4 v;
  asm volatile("ld.relaxed.cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

}  // namespace sparsellm
