#include <string>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "kernels/add.h"
#include "kernels/base/neuron_counters.h"
#include "kernels/embedding.h"
#include "kernels/kv_append.h"
#include "kernels/rope.h"
#include "kernels/take_chosen.h"
#include "tests/kernels/ops_gpu_fixture.h"
#include "tests/testing/paged_step.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, Ops, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Ops, Add) {
  for (int64_t tokens : kTokens) {
    for (int64_t features : kFeatures) {
      for (float scale : {1.0f, 0.3f}) {
        const GuardedTensor x = random_tensor({tokens, features});
        const GuardedTensor y = random_f32({tokens, features}, -1.0, 1.0);
        const GuardedTensor y_twin = cpu_twin(y.view());
        add(cpu_twin(x.view()).view(), y_twin.view(), cpu.exec, scale);
        add(x.view(), y.view(), gpu->exec, scale);
        expect_twin(y, y_twin.view(), 0.0);
      }
    }
  }
}

TEST_P(Ops, Activations) {
  using Kind = Activation::Kind;
  for (Kind kind :
       {Kind::none, Kind::relu, Kind::gelu, Kind::gelu_tanh, Kind::silu, Kind::fatrelu}) {
    const Activation activation{.kind = kind, .threshold = 0.25f};
    for (int64_t tokens : kTokens) {
      for (int64_t features : kFeatures) {
        const GuardedTensor x = random_tensor({tokens, 2 * features}, -8.0, 8.0);
        const GuardedTensor x_twin = cpu_twin(x.view());
        const GuardedTensor y = empty_tensor({tokens, features});
        const GuardedTensor y_twin(DType::f32, {tokens, features});
        activate_gated(activation, x_twin.view(), y_twin.view(), cpu.exec);
        activate_gated(activation, x.view(), y.view(), gpu->exec);
        expect_twin(y, y_twin.view(), 1.0);
        activate(activation, x_twin.view(), cpu.exec);
        activate(activation, x.view(), gpu->exec);
        expect_twin(x, x_twin.view(), 0.1);
      }
    }
  }
}

TEST_P(Ops, ActivationsOfActiveFeatures) {
  const Activation activation{.kind = Activation::Kind::fatrelu, .threshold = 0.25f};
  for (int64_t tokens : kTokens) {
    for (int64_t features : kFeatures) {
      const GuardedTensor x = random_tensor({tokens, 2 * features}, -8.0, 8.0);
      const GuardedTensor x_twin = cpu_twin(x.view());
      const Layout layout = features % 2 == 0 ? Layout::contiguous : Layout::strided;
      const GuardedTensor flags(DType::u8, {tokens, 2 * features}, layout, kGpu);
      const GuardedTensor flags_twin(DType::u8, {tokens, 2 * features});
      std::vector<double> values;
      for (int64_t i = 0; i < tokens * 2 * features; ++i) {
        values.push_back(random.below(3) == 0 ? 1.0 : 0.0);
      }
      set_values(flags.view(), values);
      set_values(flags_twin.view(), values);
      const GuardedTensor y = empty_tensor({tokens, features});
      const GuardedTensor y_twin(DType::f32, {tokens, features});
      activate_gated(activation, x_twin.view(), {.active = flags_twin.view().columns(1, features)},
                     y_twin.view(), cpu.exec);
      activate_gated(activation, x.view(), {.active = flags.view().columns(1, features)}, y.view(),
                     gpu->exec);
      expect_twin(y, y_twin.view(), 1.0);
      activate(activation, {.active = flags_twin.view()}, x_twin.view(), cpu.exec);
      activate(activation, {.active = flags.view()}, x.view(), gpu->exec);
      expect_twin(x, x_twin.view(), 0.1);
    }
  }
}

