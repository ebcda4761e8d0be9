// Lists of random matrices to measure with, and the one in configs.

#include "tools/bench/matrix_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/parallel.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST(MatrixList, TheOneInConfigs) {
  const std::vector<MatrixSource> list =
      read_matrix_list(source_dir() / "configs" / "matrices" / "spmm.json");
  EXPECT_EQ(list.size(), 40u);
  std::map<std::string, int> by_class;
  int large = 0;
  for (const MatrixSource& source : list) {
    SCOPED_TRACE(source.name);
    ++by_class[source.class_name()];
    EXPECT_TRUE(source.file.empty());
    EXPECT_GE(source.random.rows, 10'000);
    EXPECT_LE(source.random.rows, 2'000'000);
    EXPECT_GE(source.random.nonzeros, 100'000);
    EXPECT_LE(source.random.nonzeros, 50'000'000);
    large += source.random.nonzeros > 2'000'000 ? 1 : 0;
    EXPECT_EQ(source.block_size() > 0, source.class_name() == "blocks");
  }
  EXPECT_EQ(by_class.size(), kMatrixClasses.size());
  for (const auto& [name, count] : by_class) {
    EXPECT_EQ(count, 5) << name;
  }
  EXPECT_EQ(large, 20);
}

// What a matrix has in the end may differ from what the list asks for.
TEST(MatrixList, SmallestOfTheOneInConfigs) {
  ThreadPool threads(2);
  for (const MatrixSource& source :
       read_matrix_list(source_dir() / "configs" / "matrices" / "spmm.json")) {
    if (source.random.nonzeros <= 1'000'000) {
      const auto made = static_cast<double>(source.make(threads).nonzeros());
      const auto asked = static_cast<double>(source.random.nonzeros);
      EXPECT_GT(made, 0.9 * asked) << source.name;
      EXPECT_LT(made, 1.1 * asked) << source.name;
    }
  }
}

TEST(MatrixList, ParametersOfClasses) {
  const TempDir folder;
  const std::vector<MatrixSource> list =
      read_matrix_list(folder.write("list.json", R"({"matrices": [
      {"name": "a", "class": "banded", "rows": 100, "columns": 90, "nonzeros": 500, "seed": 7,
       "band_density": 0.25},
      {"name": "b", "class": "blocks", "rows": 64, "columns": 32, "nonzeros": 128, "seed": 0,
       "block_rows": 4, "block_columns": 4},
      {"name": "c", "class": "blocks", "rows": 64, "columns": 32, "nonzeros": 128, "seed": 0,
       "block_rows": 4, "block_columns": 2},
      {"name": "d", "class": "skewed", "rows": 64, "columns": 32, "nonzeros": 128, "seed": 0,
       "length_deviation": 2},
      {"name": "e", "class": "empty-rows", "rows": 64, "columns": 32, "nonzeros": 128, "seed": 0,
       "empty_rows": 0.5},
      {"name": "f", "class": "uniform", "rows": 64, "columns": 32, "nonzeros": 128, "seed": 0}
  ]})"));
  ASSERT_EQ(list.size(), 6u);
  EXPECT_EQ(list[0].name, "a");
  EXPECT_EQ(list[0].random.matrix_class, MatrixClass::banded);
  EXPECT_EQ(list[0].random.rows, 100);
  EXPECT_EQ(list[0].random.columns, 90);
  EXPECT_EQ(list[0].random.nonzeros, 500);
  EXPECT_EQ(list[0].random.seed, 7u);
  EXPECT_EQ(list[0].random.band_density, 0.25);
  EXPECT_EQ(list[1].block_size(), 4);
  EXPECT_EQ(list[2].random.block_columns, 2);
  EXPECT_EQ(list[2].block_size(), 0);  // not square
  EXPECT_EQ(list[3].random.length_deviation, 2.0);
  EXPECT_EQ(list[4].random.empty_rows, 0.5);
  EXPECT_EQ(list[5].random.empty_rows, RandomMatrix().empty_rows);
}

