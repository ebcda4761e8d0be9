#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "tests/fuzz/model_files.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::fuzz {

// What a name of an edited directory stands for.
struct EditedEntry {
  enum class Kind : uint8_t { file, link, directory, pipe };
  Kind kind = Kind::file;
  std::string bytes;  // of a file; where a link leads

  friend bool operator==(const EditedEntry&, const EditedEntry&) = default;
};
using EditedModel = std::map<std::string, EditedEntry, std::less<>>;

// A model of model_bases() after the edits of a script, a line each. Whatever a fuzzer writes is a
// script: what makes no sense in it is passed over. FILE is a letter, a for the first of the files
// in their order, and so are tensors I and J of a safetensors file, in the order of their names.
//   B FILE AT HEX        bytes from AT on (from the end, if negative) become those in HEX
//   R FILE SIZE          the file has this many bytes (this many fewer, if negative)
//   J FILE PATH JSON     the member that a JSON pointer names, of a document or of the header of a
//                        safetensors file, gets this value (the text itself if it is not JSON)
//   N FILE KEY PATH JSON the same of a document in the text KEY of the metadata
//   D FILE PATH          the member is removed
//   T FILE JSON          the file is this text
//   U FILE               the file is removed
//   L FILE TARGET        a link takes its place: to another file, "missing", "." or "/dev/zero"
//   M FILE               a directory takes its place
//   P FILE               a named pipe takes its place
//   W NAME TEXT          a file of this name is added
//   C FILE FILE BASE     the first becomes a copy of the second, of the model BASE
//   S FILE I J           two tensors of the same size change their data
//   X FILE I J           two tensors change their names
//   E FILE I AT HEX      bytes of a tensor's data, as with B
//   H FILE               the checksums in a safetensors file become right
//   I                    the manifest becomes that of the files, the shards get its id
EditedModel edited_model(const ModelFiles& base, std::string_view script);

// A directory that has one edited model after the other; what both have is not written again.
class EditedFolder {
 public:
  explicit EditedFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  void write(const EditedModel& model);

 private:
  std::filesystem::path path_;
  EditedModel on_disk_;
};

}  // namespace sparsellm::fuzz
