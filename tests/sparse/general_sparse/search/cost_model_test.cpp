// Cost models: their files, files that are refused, and fits.

#include "sparse/general_sparse/search/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/paths.h"
#include "tests/testing/random.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using namespace sparsellm::testing;
using nlohmann::json;
using Sample = CostModel::Sample;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kDepth = 8;  // deeper than what a file may have

CostModel model_from(std::string_view text) {
  const JsonDocument document = parse_json(text, "model", kDepth);
  return CostModel::from_json(JsonValue(document, "model"));
}

PlanFeatures random_features(Random& random) {
  PlanFeatures features{};
  for (double& feature : features) {
    feature = random.uniform(0.0, 100.0);
  }
  return features;
}

double cost_of(const CostModel& model, size_t access_class, size_t feature) {
  PlanFeatures one{};
  one[feature] = 1.0;
  return model.seconds(access_class, one);
}

void expect_same_predictions(const CostModel& a, const CostModel& b) {
  Random random(5);
  for (size_t of_class = 0; of_class < kAccessClasses; ++of_class) {
    for (size_t feature = 0; feature < kPlanFeatures; ++feature) {
      EXPECT_EQ(cost_of(a, of_class, feature), cost_of(b, of_class, feature));
    }
    for (int i = 0; i < 20; ++i) {
      const PlanFeatures features = random_features(random);
      EXPECT_EQ(a.seconds(of_class, features), b.seconds(of_class, features));
    }
  }
}

// Products with costs that are known, of all classes: a feature is in some samples, and the launch
// in all.
PlanFeatures known_costs(size_t of_class) {
  Random random(of_class + 1);
  PlanFeatures costs{};
  for (double& cost : costs) {
    cost = random.below(4) == 0 ? 0.0 : random.uniform(1e-7, 1e-5);
  }
  costs[0] = 3e-6;
  return costs;
}

