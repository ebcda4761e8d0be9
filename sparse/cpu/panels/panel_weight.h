#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sparse/cpu/panels/panels.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// A sparse weight on the CPU, in panels, whatever its format is in a file. Up to the rounding of
// the chain of panels::Multiply, y = epilogue(x * W^T); the bits of a row of y do not depend on the
// other rows, the format, the instruction set (ExecContext::isa) and the threads.
class PanelWeight : public WeightMatrix {
 public:
  struct Header {
    std::string format;
    int64_t rows = 0;
    int64_t nonzeros = 0;
  };
  PanelWeight(Header header, panels::Panels panels)
      : header_(std::move(header)), panels_(std::move(panels)) {}

  std::string_view format() const override { return header_.format; }
  int64_t out() const override { return header_.rows; }
  int64_t in() const override { return panels_.columns(); }
  DType dtype() const override { return panels_.dtype(); }
  int64_t bytes() const override { return panels_.bytes(); }
  std::optional<int64_t> nonzeros() const override { return header_.nonzeros; }

  void matmul(const Tensor& x, Tensor y, const Epilogue& epilogue, ExecContext& ctx) const override;
  void expand(Range rows, Tensor dense, ExecContext& ctx) const override;
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override;
  int64_t tune(const MatmulTuning&, TuneCache&, ExecContext&) const override { return 0; }
  std::unique_ptr<WeightMatrix> copy() const override;
  std::string plan_text(DType y, int64_t tokens, const ExecContext& ctx) const override;

 private:
  Header header_;
  panels::Panels panels_;
};

// What matmul() of a weight with so many columns takes from the workspace.
int64_t panel_workspace_bytes(int64_t columns, int64_t tokens);

// The weight of a valid encoding, whose memory is freed.
template <template <class> class Walker>
std::unique_ptr<WeightMatrix> make_panel_weight(EncodedWeight e, ThreadPool& threads) {
  panels::Panels panels = panels::make_panels<Walker>(e, threads);
  return std::make_unique<PanelWeight>(
      PanelWeight::Header{.format = e.format, .rows = e.rows, .nonzeros = e.nonzeros},
      std::move(panels));
}

}  // namespace sparsellm
