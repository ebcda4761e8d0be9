#include "tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"

namespace sparsellm {
namespace {

constexpr uint64_t kModelTypeBpe = 2;

// The library looks for at most 64 user-defined symbols that begin at one place.
constexpr size_t kMaxNestedSymbols = 32;

struct Field {
  uint64_t number = 0;
  uint64_t integer = 0;    // of a varint or a fixed-size field
  std::string_view bytes;  // of a string or a message
};

// The fields of one message, in the order of the file.
class MessageReader {
 public:
  MessageReader(std::string_view message, std::string_view source)
      : rest_(message), source_(source) {}

  std::optional<Field> next() {
    if (rest_.empty()) {
      return {};
    }
    const uint64_t key = varint();
    Field field{.number = key >> 3, .integer = 0, .bytes = {}};
    switch (key & 7) {
      case 0:
        field.integer = varint();
        break;
      case 1:
        field.integer = little_endian(take(8));
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        field.integer = little_endian(take(4));
        break;
      default:
        refuse();
    }
    return field;
  }

 private:
  [[noreturn]] void refuse() const { fail("{}: not a SentencePiece model, or damaged", source_); }

  std::string_view take(uint64_t count) {
    if (count > rest_.size()) {
      refuse();
    }
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1).front());
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    refuse();
  }

  static uint64_t little_endian(std::string_view bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    }
    return value;
  }

  std::string_view rest_;
  std::string_view source_;
};

SentencePieceModel::Piece read_piece(std::string_view message, std::string_view source,
                                     size_t index) {
  SentencePieceModel::Piece piece;
  MessageReader reader(message, source);
  while (const auto field = reader.next()) {
    if (field->number == 1) {
      piece.text = field->bytes;
    } else if (field->number == 2) {
      const float score = std::bit_cast<float>(static_cast<uint32_t>(field->integer));
      require(std::isfinite(score), "{}: piece {} has the score {}", source, index, score);
    } else if (field->number == 3) {
      require(field->integer >= 1 && field->integer <= 6, "{}: piece {} has the unknown type {}",
              source, index, field->integer);
      piece.type = static_cast<SentencePieceModel::PieceType>(field->integer);
    }
  }
  if (piece.text.empty() || piece.text.find('\0') != std::string::npos) {
    fail("{}: piece {} is {}; expected a text without NUL bytes", source, index, quote(piece.text));
  }
  return piece;
}

void read_trainer_spec(std::string_view message, std::string_view source, uint64_t& model_type,
                       SentencePieceModel& model) {
  MessageReader reader(message, source);
  while (const auto field = reader.next()) {
    if (field->number == 3) {
      model_type = field->integer;
    } else if (field->number == 24) {
      require(field->integer == 0,
              "{}: treat_whitespace_as_suffix is true; only false is supported", source);
    } else if (field->number == 35) {
      model.byte_fallback = field->integer != 0;
    }
  }
}

void read_normalizer_spec(std::string_view message, std::string_view source,
                          SentencePieceModel& model) {
  MessageReader reader(message, source);
  while (const auto field = reader.next()) {
    if (field->number == 2) {
      require(field->bytes.empty(),
              "{}: the normalizer has a table of {} bytes; only the rule \"identity\" is supported",
              source, field->bytes.size());
    } else if (field->number == 3) {
      model.add_dummy_prefix = field->integer != 0;
    } else if (field->number == 4) {
      model.remove_extra_whitespaces = field->integer != 0;
    } else if (field->number == 5) {
      require(field->integer != 0, "{}: escape_whitespaces is false; only true is supported",
              source);
    }
  }
}

void check_user_defined_symbols(const SentencePieceModel& model, std::string_view source) {
  std::vector<std::string_view> symbols;
  for (const auto& piece : model.pieces) {
    if (piece.type == SentencePieceModel::PieceType::user_defined) {
      symbols.push_back(piece.text);
    }
  }
  std::sort(symbols.begin(), symbols.end());
  std::vector<std::string_view> prefixes;  // of the current symbol, each a prefix of the next
  for (std::string_view symbol : symbols) {
    while (!prefixes.empty() && !symbol.starts_with(prefixes.back())) {
      prefixes.pop_back();
    }
    prefixes.push_back(symbol);
    require(prefixes.size() <= kMaxNestedSymbols,
            "{}: more than {} user-defined symbols begin like {}", source, kMaxNestedSymbols,
            quote(prefixes.front()));
  }
}

}  // namespace

SentencePieceModel read_sentencepiece_model(std::string_view bytes, std::string_view source) {
  SentencePieceModel model;
  uint64_t model_type = 1;  // unigram, the default
  MessageReader reader(bytes, source);
  while (const auto field = reader.next()) {
    if (field->number == 1) {
      model.pieces.push_back(read_piece(field->bytes, source, model.pieces.size()));
    } else if (field->number == 2) {
      read_trainer_spec(field->bytes, source, model_type, model);
    } else if (field->number == 3) {
      read_normalizer_spec(field->bytes, source, model);
    }
  }
  require(!model.pieces.empty(), "{}: not a SentencePiece model: it has no pieces", source);
  require(model_type == kModelTypeBpe, "{}: model_type is {}; only 2 (BPE) is supported", source,
          model_type);
  check_user_defined_symbols(model, source);
  return model;
}

}  // namespace sparsellm
