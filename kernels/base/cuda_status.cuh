#pragma once

#include <cuda_runtime.h>

namespace sparsellm {

// Errors after which a device takes nothing more from this process (CUDA calls them sticky): the
// context, and all that was in the device's memory, is lost.
constexpr bool is_device_lost(cudaError_t status) {
  // Not every toolkit that this is built with has a name for them.
  constexpr auto kContained = static_cast<cudaError_t>(226);
  constexpr auto kTensorMemoryLeak = static_cast<cudaError_t>(721);
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case kContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case kTensorMemoryLeak:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

// Errors of a capture that other work on the device broke, and of work that a capture forbids.
constexpr bool is_capture_failure(cudaError_t status) {
  return status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorStreamCaptureWrongThread;
}

}  // namespace sparsellm
