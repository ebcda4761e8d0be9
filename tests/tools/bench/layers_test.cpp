// The report by layer on the CPU, and the rows of the ablation.

#include "tools/bench/layers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/weights/shape_loader.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tools/bench/ablation.h"
#include "tools/bench/choices.h"

namespace sparsellm {
namespace {

using testing::throws_error;

BenchModelArgs model(const char* name, const char* format) {
  BenchModelArgs args;
  args.model.model = testing::data(std::filesystem::path("models") / name).string();
  args.model.device = "cpu";
  args.model.weight_format = format;
  return args;
}

BenchModelArgs random_model(double sparsity, const char* format) {
  BenchModelArgs args;
  args.config = (testing::source_dir() / "configs/opt-125m.json").string();
  args.model.device = "cpu";
  args.model.weight_format = format;
  args.sparsity = sparsity;
  return args;
}

LayerBenchOptions small_options() {
  LayerBenchOptions options;
  options.tokens = {1, 3};
  options.repeat = 1;
  options.rotation_bytes = 1 << 16;
  return options;
}

std::vector<LayerResult> run(const LayerBenchOptions& options, const BenchModelArgs& args) {
  return bench_layers(options, open_layers(args, {.max_requests = 3}), [](const LayerResult&) {});
}

TEST(BenchLayers, TheMiddleStandsForAll) {
  for (const char* format : {"stored", "tca_bme", "tiled_csl"}) {
    const std::vector<LayerResult> results =
        run(small_options(), model("fable-llama-relu-8m", format));
    ASSERT_EQ(results.size(), 4u * 2u);
    const std::vector<std::string> names{"qkv", "attention_out", "gate_up", "down"};
    for (size_t i = 0; i < results.size(); ++i) {
      const LayerResult& result = results[i];
      SCOPED_TRACE(result.name + ": " + result.note);
      EXPECT_EQ(result.name, names[i / 2]);
      EXPECT_EQ(result.tokens, i % 2 == 0 ? 1 : 3);
      EXPECT_EQ(result.block, 4);
      EXPECT_EQ(result.count, 8);
      EXPECT_EQ(result.format, format == std::string("stored") ? "dense" : format);
      EXPECT_TRUE(result.verified);
      EXPECT_GT(result.density, 0.99);
      EXPECT_GT(result.us.median, 0.0);
      EXPECT_GT(result.dense_us, 0.0);
      EXPECT_EQ(result.baseline, "dense");
      EXPECT_TRUE(result.verdict);
      EXPECT_EQ(result.library_us, 0.0);  // there is none on the CPU
      EXPECT_EQ(result.dense_bytes, result.out * result.in * 2);
    }
  }
}

TEST(BenchLayers, EveryBlock) {
  LayerBenchOptions options = small_options();
  options.tokens = {2};
  options.blocks = LayerBenchOptions::Blocks::all;
  std::vector<int64_t> done;
  options.progress = [&](int64_t layers, int64_t total) {
    EXPECT_EQ(total, 4 * 8);
    done.push_back(layers);
  };
  std::vector<int64_t> blocks;
  const std::vector<LayerResult> results =
      bench_layers(options, open_layers(model("fable-opt-8m", "tca_bme"), {.max_requests = 3}),
                   [&](const LayerResult& result) { blocks.push_back(result.block); });
  ASSERT_EQ(results.size(), 4u * 8u);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].block, static_cast<int64_t>(i / 4));
    EXPECT_EQ(blocks[i], results[i].block);
    EXPECT_EQ(results[i].count, 1);
    EXPECT_EQ(results[i].name == "up", i % 4 == 2);
    EXPECT_TRUE(results[i].verified) << results[i].note;
  }
  EXPECT_EQ(done.front(), 0);
  EXPECT_EQ(done.back(), 4 * 8);
}

TEST(BenchLayers, RandomWeightsHaveTheirDensity) {
  LayerBenchOptions options = small_options();
  options.tokens = {1};
  const std::vector<LayerResult> results = run(options, random_model(0.7, "tca_bme"));
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0].out, 3 * 768);
  EXPECT_EQ(results[0].count, 12);
  for (const LayerResult& result : results) {
    EXPECT_TRUE(result.verified) << result.note;
    EXPECT_NEAR(result.density, 0.3, 0.01);
    EXPECT_LT(result.bytes, result.dense_bytes / 2);
  }
}

