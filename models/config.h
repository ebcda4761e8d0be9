#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/base/open_directory.h"
#include "kernels/rope.h"
#include "models/activation_sparsity.h"

namespace sparsellm {

// What a model directory's config.json says, in the engine's terms. Reading is strict: a missing
// required key, a wrong JSON type, a value that the engine does not support and sizes that do not
// divide are Errors that name the key, the value and what is supported. A null counts as a missing
// key, except that a null token id means that there is none.
//
// model_type must be that of the architecture (models/architectures.cpp), or none where
// transformers has its code: llama or none for LlamaForCausalLM, sparsellama or llama_sparse_relu
// for SparseLlamaForCausalLM.
//
// Required: architectures, vocab_size, hidden_size, num_hidden_layers, num_attention_heads,
//   for OPT ffn_dim and activation_function, for the others intermediate_size and hidden_act, for
//   Mistral, Bamboo, Qwen2 and Qwen3 num_key_value_heads.
// Defaults, those of Hugging Face: max_position_embeddings 2048,
//   for OPT tie_word_embeddings true, bos_token_id 2, eos_token_id 2,
//   for Llama num_key_value_heads = num_attention_heads, head_dim = hidden_size /
//   num_attention_heads, rms_norm_eps 1e-6, rope_theta 10000, no RoPE scaling, attention_bias,
//   mlp_bias and tie_word_embeddings false, bos_token_id 1, eos_token_id 2;
//   for the others those of Llama, except: Mistral and Bamboo max_position_embeddings 131072 and
//   sliding_window 4096 (a null: none); Qwen2 and Qwen3 max_position_embeddings 32768, no BOS and
//   no EOS, use_sliding_window false; Qwen3 head_dim 128; MiniCPM tie_word_embeddings true,
//   scale_emb, scale_depth and dim_model_base 1.
struct ModelConfig {
  enum class Norm : uint8_t { layer_norm, rms_norm };
  enum class Positions : uint8_t { learned, rope };

  std::string architecture;  // architectures[0], a name of models/architectures.h

  // All positive, and small enough that the product of any two fits int64_t with room to spare.
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // divides num_heads
  int64_t head_dim = 0;      // multiple of 8, at most 256
  int64_t max_positions = 0;
  int64_t window = 0;  // positions that a token attends to, its own included; 0: all before it

  Norm norm = Norm::rms_norm;
  float norm_epsilon = 1e-5f;
  Positions positions = Positions::rope;
  float rope_theta = 10000.0f;
  RopeScaling rope_scaling;

  Activation activation;
  bool gated_mlp = false;
  bool relu_up = false;  // of a gated MLP whose activation is relu: up has a ReLU, too (dReLU)
  bool qk_norm = false;  // each head of q and of k has an RMSNorm of norm_epsilon
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool tied_head = false;  // the output projection is the token embedding

  // Factors of the embedding, of what each block adds to the residual stream, and of the logits,
  // which the normed hidden state is multiplied by.
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;
  float logit_scale = 1.0f;

  // Of the MLPs; as it is stored, until an engine makes of it what its options ask for.
  ActivationSparsity activation_sparsity;

  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;  // generation_config.json's where it has them

  // A line for the user about keys that are ignored although they change the mathematics of other
  // families; empty if there are none.
  std::string warning;

  // compressed-tensors has quantised weights, activations or the KV cache: there may be scales that
  // the engine does not use.
  bool is_quantized = false;
  // A line for the user if activations or the KV cache were; else empty.
  std::string quantization_warning;
};

// Sampling defaults of generation_config.json; empty where it is silent or not there.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<float> temperature;         // at least 0
  std::optional<int32_t> top_k;             // at least 0
  std::optional<float> top_p;               // in (0, 1]
  std::optional<float> min_p;               // in [0, 1]
  std::optional<float> repetition_penalty;  // above 0
};

// Of a model directory.
ModelConfig read_model_config(const OpenDirectory& directory);
// Of a file that is in the format of config.json.
ModelConfig read_model_config_file(const InputFile& file);
GenerationDefaults read_generation_defaults(const OpenDirectory& directory);

}  // namespace sparsellm
