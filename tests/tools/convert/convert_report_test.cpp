// The tables and the warnings of conversions that are made up, figure by figure.

#include "tools/convert/convert_report.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sparsellm {
namespace {

constexpr int64_t kMib = 1 << 20;

// Of 64 x 32 elements, half of which are zeros in the input.
ConvertedWeight weight(const char* module, const char* method, const char* format, int64_t nonzeros,
                       int64_t bytes) {
  return {.layer = {.module = module, .block = 0, .rows = 64, .columns = 32},
          .method = method,
          .format = format,
          .why_dense = "",
          .stored_nonzeros = 1024,
          .nonzeros = nonzeros,
          .dense_bytes = 8 * kMib,
          .formula_bytes = 1 * kMib,
          .bytes = bytes};
}

Conversion some_conversion() {
  Conversion conversion;
  conversion.weights = {
      weight("model.layers.0.self_attn.q_proj", "magnitude", "tca_bme", 512, 1 * kMib),
      weight("model.layers.0.mlp.up_proj", "magnitude", "tca_bme", 256, 2 * kMib),
      weight("model.layers.1.self_attn.q_proj", "magnitude", "tca_bme", 256, 1 * kMib),
      weight("model.layers.1.mlp.up_proj", "magnitude", "dense", 1024, 8 * kMib),
      weight("model.layers.2.mlp.up_proj", "none", "dense", 1024, 8 * kMib),
      weight("model.layers.3.mlp.up_proj", "magnitude", "dense", 1024, 8 * kMib),
      weight("model.layers.2.self_attn.o_proj", "magnitude", "tca_bme", 512, 2 * kMib),
      weight("model.layers.3.self_attn.o_proj", "magnitude", "tca_bme", 512, 2 * kMib)};
  conversion.weights[3].why_dense = "b: too few zeros";
  conversion.weights[4].why_dense = "a: not planned";
  conversion.weights[5].why_dense = "b: too few zeros";
  conversion.other_bytes = 32 * kMib;
  return conversion;
}

std::string csv_of(const std::function<void(ReportWriter&)>& body) {
  std::string text;
  ReportWriter writer(ReportFormat::csv, {}, [&](std::string_view part) { text += part; });
  body(writer);
  writer.finish();
  return text;
}

TEST(ConversionWarnings, SayWhatIsMissingAndWhatStaysDense) {
  Conversion conversion = some_conversion();
  EXPECT_EQ(conversion_warnings(conversion),
            (std::vector<std::string>{"1 of 8 linear layers stay dense: a: not planned",
                                      "2 of 8 linear layers stay dense: b: too few zeros"}));
  conversion.weights.resize(3);
  EXPECT_EQ(conversion_warnings(conversion), std::vector<std::string>());
  conversion.has_tokenizer = false;
  EXPECT_EQ(
      conversion_warnings(conversion),
      std::vector<std::string>{
          "the model has no tokenizer (tokenizer.model, tokenizer.json or vocab.json): what is "
          "converted takes and gives token ids alone"});
}

TEST(ConversionWarnings, SayWhatBecameOfActivationSparsity) {
  Conversion conversion = some_conversion();
  conversion.weights.resize(3);
  conversion.activation_sparsity = {.mode = ActivationSparsity::Mode::predict};
  EXPECT_EQ(conversion_warnings(conversion), std::vector<std::string>());
  conversion.activation_sparsity = ActivationSparsity();
  conversion.dropped_alphas = true;
  EXPECT_EQ(conversion_warnings(conversion),
            (std::vector<std::string>{
                "activation sparsity is off in what was written: no neurons may be skipped within "
                "--max-loss",
                "the alphas of activation sparsity in the input's config.json are not those of "
                "pruned weights, and were dropped; calibrate what was written"}));
}

constexpr char kGroups[] =
    "# table: layers\n"
    "layers,count,prune,format,gpu,input_zeros_percent,zeros_percent,dense_mib,stored_mib,"
    "over_formula_percent,compression,model_percent\n"
    "self_attn.q_proj,2,magnitude,tca_bme,yes,50,81.25,16,2,0,8,3.125\n"
    "mlp.up_proj,1,magnitude,tca_bme,yes,50,87.5,8,2,100,4,3.125\n"
    "mlp.up_proj,2,magnitude,dense,yes,50,50,16,16,700,1,25\n"
    "mlp.up_proj,1,none,dense,yes,50,50,8,8,700,1,12.5\n"
    "self_attn.o_proj,2,magnitude,tca_bme,yes,50,75,16,4,100,4,6.25\n"
    "linear layers,8,,,,50,68.75,64,32,300,2,50\n";
constexpr char kModel[] =
    "# table: model\n"
    "as,linear_mib,other_mib,model_mib,compression\n"
    "stored,32,32,64,1.5\n";
constexpr char kDense[] =
    "# table: dense\n"
    "why,count,mib\n"
    "a: not planned,1,8\n"
    "b: too few zeros,2,16\n";

TEST(ConversionReport, GroupsTheLayers) {
  Conversion conversion = some_conversion();
  const auto report = [&] {
    return csv_of(
        [&](ReportWriter& writer) { report_conversion(conversion, Detail::groups, writer); });
  };
  EXPECT_EQ(report(), std::string(kGroups) + kModel + kDense);
  for (ConvertedWeight& each : conversion.weights) {
    each.why_dense.clear();
  }
  EXPECT_EQ(report(), std::string(kGroups) + kModel);
}

TEST(ConversionReport, AndEachOfThem) {
  Conversion conversion = some_conversion();
  conversion.weights.erase(conversion.weights.begin(), conversion.weights.begin() + 2);
  conversion.weights.resize(2);
  const std::string text =
      csv_of([&](ReportWriter& writer) { report_conversion(conversion, Detail::weights, writer); });
  const std::string_view begin = "# table: weights\n";
  ASSERT_NE(text.find(begin), std::string::npos);
  EXPECT_EQ(text.substr(text.find(begin) + begin.size()),
            "module,out,in,prune,format,input_nonzeros,nonzeros,dense_bytes,formula_bytes,"
            "stored_bytes,gpu,why_dense\n"
            "model.layers.1.self_attn.q_proj,64,32,magnitude,tca_bme,1024,256,8388608,1048576,"
            "1048576,yes,\n"
            "model.layers.1.mlp.up_proj,64,32,magnitude,dense,1024,1024,8388608,1048576,8388608,"
            "yes,b: too few zeros\n");
}

TEST(InspectionReport, HasAColumnForEachFormat) {
  Conversion dense = some_conversion();
  for (ConvertedWeight& each : dense.weights) {
    each.format = "dense";
    each.bytes = 8 * kMib;
  }
  const std::vector<Inspection> inspections{{.format = "planned", .conversion = some_conversion()},
                                            {.format = "dense", .conversion = dense}};
  const auto report = [&](Detail detail) {
    return csv_of([&](ReportWriter& writer) { report_inspection(inspections, detail, writer); });
  };
  const std::string groups =
      "# table: layers\n"
      "layers,count,prune,input_zeros_percent,zeros_percent,planned_mib,dense_mib\n"
      "self_attn.q_proj,2,magnitude,50,81.25,2,16\n"
      "mlp.up_proj,3,magnitude,50,62.5,18,24\n"
      "mlp.up_proj,1,none,50,50,8,8\n"
      "self_attn.o_proj,2,magnitude,50,75,4,16\n"
      "linear layers,8,,50,68.75,32,64\n"
      "# table: model\n"
      "as,linear_mib,other_mib,model_mib,compression\n"
      "planned,32,32,64,1.5\n"
      "dense,64,32,96,1\n";
  EXPECT_EQ(report(Detail::groups), groups);
  const std::string all = report(Detail::weights);
  EXPECT_TRUE(all.starts_with(groups));
  EXPECT_NE(all.find("\n# table: weights as planned\n"), std::string::npos);
  EXPECT_NE(all.find("\n# table: weights as dense\n"), std::string::npos);
}

TEST(ConversionReport, SaysWhatRoundingChanged) {
  Conversion conversion = some_conversion();
  conversion.weights.resize(3);
  for (ConvertedWeight& each : conversion.weights) {
    each.values = "i4:64";
  }
  const auto rounded = [&](size_t i, double squared_error, double pruned_squares, int64_t lost) {
    conversion.weights[i].rounded = {.error = {.squared_error = squared_error,
                                               .squared_weights = 100.0,
                                               .nonzeros = 256,
                                               .lost = lost,
                                               .groups = 32},
                                     .pruned_squares = pruned_squares};
  };
  rounded(0, 1.0, 20.0, 3);
  rounded(2, 3.0, 20.0, 4);
  conversion.weights[1].values = "i8";
  rounded(1, 0.25, 0.0, 0);
  const auto report = [&](Detail detail) {
    return csv_of([&](ReportWriter& writer) { report_conversion(conversion, detail, writer); });
  };
  const std::string text = report(Detail::weights);
  EXPECT_NE(text.find("# table: values\n"
                      "layers,count,prune,values,stored_mib,bits_per_weight,error_percent,"
                      "added_percent,rounded_to_zero,lost_groups,clipped_groups\n"
                      "self_attn.q_proj,2,magnitude,i4:64,2,4096,14.142135623730951,10,7,0,0\n"
                      "mlp.up_proj,1,magnitude,i8,2,8192,5,,0,0,0\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("# table: values of weights\n"
                      "module,values,error_percent,rounded_to_zero\n"
                      "model.layers.0.self_attn.q_proj,i4:64,10,3\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(report(Detail::groups).find("values of weights"), std::string::npos);
  EXPECT_EQ(conversion_warnings(conversion), std::vector<std::string>());
  conversion.weights[0].rounded->error.lost_groups = 2;
  conversion.weights[2].rounded->error.clipped_groups = 1;
  EXPECT_EQ(
      conversion_warnings(conversion),
      std::vector<std::string>{
          "the weights of 3 of 96 groups that share a scale are too small or too large for the "
          "scales of narrow values (of i4 f16, from 6e-8 to 65504): 2 became zero, 1 are clipped"});
}

// As a model without linear layers, which cannot be, would have it: no division by 0.
TEST(ConversionReport, OfNothing) {
  const std::string text =
      csv_of([](ReportWriter& writer) { report_conversion({}, Detail::groups, writer); });
  EXPECT_NE(text.find("linear layers,0,,,,0,0,0,0,0,0,0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("stored,0,0,0,0\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace sparsellm