TEST(BenchLayers, PatternsKeepTheDensity) {
  LayerBenchOptions options = small_options();
  options.tokens = {1};
  int64_t uniform_bytes = 0;
  for (const char* pattern :
       {"uniform", "rows:1", "columns:0.5", "outliers:0.05", "dense-blocks:0.05"}) {
    BenchModelArgs args = random_model(0.7, "tca_bme");
    args.pattern = *parse_zero_pattern(pattern);
    const std::vector<LayerResult> results = run(options, args);
    ASSERT_EQ(results.size(), 4u);
    for (const LayerResult& result : results) {
      SCOPED_TRACE(pattern + (": " + result.note));
      EXPECT_EQ(result.pattern, pattern);
      EXPECT_TRUE(result.verified);
      EXPECT_NEAR(result.density, 0.3, 0.01);
    }
    EXPECT_EQ(total_layers(results).front().pattern, pattern);
    const int64_t bytes = results[2].bytes;
    EXPECT_NE(bytes, uniform_bytes);  // other matrices
    uniform_bytes = uniform_bytes == 0 ? bytes : uniform_bytes;
  }
  EXPECT_EQ(run(options, model("fable-opt-8m", "stored")).front().pattern, "");
}

// Blocks that a plan treats alike are measured once.
TEST(BenchLayers, OneOfTheBlocksThatAPlanMakesAlike) {
  const testing::TempDir dir;
  BenchModelArgs args = random_model(0.0, "stored");
  args.plan = dir.write("plan.json", R"({"rules": [
      {"tensors": "*", "layers": {"ends": "1/6"}, "prune": "magnitude", "sparsity": 0.5},
      {"tensors": "*.fc2", "prune": "none"}],
      "default": {"prune": "magnitude", "sparsity": 0.75}})");
  LayerBenchOptions options = small_options();
  options.tokens = {1};
  options.progress = [](int64_t, int64_t total) { EXPECT_EQ(total, 2 * 4); };
  const std::vector<LayerResult> results = run(options, args);
  ASSERT_EQ(results.size(), 2u * 4u);  // blocks 0, 1, 10, 11, and 2 to 9
  for (size_t i = 0; i < results.size(); ++i) {
    const LayerResult& result = results[i];
    SCOPED_TRACE(result.name + ": " + result.note);
    const bool dense = i == 7;
    EXPECT_EQ(result.block, i < 4 ? 10 : 6);
    EXPECT_EQ(result.count, i < 4 ? 4 : 8);
    EXPECT_EQ(result.pattern, "by plan");
    EXPECT_EQ(result.format, dense ? "dense" : "tca_bme");
    EXPECT_EQ(result.density, dense ? 1.0 : i < 4 ? 0.5 : 0.25);
    EXPECT_TRUE(result.verified);
  }
  EXPECT_EQ(total_layers(results).front().layers, 4 * 12);
}

// What rank 0 has of them.
TEST(BenchLayers, OfOneOfSeveralRanks) {
  for (const BenchModelArgs& args :
       {model("fable-llama-relu-8m", "tca_bme"), random_model(0.6, "auto")}) {
    const auto results = [&](int ranks) {
      return bench_layers(small_options(), open_layers(args, {.max_requests = 3}, ranks),
                          [](const LayerResult&) {});
    };
    const std::vector<LayerResult> whole = results(1);
    const std::vector<LayerResult> share = results(2);
    ASSERT_EQ(share.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      SCOPED_TRACE(whole[i].name + ": " + share[i].note);
      const bool by_columns = whole[i].name == "attention_out" || whole[i].name == "down";
      EXPECT_EQ(share[i].out, by_columns ? whole[i].out : whole[i].out / 2);
      EXPECT_EQ(share[i].in, by_columns ? whole[i].in / 2 : whole[i].in);
      EXPECT_EQ(share[i].count, whole[i].count);
      EXPECT_EQ(share[i].format, whole[i].format);
      EXPECT_NEAR(share[i].density, whole[i].density, 0.01);
      EXPECT_TRUE(share[i].verified);
    }
  }
}

