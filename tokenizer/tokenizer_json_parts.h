#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/json_reader.h"
#include "tokenizer/bpe_model.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/token_decoder.h"

// The parts of a tokenizer.json, each under its key. All throw Error that names the key and the
// value for what is not supported.
namespace sparsellm {

// The parts of a "Sequence" under `key`, and of those in it, or `node` itself.
std::vector<JsonValue> flatten_sequence(const JsonValue& node, std::string_view key);

// A text that is looked for or put into others, of at most kMaxStepBytes bytes: the time that a
// text takes grows with it.
inline constexpr size_t kMaxStepBytes = 1024;
std::string read_step_text(const JsonValue& node);
// The text of {"String": ...}, not empty.
std::string read_string_pattern(const JsonValue& node);
// What the pre-tokenizer and the decoder "Metaspace" have in common.
MetaspaceStep read_metaspace(const JsonValue& node);

// "model"; its symbols are characters unless there is a "ByteLevel" pre-tokenizer.
BpeModel read_bpe_model(const JsonValue& node, BpeModel::Symbols symbols);

// "normalizer".
std::vector<NormalizerStep> read_normalizer(const JsonValue& node);

// "pre_tokenizer".
struct JsonPretokenizer {
  PretokenizerOptions options;
  bool has_byte_level = false;
};
JsonPretokenizer read_pretokenizer(const JsonValue& node);

// "decoder"; that of a byte-level model, or of another.
DecoderOptions read_decoder(const JsonValue& node, bool is_byte_level);

}  // namespace sparsellm
