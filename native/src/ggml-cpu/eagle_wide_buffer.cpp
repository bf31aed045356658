// Buffer type of weights in the layout of eagle_wide.h. It reports which operations it supports, so that a loader
// places the matrices there that are used only in products.
#include "eagle_cores.h"
#include "eagle_cpu.h"
#include "eagle_mul_mat.h"
#include "eagle_team.h"
#include "eagle_wide.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "traits.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23  // of Linux 5.14, which headers of the systems that wheels are built on lack
#endif
#endif

#include <algorithm>
#include <atomic>
#include <utility>

namespace eagle {
namespace {

constexpr uintptr_t HUGE_PAGE = 2 << 20;

// Requests pages of 2 MiB for weights: prefetches cross page boundaries constantly, and in a virtual machine each small
// page needs two table walks.
void request_huge_pages([[maybe_unused]] void * p, [[maybe_unused]] size_t size) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t begin = ((uintptr_t) p + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, end = (uintptr_t) p + size;
    if (begin + HUGE_PAGE <= end) {
        madvise((void *) begin, end - begin, MADV_HUGEPAGE);  // fails if the kernel has none, which is harmless
    }
#endif
}

// Lets the kernel clear the new pages of [begin, end).
void clear_pages([[maybe_unused]] uintptr_t begin, [[maybe_unused]] uintptr_t end) {
#if defined(MADV_POPULATE_WRITE)
    static const uintptr_t small = (uintptr_t) sysconf(_SC_PAGESIZE);
    begin = begin / small * small;
    madvise((void *) begin, end - begin, MADV_POPULATE_WRITE);  // fails before Linux 5.14, which is harmless
#endif
}

// While exact kernels are off the layout is not offered for new weights, so that ggml's own kernels can be measured.
bool offered(const ggml_tensor * w) {
    return w->extra != nullptr || eagle_cpu_exact_mode() != 0;
}

class wide_buffer_type : public ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const bool by_id = op->op == GGML_OP_MUL_MAT_ID;
        if (op->op != GGML_OP_MUL_MAT && !by_id) {
            return false;
        }
        const ggml_tensor *w = op->src[0], *x = op->src[1];
        const bool on_host = x->buffer == nullptr || ggml_backend_buft_is_host(x->buffer->buft);
        return w->buffer != nullptr && w->buffer->buft == eagle_wide_buffer_type() &&
               ggml_n_dims(w) == (by_id ? 3 : 2) && takes_wide(w) && offered(w) && on_host &&
               x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float);
    }

    // Our kernels receive their nodes before ggml calls this.
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor *) override { return nullptr; }
};

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * w) {
    if (takes_wide(w)) {
        w->extra = buffer->buft->context;  // marks the layout
    }
    return GGML_STATUS_SUCCESS;
}

// Returns whole groups of rows as a matrix.
ggml_tensor groups_of(const ggml_tensor * w, size_t offset, size_t size) {
    GGML_ASSERT(w->extra != nullptr && offset % (WIDE * w->nb[1]) == 0 && size % (WIDE * w->nb[1]) == 0);
    ggml_tensor groups = *w;
    groups.ne[1] = (int64_t) (size / w->nb[1]);
    groups.ne[2] = groups.ne[3] = 1;
    return groups;
}

// Repacks a tensor with all threads; each takes the next piece. The source may be a mapped file that is not in memory:
// while one thread waits for the disk, the others continue. Threads that touch a new page at the same time would each
// clear one, and the kernel would drop all but one of them. So each page is cleared by one thread, ahead of its pieces.
class repacking final : public job {
  public:
    repacking(const ggml_tensor * w, const void * data, size_t offset, size_t size)
        : w_(w), from_((const char *) data), to_((char *) w->data + offset), size_(size), next_page_((uintptr_t) to_) {
        const size_t group = WIDE * w->nb[1];
        piece_ = std::max<size_t>(PIECE / group, 1) * group;
    }

    bool is_small() const { return size_ <= piece_; }
    step advance() override { return std::exchange(next_step_, step::end); }
    void enter(int) override {}
    bool should_stop() override { return false; }

    void compute(int) override {
        for (size_t at = next_.fetch_add(piece_); at < size_; at = next_.fetch_add(piece_)) {
            const size_t n = std::min(piece_, size_ - at);
            clear_ahead((uintptr_t) to_ + std::min(at + n + AHEAD, size_));
            const ggml_tensor groups = groups_of(w_, at, n);
            to_wide(&groups, from_ + at, to_ + at);
        }
    }

  private:
    static constexpr size_t PIECE = 256 << 10, AHEAD = 4 * HUGE_PAGE;

    // Clears the pages before `end` that no thread has begun.
    void clear_ahead(uintptr_t end) {
        for (uintptr_t page = next_page_; page < end;) {
            const uintptr_t next = std::min((page / HUGE_PAGE + 1) * HUGE_PAGE, (uintptr_t) to_ + size_);
            if (next_page_.compare_exchange_weak(page, next)) {
                clear_pages(page, next);
            }
        }
    }

    const ggml_tensor * w_;
    const char * from_;
    char * to_;
    size_t size_, piece_;
    step next_step_ = step::shared;
    std::atomic<size_t> next_{0};
    std::atomic<uintptr_t> next_page_;
};

void set_tensor(ggml_backend_buffer_t, ggml_tensor * w, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset % (WIDE * w->nb[1]) == 0);
    repacking work(w, data, offset, size);
    if (work.is_small()) {
        return work.compute(0);
    }
    team * all = team::borrow();
    all->run(work, all->reserve(available_cores()));
    team::give_back(all);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * w, void * data, size_t offset, size_t size) {
    const ggml_tensor groups = groups_of(w, offset, size);
    from_wide(&groups, (const char *) w->data + offset, data);
}

const char * name(ggml_backend_buffer_type_t) {
    return "CPU_EAGLE";
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer != nullptr) {
        request_huge_pages(ggml_backend_buffer_get_base(buffer), size);
        buffer->buft = type;
        buffer->iface.init_tensor = init_tensor;
        buffer->iface.set_tensor = set_tensor;
        buffer->iface.get_tensor = get_tensor;
        buffer->iface.cpy_tensor = nullptr;
    }
    return buffer;
}

size_t alignment(ggml_backend_buffer_type_t) {
    return 64;
}

}  // namespace
}  // namespace eagle

ggml_backend_buffer_type_t eagle_wide_buffer_type(void) {
    static ggml_backend_buffer_type type = {
        {eagle::name, eagle::alloc_buffer, eagle::alignment, nullptr, nullptr, nullptr},
        ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        new eagle::wide_buffer_type(),
    };
    return &type;
}
