#include "eagle_file_lock.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace eagle {

namespace {

constexpr int LONGEST_WAIT_MS = 10000;

}  // namespace

#ifdef _WIN32

// A mutex, because Windows does not rename over a file that is open.
FileLock::FileLock(const std::string & path) {
    std::error_code failed;
    const auto whole = std::filesystem::weakly_canonical(path, failed);
    const std::wstring name =
        L"Global\\llama-eagle-" +
        std::to_wstring(std::filesystem::hash_value(failed ? std::filesystem::path(path) : whole));
    mutex_ = CreateMutexW(nullptr, FALSE, name.c_str());
    const DWORD found = mutex_ ? WaitForSingleObject(mutex_, LONGEST_WAIT_MS) : WAIT_FAILED;
    if (mutex_ && found != WAIT_OBJECT_0 && found != WAIT_ABANDONED) {
        CloseHandle(mutex_);
        mutex_ = nullptr;
    }
}

FileLock::~FileLock() {
    if (mutex_) {
        ReleaseMutex(mutex_);
        CloseHandle(mutex_);
    }
}

#else

namespace {

int open_file(const std::string & path) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    return file >= 0 ? file : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

// Whether the file still has this name: the holder before us may have replaced it.
bool is_named(int file, const std::string & path) {
    struct stat ours, named;
    return fstat(file, &ours) == 0 && stat(path.c_str(), &named) == 0 && ours.st_dev == named.st_dev &&
           ours.st_ino == named.st_ino;
}

}  // namespace

FileLock::FileLock(const std::string & path) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(LONGEST_WAIT_MS);
    while (std::chrono::steady_clock::now() < end && (file_ = open_file(path)) >= 0) {
        const bool is_held = flock(file_, LOCK_EX | LOCK_NB) == 0;
        const bool is_waiting = is_held || errno == EWOULDBLOCK || errno == EINTR;
        if (is_held && is_named(file_, path)) {
            return;
        }
        close(file_);
        file_ = -1;
        if (!is_waiting) {
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

FileLock::~FileLock() {
    if (file_ >= 0) {
        flock(file_, LOCK_UN);  // a child of a fork may have the file, too
        close(file_);
    }
}

#endif

}  // namespace eagle
