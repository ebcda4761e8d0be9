#pragma once

#include <cstdint>
#include <vector>

namespace sparsellm {

struct ExecContext;  // kernels/base/exec.h
class Tensor;        // kernels/base/tensor.h

// Rotary position embedding (Su et al. 2021) in Llama's half-split layout: element i of a head is
// rotated together with element i + head_dim / 2.
struct RopeScaling {
  enum class Kind : uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  float factor = 1.0f;
  // llama3 only: wavelengths above original_positions / low_frequency_factor are stretched by
  // `factor`, those below original_positions / high_frequency_factor are kept, those between blend.
  float low_frequency_factor = 1.0f;
  float high_frequency_factor = 4.0f;
  int64_t original_positions = 0;
};

// The head_dim / 2 angular frequencies (radians per position).
std::vector<float> rope_frequencies(int64_t head_dim, float theta, const RopeScaling& scaling);

// cos_sin f32 [tokens, head_dim]: cosines of position * frequency in the first half of a row, sines
// in the second. Computed once a step and shared by all layers
// (rope_kv_append() in kernels/kv_append.h rotates by it).
//   positions i32 [tokens]; frequencies f32 [head_dim / 2]
void rope_angles(const Tensor& positions, const Tensor& frequencies, Tensor cos_sin,
                 ExecContext& ctx);

}  // namespace sparsellm