// As the CPU counts the same results: neurons of one and of several blocks, and several of a
// thread; padding; products that f16 rounds to 0.
TEST_P(Ops, ActivationsAreCounted) {
  const Activation relu{.kind = Activation::Kind::relu};
  for (int64_t tokens : {0, 1, 17}) {
    for (int64_t neurons : {33, 256, 1000, 16900}) {
      for (double largest : {1.0, 1e-4}) {
        SCOPED_TRACE(fmt::format("{} tokens, {} neurons up to {}", tokens, neurons, largest));
        const GuardedTensor gate_up = random_tensor({tokens, 2 * neurons}, -largest, largest);
        const GuardedTensor y = empty_tensor({tokens, neurons});
        const GuardedTensor flags(DType::u8, {tokens, neurons}, Layout::strided, kGpu);
        const GuardedTensor flags_twin(DType::u8, {tokens, neurons});
        std::vector<double> values;
        for (int64_t i = 0; i < tokens * neurons; ++i) {
          values.push_back(random.below(3) == 0 ? 1.0 : 0.0);
        }
        set_values(flags.view(), values);
        set_values(flags_twin.view(), values);
        std::vector<int32_t> places;
        for (int32_t t = 0; t < tokens; ++t) {
          places.push_back(t % 4 == 2 ? -1 : t);
        }
        const GuardedTensor positions = i32_tensor(places, kGpu);
        const GuardedTensor positions_twin = i32_tensor(places);

        const Buffer memory = make_neuron_counters(kGpu);
        const Buffer memory_of_cpu = make_neuron_counters({});
        NeuronTally tally{.counters = static_cast<NeuronCounters*>(memory.data()),
                          .positions = positions.view(),
                          .active = flags.view()};
        NeuronTally of_cpu{.counters = static_cast<NeuronCounters*>(memory_of_cpu.data()),
                           .positions = positions_twin.view(),
                           .active = flags_twin.view()};
        const auto expect_counted = [&](const Tensor& h, const char* what) {
          SCOPED_TRACE(what);
          gpu->cuda.synchronize();
          count_neurons_cpu(cpu_twin(h).view(), of_cpu);
          const NeuronCounters counts = read_neuron_counters(memory);
          const NeuronCounters expected = read_neuron_counters(memory_of_cpu);
          EXPECT_EQ(counts.rows, expected.rows);
          EXPECT_EQ(counts.skipped, expected.skipped);
          EXPECT_EQ(counts.active, expected.active);
        };
        const Tensor gate = gate_up.view().columns(0, neurons);
        activate_gated(relu, gate_up.view(), tally, y.view(), gpu->exec);
        expect_counted(y.view(), "gated");
        activate(relu, tally, gate, gpu->exec);
        expect_counted(gate, "in place");
        tally.positions = {};
        tally.active = {};
        of_cpu.positions = {};
        of_cpu.active = {};
        activate_gated(relu, gate_up.view(), tally, y.view(), gpu->exec);
        expect_counted(y.view(), "gated, nothing predicted, no padding");
        activate(relu, tally, gate, gpu->exec);
        expect_counted(gate, "in place, nothing predicted, no padding");
        const NeuronCounters counts = read_neuron_counters(memory);
        activate(relu, {.active = flags.view()}, gate, gpu->exec);
        activate(relu, gate, gpu->exec);
        gpu->cuda.synchronize();
        EXPECT_EQ(read_neuron_counters(memory).rows, counts.rows);
        EXPECT_TRUE(y.guards_intact() && gate_up.guards_intact());
      }
    }
  }
}

TEST_P(Ops, Embedding) {
  for (int64_t tokens : kTokens) {
    for (int64_t hidden : kFeatures) {
      for (bool has_positions : {false, true}) {
        const GuardedTensor table = random_tensor({50, hidden});
        const GuardedTensor positions = random_tensor({140, hidden});
        std::vector<int32_t> ids;
        std::vector<int32_t> places;
        for (int32_t i = 0; i < tokens; ++i) {
          ids.push_back(static_cast<int32_t>(random.below(50)));
          places.push_back(static_cast<int32_t>(random.below(138)));
        }
        const GuardedTensor y = random_f32({tokens, hidden}, -1.0, 1.0);
        const GuardedTensor y_twin(DType::f32, {tokens, hidden});
        const GuardedTensor table_twin = cpu_twin(table.view());
        const GuardedTensor positions_twin = cpu_twin(positions.view());
        const auto tables = [&](const Tensor& t, const Tensor& p) {
          // Beside positions a factor whose products are exact: the GPU rounds once, the CPU twice.
          return EmbeddingTables{.tokens = t,
                                 .positions = has_positions ? p : Tensor(),
                                 .position_offset = 2,
                                 .token_scale = has_positions ? 0.5f : 12.3f};
        };
        embedding(i32_tensor(ids).view(), i32_tensor(places).view(),
                  tables(table_twin.view(), positions_twin.view()), y_twin.view(), cpu.exec);
        const GuardedTensor gpu_ids = i32_tensor(ids, kGpu);
        const GuardedTensor gpu_places = i32_tensor(places, kGpu);
        embedding(gpu_ids.view(), gpu_places.view(), tables(table.view(), positions.view()),
                  y.view(), gpu->exec);
        expect_twin(y, y_twin.view(), 0.0);
      }
    }
  }
}

