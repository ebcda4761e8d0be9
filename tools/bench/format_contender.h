#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/base/workspace.h"
#include "sparse/weight_matrix.h"
#include "tools/bench/contender.h"

namespace sparsellm {

// Copies of a weight in one of the engine's formats, through WeightMatrix::matmul, with what that
// takes of a workspace.
class FormatContender : public Contender {
 public:
  // The weight in this format, a name of sparse/registry.h; encoded on the device, where the format
  // can do that. Throws Error for an unknown one, for one that has no kernels for the device, and
  // where there is not enough memory.
  FormatContender(std::string_view format, const ContenderInput& input);
  // A weight that is there already, the one that input.weight holds; it outlives the contender.
  FormatContender(const WeightMatrix& weight, const ContenderInput& input);

  FormatContender(const FormatContender&) = delete;
  FormatContender& operator=(const FormatContender&) = delete;

  int64_t copies() const override { return std::ssize(copies_); }
  int64_t bytes() const override;
  bool overlaps_launches() const override;
  std::vector<std::unique_ptr<BoundKernel>> bind(const Tensor& x, const Tensor& y) override;

  // Chooses kernels for such launches, as the engine does for its own while it loads a model.
  void tune(DType y, int64_t tokens, Launches launches);
  const WeightMatrix& weight(int64_t copy) const { return *copies_[static_cast<size_t>(copy)]; }
  ExecContext& context() { return ctx_; }

 private:
  FormatContender(std::unique_ptr<WeightMatrix> owned, const WeightMatrix* weight,
                  const ContenderInput& input);

  std::vector<std::unique_ptr<WeightMatrix>> owned_;
  std::vector<const WeightMatrix*> copies_;
  Workspace workspace_;
  ExecContext ctx_;
  TuneCache& tune_cache_;
};

}  // namespace sparsellm
