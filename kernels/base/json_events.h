#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sparsellm {

// The parts of a JSON document that may be hostile, one after the other, as the text is read: what
// is not wanted is never held, and limits count before anything is stored.
class JsonEvents : private nlohmann::json_sax<nlohmann::json> {
 public:
  JsonEvents(const JsonEvents&) = delete;
  JsonEvents& operator=(const JsonEvents&) = delete;

 protected:
  // `source` begins messages, and outlives this.
  JsonEvents(std::string_view source, int max_depth);
  ~JsonEvents() override = default;

  // Calls the functions below. Throws what they throw, and Error for text that is not JSON or
  // nested more than max_depth deep.
  void read(std::string_view text);

  // null, a boolean, a number or a string, which may be moved from; or an array or an object that
  // begins, empty, whose depth() is that of what it is in.
  virtual void on_value(nlohmann::json& value) = 0;
  virtual void on_key(std::string& key) = 0;  // of an object, in front of its value
  virtual void on_end() = 0;                  // of an array or an object, with its own depth()

  // Arrays and objects around what is read.
  int depth() const { return depth_; }
  std::string_view source() const { return source_; }
  // Throws the Error of an object that has a key twice.
  [[noreturn]] void refuse_second(std::string_view key) const;

 private:
  bool null() override;
  bool boolean(bool value) override;
  bool number_integer(int64_t value) override;
  bool number_unsigned(uint64_t value) override;
  bool number_float(double value, const std::string& text) override;
  bool string(std::string& value) override;
  bool binary(nlohmann::json::binary_t& value) override;
  bool start_object(size_t size) override;
  bool start_array(size_t size) override;
  bool end_object() override;
  bool end_array() override;
  bool key(std::string& name) override;
  bool parse_error(size_t byte, const std::string& token,
                   const nlohmann::json::exception& error) override;

  bool add(nlohmann::json value);
  bool open(nlohmann::json value);
  bool close();

  std::string_view source_;
  int max_depth_;
  int depth_ = 0;
};

}  // namespace sparsellm
