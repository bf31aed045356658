// IQ3_XXS and IQ3_S weights in their plain layouts, one weight row at a time.
//
// Four values are an entry of a grid and four signs. The signs are applied to the activations, so that sums of four
// products stay below 2^15 (62 * 127 * 4), which the 16-bit multiplication by the scales requires.
#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "eagle_tile_k.h"
#include "ggml-common.h"

#ifdef EAGLE_SIMD

namespace eagle {
namespace {

#ifdef EAGLE_SIMD_512

using signs = __mmask64;

inline signs load_signs(const uint8_t * bits) {
    signs s;
    memcpy(&s, bits, sizeof(s));
    return s;
}

inline vi negate(vi x, signs s) {
    return _mm512_mask_sub_epi8(x, s, v_zero(), x);
}

// Returns `value` in the lanes whose bit is set, else 0.
inline vi at_bits(const uint8_t * bits, int value) {
    uint16_t mask;
    memcpy(&mask, bits, sizeof(mask));
    return _mm512_maskz_set1_epi32(mask, value);
}

inline vi gather(const uint32_t * table, vi index) {
    return _mm512_i32gather_epi32(index, table, 4);
}

#else

using signs = vi;  // bytes of 1 and -1

inline signs load_signs(const uint8_t * bits) {
    const vi byte = _mm256_setr_epi64x(0x0000000000000000, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const vi bit = _mm256_set1_epi64x((int64_t) 0x8040201008040201);
    const vi on = _mm256_cmpeq_epi8(v_and(_mm256_shuffle_epi8(v_bcast32(bits), byte), bit), bit);
    return v_or(on, v_set1_8(1));
}

inline vi negate(vi x, signs s) {
    return _mm256_sign_epi8(x, s);
}

inline vi at_bits(const uint8_t * bits, int value) {
    const vi bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return v_and(_mm256_cmpeq_epi32(v_and(v_set1_32(*bits), bit), bit), v_set1_32(value));
}

inline vi gather(const uint32_t * table, vi index) {
    return _mm256_i32gather_epi32((const int *) table, index, 4);
}

#endif

struct superblock {
    vi q[VECS];  // magnitudes
    vi s[VECS];  // scale of each int32 lane in its low 16 bits, the high ones zero
    signs negative[VECS];
    float d;
};

inline __m128i odd(__m128i bytes) {
    return _mm_or_si128(_mm_add_epi8(bytes, bytes), _mm_set1_epi8(1));
}

// Seven of eight signs are stored; the eighth makes the number of negative signs even.
inline __m256i signs_of_7(__m256i words) {
    const auto seven = [&](int at) {
        return _mm256_slli_epi32(_mm256_and_si256(_mm256_srli_epi32(words, 7 * at), _mm256_set1_epi32(127)), 8 * at);
    };
    const __m256i s = _mm256_or_si256(_mm256_or_si256(seven(0), seven(1)), _mm256_or_si256(seven(2), seven(3)));
    __m256i parity = _mm256_xor_si256(s, _mm256_srli_epi16(s, 4));
    parity = _mm256_xor_si256(parity, _mm256_srli_epi16(parity, 2));
    parity = _mm256_xor_si256(parity, _mm256_srli_epi16(parity, 1));
    return _mm256_or_si256(s, _mm256_slli_epi16(_mm256_and_si256(parity, _mm256_set1_epi8(1)), 7));
}

struct iq3_xxs {
    using block = block_iq3_xxs;
    static inline void unpack(const block & w, superblock & u) {
        const __m256i words = _mm256_loadu_si256((const __m256i *) (w.qs + 64));
        const __m256i top = _mm256_srli_epi32(words, 28);
        const __m128i nibbles = _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
        spread_scales32(odd(_mm_packus_epi16(nibbles, nibbles)), u.s);
        uint8_t bits[32];
        _mm256_storeu_si256((__m256i *) bits, signs_of_7(words));
        for (int v = 0; v < VECS; ++v) {
            u.q[v] = gather(iq3xxs_grid, v_load_u8(w.qs + LANES * v));
            u.negative[v] = load_signs(bits + LANES / 2 * v);
        }
        u.d = 0.25f * f16_to_float(w.d);
    }
};

struct iq3_s {
    using block = block_iq3_s;
    static inline void unpack(const block & w, superblock & u) {
        uint32_t scales;
        memcpy(&scales, w.scales, sizeof(scales));
        const __m128i low = _mm_cvtsi32_si128((int) (scales & 0x0f0f0f0f));
        const __m128i high = _mm_cvtsi32_si128((int) (scales >> 4 & 0x0f0f0f0f));
        spread_scales32(odd(_mm_unpacklo_epi8(low, high)), u.s);
        for (int v = 0; v < VECS; ++v) {
            const vi index = v_or(v_load_u8(w.qs + LANES * v), at_bits(w.qh + LANES / 8 * v, 256));
            u.q[v] = gather(iq3s_grid, index);
            u.negative[v] = load_signs(w.signs + LANES / 2 * v);
        }
        u.d = f16_to_float(w.d);
    }
};

template <typename Type>
struct with_signs : Type {
    using unpacked = superblock;
    static constexpr int ROWS = 8;  // unpacking dominates
    static inline vf add(vf acc, const superblock & u, const act256 & x) {
        vi sum = v_zero();
        for (int v = 0; v < VECS; ++v) {
            const vi qs = negate(v_load(x.qs + 4 * LANES * v), u.negative[v]);
            sum = v_dpwssd(sum, v_dpbusd(v_zero(), u.q[v], qs), u.s[v]);
        }
        return v_fma(v_float(sum), v_mul(v_set1f(u.d), v_set1f(x.d)), acc);
    }
};

}  // namespace

const kernel kernel_iq3_xxs = plain_k<with_signs<iq3_xxs>>(GGML_TYPE_IQ3_XXS);
const kernel kernel_iq3_s = plain_k<with_signs<iq3_s>>(GGML_TYPE_IQ3_S);

}  // namespace eagle

#endif  // EAGLE_SIMD
