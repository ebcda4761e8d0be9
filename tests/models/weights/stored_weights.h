#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "models/weights/checkpoint_loader.h"
#include "models/weights/weight_request.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::testing {

inline constexpr int64_t kHead = 64;  // dimension
inline constexpr int64_t kIn = 512;   // of all requests, and the neurons of the MLP

// q, k and v of 12 and 4 heads.
const WeightRequest kHeads{.parts = {{"q", 12 * kHead}, {"k", 4 * kHead}, {"v", 4 * kHead}},
                           .in = kIn,
                           .split = WeightRequest::Split::out,
                           .unit = kHead,
                           .bias = WeightRequest::Bias::yes};
const WeightRequest kUp{.parts = {{"gate", kIn}, {"up", kIn}},
                        .in = kIn,
                        .split = WeightRequest::Split::out,
                        .bias = WeightRequest::Bias::yes};
const WeightRequest kDown{.parts = {{"down", 200}},
                          .in = kIn,
                          .split = WeightRequest::Split::in,
                          .bias = WeightRequest::Bias::yes};
const WeightRequest kRequests[] = {kHeads, kUp, kDown};
inline constexpr int64_t kDegrees[] = {1, 2, 3, 4, 8, 12};

bool can_share(const WeightRequest& request, int64_t degree);

// A model on disk with the weights of all requests, in one format and layout; plain if that is
// empty.
class StoredWeights {
 public:
  StoredWeights(const std::string& format, double density, const LayoutOptions& options = {});

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  CheckpointLoader loader(const Shard& shard, const std::string& format = {},
                          Device device = {}) const;

  // Of the rank, joined.
  std::vector<double> weight(const WeightRequest& request, const Shard& shard) const;
  std::vector<double> bias(const WeightRequest& request, const Shard& shard) const;

  // Changes bytes of a tensor in its file, from the place `at` on.
  void overwrite(const std::string& tensor, int64_t at, const std::string& bytes);

 private:
  std::filesystem::path path() const { return folder_.path() / "model"; }

  TempDir folder_;
  std::map<std::string, OwnedTensor> weights_;
  std::map<std::string, OwnedTensor> biases_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

}  // namespace sparsellm::testing
