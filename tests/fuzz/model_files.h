#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sparsellm::fuzz {

// The files of a model directory, by name.
using ModelFiles = std::map<std::string, std::string, std::less<>>;

// Models of two blocks and some 10 KiB with all that a directory has, made in memory:
//   0  Llama, f16, one file, tokenizer.json
//   1  Llama, bf16, two shards, vocab.json with merges.txt
//   2  OPT, f32 that is not aligned, one file, tokenizer.json
// and what sparsellm-convert makes of the first, half of its elements zero, with a manifest:
//   3  tca_bme
//   4  tca_bme, in several shards
//   5  tiled_csl and dense
// and the last
//   6  Llama, f16, weights of compressed-tensors
const std::vector<ModelFiles>& model_bases();

}  // namespace sparsellm::fuzz