double sum_of_products(const PlanFeatures& a, const PlanFeatures& b) {
  double sum = 0.0;
  for (size_t i = 0; i < kPlanFeatures; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

std::vector<Sample> samples_of(size_t of_class, const PlanFeatures& costs, double noise) {
  Random random(of_class + 100);
  std::vector<Sample> samples;
  for (size_t i = 0; i < 8 * kPlanFeatures; ++i) {
    Sample sample{.access_class = of_class, .features = {}, .seconds = 0.0};
    sample.features[0] = 1.0;
    sample.features[i % kPlanFeatures] = 1.0 + random.uniform(0.0, 20.0);
    sample.features[static_cast<size_t>(random.below(kPlanFeatures))] += random.uniform(0.0, 2.0);
    sample.seconds = sum_of_products(sample.features, costs) * random.uniform(1.0, 1.0 + noise);
    samples.push_back(sample);
  }
  return samples;
}

TEST(CostModel, AFileMakesTheSamePredictions) {
  const CostModel& built_in = CostModel::built_in();
  const CostModel again = model_from(built_in.to_json());
  EXPECT_EQ(again.gpu(), built_in.gpu());
  EXPECT_EQ(again.to_json(), built_in.to_json());
  expect_same_predictions(built_in, again);

  std::vector<Sample> samples;
  for (const size_t of_class : {0, 3, 7}) {
    for (const Sample& sample : samples_of(of_class, known_costs(of_class), 0.5)) {
      samples.push_back(sample);
    }
  }
  const CostModel fitted = CostModel::fit(samples, R"(GPU "A" \ 1)");
  const CostModel read = model_from(fitted.to_json());
  EXPECT_EQ(read.gpu(), R"(GPU "A" \ 1)");
  expect_same_predictions(fitted, read);
  const TempDir folder;
  expect_same_predictions(fitted, CostModel::read(folder.write("model.json", fitted.to_json())));
}

TEST(CostModel, TheOneOfTheBuildIsThatOfTheFile) {
  const CostModel& built_in = CostModel::built_in();
  const CostModel file = CostModel::read(source_dir() / "configs" / "cost_models" / "h200.json");
  EXPECT_EQ(built_in.gpu(), file.gpu());
  EXPECT_TRUE(built_in.gpu().starts_with("NVIDIA H200")) << built_in.gpu();
  expect_same_predictions(built_in, file);
  // No class is without costs: its plans would seem to take no time.
  for (size_t of_class = 0; of_class < kAccessClasses; ++of_class) {
    EXPECT_GT(cost_of(built_in, of_class, 0), 0.0) << access_class_name(of_class);
    for (size_t feature = 0; feature < kPlanFeatures; ++feature) {
      EXPECT_GE(cost_of(built_in, of_class, feature), 0.0);
    }
  }
}

TEST(CostModel, ClassesAndFeaturesHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (size_t of_class = 0; of_class < kAccessClasses; ++of_class) {
    names.insert(access_class_name(of_class));
  }
  EXPECT_EQ(names.size(), kAccessClasses);
  names.clear();
  for (size_t feature = 0; feature < kPlanFeatures; ++feature) {
    EXPECT_FALSE(general_sparse::name_of(static_cast<PlanFeature>(feature)).empty());
    names.insert(general_sparse::name_of(static_cast<PlanFeature>(feature)));
  }
  EXPECT_EQ(names.size(), kPlanFeatures);

  std::set<size_t> classes;
  for (const RowCount rows : {RowCount::one, RowCount::several}) {
    for (const RowEnds ends : {RowEnds::whole, RowEnds::split}) {
      for (const XOrder order : {XOrder::by_token, XOrder::transposed}) {
        const size_t of_class =
            access_class({.thread = {.rows = rows, .ends = ends}, .x_order = order});
        ASSERT_LT(of_class, kAccessClasses);
        classes.insert(of_class);
        const std::string_view name = access_class_name(of_class);
        EXPECT_EQ(name.starts_with("one"), rows == RowCount::one) << name;
        EXPECT_EQ(name.find("whole") != std::string_view::npos, ends == RowEnds::whole) << name;
        EXPECT_EQ(name.ends_with("by token"), order == XOrder::by_token) << name;
      }
    }
  }
  EXPECT_EQ(classes.size(), kAccessClasses);
}

// What is done to a good file, and the part of the message that says where it is wrong.
struct Damage {
  std::function<void(json&)> change;
  std::string place;
};

TEST(CostModel, WrongPartsAreNamed) {
  const auto at_class = [](json& root) -> json& { return root.at("seconds").at("several, whole"); };
  const auto cost = [&](const json& value) {
    return [=](json& root) { at_class(root)["longest"] = value; };
  };
  const std::string of_cost = R"(seconds["several, whole"].longest is )";
  const std::vector<Damage> damages{
      {[](json& root) { root = json::array(); }, "expected an object"},
      {[](json& root) { root = nullptr; }, "model"},
      {[](json& root) { root["second"] = 1; }, "second"},
      {[](json& root) { root["description"] = 3; }, "description is 3"},
      {[](json& root) { root.erase("gpu"); }, "gpu"},
      {[](json& root) { root["gpu"] = 7; }, "gpu is 7"},
      {[](json& root) { root["gpu"] = ""; }, "gpu is \"\"; expected 1 to 100 printable"},
      {[](json& root) { root["gpu"] = std::string(101, 'a'); }, "expected 1 to 100 printable"},
      {[](json& root) { root["gpu"] = "a\nb"; }, "expected 1 to 100 printable"},
      {[](json& root) { root["gpu"] = "a\x1b[31m"; }, "expected 1 to 100 printable"},
      {[](json& root) { root["gpu"] = "a\x7f"; }, "expected 1 to 100 printable"},
      {[](json& root) { root["gpu"] = std::string("a\0b", 3); }, "expected 1 to 100 printable"},
      {[](json& root) { root["gpu"] = "\xc3\xa4"; }, "expected 1 to 100 printable"},
      {[](json& root) { root.erase("seconds"); }, "seconds"},
      {[](json& root) { root["seconds"] = json::array(); }, "seconds is an array"},
      {[](json& root) { root["seconds"] = 1.0; }, "seconds is 1"},
      {[](json& root) { root["seconds"] = json::object(); }, "seconds has 0 classes; expected 8"},
      {[](json& root) { root["seconds"].erase("one, whole"); },
       "seconds has 7 classes; expected 8"},
      {[](json& root) { root["seconds"]["three, whole"] = root["seconds"]["one, whole"]; },
       "seconds has 9 classes; expected 8"},
      {[](json& root) {
         root["seconds"]["three, whole"] = root["seconds"]["one, whole"];
         root["seconds"].erase("one, whole");
       },
       R"(seconds["one, whole"])"},
      {[](json& root) { root["seconds"]["one, split"] = 3; }, R"(seconds["one, split"] is 3)"},
      {[](json& root) { root["seconds"]["one, split"] = nullptr; }, R"(seconds["one, split"])"},
      {[&](json& root) { at_class(root).erase("longest"); },
       fmt::format(R"(seconds["several, whole"] has {} costs; expected {})", kPlanFeatures - 1,
                   kPlanFeatures)},
      {[&](json& root) { at_class(root)["luck"] = 0.0; },
       fmt::format(R"(seconds["several, whole"] has {} costs; expected {})", kPlanFeatures + 1,
                   kPlanFeatures)},
      {[&](json& root) {
         at_class(root).erase("longest");
         at_class(root)["luck"] = 0.0;
       },
       R"(seconds["several, whole"].longest)"},
      {cost(-1e-9), of_cost},
      {cost(-1e-300), of_cost},
      {cost(1.0001), of_cost},
      {cost(1e300), of_cost},
      {cost("0"), of_cost},
      {cost(true), of_cost},
      {cost(nullptr), of_cost},
      {cost(json::array({0.0})), of_cost},
      {cost(json::object()), of_cost},
  };
  const json good = json::parse(CostModel::built_in().to_json());
  ASSERT_EQ(model_from(good.dump()).to_json(), CostModel::built_in().to_json());
  for (const Damage& damage : damages) {
    json root = good;
    damage.change(root);
    EXPECT_TRUE(throws_error([&] { model_from(root.dump()); }, damage.place)) << root.dump(2);
    EXPECT_TRUE(throws_error([&] { model_from(root.dump()); }, "model")) << root.dump(2);
  }
}

TEST(CostModel, WrongFilesAreRefused) {
  const TempDir folder;
  const auto refuses = [&](std::string_view text, std::string_view why) {
    return throws_error([&] { CostModel::read(folder.write("model.json", text)); }, why);
  };
  const std::string good = CostModel::built_in().to_json();
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_TRUE(refuses("", "model.json"));
  EXPECT_TRUE(refuses("{", "model.json"));
  EXPECT_TRUE(refuses(good + "{}", "model.json"));
  EXPECT_TRUE(refuses(with(R"("launch": )", R"("launch": 1e999, "launch": )"), "model.json"));
  EXPECT_TRUE(refuses(with(R"("launch": )", R"("launch": NaN, "launch": )"), "model.json"));
  EXPECT_TRUE(refuses(with(R"("launch": )", R"("launch": 1.0, "launch": )"), "launch"));
  EXPECT_TRUE(refuses(with(R"("launch": )", R"("launch": [[[[1]]]], "a": )"), "model.json"));
  EXPECT_TRUE(refuses(with("\n", std::string(1 << 16, ' ')), "model.json"));
  EXPECT_TRUE(throws_error([&] { CostModel::read(folder.path() / "none.json"); }, "none.json"));
  EXPECT_TRUE(throws_error([&] { CostModel::read(folder.path()); }, folder.path().string()));
}

TEST(CostModelFit, FindsTheCostsThatMadeTheTimes) {
  std::vector<Sample> samples;
  for (size_t of_class = 0; of_class < kAccessClasses; ++of_class) {
    for (const Sample& sample : samples_of(of_class, known_costs(of_class), 0.0)) {
      samples.push_back(sample);
    }
  }
  const CostModel model = CostModel::fit(samples, "a GPU");
  EXPECT_EQ(model.gpu(), "a GPU");
  for (size_t of_class = 0; of_class < kAccessClasses; ++of_class) {
    const PlanFeatures costs = known_costs(of_class);
    for (size_t feature = 0; feature < kPlanFeatures; ++feature) {
      EXPECT_NEAR(cost_of(model, of_class, feature), costs[feature], 1e-10)
          << access_class_name(of_class) << ", " << feature;
    }
  }
  for (const Sample& sample : samples) {
    EXPECT_NEAR(model.seconds(sample.access_class, sample.features), sample.seconds,
                1e-3 * sample.seconds);
  }
}

// Of the sum of squares of relative errors: 0 by each cost that is positive, and by none does it
// fall.
TEST(CostModelFit, IsTheBestWithoutNegativeCosts) {
  const size_t of_class = 2;
  PlanFeatures costs = known_costs(of_class);
  costs[3] = -1e-7;  // no fit can have these
  costs[4] = -1e-7;
  const std::vector<Sample> samples = samples_of(of_class, costs, 0.02);
  const CostModel model = CostModel::fit(samples, "a GPU");
  int zeros = 0;
  for (size_t feature = 0; feature < kPlanFeatures; ++feature) {
    const double cost = cost_of(model, of_class, feature);
    ASSERT_GE(cost, 0.0);
    double slope = 0.0;  // by a change of the cost for a typical product
    double scale = 0.0;
    for (const Sample& sample : samples) {
      const double relative = sample.features[feature] / sample.seconds;
      slope += relative * (model.seconds(of_class, sample.features) / sample.seconds - 1.0);
      scale += relative;
    }
    zeros += cost == 0.0 ? 1 : 0;
    if (cost == 0.0) {
      EXPECT_GE(slope, -1e-3 * scale) << feature;
    } else {
      EXPECT_NEAR(slope, 0.0, 1e-3 * scale) << feature;
    }
  }
  EXPECT_GE(zeros, 2);
  EXPECT_EQ(cost_of(model, of_class, 3), 0.0);
  EXPECT_EQ(cost_of(model, of_class, 4), 0.0);
}

TEST(CostModelFit, ClassesWithoutSamplesComeLast) {
  const CostModel none = CostModel::fit({}, "a GPU");
  const CostModel one = CostModel::fit(samples_of(6, known_costs(6), 0.0), "a GPU");
  Random random(3);
  const PlanFeatures features = random_features(random);
  for (size_t of_class = 0; of_class < kAccessClasses; ++of_class) {
    EXPECT_EQ(none.seconds(of_class, features), kInfinity);
    EXPECT_EQ(one.seconds(of_class, features) < kInfinity, of_class == 6);
  }
  expect_same_predictions(none, model_from(none.to_json()));
}

TEST(CostModelFit, RefusesTimesThatAreNone) {
  for (const double seconds :
       {0.0, -0.0, -1e-6, std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity}) {
    std::vector<Sample> samples = samples_of(1, known_costs(1), 0.0);
    samples[5].seconds = seconds;
    EXPECT_TRUE(throws_error([&] { CostModel::fit(samples, "a GPU"); }, "seconds")) << seconds;
  }
}

// What is fitted can be written, and read again.
TEST(CostModelFit, RefusesWhatNoFileHas) {
  const std::vector<Sample> good = samples_of(1, known_costs(1), 0.0);
  for (const std::string& gpu : {std::string(), std::string(101, 'a'), std::string("a\nb")}) {
    EXPECT_TRUE(throws_error([&] { CostModel::fit(good, gpu); }, "expected 1 to 100 printable"));
  }
  // A product of a launch alone that takes minutes; and one in no time at all.
  Sample sample{.access_class = 4, .features = {}, .seconds = 100.0};
  sample.features[0] = 1.0;
  EXPECT_TRUE(throws_error([&] { CostModel::fit({{sample}}, "a GPU"); }, "one, whole, by token"));
  sample.seconds = 1e-300;
  EXPECT_TRUE(throws_error([&] { CostModel::fit({{sample}}, "a GPU"); }, "1e-300 seconds"));
}

}  // namespace
}  // namespace sparsellm