TEST_P(Ops, RopeAngles) {
  for (int64_t tokens : kTokens) {
    for (int64_t head_dim : {8, 64, 80, 128}) {
      const std::vector<float> frequencies = rope_frequencies(head_dim, 10000.0f, {});
      std::vector<int32_t> positions;
      for (int32_t i = 0; i < tokens; ++i) {
        positions.push_back(static_cast<int32_t>(random.below(4096)));
      }
      const std::vector<double> values(frequencies.begin(), frequencies.end());
      const GuardedTensor f_cpu(DType::f32, {head_dim / 2});
      const GuardedTensor f_gpu(DType::f32, {head_dim / 2}, Layout::contiguous, kGpu);
      set_values(f_cpu.view(), values);
      set_values(f_gpu.view(), values);
      const GuardedTensor angles_cpu(DType::f32, {tokens, head_dim});
      const GuardedTensor angles_gpu(DType::f32, {tokens, head_dim}, Layout::contiguous, kGpu);
      const GuardedTensor gpu_positions = i32_tensor(positions, kGpu);
      rope_angles(i32_tensor(positions).view(), f_cpu.view(), angles_cpu.view(), cpu.exec);
      rope_angles(gpu_positions.view(), f_gpu.view(), angles_gpu.view(), gpu->exec);
      expect_twin(angles_gpu, angles_cpu.view(), 1.0);
    }
  }
}

TEST_P(Ops, KvAppend) {
  for (int64_t head_dim : {8, 64, 80, 128, 254}) {
    for (const auto& [heads, kv_heads] : {std::pair(4, 4), std::pair(6, 2), std::pair(8, 1)}) {
      for (const auto& [rotates, norms] : {std::pair(false, false), std::pair(true, false),
                                           std::pair(false, true), std::pair(true, true)}) {
        SCOPED_TRACE(fmt::format("{} heads on {} of {}, rotated: {}, norms: {}", heads, kv_heads,
                                 head_dim, rotates, norms));
        constexpr int32_t kPool = 60;
        std::vector<StepRequest> requests{{.pages = {}, .kv_length = 1, .rows = 1},
                                          {.pages = {}, .kv_length = 33, .rows = 33},
                                          {.pages = {}, .kv_length = 17, .rows = 1},
                                          {.pages = {}, .kv_length = 130, .rows = 45},
                                          {.pages = {}, .kv_length = 300, .rows = 1}};
        const std::vector<int32_t> order = random.permutation(kPool);
        auto next = order.begin();
        int64_t tokens = 0;
        for (StepRequest& request : requests) {
          const auto count = static_cast<std::ptrdiff_t>(pages_for(request.kv_length));
          request.pages.assign(next, next + count);
          next += count;
          tokens += request.rows;
        }
        const PagedStep cpu_step(requests);
        const PagedStep gpu_step(requests, kGpu);
        const GuardedTensor k_pages = random_tensor({kPool, kv_heads, kPageSize, head_dim});
        const GuardedTensor v_pages = random_tensor({kPool, kv_heads, kPageSize, head_dim});
        const GuardedTensor k_twin_pages = cpu_twin(k_pages.view());
        const GuardedTensor v_twin_pages = cpu_twin(v_pages.view());
        const KvLayer gpu_kv{.k = k_pages.view(), .v = v_pages.view()};
        const KvLayer cpu_kv{.k = k_twin_pages.view(), .v = v_twin_pages.view()};

        const GuardedTensor q = random_tensor({tokens, heads * head_dim});
        const GuardedTensor k = random_tensor({tokens, kv_heads * head_dim});
        const GuardedTensor v = random_tensor({tokens, kv_heads * head_dim});
        const GuardedTensor q_twin = cpu_twin(q.view());
        const GuardedTensor k_twin = cpu_twin(k.view());
        const GuardedTensor v_twin = cpu_twin(v.view());
        const GuardedTensor angles = random_f32({tokens, head_dim}, -1.0, 1.0);
        const GuardedTensor angles_twin = cpu_twin(angles.view());
        const GuardedTensor q_norm = random_tensor({head_dim}, -2.0, 2.0);
        const GuardedTensor k_norm = random_tensor({head_dim}, -2.0, 2.0);
        const GuardedTensor q_norm_twin = cpu_twin(q_norm.view());
        const GuardedTensor k_norm_twin = cpu_twin(k_norm.view());
        QkTransform transform;
        QkTransform transform_twin;
        if (rotates) {
          transform.cos_sin = angles.view();
          transform_twin.cos_sin = angles_twin.view();
        }
        if (norms) {
          transform.norms = {.q = q_norm.view(), .k = k_norm.view(), .epsilon = 1e-2f};
          transform_twin.norms = {
              .q = q_norm_twin.view(), .k = k_norm_twin.view(), .epsilon = 1e-2f};
        }
        const double spread = norms ? 8.0 : rotates ? 2.0 : 0.0;
        if (transform.empty()) {
          kv_append(k_twin.view(), v_twin.view(), cpu_step.batch(), cpu_kv, cpu.exec);
          kv_append(k.view(), v.view(), gpu_step.batch(), gpu_kv, gpu->exec);
        } else {
          rope_kv_append(transform_twin,
                         {.q = q_twin.view(), .k = k_twin.view(), .v = v_twin.view()},
                         cpu_step.batch(), cpu_kv, cpu.exec);
          rope_kv_append(transform, {.q = q.view(), .k = k.view(), .v = v.view()}, gpu_step.batch(),
                         gpu_kv, gpu->exec);
          expect_twin(q, q_twin.view(), spread);
        }
        expect_twin(k_pages, k_twin_pages.view(), spread);
        expect_twin(v_pages, v_twin_pages.view(), 0.0);
      }
    }
  }
}

