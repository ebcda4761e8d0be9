#pragma once

#include <cstdint>
#include <filesystem>

namespace sparsellm {

// A model directory that appears only when it is complete: until then its files are in a hidden
// directory beside it, ".<name>.partial-XXXXXXXX", which goes away with this object. A process that
// is killed leaves it there; nothing ever uses or removes it.
class OutputDirectory {
 public:
  // What is to happen to an older directory of the same name.
  enum class Existing : uint8_t {
    refuse,
    // If it is a model with nothing in it but what a conversion writes (by its manifest, without
    // one by the names): something else that was named by mistake must not be lost.
    replace,
  };

  // Throws Error naming the path and the reason: it exists, it cannot be made, it is no model. A
  // symbolic link at `path` is followed: what it points to is replaced in the end. `input` is where
  // the model comes from: neither it nor a directory in it or around it can be the output; empty:
  // nowhere.
  OutputDirectory(const std::filesystem::path& path, Existing existing,
                  const std::filesystem::path& input);
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Where the files go until publish().
  const std::filesystem::path& partial_path() const { return partial_path_; }

  // Gives the directory its name; the files in it are durable already. An older directory stays as
  // it was until the new one takes its place in one step (in two where the file system has no such
  // step), and is removed then. Throws Error, and leaves the older one as it is, if that fails.
  void publish();

  // What another run left beside the directory, since on a full disk one wants to know;
  // empty if there is nothing.
  std::filesystem::path left_over() const;

 private:
  std::filesystem::path path_;
  Existing existing_;
  std::filesystem::path partial_path_;
  bool published_ = false;
};

// How two directories of one file system change places.
enum class ExchangeBy : uint8_t {
  one_step,      // needs RENAME_EXCHANGE; where it is missing, the three steps
  three_renames  // for a moment neither has its name, and a crash there leaves a hidden one
};

// Gives each the name of the other. Throws Error, and leaves both as they are, if that fails.
void exchange_directories(const std::filesystem::path& a, const std::filesystem::path& b,
                          ExchangeBy how);

}  // namespace sparsellm
