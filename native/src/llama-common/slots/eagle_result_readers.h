// Readers that wait for results of llama-server's tasks. Each waits for a condition of its own: with one for all, every
// token of any request would wake the threads of all requests. Callers hold the lock of the results.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

class eagle_result_readers {
  public:
    // Waits for a result of one of these tasks. Results of other tasks do not extend the time.
    std::cv_status wait_for(std::unique_lock<std::mutex> & lock, std::chrono::seconds time,
                            const std::unordered_set<int> & id_tasks) {
        std::condition_variable own;
        for (const int id : id_tasks) {
            by_task_[id] = &own;
        }
        const std::cv_status status = own.wait_for(lock, time);
        for (const int id : id_tasks) {
            by_task_.erase(id);
        }
        return status;
    }

    // Waits for any result until the predicate holds.
    template <typename Predicate>
    void wait(std::unique_lock<std::mutex> & lock, const Predicate & predicate) {
        any_.wait(lock, predicate);
    }

    void notify(int id_task) {
        any_.notify_all();
        const auto found = by_task_.find(id_task);
        if (found != by_task_.end()) {
            found->second->notify_one();
        }
    }

    void notify_all() {
        any_.notify_all();
        for (const auto & [id, reader] : by_task_) {
            reader->notify_one();
        }
    }

  private:
    std::condition_variable any_;
    std::unordered_map<int, std::condition_variable *> by_task_;  // of the readers that wait now
};
