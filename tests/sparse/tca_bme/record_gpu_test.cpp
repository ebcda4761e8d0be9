#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"
#include "sparse/expand_matmul.h"
#include "sparse/tca_bme/cuda/record_encode_cuda.h"
#include "sparse/tca_bme/format/record_parts.h"
#include "sparse/tca_bme/v1/paper_layout.h"
#include "tests/sparse/encodings.h"
#include "tests/sparse/tca_bme/tca_bme_gpu_fixture.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, GpuTcaBme, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// ------------------------------------------------------------------------------------- products

// Ten thousand products with both dtypes.
TEST_P(GpuTcaBme, RandomCases) {
  constexpr int kWeights = 1000;
  constexpr int kProducts = 5;  // of each
  for (int round = 0; round < kWeights; ++round) {
    const int64_t most = round % 10 == 0 ? 700 : 200;
    const Shape shape{1 + random.below(most), 1 + random.below(most)};
    const double density = random.uniform(0.0, 1.0) * random.uniform(0.0, 1.0);
    const OwnedTensor w = weight(shape, density);
    const std::unique_ptr<WeightMatrix> loaded =
        load(w.view, round % 2 == 0 ? LayoutFor::size : LayoutFor::speed);
    for (int product = 0; product < kProducts; ++product) {
      const int64_t tokens = 1 + random.below(product == 0 ? 150 : 20);
      SCOPED_TRACE(fmt::format("[{}, {}], density {}, {} tokens", shape.rows, shape.columns,
                               density, tokens));
      const GuardedTensor x =
          numbers(tokens, shape.columns, product % 2 == 0 ? Layout::contiguous : Layout::strided);
      const GuardedTensor y(GetParam(), {tokens, shape.rows},
                            product % 3 == 0 ? Layout::strided : Layout::contiguous, kGpu);
      loaded->matmul(x.view(), y.view(), {}, *exec);
      ASSERT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
      ASSERT_TRUE(y.guards_intact());
    }
  }
}

TEST_P(GpuTcaBme, OtherActivationsComeAfterTheProduct) {
  const OwnedTensor w = weight({200, 136}, 0.4);
  const std::unique_ptr<WeightMatrix> loaded = load(w.view);
  const OwnedTensor bias = bias_of(200);
  for (int64_t tokens : {5, 200}) {
    const GuardedTensor x = numbers(tokens, 136);
    for (Activation::Kind kind : {Activation::Kind::gelu, Activation::Kind::silu}) {
      const GuardedTensor expected(GetParam(), {tokens, 200}, Layout::contiguous, kGpu);
      loaded->matmul(x.view(), expected.view(), {.bias = bias.view, .activation = {}}, *exec);
      activate({.kind = kind}, expected.view(), *exec);
      const GuardedTensor y(GetParam(), {tokens, 200}, Layout::contiguous, kGpu);
      loaded->matmul(x.view(), y.view(), {.bias = bias.view, .activation = {.kind = kind}}, *exec);
      EXPECT_TRUE(same_bits(y.view(), expected.view()));
    }
  }
}

TEST_P(GpuTcaBme, ResultsInF32) {
  const OwnedTensor w = weight({130, 200}, 0.4);
  const std::unique_ptr<WeightMatrix> loaded = load(w.view);
  for (int64_t tokens : {1, 7, 300}) {
    const GuardedTensor x = numbers(tokens, 200);
    const GuardedTensor y(DType::f32, {tokens, 130}, Layout::contiguous, kGpu);
    loaded->matmul(x.view(), y.view(), {}, *exec);
    EXPECT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), 2.0 * kTolerance));
    EXPECT_TRUE(y.guards_intact());
  }
}