// Padding rows of a decode step touch nothing, with norms too.
TEST_P(Ops, KvAppendOfPadding) {
  const GuardedTensor pages = random_tensor({4, 2, kPageSize, 64});
  const std::vector<double> before = values_of(pages.view());
  const GuardedTensor start = i32_tensor(std::vector<int32_t>{0, 1, 2}, kGpu);
  const GuardedTensor lengths = i32_tensor(std::vector<int32_t>{0, 0}, kGpu);
  const GuardedTensor positions = i32_tensor(std::vector<int32_t>{-1, -1}, kGpu);
  const GuardedTensor table = i32_tensor(std::vector<int32_t>{-1, -1}, kGpu);
  const PagedBatch batch{.query_start = start.view(),
                         .kv_length = lengths.view(),
                         .page_table = Tensor(table.view().raw(), DType::i32, {2, 1}, kGpu),
                         .positions = positions.view(),
                         .decode = true,
                         .generated = 2};
  const GuardedTensor k = random_tensor({2, 128});
  const GuardedTensor v = random_tensor({2, 128});
  const Tensor half = pages.view();
  kv_append(k.view(), v.view(), batch, {.k = half.rows(0, 2), .v = half.rows(2, 2)}, gpu->exec);
  EXPECT_EQ(values_of(pages.view()), before);
  const GuardedTensor weight = random_tensor({64});
  const GuardedTensor q = random_tensor({2, 256});
  const std::vector<double> queries = values_of(q.view());
  rope_kv_append({.norms = {.q = weight.view(), .k = weight.view(), .epsilon = 1e-6f}},
                 {.q = q.view(), .k = k.view(), .v = v.view()}, batch,
                 {.k = half.rows(0, 2), .v = half.rows(2, 2)}, gpu->exec);
  EXPECT_EQ(values_of(pages.view()), before);
  EXPECT_EQ(values_of(q.view()), queries);
}

TEST_P(Ops, TakeChosen) {
  const GuardedTensor chosen = i32_tensor(std::vector<int32_t>{7, -1, 9}, kGpu);
  const GuardedTensor ids = i32_tensor(std::vector<int32_t>{5, -3, -1, 0, -2}, kGpu);
  take_chosen(chosen.view(), ids.view(), gpu->exec);
  EXPECT_EQ(values_of(ids.view()), (std::vector<double>{5, 9, 7, 0, 0}));
}

}  // namespace
}  // namespace sparsellm
