#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// Products of warpgroups (PTX ISA, "wgmma"), for the architecture sm_90a alone.
namespace sparsellm {

// Before the first product, and whenever registers of one have been written since the last.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until no more than PENDING of the latest groups run.
template <int PENDING>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// By all warps of a warpgroup: registers of a thread, of those that the block got when it started.
template <int COUNT>
__device__ inline void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ inline void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// The compiler takes the registers of a product's left operand for free as soon as the product has
// been issued, which reads them until its group has ended. Storing them, though it never happens,
// keeps them until here.
__device__ inline void keep_until_here(const uint32_t (&a)[4], bool never, uint32_t somewhere) {
  if (never) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(somewhere), "r"(a[0]), "r"(a[1]),
                 "r"(a[2]), "r"(a[3])
                 : "memory");
  }
}

// Of the operand b in shared memory at `address`, a multiple of 1024: rows of 128 bytes along k,
// eight of them a swizzled block as tensor maps write it (CU_TENSOR_MAP_SWIZZLE_128B), one block
// after the other. 16 columns further, 2 are added.
__device__ inline uint32_t swizzled_operand(uint32_t address) {
  return 1u << 16 | (address >> 4 & 0x3fff);
}
// The upper word of what describes such an operand: blocks of 1024 bytes, swizzled by 128.
constexpr uint32_t kSwizzledBlocks = 1u << 30 | 1024 / 16;

// SPARSELLM_WGMMA, which each of the functions below defines, for the dtype.
#define SPARSELLM_WGMMA_OF(T)                        \
  if constexpr (std::is_same_v<T, __half>) {         \
    SPARSELLM_WGMMA("f16");                          \
  } else {                                           \
    static_assert(std::is_same_v<T, __nv_bfloat16>); \
    SPARSELLM_WGMMA("bf16");                         \
  }

// d [64, N] += a [64, 16] * b [N, 16]^T by a warpgroup; f32 sums; N is twice the size of d. Warp w
// has rows 16 w to 16 w + 15 of a and d, in the registers of mma.m16n8k16 (kernels/device/mma.cuh).
// Registers are not to be touched until the group of the product has ended.
template <class T>
__device__ inline void wgmma(float (&d)[16], const uint32_t (&a)[4], uint32_t b) {
#define SPARSELLM_WGMMA(TYPE)                                                                   \
  asm volatile(                                                                                 \
      "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, 1, 0;\nmov.b64 b, {%20, %21};\n"          \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE                               \
      " {"                                                                                      \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"                    \
      "}, {%16, %17, %18, %19}, b, p, 1, 1, 0;\n}"                                              \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),     \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), \
        "+f"(d[14]), "+f"(d[15])                                                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kSwizzledBlocks))
  SPARSELLM_WGMMA_OF(T)
#undef SPARSELLM_WGMMA
}

template <class T>
__device__ inline void wgmma(float (&d)[32], const uint32_t (&a)[4], uint32_t b) {
#define SPARSELLM_WGMMA(TYPE)                                                                      \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, 1, 0;\nmov.b64 b, {%36, %37};\n"             \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                                  \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"             \
      "}, {%32, %33, %34, %35}, b, p, 1, 1, 0;\n}"                                                 \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kSwizzledBlocks))
  SPARSELLM_WGMMA_OF(T)
#undef SPARSELLM_WGMMA
}

template <class T>
__device__ inline void wgmma(float (&d)[64], const uint32_t (&a)[4], uint32_t b) {
#define SPARSELLM_WGMMA(TYPE)                                                                      \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, 1, 0;\nmov.b64 b, {%68, %69};\n"             \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                                 \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"             \
      "}, {%64, %65, %66, %67}, b, p, 1, 1, 0;\n}"                                                 \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), \
        "+f"(d[63])                                                                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kSwizzledBlocks))
  SPARSELLM_WGMMA_OF(T)
#undef SPARSELLM_WGMMA
}

// The same with `a` in shared memory too, described as b is.
template <class T>
__device__ inline void wgmma(float (&d)[4], uint32_t a, uint32_t b) {
#define SPARSELLM_WGMMA(TYPE)                                     \
  asm volatile(                                                   \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, 1, 0;\n" \
      "mov.b64 a, {%4, %6};\nmov.b64 b, {%5, %6};\n"              \
      "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE  \
      " {"                                                        \
      "%0, %1, %2, %3"                                            \
      "}, a, b, p, 1, 1, 0, 0;\n}"                                \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])            \
      : "r"(a), "r"(b), "n"(kSwizzledBlocks))
  SPARSELLM_WGMMA_OF(T)
#undef SPARSELLM_WGMMA
}

template <class T>
__device__ inline void wgmma(float (&d)[8], uint32_t a, uint32_t b) {
#define SPARSELLM_WGMMA(TYPE)                                                               \
  asm volatile(                                                                             \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, 1, 0;\n"                           \
      "mov.b64 a, {%8, %10};\nmov.b64 b, {%9, %10};\n"                                      \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE                           \
      " {"                                                                                  \
      "%0, %1, %2, %3, %4, %5, %6, %7"                                                      \
      "}, a, b, p, 1, 1, 0, 0;\n}"                                                          \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), \
        "+f"(d[7])                                                                          \
      : "r"(a), "r"(b), "n"(kSwizzledBlocks))
  SPARSELLM_WGMMA_OF(T)
#undef SPARSELLM_WGMMA
}

template <class T>
__device__ inline void wgmma(float (&d)[16], uint32_t a, uint32_t b) {
#define SPARSELLM_WGMMA(TYPE)                                                                   \
  asm volatile(                                                                                 \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, 1, 0;\n"                               \
      "mov.b64 a, {%16, %18};\nmov.b64 b, {%17, %18};\n"                                        \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE                               \
      " {"                                                                                      \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"                    \
      "}, a, b, p, 1, 1, 0, 0;\n}"                                                              \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),     \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), \
        "+f"(d[14]), "+f"(d[15])                                                                \
      : "r"(a), "r"(b), "n"(kSwizzledBlocks))
  SPARSELLM_WGMMA_OF(T)
#undef SPARSELLM_WGMMA
}

template <class T>
__device__ inline void wgmma(float (&d)[128], uint32_t a, uint32_t b) {
#define SPARSELLM_WGMMA(TYPE)                                                                      \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, 1, 0;\n"                                  \
      "mov.b64 a, {%128, %130};\nmov.b64 b, {%129, %130};\n"                                       \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                                 \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "           \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
      "%111, "                                                                                     \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
      "%127"                                                                                       \
      "}, a, b, p, 1, 1, 0, 0;\n}"                                                                 \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), \
        "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), \
        "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), \
        "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), \
        "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), \
        "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),          \
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),        \
        "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),        \
        "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),        \
        "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])         \
      : "r"(a), "r"(b), "n"(kSwizzledBlocks))
  SPARSELLM_WGMMA_OF(T)
#undef SPARSELLM_WGMMA
}

#undef SPARSELLM_WGMMA_OF

}  // namespace sparsellm
