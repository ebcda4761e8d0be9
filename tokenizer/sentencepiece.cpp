#include "tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <new>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/lfs_pointer.h"
#include "kernels/base/mapped_file.h"
#include "kernels/base/memory_reserve.h"
#include "tokenizer/encoding.h"
#include "tokenizer/sentencepiece_cuts.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/token_table.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

using PieceType = SentencePieceModel::PieceType;

// Bounds the memory that the library takes for a hostile file; published models have at most 5 MB.
constexpr int64_t kMaxModelBytes = 16'000'000;

constexpr std::string_view kEscapedSpace = "\xe2\x96\x81";  // U+2581

// Serialised normalizer_specs { add_dummy_prefix: false } and { remove_extra_whitespaces: false }.
// Behind a serialised model they override the model's own fields, since a parser merges messages
// that occur more than once.
constexpr std::string_view kNoDummyPrefix("\x1a\x02\x18\x00", 4);
constexpr std::string_view kKeepExtraSpaces("\x1a\x02\x20\x00", 4);

// The library takes some 230 bytes of memory for a byte of what it encodes at once, and less time
// for a byte if all of that is in a cache.
constexpr size_t kPieceBytes = 1 << 14;

// "LLaMATokenizer" is an early spelling.
constexpr std::array<const char*, 7> kTokenizerClasses = {
    "LlamaTokenizer",         "LlamaTokenizerFast",      "LLaMATokenizer",   "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"};

using Processor = sentencepiece::SentencePieceProcessor;

// About twice what the library was seen to take of memory: for a model of the shortest pieces, and
// for texts of one character or two.
constexpr size_t kLoadedBytesPerByte = 64;
constexpr size_t kEncodedBytesPerByte = 512;
constexpr size_t kMoreBytes = 1 << 18;

// The library's messages are quoted because they hold texts of the model.
void load(Processor& processor, std::string_view model, const std::string& source) {
  try {
    const MemoryReserve reserve(kMoreBytes + kLoadedBytesPerByte * model.size());
    const auto status = processor.LoadFromSerializedProto({model.data(), model.size()});
    reserve.require_unused();
    require(status.ok(), "{}: not a usable SentencePiece model: {}", source,
            quote(status.message()));
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail("{}: not a usable SentencePiece model: {}", source, quote(error.what()));
  }
}

bool is_special(const SentencePieceModel::Piece& piece) {
  return piece.type == PieceType::control || piece.type == PieceType::unknown;
}

std::string unescape_spaces(std::string_view text) {
  std::string result;
  for (size_t at = 0; (at = text.find(kEscapedSpace)) != std::string_view::npos;) {
    result.append(text.substr(0, at)).append(" ");
    text.remove_prefix(at + kEscapedSpace.size());
  }
  return result.append(text);
}

std::string bytes_of_piece(const SentencePieceModel::Piece& piece, std::string_view source) {
  const std::string_view text = piece.text;
  if (piece.type != PieceType::byte) {
    return unescape_spaces(text);
  }
  // "<0x0A>" stands for one byte.
  const bool is_framed = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
  uint8_t byte = 0;
  require(is_framed && std::from_chars(&text[3], &text[5], byte, 16).ptr == &text[5],
          "{}: the byte piece {} is not like \"<0x0A>\"", source, quote(text));
  return std::string(1, static_cast<char>(byte));
}

// The special tokens of the config and the model's own.
SpecialTokens resolve(const SentencePieceModel& model, const TokenizerConfig& config) {
  std::unordered_map<std::string_view, int32_t> ids;
  std::vector<AddedToken> added = config.added_tokens;
  std::unordered_set<std::string_view> known;
  for (const AddedToken& token : config.added_tokens) {
    known.insert(token.content);
  }
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    ids.emplace(piece.text, id);
    if (is_special(piece) && known.insert(piece.text).second) {
      AddedToken token;
      token.content = piece.text;
      token.id = id;
      token.special = true;
      added.push_back(std::move(token));
    }
  }
  return resolve_special_tokens(
      std::move(added), config, [&](const std::string& content) -> std::optional<int32_t> {
        const auto found = ids.find(content);
        return found == ids.end() ? std::nullopt : std::optional(found->second);
      });
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view bytes, const SentencePieceModel& model,
                         const std::string& source, const TokenizerConfig& config)
      : SentencePieceTokenizer(bytes, model, source, config, resolve(model, config)) {}

  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override {
    check_text(text);
    Encoding encoding(text, options, max_token_bytes_);
    if (options.add_special_tokens) {
      encoding.ids = frame_.prefix;
    }
    added_tokens_.for_each_segment(text, options.parse_special, [&](const auto& segment) {
      if (segment.id) {
        encoding.ids.push_back(*segment.id);
        encoding.check();
      } else {
        const bool is_first = segment.text.data() == text.data();
        encode_segment(segment.text, has_dummy_prefix_ && (is_first || legacy_), encoding);
      }
    });
    if (options.add_special_tokens) {
      encoding.ids.insert(encoding.ids.end(), frame_.suffix.begin(), frame_.suffix.end());
    }
    encoding.check();
    return std::move(encoding.ids);
  }

  std::optional<int64_t> max_token_bytes() const override { return max_token_bytes_; }
  std::string token_bytes(int32_t id, bool show_special) const override {
    return tokens_.bytes(id, show_special);
  }
  bool strips_leading_space() const override { return has_dummy_prefix_; }
  int64_t vocab_size() const override { return tokens_.vocab_size(); }
  std::optional<int32_t> bos_id() const override { return bos_id_; }
  std::optional<int32_t> eos_id() const override { return eos_id_; }

 private:
  SentencePieceTokenizer(std::string_view bytes, const SentencePieceModel& model,
                         const std::string& source, const TokenizerConfig& config,
                         const SpecialTokens& special)
      : has_dummy_prefix_(model.add_dummy_prefix && config.add_prefix_space.value_or(true)),
        legacy_(config.legacy),
        removes_extra_spaces_(model.remove_extra_whitespaces),
        byte_fallback_(model.byte_fallback),
        cuts_(model),
        added_tokens_(special.added_tokens, source),
        bos_id_(special.bos_id),
        eos_id_(special.eos_id) {
    std::string serialised(bytes);
    if (cuts_.possible()) {
      serialised += kKeepExtraSpaces;  // else the library removes them around each piece
    }
    load(with_prefix_, serialised, source);
    load(without_prefix_, serialised.append(kNoDummyPrefix), source);
    if (!bos_id_ && with_prefix_.bos_id() >= 0) {
      bos_id_ = with_prefix_.bos_id();
    }
    if (!eos_id_ && with_prefix_.eos_id() >= 0) {
      eos_id_ = with_prefix_.eos_id();
    }
    frame_ = make_frame(config, true, bos_id_, eos_id_);

    size_t longest = 1;
    for (size_t i = 0; i < model.pieces.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      longest = std::max(longest, model.pieces[i].text.size());
      tokens_.add(id, bytes_of_piece(model.pieces[i], source));
      tokens_.set_special(id, is_special(model.pieces[i]));
    }
    for (const AddedToken& token : special.added_tokens) {
      const bool is_new_id = tokens_.add(token.id, unescape_spaces(token.content));
      require(is_new_id || (static_cast<size_t>(token.id) < model.pieces.size() &&
                            model.pieces[token.id].text == token.content),
              "{}: the added token {} has the id {}, which does not fit the vocabulary", source,
              quote(token.content), token.id);
      tokens_.set_special(token.id, token.special);
    }
    if (added_tokens_.max_token_bytes() && byte_fallback_ && !removes_extra_spaces_) {
      max_token_bytes_ = static_cast<int64_t>(std::max(longest, *added_tokens_.max_token_bytes()));
    }
  }

  void encode_segment(std::string_view text, bool dummy_prefix, Encoding& encoding) const {
    std::string shorter;
    if (removes_extra_spaces_ && cuts_.possible()) {
      shorter = without_extra_spaces(text);
      text = shorter;
    }
    std::vector<int> ids;  // of a piece
    for (size_t done = 0; done < text.size();) {
      const std::string_view rest = text.substr(done);
      const std::string_view piece = rest.substr(0, cuts_.piece_end(rest, kPieceBytes));
      encoding.check_piece(piece.size());
      const Processor& processor = dummy_prefix && done == 0 ? with_prefix_ : without_prefix_;
      const MemoryReserve reserve(kMoreBytes + kEncodedBytesPerByte * piece.size());
      const auto status = processor.Encode({piece.data(), piece.size()}, &ids);
      reserve.require_unused();
      require(status.ok(), "SentencePiece cannot encode a text of {} bytes: {}", text.size(),
              quote(status.message()));
      // A run of unknown characters is one token, also where it was cut.
      const bool goes_on = !byte_fallback_ && done > 0 && !encoding.ids.empty() && !ids.empty() &&
                           ids.front() == with_prefix_.unk_id() &&
                           encoding.ids.back() == with_prefix_.unk_id();
      encoding.ids.insert(encoding.ids.end(), ids.begin() + (goes_on ? 1 : 0), ids.end());
      encoding.check();
      done += piece.size();
    }
  }

  bool has_dummy_prefix_;
  bool legacy_;
  bool removes_extra_spaces_;
  bool byte_fallback_;
  SentencePieceCuts cuts_;
  AddedTokens added_tokens_;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  std::optional<int64_t> max_token_bytes_;
  Frame frame_;
  TokenTable tokens_;
  Processor with_prefix_;  // as the file says
  Processor without_prefix_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const InputFile& file,
                                              const TokenizerConfig& config) {
  const std::string& name = config.tokenizer_class;
  require(name.empty() || std::count(kTokenizerClasses.begin(), kTokenizerClasses.end(), name) > 0,
          "{}: tokenizer_class is {}; with a tokenizer.model only \"LlamaTokenizer\" is supported",
          config.path.string(), quote(name));
  const std::string bytes = read_text_file(file, kMaxModelBytes);
  require_no_lfs_pointer(file.path(), bytes);
  return std::make_unique<SentencePieceTokenizer>(
      bytes, read_sentencepiece_model(bytes, file.string()), file.string(), config);
}

}  // namespace sparsellm
