// The file of a look-up: the n-grams of earlier processes, of one vocabulary.
#pragma once

#include <cstdint>
#include <string>

#include "eagle_ngrams.h"

namespace eagle {

class LookupFile {
  public:
    LookupFile() = default;

    // Throws EAGLE_ERR_INCOMPATIBLE for a folder that is not there.
    LookupFile(std::string path, const llama_vocab & vocab);

    bool empty() const { return path_.empty(); }
    const std::string & path() const { return path_; }

    // Merges what the file holds into `ngrams`; a file that is not there holds nothing. Returns why it is read as if it
    // held nothing, "": it is sound. Throws EAGLE_ERR_INCOMPATIBLE for one that must not be replaced: of another
    // vocabulary, of a later version, no file of a look-up at all.
    std::string read(Ngrams & ngrams) const;

    // Merges the file, which another process may have written meanwhile, and replaces it as a whole. Throws
    // EAGLE_ERR_STATE where that fails: the file stays as it was.
    void write(Ngrams & ngrams) const;

  private:
    std::string path_;
    uint64_t vocabulary_ = 0;  // hash of the texts of its tokens
    int32_t n_vocab_ = 0;
};

}  // namespace eagle