// Equally many zeros, once in each row, and once anywhere.
TEST(BenchLayers, PlansThatDifferInTheScopeAreNotAlike) {
  const testing::TempDir dir;
  BenchModelArgs args = random_model(0.0, "stored");
  args.plan = dir.write("plan.json", R"({"rules": [
      {"tensors": "*", "layers": [0, 3], "prune": "magnitude", "sparsity": 0.75,
       "scope": "matrix"}],
      "default": {"prune": "magnitude", "sparsity": 0.75, "scope": "row"}})");
  const std::vector<AlikeBlocks> alike = open_layers(args, {.max_requests = 1}).alike;
  ASSERT_EQ(alike.size(), 2u);
  EXPECT_EQ(alike[0].count, 3);
  EXPECT_EQ(alike[1].count, 9);
}

// The formats of "auto" are those that an engine for the flags would have.
TEST(BenchLayers, AutoIsForAnEngineOfThatSize) {
  BenchModelArgs args = random_model(0.6, "auto");
  const auto formats = [&](const BenchEngineSize& size) {
    std::string all;
    for (const FormatChoice& choice : open_layers(args, size).choices) {
      all += choice.in.format + " ";
    }
    return all;
  };
  EXPECT_EQ(formats({.max_requests = 2}), "tca_bme tca_bme tca_bme tca_bme ");
  EXPECT_EQ(formats({.max_requests = 2, .decode_tokens = {64, 128}}), "dense dense dense dense ");
  // Most of its token buckets are more than rules take bitmaps for.
  EXPECT_EQ(formats({.max_requests = 1 << 14}), "dense dense dense dense ");
  args.kv_bytes = 5 << 20;
  args.gpu_memory_utilization = 0.5;
  args.deterministic = true;
  const EngineOptions options = bench_engine_options(args, {.max_requests = 3,
                                                            .prompt = 100,
                                                            .step_tokens = 512,
                                                            .context_size = 128,
                                                            .decode_tokens = {1, 3}});
  EXPECT_EQ(options.max_requests, 3);
  EXPECT_EQ(options.step_tokens, 300);
  EXPECT_EQ(options.context_size, 128);
  EXPECT_EQ(options.kv_bytes, 5 << 20);
  EXPECT_EQ(options.gpu_memory_utilization, 0.5);
  EXPECT_TRUE(options.deterministic);
  EXPECT_EQ(options.decode_tokens, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(options.weight_format, "auto");
}

// There is a row for each number of tokens, and what comes after is measured.
TEST(BenchLayers, AWeightThatDoesNotFitIsRowsWithANote) {
  LayerSource source = open_layers(model("fable-opt-8m", "stored"), {.max_requests = 3});
  source.load = [load = source.load](int64_t block) {
    DecoderLayer layer = load(block);
    layer.attention.out =
        ShapeLoader({}, DType::f16)
            .linear({.parts = {{"large", int64_t{1} << 29}}, .in = int64_t{1} << 30});
    return layer;
  };
  std::vector<std::string> heard;
  const std::vector<LayerResult> results = bench_layers(
      small_options(), source, [&](const LayerResult& result) { heard.push_back(result.name); });
  EXPECT_EQ(heard, (std::vector<std::string>{"qkv", "qkv", "attention_out", "attention_out", "up",
                                             "up", "down", "down"}));
  ASSERT_EQ(results.size(), heard.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const LayerResult& result = results[i];
    SCOPED_TRACE(result.name + ": " + result.note);
    const bool fits = result.name != "attention_out";
    EXPECT_EQ(result.name, heard[i]);
    EXPECT_EQ(result.tokens, i % 2 == 0 ? 1 : 3);
    EXPECT_EQ(result.verified, fits);
    EXPECT_EQ(result.us.median > 0.0, fits);
    EXPECT_EQ(result.note.find("the elements of a weight") == std::string::npos, fits);
    EXPECT_EQ(result.dense_bytes, result.out * result.in * 2);
  }
  EXPECT_EQ(total_layers(results).front().failed, 8);  // of as many blocks
}

TEST(BenchLayers, InvalidOptionsAreRefused) {
  const BenchModelArgs args = model("fable-opt-8m", "stored");
  LayerBenchOptions options = small_options();
  options.tokens = {};
  EXPECT_TRUE(throws_error([&] { run(options, args); }, "some number of tokens"));
  options.tokens = {0};
  EXPECT_TRUE(throws_error([&] { run(options, args); }, "0 tokens"));
}

LayerResult layer(int64_t tokens, double us, double dense_us) {
  LayerResult result;
  result.block = 2;
  result.name = "down";
  result.count = 3;
  result.out = 4;
  result.in = 5;
  result.density = 0.25;
  result.pattern = "rows:0.5";
  result.format = "tca_bme";
  result.bytes = 10;
  result.dense_bytes = 40;
  result.tokens = tokens;
  result.us = {.median = us, .min = us, .max = us};
  result.dense_us = dense_us;
  result.baseline = dense_us > 0.0 ? "cublaslt" : "";
  result.verdict = dense_us > 0.0 ? std::optional(Verdict::faster) : std::nullopt;
  result.library_us = 4.0;
  result.algorithm = "decode";
  result.verified = us > 0.0;
  return result;
}

TEST(BenchLayers, Totals) {
  std::vector<LayerResult> results{layer(8, 2.0, 3.0), layer(1, 1.0, 4.0), layer(8, 4.0, 6.0),
                                   layer(8, 0.0, 6.0), layer(8, 1.0, 0.0)};
  const std::vector<LayerTotals> totals = total_layers(results);
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].tokens, 1);
  EXPECT_EQ(totals[0].layers, 3);
  EXPECT_EQ(totals[0].us, 3.0);
  EXPECT_EQ(totals[0].dense_us, 12.0);
  EXPECT_EQ(totals[1].tokens, 8);
  EXPECT_EQ(totals[1].layers, 12);
  EXPECT_EQ(totals[1].failed, 6);
  EXPECT_EQ(totals[1].bytes, 120);
  EXPECT_EQ(totals[1].us, 18.0);
  EXPECT_EQ(totals[1].dense_us, 27.0);
  EXPECT_EQ(totals[1].library_us, 24.0);
  results.front().library_us = 0.0;  // a sum without one layer would be too small
  EXPECT_EQ(total_layers(results)[1].library_us, std::nullopt);
  EXPECT_EQ(total_layers(results)[0].library_us, 12.0);
}

