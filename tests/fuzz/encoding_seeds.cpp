// Writes seeds that are encodings: encoding_seeds FOLDER makes FOLDER/TARGET/NAME. Those of the
// target model_file are each the model.safetensors of a converted model with one weight, for every
// format and layout, with true checksums; those of record_pieces stand in
// tests/fuzz/record_seeds.h. A fuzzer alone does not find its way past the headers.

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "models/storage/model_writer.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tca_bme/v1/paper_layout.h"
#include "sparse/tiled_csl/format/tile_layout.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "sparse/tiled_csl/v1/paper_parts.h"
#include "tests/fuzz/record_seeds.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::fuzz {
namespace {

namespace fs = std::filesystem;

// An element of every `spacing` is a nonzero.
OwnedTensor weight_of(DType dtype, int64_t rows, int64_t columns, int64_t spacing) {
  OwnedTensor weight = allocate_tensor({}, dtype, {rows, columns}, "a weight");
  visit_float(dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float value = i % spacing == 0 ? static_cast<float>(1 + i % 13) : 0.0f;
      weight.view.data<T>()[i] = from_float<T>(value);
    }
  });
  return weight;
}

void write(const fs::path& to, const EncodedWeight& weight) {
  const testing::TempDir scratch;
  const fs::path model = scratch.path() / "model";
  ModelWriter writer(model, {.header_bytes = 256});
  writer.write_text("config.json", "{}");
  writer.add("w.weight", weight);
  writer.finish();
  fs::copy_file(model / "model.safetensors", to, fs::copy_options::overwrite_existing);
}

void write_model_files(const fs::path& folder) {
  fs::create_directories(folder);
  ThreadPool threads(1);
  for (DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    // Few nonzeros are stored as pairs; 70 rows are more than one row of records.
    for (const auto& [name, spacing] : {std::pair("half", 2), std::pair("few", 37)}) {
      const OwnedTensor weight = weight_of(dtype, 70, 19, spacing);
      for (const WeightFormat* format : weight_formats()) {
        if (format->why_not(weight.view).empty()) {
          write(folder / fmt::format("{}-{}-{}", format->name(), name_of(dtype), name),
                format->encode(weight.view, threads));
        }
      }
      if (dtype != DType::f32) {
        write(folder / fmt::format("tca_bme_size-{}-{}", name_of(dtype), name),
              tca_bme_format().encode(weight.view, {.layout = "size"}, threads));
        write(folder / fmt::format("tca_bme_paper-{}-{}", name_of(dtype), name),
              tca_bme::encode_paper(weight.view, threads));
        write(folder / fmt::format("tiled_csl_paper-{}-{}", name_of(dtype), name),
              tiled_csl::encode_paper(weight.view, threads));
      }
    }
  }
  // More groups of values than a piece of a tile's record has, and words with places of their own.
  const OwnedTensor tile = weight_of(DType::f16, tiled_csl::kTileRows, tiled_csl::kTileColumns, 3);
  write(folder / "tiled_csl-f16-pieces", tiled_csl_format().encode(tile.view, threads));
}

void write_records(const fs::path& folder) {
  fs::create_directories(folder);
  for (const Seed& seed : record_seeds()) {
    std::ofstream file(folder / seed.name, std::ios::binary);
    file << seed.input;
    file.close();
    require(!file.fail(), "cannot write {}", (folder / seed.name).string());
  }
}

}  // namespace
}  // namespace sparsellm::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: encoding_seeds FOLDER\n");
    return 2;
  }
  try {
    const std::filesystem::path folder(argv[1]);
    sparsellm::fuzz::write_model_files(folder / "model_file");
    sparsellm::fuzz::write_records(folder / "record_pieces");
  } catch (const sparsellm::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
