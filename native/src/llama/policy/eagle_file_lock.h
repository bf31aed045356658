// A lock between the processes that read a file, change it and replace it by a rename.
#pragma once

#include <string>

namespace eagle {

// Held from the constructor to the destructor, or to the end of the process. Creates an empty file if there is none,
// except on Windows. After ten seconds, as after a holder that was stopped, and on file systems without locks, the
// caller continues without it.
class FileLock {
  public:
    explicit FileLock(const std::string & path);
    FileLock(const FileLock &) = delete;
    FileLock & operator=(const FileLock &) = delete;
    ~FileLock();

  private:
#ifdef _WIN32
    void * mutex_ = nullptr;
#else
    int file_ = -1;
#endif
};

}  // namespace eagle
