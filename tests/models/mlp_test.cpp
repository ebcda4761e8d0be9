// Whether the workspace that modules of the network ask for is what they use: a smaller one fails a
// step, a larger one takes memory from the KV cache. The expected sizes are those of a run, not of
// the formula once more.

#include "models/mlp.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "models/attention.h"
#include "sparse/registry.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/paged_step.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

Linear linear(std::string_view format, int64_t out, int64_t in, Activation activation = {}) {
  const GuardedTensor dense = Random(7).tensor(DType::f16, {out, in});
  CpuContext cpu;
  return {.weight = weight_format(format).load(
              weight_format(format).encode(dense.view(), cpu.threads), {.threads = cpu.threads}),
          .bias = {},
          .activation = activation};
}

// What `forward` uses, if it is given `bytes`; one byte less is not enough.
template <class Forward>
void expect_uses_exactly(int64_t bytes, const Forward& forward) {
  CpuContext enough(2, bytes);
  forward(enough.exec);
  EXPECT_EQ(enough.workspace.peak_bytes(), bytes);
  CpuContext too_little(2, bytes - 1);
  EXPECT_TRUE(throws_error([&] { forward(too_little.exec); }, "workspace"));
}

constexpr const char* kFormats[] = {"dense", "tca_bme", "tiled_csl"};

struct Sizes {
  int64_t hidden;
  int64_t intermediate;
};
constexpr Sizes kSizes[] = {{64, 512}, {512, 64}, {72, 72}, {8, 1000}, {1000, 8}};

TEST(Workspaces, OfMlps) {
  for (const char* format : kFormats) {
    for (const Sizes& size : kSizes) {
      for (int64_t tokens : {1, 3, 17, 130}) {
        SCOPED_TRACE(fmt::format("{}, {} and {}, {} tokens", format, size.hidden, size.intermediate,
                                 tokens));
        const GatedMlp gated(linear(format, 2 * size.intermediate, size.hidden),
                             {.kind = Activation::Kind::relu},
                             linear(format, size.hidden, size.intermediate));
        const PlainMlp plain(
            linear(format, size.intermediate, size.hidden, {.kind = Activation::Kind::relu}),
            linear(format, size.hidden, size.intermediate));
        const GuardedTensor x = Random(8).tensor(DType::f32, {tokens, size.hidden});
        const GuardedTensor y(DType::f32, {tokens, size.hidden});
        const PagedStep step({{.pages = {}, .kv_length = tokens, .rows = tokens}});
        for (const Mlp* mlp : std::initializer_list<const Mlp*>{&gated, &plain}) {
          expect_uses_exactly(
              mlp->workspace_bytes(tokens, DType::f32, Sums::fastest),
              [&](ExecContext& ctx) { mlp->forward(x.view(), step.batch(), y.view(), ctx); });
        }
      }
    }
  }
}

TEST(Workspaces, OfAttention) {
  constexpr int64_t kHeadDim = 16;
  for (const char* format : kFormats) {
    for (int64_t hidden : {16, 1000}) {
      for (const auto& [heads, kv_heads] : {std::pair{4, 2}, std::pair{20, 20}}) {
        SCOPED_TRACE(fmt::format("{}, {} and {} heads of {}", format, heads, kv_heads, hidden));
        const SelfAttention attention{
            .qkv = linear(format, (heads + 2 * kv_heads) * kHeadDim, hidden),
            .out = linear(format, hidden, heads * kHeadDim),
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = kHeadDim};
        const PagedStep step({{.pages = {1, 0}, .kv_length = 20, .rows = 20},
                              {.pages = {2}, .kv_length = 3, .rows = 1}});
        const GuardedTensor pages(DType::f32, {6, kv_heads, kPageSize, kHeadDim});
        const KvLayer kv{.k = pages.view().rows(0, 3), .v = pages.view().rows(3, 3)};
        const GuardedTensor x = Random(8).tensor(DType::f32, {21, hidden});
        const GuardedTensor y(DType::f32, {21, hidden});
        expect_uses_exactly(
            attention.workspace_bytes(21, DType::f32, {}, Sums::fastest), [&](ExecContext& ctx) {
              auto scratch = ctx.workspace.scope();
              const SelfAttention::Activations rows = attention.activations(x.view(), scratch);
              attention.qkv.forward(x.view(), rows.joined, ctx);
              attention.mix(rows, step.batch(), Tensor(), kv, ctx);
              attention.out.forward(rows.mixed, y.view(), ctx);
            });
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm
