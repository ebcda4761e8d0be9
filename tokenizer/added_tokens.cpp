#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tokenizer/utf8.h"

namespace sparsellm {
namespace {

// The Unicode property White_Space.
bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

size_t leading_white_space(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view next = rest;
    if (!is_white_space(take_character(next))) {
      break;
    }
    rest = next;
  }
  return text.size() - rest.size();
}

size_t trailing_white_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) {
      --begin;
    }
    std::string_view character = text.substr(begin, end - begin);
    if (!is_white_space(take_character(character))) {
      break;
    }
    end = begin;
  }
  return text.size() - end;
}

}  // namespace

std::vector<std::string> contents_in_text(const std::vector<AddedToken>& tokens,
                                          const Normalizer& normalizer) {
  size_t bytes = 0;
  for (const AddedToken& token : tokens) {
    bytes += token.content.size();
  }
  Normalizer::Budget budget(bytes);
  std::vector<std::string> contents;
  contents.reserve(tokens.size());
  std::string storage;
  for (const AddedToken& token : tokens) {
    contents.emplace_back(token.normalized ? normalizer.normalize(token.content, storage, budget)
                                           : token.content);
  }
  return contents;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, std::string_view source,
                         Normalizer normalizer)
    : normalizer_(std::move(normalizer)) {
  const auto check_length = [&](const AddedToken& token, size_t length) {
    require(length <= kMaxContentBytes,
            "{}: the added token {} has {} bytes; at most {} are supported", source,
            quote(token.content), length, kMaxContentBytes);
  };
  std::vector<std::string> contents = contents_in_text(tokens, normalizer_);
  std::unordered_set<std::string> verbatim;
  std::unordered_set<std::string_view> normalized;
  for (size_t i = 0; i < tokens.size(); ++i) {
    AddedToken& token = tokens[i];
    const std::string& content = contents[i];
    check_length(token, token.content.size());
    require(verbatim.insert(token.content).second, "{}: the added token {} is there twice", source,
            quote(token.content));
    if (token.lstrip || token.rstrip) {
      max_token_bytes_.reset();
    } else if (max_token_bytes_) {
      max_token_bytes_ = std::max(*max_token_bytes_, token.content.size());
    }
    if (!token.normalized || token.content.empty()) {
      continue;
    }
    check_length(token, content.size());
    require(!content.empty(), "{}: the normalizer leaves nothing of the added token {}", source,
            quote(token.content));
    require(normalized.insert(content).second,
            "{}: the normalizer makes {} of two added tokens, one of them {}", source,
            quote(content), quote(token.content));
    if (max_token_bytes_) {
      max_token_bytes_ = std::max(*max_token_bytes_, content.size());
    }
    token.content = content;
  }
  verbatim_ = make_matcher(tokens, false);
  normalized_ = make_matcher(tokens, true);
}

AddedTokens::Matcher AddedTokens::make_matcher(const std::vector<AddedToken>& tokens,
                                               bool normalized) {
  std::vector<AddedToken> selected;
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(selected),
               [&](const AddedToken& token) {
                 return token.normalized == normalized && !token.content.empty();
               });
  return Matcher(std::move(selected));
}

AddedTokens::Matcher::Matcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) {
    begins_token_[static_cast<uint8_t>(token.content.front())] = true;
  }
}

const AddedToken* AddedTokens::Matcher::longest_prefix(std::string_view text) const {
  const AddedToken* longest = nullptr;
  auto begin = tokens_.begin();  // [begin, end) begin with the bytes of `text` seen so far
  auto end = tokens_.end();
  for (size_t i = 0; i < text.size() && begin != end; ++i) {
    if (begin->content.size() == i) {
      ++begin;  // this one ends here; it is `longest`
    }
    const auto byte = static_cast<uint8_t>(text[i]);
    begin = std::partition_point(begin, end, [&](const AddedToken& token) {
      return static_cast<uint8_t>(token.content[i]) < byte;
    });
    end = std::partition_point(begin, end, [&](const AddedToken& token) {
      return static_cast<uint8_t>(token.content[i]) == byte;
    });
    if (begin != end && begin->content.size() == i + 1) {
      longest = &*begin;
    }
  }
  return longest;
}

void AddedTokens::Matcher::for_each_segment(std::string_view text, bool parse_special,
                                            const Visit& visit) const {
  size_t done = 0;  // everything in front of it is visited
  const auto add = [&](size_t begin, size_t end, std::optional<int32_t> id) {
    if (begin < end) {
      visit({text.substr(begin, end - begin), id, begin == 0});
    }
  };
  for (size_t position = 0; position < text.size();) {
    const AddedToken* token = begins_token_[static_cast<uint8_t>(text[position])]
                                  ? longest_prefix(text.substr(position))
                                  : nullptr;
    if (token == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position;
    size_t end = position + token->content.size();
    position = end;
    if (token->special && !parse_special) {
      continue;
    }
    if (token->lstrip) {
      begin = std::max(begin - trailing_white_space(text.substr(0, begin)), done);
    }
    if (token->rstrip) {
      end += leading_white_space(text.substr(end));
    }
    if (begin >= end) {
      continue;  // white space that the token before took along
    }
    add(done, begin, {});
    add(begin, end, token->id);
    done = end;
  }
  add(done, text.size(), {});
}

void AddedTokens::for_each_segment(std::string_view text, bool parse_special, const Visit& visit,
                                   const std::function<void()>& poll) const {
  std::string storage;
  Normalizer::Budget budget(text.size());
  verbatim_.for_each_segment(text, parse_special, [&](const Segment& segment) {
    if (segment.id) {
      visit(segment);
      return;
    }
    const std::string_view normalized = normalizer_.normalize(segment.text, storage, budget, poll);
    normalized_.for_each_segment(normalized, parse_special, [&](Segment part) {
      part.begins_text = part.begins_text && segment.begins_text;
      visit(part);
    });
  });
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text,
                                                     bool parse_special) const {
  std::vector<Segment> segments;
  for_each_segment(text, parse_special,
                   [&](const Segment& segment) { segments.push_back(segment); });
  return segments;
}

}  // namespace sparsellm
