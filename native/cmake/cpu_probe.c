// Executes one instruction of the set PROBE_*, if the compiler would use it. Exit code 0: it works or is not used. On a
// CPU that reports an instruction but cannot execute it, this program ends with SIGILL.
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(PROBE_AMX_INT8) && defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static volatile int32_t sink;

int main(void) {
#if defined(PROBE_AVX2) && defined(__AVX2__)
    __m256i a = _mm256_set1_epi32(sink + 1);
    sink = _mm256_extract_epi32(_mm256_mullo_epi32(a, a), 0);
#elif defined(PROBE_AVX_VNNI) && defined(__AVXVNNI__)
    __m256i a = _mm256_set1_epi32(sink + 1);
    sink = _mm256_extract_epi32(_mm256_dpbusd_avx_epi32(a, a, a), 0);
#elif defined(PROBE_AVX512) && defined(__AVX512F__)
    __m512i a = _mm512_set1_epi32(sink + 1);
    sink = _mm512_reduce_add_epi32(_mm512_mullo_epi32(a, a));
#elif defined(PROBE_AVX512_VBMI) && defined(__AVX512VBMI__)
    __m512i a = _mm512_set1_epi32(sink + 1);
    sink = _mm512_reduce_add_epi32(_mm512_permutexvar_epi8(a, a));
#elif defined(PROBE_AVX512_VNNI) && defined(__AVX512VNNI__)
    __m512i a = _mm512_set1_epi32(sink + 1);
    sink = _mm512_reduce_add_epi32(_mm512_dpbusd_epi32(a, a, a));
#elif defined(PROBE_AVX512_BF16) && defined(__AVX512BF16__)
    __m512 a = _mm512_set1_ps((float) sink);
    __m512bh b = _mm512_cvtne2ps_pbh(a, a);
    sink = (int32_t) _mm512_reduce_add_ps(_mm512_dpbf16_ps(a, b, b));
#elif defined(PROBE_AMX_INT8) && defined(__AMX_INT8__) && defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0) {
        return 0;  // ggml checks the same at run time and does not use it
    }
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t colsb[16];
        uint8_t rows[16];
    } config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 3; i++) {
        config.colsb[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" : : "m"(config));
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_dpbssd(0, 1, 2);
    _tile_release();
#endif
    return sink == 12345 ? 1 : 0;
}