TEST(MatrixList, WhatIsWrongIsNamed) {
  const TempDir folder;
  const auto refuses = [&](const std::string& text, const std::string& message) {
    return throws_error([&] { read_matrix_list(folder.write("list.json", text)); }, message);
  };
  const auto entry = [](const std::string& members) {
    return R"({"matrices": [{"name": "x", "class": "uniform", "rows": 9, "columns": 9,
        "nonzeros": 9, "seed": 1}, {)" +
           members + "}]}";
  };
  const std::string good =
      R"("class": "uniform", "rows": 8, "columns": 8, "nonzeros": 8, "seed": 1)";
  EXPECT_TRUE(throws_error([] { read_matrix_list("/no/such/list.json"); }, "/no/such/list.json"));
  EXPECT_TRUE(refuses("{", "list.json"));
  EXPECT_TRUE(refuses("[]", "list.json"));
  EXPECT_TRUE(refuses("{}", "matrices"));
  EXPECT_TRUE(refuses(R"({"matrices": []})", "matrices"));
  EXPECT_TRUE(refuses(R"({"matrices": {}})", "matrices"));
  EXPECT_TRUE(refuses(R"({"matrices": [1]})", "matrices[0]"));
  EXPECT_TRUE(refuses(R"({"matrix": [], "matrices": []})", "matrix"));
  EXPECT_TRUE(refuses(R"({"description": 3, "matrices": [{}]})", "description"));
  EXPECT_TRUE(refuses(entry(good), "matrices[1].name"));
  EXPECT_TRUE(refuses(entry(R"("name": "", )" + good), "matrices[1].name"));
  EXPECT_TRUE(refuses(entry(R"("name": "x", )" + good), "another matrix has this name"));
  EXPECT_TRUE(refuses(entry(R"("name": "y", "colour": 1, )" + good), "colour"));
  // Of another class.
  EXPECT_TRUE(refuses(entry(R"("name": "y", "band_density": 0.5, )" + good), "band_density"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string members = R"("name": "y", )" + good;
    members.replace(members.find(from), from.size(), to);
    return entry(members);
  };
  EXPECT_TRUE(refuses(with("uniform", "dense"), "matrices[1].class"));
  EXPECT_TRUE(refuses(with("uniform", "dense"), "power-law"));
  EXPECT_TRUE(refuses(with(R"("uniform")", "3"), "matrices[1].class"));
  EXPECT_TRUE(refuses(with(R"("rows": 8)", R"("rows": 0)"), "matrices[1].rows"));
  EXPECT_TRUE(refuses(with(R"("rows": 8)", R"("rows": 8.5)"), "matrices[1].rows"));
  EXPECT_TRUE(refuses(with(R"("rows": 8)", R"("rows": 3000000000)"), "matrices[1].rows"));
  EXPECT_TRUE(refuses(with(R"("rows": 8, )", ""), "matrices[1].rows"));
  EXPECT_TRUE(refuses(with(R"("nonzeros": 8)", R"("nonzeros": 65)"), "65 nonzeros"));
  EXPECT_TRUE(refuses(with(R"("nonzeros": 8)", R"("nonzeros": 65)"), "matrices[1]"));
  EXPECT_TRUE(refuses(with(R"("seed": 1)", R"("seed": -1)"), "matrices[1].seed"));
  EXPECT_TRUE(refuses(with(R"(, "seed": 1)", ""), "matrices[1].seed"));
  EXPECT_TRUE(refuses(with(R"("uniform", "rows": 8)", R"("stencil", "rows": 9)"), "square"));
  EXPECT_TRUE(refuses(with(R"("uniform")", R"("blocks", "block_rows": 9)"), "blocks of 9 x 8"));
  EXPECT_TRUE(
      refuses(with(R"("uniform")", R"("banded", "band_density": 0)"), "matrices[1].band_density"));
  EXPECT_TRUE(refuses(with(R"("uniform")", R"("skewed", "length_deviation": "2")"),
                      "matrices[1].length_deviation"));
  EXPECT_TRUE(
      refuses(with(R"("uniform")", R"("empty-rows", "empty_rows": 1)"), "matrices[1].empty_rows"));
}

}  // namespace
}  // namespace sparsellm
