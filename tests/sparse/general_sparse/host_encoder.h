#pragma once

#include <cstdint>

#include "sparse/general_sparse/bits/row_bits.h"
#include "sparse/general_sparse/bits/row_counts.h"
#include "sparse/general_sparse/host/word_bits.h"

// Lets the host compile the device code of the encoder that calls nothing of CUDA. HostWordBits
// stand for WordBits.
#define __device__
#include "sparse/general_sparse/cuda/lane_writer.cuh"
#include "sparse/general_sparse/cuda/ordered_entries.cuh"
#undef __device__
