#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sparsellm {

// What a SentencePiece model file holds, as far as it matters here. The library trusts its file:
// some fields make it read out of bounds or end the program.
struct SentencePieceModel {
  // As sentencepiece_model.proto numbers them.
  enum class PieceType : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;
    PieceType type = PieceType::normal;
  };
  std::vector<Piece> pieces;  // their index is the token id
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool byte_fallback = false;  // else a run of unknown characters becomes one token
};

// Reads a serialised ModelProto (protocol buffers, wire format) and checks it. Throws Error, with
// `source` in front, for bytes that are not one, and for a model that is not like those of Llama:
// BPE without a normalisation table, white space escaped and in front of words. Duplicate pieces
// are left to the library.
SentencePieceModel read_sentencepiece_model(std::string_view bytes, std::string_view source);

}  // namespace sparsellm
