#include "kernels/cpu/dense_kernels.h"

namespace sparsellm {
namespace {

const gemm_cpu_kernels::Kernels& kernels_of([[maybe_unused]] CpuIsa isa) {
#if defined(SPARSELLM_X86)
  switch (isa) {
    case CpuIsa::portable:
      break;
    case CpuIsa::avx2:
      return gemm_cpu_kernels::kAvx2Kernels;
    case CpuIsa::avx512:
    case CpuIsa::avx512_vbmi2:
      return gemm_cpu_kernels::kAvx512Kernels;
  }
#endif
  return gemm_cpu_kernels::kPortableKernels;
}

}  // namespace

const gemm_cpu_kernels::DenseKernels& dense_kernels_for(CpuIsa isa, DType dtype) {
  const gemm_cpu_kernels::Kernels& kernels = kernels_of(isa);
  return dtype == DType::f32 ? kernels.f32 : dtype == DType::f16 ? kernels.f16 : kernels.bf16;
}

}  // namespace sparsellm
