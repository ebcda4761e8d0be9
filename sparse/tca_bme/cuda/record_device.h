#pragma once

#include <array>

#include "kernels/base/device.h"

// What the kernels over records of tca_bme have to know of a CUDA device.
namespace sparsellm {

// How many clusters of 1, 2, 4, 8 and 16 thread blocks, each on a multiprocessor of its own, a CUDA
// device holds at once; all 0 if it cannot run record_matmul_kernel, which is made for compute
// capability 9.0. Makes the device the current one.
using ClusterCounts = std::array<int, 5>;
ClusterCounts count_clusters(Device device);

// What the multistage kernel may take of a device; all 0 if the device cannot run it (it takes
// compute capability 8.0 and above). With less shared memory, more thread blocks share a
// multiprocessor.
struct MultistageDevice {
  int multiprocessors = 0;
  int shared_bytes = 0;        // of a thread block
  bool byte_products = false;  // instead of 1-bit products, wherever a record is decoded
};
MultistageDevice multistage_device(Device device);  // all of it

}  // namespace sparsellm
