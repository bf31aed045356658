// Q4_K, Q5_K and Q6_K weights in their plain layouts, one weight row at a time.
//
// Each type unpacks a superblock of 256 values into VECS vectors of unsigned bytes and VECS vectors of scales. Sums of
// four products stay below 2^15, so scaling is a 16-bit multiply-add and the whole superblock is summed in integers.
#define GGML_COMMON_DECL_CPP
#include "eagle_tile_k.h"
#include "ggml-common.h"

#ifdef EAGLE_SIMD

namespace eagle {
namespace {

struct superblock {
    vi q[VECS];     // unsigned bytes
    vi s[VECS];     // scale of each int32 lane in its low 16 bits, the high ones zero
    __m256i low;    // 16-bit factors of the activation sums
    float d, dlow;  // value = d * scaled products + dlow * factored sums
};

// The 6-bit scales (first 8 bytes) and mins (last 8) of Q4_K and Q5_K.
inline __m128i scales_and_mins(const uint8_t * packed) {
    uint32_t u[3];
    memcpy(u, packed, sizeof(u));
    return _mm_setr_epi32((int) (u[0] & 0x3f3f3f3f), (int) ((u[2] & 0x0f0f0f0f) | ((u[0] >> 2) & 0x30303030)),
                          (int) (u[1] & 0x3f3f3f3f), (int) (((u[2] >> 4) & 0x0f0f0f0f) | ((u[1] >> 2) & 0x30303030)));
}

#ifdef EAGLE_SIMD_512

inline __m512i halves(int lo, int hi) {
    return _mm512_inserti64x4(_mm512_set1_epi16((short) lo), _mm256_set1_epi16((short) hi), 1);
}

inline void nibbles(const uint8_t * qs, vi * q) {
    for (int v = 0; v < VECS; ++v) {
        q[v] = v_and(_mm512_srlv_epi16(v_bcast256(qs + 32 * v), halves(0, 4)), v_set1_8(15));
    }
}

inline void fifth_bits(const uint8_t * qh, vi * q) {
    const vi h = v_bcast256(qh), bit = v_set1_8(16);
    q[0] = v_or(q[0], v_and(_mm512_sllv_epi16(h, halves(4, 3)), bit));
    q[1] = v_or(q[1], v_and(_mm512_sllv_epi16(h, halves(2, 1)), bit));
    q[2] = v_or(q[2], v_and(_mm512_srlv_epi16(h, halves(0, 1)), bit));
    q[3] = v_or(q[3], v_and(_mm512_srlv_epi16(h, halves(2, 3)), bit));
}

inline void six_bits(const block_q6_K & w, vi * q) {
    const vi nibble = v_set1_8(15), two = v_set1_8(0x30);
    for (int half = 0; half < 2; ++half) {
        const vi l = v_load(w.ql + 64 * half);
        const vi h = v_bcast256(w.qh + 32 * half);
        q[2 * half] = v_or(v_and(l, nibble), v_and(_mm512_sllv_epi16(h, halves(4, 2)), two));
        q[2 * half + 1] = v_or(v_and(v_shr16<4>(l), nibble), v_and(_mm512_srlv_epi16(h, halves(0, 2)), two));
    }
}

inline void spread_scales16(__m128i scales, vi * s) {
    const __m512i all = v_and(_mm512_cvtepi8_epi32(scales), _mm512_set1_epi32(0xffff));
    const __m512i one = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (int v = 0; v < VECS; ++v) {
        s[v] = _mm512_permutexvar_epi32(_mm512_add_epi32(one, _mm512_set1_epi32(4 * v)), all);
    }
}

inline vi widen(__m256i a) {
    return _mm512_zextsi256_si512(a);
}

#else

inline void nibbles(const uint8_t * qs, vi * q) {
    for (int v = 0; v < VECS; v += 2) {
        const vi raw = v_load(qs + 16 * v);
        q[v] = v_and(raw, v_set1_8(15));
        q[v + 1] = v_and(v_shr16<4>(raw), v_set1_8(15));
    }
}

inline void fifth_bits(const uint8_t * qh, vi * q) {
    const vi h = v_load(qh);
    for (int v = 0; v < VECS; ++v) {
        const vi on = _mm256_cmpeq_epi8(v_and(h, v_set1_8(1 << v)), v_set1_8(1 << v));
        q[v] = v_or(q[v], v_and(on, v_set1_8(16)));
    }
}

inline void six_bits(const block_q6_K & w, vi * q) {
    const vi nibble = v_set1_8(15), two = v_set1_8(0x30);
    for (int half = 0; half < 2; ++half) {
        const vi l0 = v_load(w.ql + 64 * half), l1 = v_load(w.ql + 64 * half + 32), h = v_load(w.qh + 32 * half);
        q[4 * half] = v_or(v_and(l0, nibble), v_and(v_shl16<4>(h), two));
        q[4 * half + 1] = v_or(v_and(l1, nibble), v_and(v_shl16<2>(h), two));
        q[4 * half + 2] = v_or(v_and(v_shr16<4>(l0), nibble), v_and(h, two));
        q[4 * half + 3] = v_or(v_and(v_shr16<4>(l1), nibble), v_and(v_shr16<2>(h), two));
    }
}

inline void spread_scales16(__m128i scales, vi * s) {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    for (int v = 0; v < VECS; ++v) {
        const __m256i two = _mm256_and_si256(_mm256_cvtepi8_epi32(scales), mask);
        s[v] = _mm256_permutevar8x32_epi32(two, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
        scales = _mm_srli_si128(scales, 2);
    }
}

inline vi widen(__m256i a) {
    return a;
}

#endif

struct q4_K {
    using block = block_q4_K;
    static inline void unpack(const block & w, superblock & u) {
        const __m128i sm = scales_and_mins(w.scales);
        nibbles(w.qs, u.q);
        spread_scales32(sm, u.s);
        u.low = _mm256_zextsi128_si256(_mm_cvtepu8_epi16(_mm_unpackhi_epi64(sm, sm)));
        u.d = f16_to_float(w.data.data.d);
        u.dlow = -f16_to_float(w.data.data.dmin);
    }
    static inline __m256i sums(const act256 & x) {
        return _mm256_zextsi128_si256(_mm_load_si128((const __m128i *) x.sums32));
    }
};

struct q5_K {
    using block = block_q5_K;
    static inline void unpack(const block & w, superblock & u) {
        const __m128i sm = scales_and_mins(w.scales);
        nibbles(w.qs, u.q);
        fifth_bits(w.qh, u.q);
        spread_scales32(sm, u.s);
        u.low = _mm256_zextsi128_si256(_mm_cvtepu8_epi16(_mm_unpackhi_epi64(sm, sm)));
        u.d = f16_to_float(w.data.data.d);
        u.dlow = -f16_to_float(w.data.data.dmin);
    }
    static inline __m256i sums(const act256 & x) { return q4_K::sums(x); }
};

// The codes are stored with an offset of 32: subtracts 32 * scale times the sum of its 16 activations.
struct q6_K {
    using block = block_q6_K;
    static inline void unpack(const block & w, superblock & u) {
        const __m128i sc = _mm_loadu_si128((const __m128i *) w.scales);
        six_bits(w, u.q);
        spread_scales16(sc, u.s);
        u.low = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(_mm256_cvtepi8_epi16(sc), 5));
        u.d = f16_to_float(w.d);
        u.dlow = u.d;
    }
    static inline __m256i sums(const act256 & x) { return _mm256_load_si256((const __m256i *) x.sums16); }
};

template <typename Type>
struct with_sums : Type {
    using unpacked = superblock;
    static constexpr int ROWS = TILE_ROWS;
    // The sums of Q6_K have the same scale as the products, so one integer holds both.
    static constexpr bool ONE_SCALE = sizeof(typename Type::block) == sizeof(block_q6_K);

    static inline vf add(vf acc, const superblock & u, const act256 & x) {
        const vi low = widen(_mm256_madd_epi16(u.low, Type::sums(x)));
        vi sum = ONE_SCALE ? low : v_zero();
        for (int v = 0; v < VECS; ++v) {
            sum = v_dpwssd(sum, v_dpbusd(v_zero(), u.q[v], v_load(x.qs + 4 * LANES * v)), u.s[v]);
        }
        const vf dx = v_set1f(x.d);
        acc = v_fma(v_float(sum), v_mul(v_set1f(u.d), dx), acc);
        return ONE_SCALE ? acc : v_fma(v_float(low), v_mul(v_set1f(u.dlow), dx), acc);
    }
};

}  // namespace

const kernel kernel_q4_K = plain_k<with_sums<q4_K>>(GGML_TYPE_Q4_K);
const kernel kernel_q5_K = plain_k<with_sums<q5_K>>(GGML_TYPE_Q5_K);
const kernel kernel_q6_K = plain_k<with_sums<q6_K>>(GGML_TYPE_Q6_K);

}  // namespace eagle

#endif  // EAGLE_SIMD
