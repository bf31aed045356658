#include "eagle_lookup_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "eagle_error.h"
#include "eagle_file_lock.h"

#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif

namespace eagle {

namespace {

constexpr char MAGIC[8] = {'E', 'A', 'G', 'L', 'E', 'L', 'U', 'P'};
constexpr uint32_t VERSION = 1;  // of the layout below, of the hash and of the sizes of n-grams

// Little-endian, as on every machine that we build for.
struct Header {
    char magic[8];
    uint32_t version, now;
    uint64_t vocabulary, n_records, checksum;
};

struct Record {
    uint32_t bucket;
    Ngrams::Entry entry;
};

static_assert(sizeof(Header) == 40 && sizeof(Record) == 20, "the layout of the file");

struct Close {
    void operator()(FILE * file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, Close>;

// FNV-1a by words of four bytes.
uint64_t hash_bytes(const void * data, size_t size, uint64_t hash = 0xcbf29ce484222325) {
    const auto * bytes = (const uint8_t *) data;
    for (size_t i = 0; i < size; i += 4) {
        uint32_t word = 0;
        std::memcpy(&word, bytes + i, std::min<size_t>(4, size - i));
        hash = (hash ^ word) * 0x100000001b3;
    }
    return hash;
}

uint64_t checksum_of(Header header, const std::vector<Record> & records) {
    header.checksum = 0;
    return hash_bytes(records.data(), records.size() * sizeof(Record), hash_bytes(&header, sizeof header));
}

[[noreturn]] void refuse(const std::string & path, const char * reason) {
    throw Error(EAGLE_ERR_INCOMPATIBLE, format("%s: %s. Name another file", path.c_str(), reason));
}

bool is_sound(const Record & record, int32_t n_vocab) {
    const auto & entry = record.entry;
    return record.bucket < Ngrams::N_BUCKETS && entry.token >= 0 && entry.token < n_vocab &&
           std::isfinite(entry.weight) && entry.weight > 0;
}

bool is_sound(const Header & header, const std::vector<Record> & records, int32_t n_vocab) {
    return checksum_of(header, records) == header.checksum &&
           std::all_of(records.begin(), records.end(),
                       [&](const Record & record) { return is_sound(record, n_vocab); });
}

std::vector<Record> records_of(const Ngrams & ngrams) {
    std::vector<Record> records;
    for (size_t i = 0; i < Ngrams::N_BUCKETS * Ngrams::N_WAYS; i++) {
        if (ngrams.entries()[i].weight > 0) {
            records.push_back({(uint32_t) (i / Ngrams::N_WAYS), ngrams.entries()[i]});
        }
    }
    return records;
}

bool write_whole(const std::string & path, const Header & header, const std::vector<Record> & records) {
    const File file(std::fopen(path.c_str(), "wb"));
    return file && std::fwrite(&header, sizeof header, 1, file.get()) == 1 &&
           std::fwrite(records.data(), sizeof(Record), records.size(), file.get()) == records.size() &&
           std::fflush(file.get()) == 0;
}

}  // namespace

LookupFile::LookupFile(std::string path, const llama_vocab & vocab)
    : path_(std::move(path)), n_vocab_(llama_vocab_n_tokens(&vocab)) {
    const auto folder = std::filesystem::path(path_).parent_path();
    std::error_code none;
    if (!folder.empty() && !std::filesystem::is_directory(folder, none)) {
        refuse(path_, "its folder is not there");
    }
    vocabulary_ = hash_bytes(&n_vocab_, sizeof n_vocab_);
    for (llama_token id = 0; id < n_vocab_; id++) {
        const char * text = llama_vocab_get_text(&vocab, id);
        vocabulary_ = hash_bytes(text, std::strlen(text) + 1, vocabulary_);
    }
}

std::string LookupFile::read(Ngrams & ngrams) const {
    const File file(std::fopen(path_.c_str(), "rb"));
    if (!file && errno == ENOENT) {
        return "";
    }
    std::error_code failed;
    if (!file || !std::filesystem::is_regular_file(path_, failed) || std::fseek(file.get(), 0, SEEK_END) != 0) {
        refuse(path_, "it cannot be read");
    }
    const auto size = (size_t) std::ftell(file.get());  // of the open file: another process may replace it meanwhile
    std::rewind(file.get());
    Header header{};
    const size_t n_read = std::fread(&header, 1, sizeof header, file.get());
    if (n_read == 0) {
        return "";  // made for us, by mktemp
    }
    if (std::memcmp(header.magic, MAGIC, std::min(n_read, sizeof MAGIC)) != 0) {
        refuse(path_, "it is no file of a look-up");
    }
    const std::string damaged = format("%s is damaged: the look-up begins anew", path_.c_str());
    if (n_read < sizeof header) {
        return damaged;
    }
    if (header.version > VERSION) {
        refuse(path_, "a later version has written it");
    }
    if (header.version == VERSION && header.vocabulary != vocabulary_) {
        refuse(path_, "it holds the texts of another vocabulary");
    }
    if (header.n_records != (size - sizeof header) / sizeof(Record) || (size - sizeof header) % sizeof(Record) != 0 ||
        header.n_records > Ngrams::N_BUCKETS * Ngrams::N_WAYS) {
        return damaged;
    }
    std::vector<Record> records(header.n_records);
    if (std::fread(records.data(), sizeof(Record), records.size(), file.get()) != records.size() ||
        !is_sound(header, records, n_vocab_)) {
        return damaged;
    }
    for (const Record & record : records) {
        ngrams.merge(record.bucket, record.entry);
    }
    ngrams.merged(header.now);
    return "";
}

void LookupFile::write(Ngrams & ngrams) const {
    static std::mutex writing;  // some file systems have no locks between the threads of a process
    const std::lock_guard<std::mutex> in_process(writing);
    const FileLock lock(path_);
    read(ngrams);
    const std::vector<Record> records = records_of(ngrams);
    Header header{{}, VERSION, ngrams.now(), vocabulary_, records.size(), 0};
    std::memcpy(header.magic, MAGIC, sizeof MAGIC);
    header.checksum = checksum_of(header, records);
    const std::string temporary = format("%s.%d.tmp", path_.c_str(), (int) getpid());
    std::error_code failed;
    const bool is_written = write_whole(temporary, header, records);
    const std::string reason = std::strerror(errno);
    if (is_written) {
        std::filesystem::rename(temporary, path_, failed);
    }
    if (!is_written || failed) {
        std::error_code ignored;
        std::filesystem::remove(temporary, ignored);
        throw Error(EAGLE_ERR_STATE, format("%s: it cannot be written (%s): what was said is not remembered",
                                            path_.c_str(), failed ? failed.message().c_str() : reason.c_str()));
    }
}

}  // namespace eagle