std::string csv_of(const std::function<void(ReportWriter&)>& body) {
  std::string text;
  ReportWriter writer(ReportFormat::csv, {}, [&](std::string_view part) { text += part; });
  body(writer);
  writer.finish();
  return text;
}

// Why formats have no time stands beside them.
TEST(ReportChoices, SaysWhyFormatsAreNotMeasured) {
  const LayerWeight weight{.density = 0.3};
  const LayerKind kind{.layer = {.parts = {}, .rows = 512, .columns = 256, .activation = {}},
                       .weight = weight,
                       .first_weights = {"a", "b"},
                       .weights = {weight, weight}};
  const std::vector<FormatChoice> choices{
      {.kind = kind,
       .in = {"dense"},
       .by = FormatChoice::By::measurement,
       .times = {{.in = {"dense"}, .bytes = 262144, .seconds = 2e-5},
                 {.in = {"tca_bme"}, .bytes = 0, .why_not = "no memory"}},
       .not_tried = {{.format = "tiled_csl", .why = "it is large"}},
       .device = {Device::Kind::cuda, 0}},
      {.kind = kind, .in = {"dense"}}};
  const std::string text = csv_of([&](ReportWriter& writer) { report_choices(choices, writer); });
  EXPECT_NE(text.find("2,512,256,30,,dense,262144,20,yes,measurement,\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find(",no,,not measured: no memory\n"), std::string::npos) << text;
  EXPECT_NE(text.find("2,512,256,30,,tiled_csl,,,no,,not tried: it is large\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("2,512,256,30,,dense,262144,,yes,rules,\n"), std::string::npos) << text;
}

TEST(BenchLayers, Rows) {
  LayerResult failed = layer(8, 0.0, 0.0);
  failed.note = "no memory";
  LayerResult empty = layer(8, 2.0, 3.0);  // of zeros alone
  empty.density = 0.0;
  LayerResult unknown = failed;
  unknown.density = 0.0;
  const std::string text = csv_of([&](ReportWriter& writer) {
    writer.begin_table("layers", layer_columns());
    writer.add_row(layer_row(layer(8, 2.0, 3.0)));
    writer.add_row(layer_row(failed));
    writer.add_row(layer_row(empty));
    writer.add_row(layer_row(unknown));
    report_layer_totals({layer(8, 2.0, 3.0), failed}, writer);
  });
  EXPECT_EQ(text,
            "# table: layers\n"
            "block,layer,layers,out,in,density_percent,pattern,format,bytes,percent_of_dense,"
            "tokens,time_us,time_us_min,time_us_max,baseline,dense_us,speedup,verdict,library_us,"
            "library_speedup,algorithm,note\n"
            "2,down,3,4,5,25,rows:0.5,tca_bme,10,25,8,2,2,2,cublaslt,3,1.5,faster,4,2,decode,\n"
            "2,down,3,4,5,25,rows:0.5,tca_bme,10,25,8,,,,,,,,4,,decode,NOT VERIFIED: no memory\n"
            "2,down,3,4,5,0,rows:0.5,tca_bme,10,25,8,2,2,2,cublaslt,3,1.5,faster,4,2,decode,\n"
            "2,down,3,4,5,,rows:0.5,tca_bme,10,25,8,,,,,,,,4,,decode,NOT VERIFIED: no memory\n"
            "# table: layer totals\n"
            "tokens,pattern,layers,failed,bytes,percent_of_dense,time_us,dense_us,speedup,"
            "library_us,library_speedup\n"
            "8,rows:0.5,6,3,60,25,6,9,1.5,12,2\n");
}

TEST(BenchAblation, Rows) {
  AblationResult result;
  result.out = 4;
  result.in = 5;
  result.tokens = 8;
  result.sparsity = 0.5;
  result.variant = "stream only";
  result.us = {.median = 2.0, .min = 1.0, .max = 3.0};
  result.encoded_bytes = 12;
  result.read_gb_per_s = 100.0;
  result.speedup = 2.5;
  result.library_speedup = 3.5;
  result.fraction_of_ours = 0.5;
  result.measured = true;
  const std::string text = csv_of([&](ReportWriter& writer) {
    writer.begin_table("ablation", ablation_columns("tca_bme"));
    writer.add_row(ablation_row(result));
    result.computes_product = true;
    writer.add_row(ablation_row(result));
    AblationResult failed;
    failed.variant = "ours";
    failed.computes_product = true;
    failed.note = "wrong";
    writer.add_row(ablation_row(failed));
  });
  EXPECT_EQ(text,
            "# table: ablation\n"
            "out,in,tokens,sparsity,pattern,variant,time_us,time_us_min,time_us_max,"
            "encoded_bytes,read_gb_per_s,speedup,library_speedup,percent_of_ours,verified,"
            "algorithm,note\n"
            "4,5,8,0.5,uniform,stream only,2,1,3,12,100,2.5,3.5,50,no: computes no product,,\n"
            "4,5,8,0.5,uniform,stream only,2,1,3,12,100,2.5,3.5,50,yes,,\n"
            "0,0,0,0,uniform,ours,,,,,,,,,NOT VERIFIED,,wrong\n");
}

TEST(BenchAblation, IsForCuda) {
  EXPECT_TRUE(throws_error([] { bench_ablation({}, [](const AblationResult&) {}); },
                           "on CUDA alone, not on cpu"));
}

TEST(BenchAblation, IsOfOneFormatThatHasVariants) {
  check_ablation_formats({"tca_bme"});
  check_ablation_formats({"tiled_csl"});
  for (const std::vector<std::string>& formats : std::vector<std::vector<std::string>>{
           {}, {"dense"}, {"cusparse"}, {"tca_bme", "tiled_csl"}}) {
    EXPECT_TRUE(throws_error([&] { check_ablation_formats(formats); },
                             "one of --formats tca_bme or tiled_csl apart, not of"));
  }
  EXPECT_EQ(ablation_columns("tiled_csl")[5].title, "tiled_csl");
}

}  // namespace
}  // namespace sparsellm