TEST_P(GpuTcaBme, ExpandedPiecesGiveTheProduct) {
  const Shape shape{2200, 264};
  const OwnedTensor w = weight(shape, 0.4);
  const std::unique_ptr<WeightMatrix> loaded = load(w.view);
  const OwnedTensor bias = bias_of(shape.rows);
  const GuardedTensor x = numbers(150, shape.columns);
  const Expected expected = expected_of(x.view(), w.view);
  for (int64_t piece_rows : {int64_t{512}, int64_t{1024}, int64_t{2048}, shape.rows}) {
    for (bool overlapped : {true, false}) {
      const GuardedTensor y(GetParam(), {150, shape.rows}, Layout::strided, kGpu);
      expand_matmul({.weight = *loaded, .piece_rows = piece_rows, .overlapped = overlapped},
                    x.view(), y.view(), {}, *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(all_close(y.view(), expected, kTolerance)) << piece_rows;
      EXPECT_TRUE(y.guards_intact());
    }
  }
}

// Both ways, at new values in the same places.
TEST_P(GpuTcaBme, RunsInAGraph) {
  const Shape shape{2200, 264};
  const OwnedTensor w = weight(shape, 0.4);
  const std::unique_ptr<WeightMatrix> loaded = load(w.view);
  for (int64_t tokens : {4, 40, 400}) {
    const GuardedTensor x = numbers(tokens, shape.columns);
    const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    const auto run = [&] {
      if (tokens == 400) {
        expand_matmul({.weight = *loaded, .piece_rows = 512}, x.view(), y.view(), {}, *exec);
      } else {
        loaded->matmul(x.view(), y.view(), {}, *exec);
      }
    };
    run();
    CudaGraph graph(gpu->cuda, run);
    for (int round = 0; round < 2; ++round) {
      set_values(x.view(), values_of(numbers(tokens, shape.columns).view()));
      graph.launch();
      gpu->cuda.synchronize();
      EXPECT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
    }
  }
}

TEST_P(GpuTcaBme, WorkspaceIsEnough) {
  for (const Shape& shape : {Shape{700, 516}, Shape{1, 3}, Shape{600, 1024}}) {
    const std::unique_ptr<WeightMatrix> loaded = load(weight(shape, 0.5).view);
    for (int64_t most : {1, 40, 300, 700}) {
      for (Sums sums : {Sums::fastest, Sums::batch_invariant}) {
        Workspace exact(kGpu, loaded->workspace_bytes(most, sums));
        ExecContext ctx{.device = kGpu,
                        .workspace = exact,
                        .threads = gpu->threads,
                        .cuda = &gpu->cuda,
                        .sums = sums};
        for (Layout layout : {Layout::contiguous, Layout::strided}) {
          const GuardedTensor x = numbers(most, shape.columns, layout);
          const GuardedTensor y(GetParam(), {most, shape.rows}, layout, kGpu);
          EXPECT_NO_THROW(loaded->matmul(x.view(), y.view(), {}, ctx));
          gpu->cuda.synchronize();
        }
      }
    }
  }
}

TEST_P(GpuTcaBme, RefusesOtherOperands) {
  const std::unique_ptr<WeightMatrix> loaded = load(weight({64, 64}, 0.5).view);
  const DType other = GetParam() == DType::f16 ? DType::bf16 : DType::f16;
  const GuardedTensor x(GetParam(), {2, 64}, Layout::contiguous, kGpu);
  const GuardedTensor y(GetParam(), {2, 64}, Layout::contiguous, kGpu);
  const GuardedTensor other_x(other, {2, 64}, Layout::contiguous, kGpu);
  const GuardedTensor narrow(GetParam(), {2, 63}, Layout::contiguous, kGpu);
  EXPECT_THROW(loaded->matmul(other_x.view(), y.view(), {}, *exec), Error);
  EXPECT_THROW(loaded->matmul(narrow.view(), y.view(), {}, *exec), Error);
  EXPECT_THROW(loaded->matmul(x.view(), narrow.view(), {}, *exec), Error);
  EXPECT_THROW(loaded->matmul(x.view(), x.view(), {}, *exec), Error);
  EXPECT_THROW(loaded->expand({.begin = 60, .count = 5}, y.view(), *exec), Error);
}

// ------------------------------------------------------------------------------------- encodings

// More records than a device expands at once.
TEST_P(GpuTcaBme, ExpandsManyRecords) {
  const Shape shape{3400, 4104};
  for (double density : {1.0, 0.25, 0.13}) {
    const OwnedTensor w = weight(shape, density);
    const std::unique_ptr<WeightMatrix> loaded = load(w.view);
    const GuardedTensor dense(GetParam(), {shape.rows, shape.columns}, Layout::contiguous, kGpu);
    loaded->expand({.begin = 0, .count = shape.rows}, dense.view(), *exec);
    gpu->cuda.synchronize();
    EXPECT_TRUE(same_bits(dense.view(), w.view)) << "density " << density;
    EXPECT_TRUE(dense.guards_intact());
  }
}

// Weights of several densities are encoded at once where several engines load: a kernel's limits
// are the same for all threads.
TEST_P(GpuTcaBme, EncodesWithSeveralLayoutsAtOnce) {
  constexpr int kRounds = 300;
  const Shape shape{130, 256};
  std::vector<std::string> problems(2);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < problems.size(); ++i) {
    const double density = i == 0 ? 0.3 : 0.5;  // 8 and 4 chunks in a record, of single values
    const OwnedTensor w = weight(shape, density);
    const EncodedWeight expected = tca_bme_format().encode(w.view, cpu.threads);
    const tca_bme::RecordParts parts(expected);
    EXPECT_FALSE(parts.layout.pairs());
    EXPECT_EQ(parts.layout.chunks, i == 0 ? tca_bme::kManyChunks : tca_bme::kFewChunks);
    std::vector<std::byte> records(parts.records.begin(), parts.records.end());
    const std::vector<double> values = values_of(w.view);
    threads.emplace_back([&problem = problems[i], dtype = GetParam(), values, records, shape] {
      try {
        GpuContext own;
        const GuardedTensor on_gpu(dtype, {shape.rows, shape.columns}, Layout::contiguous, kGpu);
        set_values(on_gpu.view(), values);
        for (int round = 0; round < kRounds && problem.empty(); ++round) {
          const tca_bme::DeviceRecords made =
              tca_bme::encode_records_cuda(on_gpu.view(), tca_bme::RecordsFor::speed, own.exec);
          if (bytes_of_buffer(made.records) != records) {
            problem = fmt::format("other records in round {}", round);
          }
        }
      } catch (const std::exception& error) {
        problem = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(problems[0], "");
  EXPECT_EQ(problems[1], "");
}

TEST_P(GpuTcaBme, AnEncodingMadeOnTheDeviceMultiplies) {
  const Shape shape{700, 520};
  const OwnedTensor w = weight(shape, 0.4);
  const OwnedTensor on_gpu = allocate_tensor(kGpu, GetParam(), {shape.rows, shape.columns}, "w");
  copy_bytes(kGpu, on_gpu.view.raw(), {}, w.view.raw(), w.view.bytes());
  const std::unique_ptr<WeightMatrix> made =
      tca_bme_format().encode_on_device(on_gpu.view, load_context());
  const std::unique_ptr<WeightMatrix> loaded = load(w.view);
  EXPECT_EQ(made->bytes(), loaded->bytes());
  const GuardedTensor x = numbers(9, shape.columns);
  const GuardedTensor y(GetParam(), {9, shape.rows}, Layout::contiguous, kGpu);
  const GuardedTensor same(GetParam(), {9, shape.rows}, Layout::contiguous, kGpu);
  made->matmul(x.view(), y.view(), {}, *exec);
  loaded->matmul(x.view(), same.view(), {}, *exec);
  EXPECT_TRUE(same_bits(y.view(), same.view()));
}

// By copies alone where the parts fit together, else encoded anew: the same bytes.
TEST_P(GpuTcaBme, JoinsRows) {
  const OwnedTensor w = weight({1300, 200}, 0.4);
  const std::unique_ptr<WeightMatrix> whole = load(w.view);
  for (int64_t first_rows : {448, 500}) {
    std::vector<EncodedWeight> parts;
    parts.push_back(tca_bme_format().encode(w.view.rows(0, first_rows), cpu.threads));
    parts.push_back(
        tca_bme_format().encode(w.view.rows(first_rows, 1300 - first_rows), cpu.threads));
    const std::unique_ptr<WeightMatrix> joined = join(parts);
    EXPECT_EQ(joined->bytes(), whole->bytes());
    EXPECT_EQ(joined->nonzeros(), whole->nonzeros());
    expect_expands_to(*joined, w.view);
  }
}

// Parts that are encoded anew do not wait for copies that are held, nor take them along.
TEST_P(GpuTcaBme, JoiningUnlikePartsLeavesWhatIsHeld) {
  const OwnedTensor w = weight({1300, 200}, 0.4);
  EncodedWeight other = tca_bme_format().encode(w.view, cpu.threads);
  const WeightPart held{.weight = &other};
  const std::unique_ptr<WeightMatrix> later = tca_bme_format().load({&held, 1}, load_context());
  const int64_t count = uploads->held();
  EXPECT_GT(count, 0);
  EncodedWeight first = tca_bme_format().encode(w.view.rows(0, 500), cpu.threads);
  EncodedWeight second = tca_bme_format().encode(w.view.rows(500, 800), cpu.threads);
  const std::vector<WeightPart> parts{{.weight = &first}, {.weight = &second}};
  const std::unique_ptr<WeightMatrix> joined = tca_bme_format().load(parts, load_context());
  EXPECT_EQ(uploads->held(), count);
  expect_expands_to(*joined, w.view);
  uploads->finish();
  expect_expands_to(*later, w.view);
}

// Few nonzeros, of which pairs are the fastest: as a converter writes them, they stay single.
TEST_P(GpuTcaBme, LayoutsForSizeRunAndAreJoinedAsTheyAre) {
  for (const double density : {0.06, 0.1, 0.2}) {
    const OwnedTensor w = weight({1408, 512}, density);
    std::vector<EncodedWeight> parts;
    parts.push_back(
        tca_bme_format().encode(w.view.rows(0, 448), {.goal = LayoutFor::size}, cpu.threads));
    parts.push_back(
        tca_bme_format().encode(w.view.rows(448, 960), {.goal = LayoutFor::size}, cpu.threads));
    EXPECT_FALSE(tca_bme::RecordParts(parts.front()).layout.pairs());
    const std::unique_ptr<WeightMatrix> joined = join(parts);
    EXPECT_LT(joined->bytes(), load(w.view)->bytes());
    expect_expands_to(*joined, w.view);
    for (const int64_t tokens : {1, 5, 16, 40, 130}) {
      SCOPED_TRACE(fmt::format("density {}, {} tokens", density, tokens));
      const GuardedTensor x = numbers(tokens, 512);
      const GuardedTensor y(GetParam(), {tokens, 1408}, Layout::contiguous, kGpu);
      joined->matmul(x.view(), y.view(), {}, *exec);
      gpu->cuda.synchronize();
      ASSERT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
    }
  }
}

// As the host makes them, wherever they are made; what cannot be joined as it is stays for size.
TEST_P(GpuTcaBme, RecordsForSizeRunAndAreJoinedForSize) {
  const LayoutOptions size{.layout = "size"};
  for (const double density : {0.01, 0.1, 0.2}) {
    const OwnedTensor w = weight({1408, 516}, density);
    const OwnedTensor on_gpu = allocate_tensor(kGpu, GetParam(), {1408, 516}, "w");
    copy_bytes(kGpu, on_gpu.view.raw(), {}, w.view.raw(), w.view.bytes());
    EncodedWeight encoded = tca_bme_format().encode(w.view, size, cpu.threads);
    const tca_bme::RecordLayout layout = tca_bme::RecordParts(encoded).layout;
    EXPECT_FALSE(layout.pairs());
    EXPECT_EQ(layout.chunks, tca_bme::kManyChunks);
    const int64_t bytes = encoded.part(tca_bme::kStarts).count() * int64_t{sizeof(uint32_t)} +
                          encoded.part(tca_bme::kRecords).count();
    const std::unique_ptr<WeightMatrix> made =
        tca_bme_format().encode_on_device(on_gpu.view, size, load_context());
    EncodedWeight header = view_of(encoded);
    header.parts.clear();
    tca_bme_format().tell_layout(header, size);
    for (const int64_t most : {1, 40, 300, 2048}) {
      for (const Sums sums : {Sums::fastest, Sums::batch_invariant}) {
        EXPECT_EQ(tca_bme_format().workspace_bytes(header, kGpu, most, sums),
                  made->workspace_bytes(most, sums));
      }
    }
    for (const int64_t first : {int64_t{448}, int64_t{500}}) {
      std::vector<EncodedWeight> parts;
      parts.push_back(tca_bme_format().encode(w.view.rows(0, first), size, cpu.threads));
      parts.push_back(tca_bme_format().encode(w.view.rows(first, 1408 - first), size, cpu.threads));
      const std::unique_ptr<WeightMatrix> joined = join(parts);
      EXPECT_EQ(joined->bytes(), bytes);
      expect_expands_to(*joined, w.view);
    }
    EXPECT_EQ(made->bytes(), bytes);
    expect_expands_to(*made, w.view);
    for (const int64_t tokens : {1, 5, 16, 40, 130, 300}) {
      SCOPED_TRACE(fmt::format("density {}, {} tokens", density, tokens));
      const GuardedTensor x = numbers(tokens, 516);
      const GuardedTensor y(GetParam(), {tokens, 1408}, Layout::contiguous, kGpu);
      made->matmul(x.view(), y.view(), {}, *exec);
      gpu->cuda.synchronize();
      ASSERT_TRUE(all_close(y.view(), expected_of(x.view(), w.view), kTolerance));
    }
  }
}

// Before anything of them is used, and each record before it is copied.
TEST_P(GpuTcaBme, DamagedPartsAreRefused) {
  const OwnedTensor w = weight({3008, 1100}, 0.4);  // in several copies
  const EncodedWeight good = tca_bme_format().encode(w.view, cpu.threads);
  using E = EncodedWeight;
  const auto upload = [&](auto&& damage) {
    EncodedWeight first = copy_of(good);
    EncodedWeight second = copy_of(good);
    damage(second);
    const std::vector<WeightPart> parts{{.weight = &first, .name = "first"},
                                        {.weight = &second, .name = "second"}};
    const std::unique_ptr<WeightMatrix> joined = tca_bme_format().load(parts, load_context());
    EXPECT_GT(uploads->held(), 2);
    uploads->finish();
  };
  const auto flip = [](E& e, size_t part, int64_t byte) {
    static_cast<std::byte*>(e.parts[part].memory.data())[byte] ^= std::byte{1};
  };
  EXPECT_NO_THROW(upload([](E&) {}));
  EXPECT_TRUE(throws_error([&] { upload([](E& e) { --e.nonzeros; }); }, "second: tca_bme: "));
  EXPECT_TRUE(throws_error([&] { upload([](E& e) { e.version = 4; }); }, "second: version 4"));
  EXPECT_TRUE(throws_error([&] { upload([](E& e) { e.rows += 64; }); }, "part starts"));
  EXPECT_TRUE(throws_error([&] { upload([&](E& e) { flip(e, 0, 0); }); }, "5 chunks"));
  EXPECT_TRUE(throws_error([&] { upload([&](E& e) { flip(e, 1, 0); }); }, "the first start is 1"));
  const auto starts = good.part(tca_bme::kStarts).values<uint32_t>();
  for (size_t record : {size_t{0}, size_t{7}, starts.size() - 2}) {
    const int64_t byte = int64_t{starts[record]} * tca_bme::kRecordAlignment;
    EXPECT_TRUE(throws_error([&] { upload([&](E& e) { flip(e, 2, byte); }); },
                             fmt::format("record {} ", record)));
  }
}

// Alone, joined, and joined with the other version: as records.
TEST_P(GpuTcaBme, LoadsThePapersVersionToo) {
  const OwnedTensor w = weight({192, 200}, 0.4);
  const int64_t bytes = load(w.view)->bytes();
  const auto paper = [&](int64_t begin, int64_t rows) {
    return tca_bme::encode_paper(w.view.rows(begin, rows), cpu.threads);
  };
  const auto expect_whole = [&](const WeightMatrix& loaded) {
    expect_expands_to(loaded, w.view);
    EXPECT_EQ(loaded.bytes(), bytes);
  };
  expect_whole(*tca_bme_format().load(paper(0, 192), load_context()));
  std::vector<EncodedWeight> parts;
  parts.push_back(paper(0, 64));
  parts.push_back(paper(64, 128));
  expect_whole(*join(parts));
  parts.clear();
  parts.push_back(paper(0, 64));
  parts.push_back(tca_bme_format().encode(w.view.rows(64, 128), cpu.threads));
  expect_whole(*join(parts));
}

}  // namespace
}  // namespace sparsellm
