#pragma once

#include "kernels/base/cpu_isa.h"
#include "kernels/base/dtype.h"
#include "kernels/cpu/gemm_kernels.h"

namespace sparsellm {

// Of weights of a floating dtype, by an instruction set that the CPU has.
const gemm_cpu_kernels::DenseKernels& dense_kernels_for(CpuIsa isa, DType dtype);

}  // namespace sparsellm
