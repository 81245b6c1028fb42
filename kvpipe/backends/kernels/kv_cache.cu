// kvpipe's paged KV cache kernels. One source, three compilers: NVRTC (through CuPy), nvcc, and a C++
// compiler behind host_shim.h, which runs the same lines on a CPU (backend=host and the tests).
//
// B blocks, N tokens in a block, H heads, D head size, T new tokens. slot = block * N + token.
//
// Rules, each with its reason:
//  * every parameter is 64 bits wide (pointer or i64) and scales are pointers: one list of integers
//    then serves cuLaunchKernel, CuPy and ctypes alike, and a captured CUDA graph can change a scale;
//  * strides are bytes: every layout, placement, padding and dtype is one code path;
//  * tables hold offsets from one base pointer, never addresses: a loaded address is a generic pointer
//    and compiles to LD/ST, base + offset to 128-bit LDG/STG;
//  * indices are 32-bit (the launcher refuses more than 2^31 rows or slots): one 64-bit division is a
//    call into a slow routine;
//  * no #include, no shared memory, no barrier: a thread never waits for another, so running them one
//    by one on a CPU, in any order, is a faithful execution.
//
// Thread layout: threadIdx.x is a lane within a row, threadIdx.y (and blockIdx.x) the row.
// KV_HOST_FAST (one thread a row) turns the lane loops into block copies, memset and a vectorised loop.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifndef KV_KERNEL
#define KV_PREFETCH(at, bytes)
#define KV_ROWS(count)        // tells the host's copies how much one launch moves,
#define KV_FRESH_ROWS(count)  // and that it goes to memory that was allocated for it
#define KV_KERNEL(name, ...) extern "C" __global__ void __launch_bounds__(256) name(__VA_ARGS__)
#endif

// ---------------------------------------------------------------------------------------------
// Error record: u32[8] = count, operation, index, value (2 words), limit (2 words), unused.
// Nothing traps (a trap would end the CUDA context): the offending row is skipped and counted, the
// first offender is kept, and the host reads the record when it wants to.

enum Operation { WRITE_SLOT = 1, GATHER_BLOCK, FILL_BLOCK, COPY_BLOCK, PACK_BLOCK, UNPACK_BLOCK,
                 MAP_REQUEST, MAP_POSITION, ATTEND_BLOCK, ATTEND_TOKEN };

static __device__ void report(u32* err, u32 operation, u32 index, i64 value, i64 limit) {
    if (atomicAdd(err, 1u) != 0u) return;
    err[1] = operation;
    err[2] = index;
    err[3] = (u32)value;
    err[4] = (u32)((u64)value >> 32);
    err[5] = (u32)limit;
    err[6] = (u32)((u64)limit >> 32);
}

// ---------------------------------------------------------------------------------------------
// Rows. V is the vector one lane moves: uint4 (16 bytes), u32, u16 or u8, whichever divides every
// address involved.

template <class V>
static __device__ __forceinline__ void copy_row(u8* dst, const u8* src, u32 length) {
#ifdef KV_HOST_FAST
    kv_host::copy_bytes(dst, src, (u64)length * sizeof(V));
#else
#pragma unroll 1
    for (u32 i = threadIdx.x; i < length; i += blockDim.x) ((V*)dst)[i] = ((const V*)src)[i];
#endif
}

template <class V> static __device__ __forceinline__ V splat(u32 byte);
template <> __device__ __forceinline__ u8 splat<u8>(u32 byte) { return (u8)byte; }
template <> __device__ __forceinline__ u16 splat<u16>(u32 byte) { return (u16)(byte * 0x0101u); }
template <> __device__ __forceinline__ u32 splat<u32>(u32 byte) { return byte * 0x01010101u; }
template <> __device__ __forceinline__ uint4 splat<uint4>(u32 byte) {
    u32 word = byte * 0x01010101u;
    uint4 vector = {word, word, word, word};
    return vector;
}

template <class V>
static __device__ __forceinline__ void fill_row(u8* dst, u32 byte, u32 length) {
#ifdef KV_HOST_FAST
    __builtin_memset(dst, (int)byte, (u64)length * sizeof(V));
#else
    V vector = splat<V>(byte);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < length; i += blockDim.x) ((V*)dst)[i] = vector;
#endif
}

// ---------------------------------------------------------------------------------------------
// Numbers, on their bits. Float16 and bfloat16 are u16 here; fp8 codes are the low 8 bits of a u32.

struct F32 { typedef float raw; };
struct F16 { typedef u16 raw; };
struct BF16 { typedef u16 raw; };

static __device__ __forceinline__ float half_to_float(u32 half) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)half));
    return value;
#else
    u32 magnitude = half & 0x7fffu;
    u32 normal = (magnitude << 13) + (112u << 23);            // bias 15 -> 127
    u32 special = (magnitude << 13) + (224u << 23);           // inf and NaN: exponent 255
    u32 subnormal = __float_as_uint((float)(int)magnitude * 5.9604644775390625e-8f);  // 2^-24
    u32 bits = magnitude >= 0x7c00u ? special : magnitude < 0x0400u ? subnormal : normal;
    return __uint_as_float(bits | (half & 0x8000u) << 16);
#endif
}

static __device__ __forceinline__ u32 float_to_half(float value) {
#ifdef __CUDA_ARCH__
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
#else
    u32 bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
    u32 normal = ((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10);
    u32 subnormal = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;  // units of 2^-24
    u32 half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;         // 65,520 and more round to inf
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return half | (bits >> 16 & 0x8000u);
#endif
}

static __device__ __forceinline__ u32 float_to_bfloat(float value) {
    u32 bits = __float_as_uint(value);
    u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded;
}

static __device__ __forceinline__ float decode(F32, float raw) { return raw; }
static __device__ __forceinline__ float decode(F16, u16 raw) { return half_to_float(raw); }
static __device__ __forceinline__ float decode(BF16, u16 raw) { return __uint_as_float((u32)raw << 16); }
static __device__ __forceinline__ float encode(F32, float value) { return value; }
static __device__ __forceinline__ u16 encode(F16, float value) { return (u16)float_to_half(value); }
static __device__ __forceinline__ u16 encode(BF16, float value) { return (u16)float_to_bfloat(value); }

// The two fp8 formats as data. MAX and MIN_NORMAL are float32 bits; MAGIC is the power of two whose
// last float32 bit weighs one subnormal step, so that adding it rounds to nearest even.
struct E4M3 { typedef u8 raw;
              enum : u32 { SHIFT = 20, REBIAS = 120u << 3, MAX = 0x43e00000u /* 448 */,
                           MIN_NORMAL = 0x3c800000u /* 2^-6 */, MAGIC = 0x46800000u /* 2^14 */,
                           SUBNORMALS = 8, INFINITY_CODE = 0x80 /* none */, FIRST_NAN = 0x7f }; };
struct E5M2 { typedef u8 raw;
              enum : u32 { SHIFT = 21, REBIAS = 112u << 2, MAX = 0x47600000u /* 57,344 */,
                           MIN_NORMAL = 0x38800000u /* 2^-14 */, MAGIC = 0x43000000u /* 2^7 */,
                           SUBNORMALS = 4, INFINITY_CODE = 0x7c, FIRST_NAN = 0x7d }; };

// |value| -> the 7 bits below the sign: clamped to MAX, rounded to nearest even, NaN kept (0x7f).
template <class Format>
static __device__ __forceinline__ u32 fp8_magnitude(float value) {
    u32 magnitude = __float_as_uint(value) & 0x7fffffffu;
    bool nan = magnitude > 0x7f800000u;
    magnitude = magnitude < (u32)Format::MAX ? magnitude : (u32)Format::MAX;
    u32 half = (1u << (Format::SHIFT - 1)) - 1u, odd = magnitude >> Format::SHIFT & 1u;
    u32 normal = ((magnitude + half + odd) >> Format::SHIFT) - Format::REBIAS;
    float magic = __uint_as_float(Format::MAGIC);
    u32 subnormal = __float_as_uint(__uint_as_float(magnitude) + magic) - Format::MAGIC;
    u32 code = magnitude < (u32)Format::MIN_NORMAL ? subnormal : normal;
    return nan ? 0x7fu : code;
}

// Two values -> two codes in 16 bits. Bit 7 of each is undefined: the hardware puts the value's sign
// there, software nothing (or, in a test on a CPU, what the hardware would).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890 && !defined(KV_SOFT_FP8)
static __device__ __forceinline__ u32 fp8_pair(E4M3, float low, float high) {
    u16 codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}
static __device__ __forceinline__ u32 fp8_pair(E5M2, float low, float high) {
    u16 codes;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}
#else
template <class Format>
static __device__ __forceinline__ u32 fp8_pair(Format, float low, float high) {
    u32 codes = fp8_magnitude<Format>(low) | fp8_magnitude<Format>(high) << 8;
#ifdef KV_PAIR_KEEPS_SIGNS
    codes |= __float_as_uint(low) >> 31 << 7 | __float_as_uint(high) >> 31 << 15;
#endif
    return codes;
}
#endif

template <class Format>
static __device__ __forceinline__ float fp8_value(u32 code) {
    u32 magnitude = code & 0x7fu;
    u32 normal = (magnitude << Format::SHIFT) + ((Format::REBIAS) << Format::SHIFT);
    float step = __uint_as_float(Format::MAGIC) * 1.1920928955078125e-7f;  // 2^-23
    u32 subnormal = __float_as_uint((float)(int)magnitude * step);
    u32 bits = magnitude < (u32)Format::SUBNORMALS ? subnormal : normal;
    bits = magnitude == (u32)Format::INFINITY_CODE ? 0x7f800000u : bits;
    bits = magnitude >= (u32)Format::FIRST_NAN ? 0x7fc00000u : bits;
    return __uint_as_float(bits | (code & 0x80u) << 24);
}

static __device__ __forceinline__ float decode(E4M3, u8 raw) { return fp8_value<E4M3>(raw); }
static __device__ __forceinline__ float decode(E5M2, u8 raw) { return fp8_value<E5M2>(raw); }

// Division by the scale, correctly rounded, without a divide in the loop and without a branch:
// both operands are first multiplied by the power of two that brings the scale near 1 (exact wherever
// the quotient can still matter), then q = x * (1/s) is corrected by its exact residual (Markstein).
// scale 0: x/0 (+-inf, so the maximum; 0/0 is NaN). scale inf: 0, and NaN for inf/inf. NaN: all NaN.
struct Divisor { float power, value, inverse; u32 sign; };

static __device__ __forceinline__ Divisor divisor_of(float scale) {
    u32 bits = __float_as_uint(scale), exponent = bits >> 23 & 0xffu, fraction = bits & 0x7fffffu;
    Divisor by;
    by.sign = bits & 0x80000000u;
    by.power = 1.0f;
    by.value = 1.0f;
    if (exponent == 0xffu) {
        by.inverse = fraction ? __uint_as_float(0x7fc00000u) : 0.0f;
    } else if (exponent == 0u && fraction == 0u) {
        by.inverse = __uint_as_float(0x7f800000u);
    } else {
        u32 inverted = 254u - exponent;  // exponent field of 2^-k; kept a normal number on both ends
        inverted = inverted < 1u ? 1u : inverted > 253u ? 253u : inverted;
        by.power = __uint_as_float(inverted << 23);
        by.value = exponent == 0u ? (float)(int)fraction * 1.1920928955078125e-7f  // fraction * 2^-149 * 2^126
                                  : __uint_as_float(bits & 0x7fffffffu) * by.power;
        by.inverse = 1.0f / by.value;
    }
    return by;
}

static __device__ __forceinline__ float divide(float x, Divisor by) {
    float scaled = x * by.power;
    float quotient = scaled * by.inverse;
    float residual = __fmaf_rn(-quotient, by.value, scaled);
    float corrected = __fmaf_rn(residual, by.inverse, quotient);
    // Far above both maxima, and for inf and NaN, the residual means nothing.
    u32 magnitude = __float_as_uint(quotient) & 0x7fffffffu;
    return magnitude < 0x4e800000u /* 2^30 */ ? corrected : quotient;
}

// ---------------------------------------------------------------------------------------------
// Rows that change dtype: 8 elements a lane (16 bytes of a 16-bit dtype, 8 of fp8), or 1.

static __device__ __forceinline__ void load8(float* out, const u8* from) {
    uint4 a = ((const uint4*)from)[0], b = ((const uint4*)from)[1];
    out[0] = __uint_as_float(a.x); out[1] = __uint_as_float(a.y);
    out[2] = __uint_as_float(a.z); out[3] = __uint_as_float(a.w);
    out[4] = __uint_as_float(b.x); out[5] = __uint_as_float(b.y);
    out[6] = __uint_as_float(b.z); out[7] = __uint_as_float(b.w);
}
static __device__ __forceinline__ void load8(u16* out, const u8* from) {
    uint4 a = ((const uint4*)from)[0];
    out[0] = (u16)a.x; out[1] = (u16)(a.x >> 16); out[2] = (u16)a.y; out[3] = (u16)(a.y >> 16);
    out[4] = (u16)a.z; out[5] = (u16)(a.z >> 16); out[6] = (u16)a.w; out[7] = (u16)(a.w >> 16);
}
static __device__ __forceinline__ void load8(u8* out, const u8* from) {
    uint2 a = ((const uint2*)from)[0];
    for (u32 j = 0; j < 4; ++j) out[j] = (u8)(a.x >> 8 * j), out[j + 4] = (u8)(a.y >> 8 * j);
}
static __device__ __forceinline__ void store8(u8* to, const float* in) {
    uint4 a = {__float_as_uint(in[0]), __float_as_uint(in[1]), __float_as_uint(in[2]), __float_as_uint(in[3])};
    uint4 b = {__float_as_uint(in[4]), __float_as_uint(in[5]), __float_as_uint(in[6]), __float_as_uint(in[7])};
    ((uint4*)to)[0] = a;
    ((uint4*)to)[1] = b;
}
static __device__ __forceinline__ void store8(u8* to, const u16* in) {
    uint4 a = {in[0] | (u32)in[1] << 16, in[2] | (u32)in[3] << 16, in[4] | (u32)in[5] << 16,
               in[6] | (u32)in[7] << 16};
    ((uint4*)to)[0] = a;
}

template <class From, class Format>
static __device__ __forceinline__ u32 quantise2(typename From::raw low, typename From::raw high, Divisor by) {
    float a = decode(From(), low), b = decode(From(), high);
    // The sign is taken from x (and the scale), not from the quotient: a NaN keeps it that way on
    // every device, as torch's cast does. The quotient is of |scale|: its own sign is masked.
    u32 sign_a = (__float_as_uint(a) ^ by.sign) >> 31, sign_b = (__float_as_uint(b) ^ by.sign) >> 31;
    u32 codes = fp8_pair(Format(), divide(a, by), divide(b, by)) & 0x7f7fu;
    return codes | sign_a << 7 | sign_b << 15;
}

template <class From, class Format>
static __device__ __forceinline__ u8 quantise1(typename From::raw x, Divisor by) {
    return (u8)quantise2<From, Format>(x, x, by);
}

template <class From, class Format, int WIDTH>
static __device__ __forceinline__ void quantise_row(u8* dst, const u8* src, u32 length, Divisor by) {
    typedef typename From::raw Raw;
#ifdef KV_HOST_FAST
    const Raw* __restrict__ from = (const Raw*)src;
    u8* __restrict__ to = dst;
    for (u32 i = 0; i < length * WIDTH; ++i) {
        float x = decode(From(), from[i]);
        u32 sign = (__float_as_uint(x) ^ by.sign) >> 24 & 0x80u;
        to[i] = (u8)(fp8_magnitude<Format>(divide(x, by)) | sign);
    }
#else
#pragma unroll 1
    for (u32 i = threadIdx.x; i < length; i += blockDim.x) {
        if (WIDTH == 1) {
            dst[i] = quantise1<From, Format>(((const Raw*)src)[i], by);
        } else {
            Raw x[8];
            load8(x, src + (u64)i * 8u * sizeof(Raw));
            uint2 codes = {quantise2<From, Format>(x[0], x[1], by) | quantise2<From, Format>(x[2], x[3], by) << 16,
                           quantise2<From, Format>(x[4], x[5], by) | quantise2<From, Format>(x[6], x[7], by) << 16};
            ((uint2*)dst)[i] = codes;
        }
    }
#endif
}

template <class Format, class To, int WIDTH>
static __device__ __forceinline__ void dequantise_row(u8* dst, const u8* src, u32 length, float scale) {
    typedef typename To::raw Raw;
#ifdef KV_HOST_FAST
    const u8* __restrict__ from = src;
    Raw* __restrict__ to = (Raw*)dst;
    for (u32 i = 0; i < length * WIDTH; ++i) to[i] = encode(To(), fp8_value<Format>(from[i]) * scale);
#else
#pragma unroll 1
    for (u32 i = threadIdx.x; i < length; i += blockDim.x) {
        if (WIDTH == 1) {
            ((Raw*)dst)[i] = encode(To(), fp8_value<Format>(src[i]) * scale);
        } else {
            uint2 codes = ((const uint2*)src)[i];
            Raw y[8];
            for (u32 j = 0; j < 4; ++j) {
                y[j] = encode(To(), fp8_value<Format>(codes.x >> 8 * j & 0xffu) * scale);
                y[j + 4] = encode(To(), fp8_value<Format>(codes.y >> 8 * j & 0xffu) * scale);
            }
            store8(dst + (u64)i * 8u * sizeof(Raw), y);
        }
    }
#endif
}

// ---------------------------------------------------------------------------------------------
// write_kv (reshape_and_cache): token t of K (blockIdx.y 0) and V (1) goes to slots[t].
// K and V differ in everything but their blocks: heads, widths, strides. The rows of MLA (latent and
// rope part) are the same launch with two column ranges of one array.

struct Side {
    const u8* source;      // [T, H, row]
    i64 source_token_stride, source_head_stride;
    u8* cache;             // element (block 0, token 0, head 0)
    i64 block_stride, token_stride, head_stride;
    u32 num_heads, row_length;  // rows a token; vectors a row
};

#define SIDE_PARAMETERS(s)                                                                            \
    const u8 *s##_source, i64 s##_source_token_stride, i64 s##_source_head_stride, u8 *s##_cache,     \
        i64 s##_block_stride, i64 s##_token_stride, i64 s##_head_stride, i64 s##_num_heads,           \
        i64 s##_row_length
#define SIDE(s)                                                                                       \
    Side { s##_source, s##_source_token_stride, s##_source_head_stride, s##_cache, s##_block_stride,  \
           s##_token_stride, s##_head_stride, (u32)s##_num_heads, (u32)s##_row_length }
#define WRITE_PARAMETERS                                                                              \
    SIDE_PARAMETERS(k), SIDE_PARAMETERS(v), const i64 *slots, i64 num_tokens, i64 block_size,         \
        i64 num_slots, u32 *err, const float *scales /* of K, of V */
#define WRITE_SIDE blockIdx.y == 0 ? SIDE(k) : SIDE(v), slots, (u32)num_tokens, (u32)block_size, num_slots, err

// What happens to one row: moved as it is, quantised, or dequantised.
template <class V> struct Copy {
    __device__ __forceinline__ void operator()(u8* dst, const u8* src, u32 length) const {
        copy_row<V>(dst, src, length);
    }
};
template <class From, class Format, int WIDTH> struct Quantise {
    Divisor by;
    __device__ __forceinline__ void operator()(u8* dst, const u8* src, u32 length) const {
        quantise_row<From, Format, WIDTH>(dst, src, length, by);
    }
};
template <class Format, class To, int WIDTH> struct Dequantise {
    float scale;
    __device__ __forceinline__ void operator()(u8* dst, const u8* src, u32 length) const {
        dequantise_row<Format, To, WIDTH>(dst, src, length, scale);
    }
};

template <class Move>
static __device__ __forceinline__ void write_rows(Side side, const i64* slots, u32 num_tokens, u32 block_size,
                                                  i64 num_slots, u32* err, Move move) {
    u32 num_rows = num_tokens * side.num_heads;
    KV_ROWS(num_rows);
#pragma unroll 1
    for (u32 row = blockIdx.x * blockDim.y + threadIdx.y; row < num_rows; row += gridDim.x * blockDim.y) {
        u32 token = row / side.num_heads, head = row - token * side.num_heads;
        i64 slot = slots[token];
        if (slot < 0) continue;  // padding
#ifndef KV_NO_CHECK  // defined only by the test that shows what the check is for
        if (slot >= num_slots) {
            if (head == 0 && threadIdx.x == 0 && blockIdx.y == 0)
                report(err, WRITE_SLOT, token, slot, num_slots);
            continue;
        }
#endif
        u32 block = (u32)slot / block_size, position = (u32)slot - block * block_size;
        move(side.cache + block * side.block_stride + position * side.token_stride + head * side.head_stride,
             side.source + token * side.source_token_stride + head * side.source_head_stride,
             side.row_length);
    }
}

#define WRITE_KERNEL(name, V) \
    KV_KERNEL(name, WRITE_PARAMETERS) { write_rows(WRITE_SIDE, Copy<V>()); }
WRITE_KERNEL(kv_write_v16, uint4)
WRITE_KERNEL(kv_write_v4, u32)
WRITE_KERNEL(kv_write_v2, u16)
WRITE_KERNEL(kv_write_v1, u8)

#define WRITE_FP8_KERNEL(name, From, Format, WIDTH)                                             \
    KV_KERNEL(name, WRITE_PARAMETERS) {                                                         \
        Quantise<From, Format, WIDTH> move = {divisor_of(scales[blockIdx.y])};         \
        write_rows(WRITE_SIDE, move);                                                           \
    }
WRITE_FP8_KERNEL(kv_write_float16_fp8_e4m3_v8, F16, E4M3, 8)
WRITE_FP8_KERNEL(kv_write_float16_fp8_e4m3_v1, F16, E4M3, 1)
WRITE_FP8_KERNEL(kv_write_float16_fp8_e5m2_v8, F16, E5M2, 8)
WRITE_FP8_KERNEL(kv_write_float16_fp8_e5m2_v1, F16, E5M2, 1)
WRITE_FP8_KERNEL(kv_write_bfloat16_fp8_e4m3_v8, BF16, E4M3, 8)
WRITE_FP8_KERNEL(kv_write_bfloat16_fp8_e4m3_v1, BF16, E4M3, 1)
WRITE_FP8_KERNEL(kv_write_bfloat16_fp8_e5m2_v8, BF16, E5M2, 8)
WRITE_FP8_KERNEL(kv_write_bfloat16_fp8_e5m2_v1, BF16, E5M2, 1)
WRITE_FP8_KERNEL(kv_write_float32_fp8_e4m3_v8, F32, E4M3, 8)
WRITE_FP8_KERNEL(kv_write_float32_fp8_e4m3_v1, F32, E4M3, 1)
WRITE_FP8_KERNEL(kv_write_float32_fp8_e5m2_v8, F32, E5M2, 8)
WRITE_FP8_KERNEL(kv_write_float32_fp8_e5m2_v1, F32, E5M2, 1)

// ---------------------------------------------------------------------------------------------
// gather: tokens [first, T) of one request, through its block table, to [T - first, H, row] or, with
// other strides, [H, T - first, row].
// manager_block_size tokens stand behind one entry of the table; block_size is the view's own (kernel)
// block size. A block that is not held (-1) or does not exist reads as zeros.

#define GATHER_PARAMETERS                                                                              \
    u8 *out, i64 out_token_stride, i64 out_head_stride, const u8 *cache, i64 block_stride, i64 token_stride, i64 head_stride, \
        i64 num_heads, i64 row_length, i64 out_row_bytes, const int *block_table, i64 first_token,     \
        i64 num_tokens, i64 manager_block_size, i64 block_size, i64 num_slots, u32 *err, const float *scale
#define GATHER_ARGUMENTS                                                                             \
    out, out_token_stride, out_head_stride, cache, block_stride, token_stride, head_stride, (u32)num_heads,             \
        (u32)row_length, (u32)out_row_bytes, block_table, (u32)first_token, (u32)num_tokens,         \
        (u32)manager_block_size, (u32)block_size, num_slots, err

template <class Move>
static __device__ __forceinline__ void gather_rows(u8* out, i64 out_token_stride, i64 out_head_stride,
                                                   const u8* cache, i64 block_stride, i64 token_stride, i64 head_stride, u32 num_heads, u32 row_length,
                                                   u32 out_row_bytes, const int* block_table, u32 first_token,
                                                   u32 num_tokens, u32 manager_block_size, u32 block_size, i64 num_slots, u32* err,
                                                   Move move) {
    u32 num_rows = (num_tokens - first_token) * num_heads;
    KV_FRESH_ROWS(num_rows);
#ifdef KV_HOST_FAST
    // The tokens of a kernel block at once: a row of a small head takes less time than its divisions.
    u32 run = 0;
    for (u32 token = first_token, stop; token < num_tokens; token = stop, ++run) {
        u32 index = token / manager_block_size, within = token % manager_block_size;
        u32 position = within % block_size, left = block_size - position;
        stop = num_tokens - token < left ? num_tokens : token + left;
        if (run % gridDim.x != blockIdx.x) continue;  // another thread's
        int held = block_table[index];
        i64 slot = (i64)held * (i64)manager_block_size + within;
        bool readable = held >= 0 && slot < num_slots;
        if (!readable && held >= 0 && within == 0)
            report(err, GATHER_BLOCK, index, held, (u32)num_slots / manager_block_size);
        const u8* block = cache + (readable ? (u32)slot / block_size : 0u) * block_stride + position * token_stride;
        for (u32 head = 0; head < num_heads; ++head) {
            u8* to = out + (token - first_token) * out_token_stride + head * out_head_stride;
            const u8* from = block + head * head_stride;
            for (u32 i = token; i < stop; ++i, to += out_token_stride, from += token_stride) {
                if (readable) {
                    move(to, from, row_length);
                } else {
                    fill_row<u8>(to, 0u, out_row_bytes);
                }
            }
        }
    }
#else
#pragma unroll 1
    for (u32 row = blockIdx.x * blockDim.y + threadIdx.y; row < num_rows; row += gridDim.x * blockDim.y) {
        u32 new_token = row / num_heads, head = row - new_token * num_heads;
        u32 token = first_token + new_token;
        u32 index = token / manager_block_size, within = token - index * manager_block_size;
        int held = block_table[index];
        i64 slot = (i64)held * (i64)manager_block_size + within;
        u8* to = out + new_token * out_token_stride + head * out_head_stride;
        if (held < 0 || slot >= num_slots) {
            if (held >= 0 && within == 0 && head == 0 && threadIdx.x == 0)
                report(err, GATHER_BLOCK, index, held, (u32)num_slots / manager_block_size);
            fill_row<u8>(to, 0u, out_row_bytes);
            continue;
        }
        u32 block = (u32)slot / block_size, position = (u32)slot - block * block_size;
        move(to, cache + block * block_stride + position * token_stride + head * head_stride, row_length);
    }
#endif
}

#define GATHER_KERNEL(name, V) \
    KV_KERNEL(name, GATHER_PARAMETERS) { gather_rows(GATHER_ARGUMENTS, Copy<V>()); }
GATHER_KERNEL(kv_gather_v16, uint4)
GATHER_KERNEL(kv_gather_v4, u32)
GATHER_KERNEL(kv_gather_v2, u16)
GATHER_KERNEL(kv_gather_v1, u8)

#define GATHER_FP8_KERNEL(name, Format, To, WIDTH)                          \
    KV_KERNEL(name, GATHER_PARAMETERS) {                                    \
        Dequantise<Format, To, WIDTH> move = {scale[0]};           \
        gather_rows(GATHER_ARGUMENTS, move);                                \
    }
GATHER_FP8_KERNEL(kv_gather_fp8_e4m3_float16_v8, E4M3, F16, 8)
GATHER_FP8_KERNEL(kv_gather_fp8_e4m3_float16_v1, E4M3, F16, 1)
GATHER_FP8_KERNEL(kv_gather_fp8_e4m3_bfloat16_v8, E4M3, BF16, 8)
GATHER_FP8_KERNEL(kv_gather_fp8_e4m3_bfloat16_v1, E4M3, BF16, 1)
GATHER_FP8_KERNEL(kv_gather_fp8_e4m3_float32_v8, E4M3, F32, 8)
GATHER_FP8_KERNEL(kv_gather_fp8_e4m3_float32_v1, E4M3, F32, 1)
GATHER_FP8_KERNEL(kv_gather_fp8_e5m2_float16_v8, E5M2, F16, 8)
GATHER_FP8_KERNEL(kv_gather_fp8_e5m2_float16_v1, E5M2, F16, 1)
GATHER_FP8_KERNEL(kv_gather_fp8_e5m2_bfloat16_v8, E5M2, BF16, 8)
GATHER_FP8_KERNEL(kv_gather_fp8_e5m2_bfloat16_v1, E5M2, BF16, 1)
GATHER_FP8_KERNEL(kv_gather_fp8_e5m2_float32_v8, E5M2, F32, 8)
GATHER_FP8_KERNEL(kv_gather_fp8_e5m2_float32_v1, E5M2, F32, 1)

// ---------------------------------------------------------------------------------------------
// Whole blocks of many views at once: fill, copy, pack, unpack. One page is outer x inner rows; the
// table has one line of PAGE_COLUMNS i64 a view. blockIdx.z is the view, blockIdx.y walks the blocks.
// packed byte of (view, i-th listed block, row r) = packed_offset + i * packed_stride + r * row bytes.

enum PageColumn { OFFSET, BLOCK_STRIDE, NUM_BLOCKS, OUTER, OUTER_STRIDE, INNER, INNER_STRIDE,
                  ROW_LENGTH, PACKED_OFFSET, PACKED_STRIDE, PAGE_COLUMNS };

struct Page { i64 outer_stride, inner_stride; u32 num_rows, inner, row_length; };

static __device__ __forceinline__ Page page_of(const i64* line) {
    Page page = {line[OUTER_STRIDE], line[INNER_STRIDE], (u32)line[OUTER] * (u32)line[INNER],
                 (u32)line[INNER], (u32)line[ROW_LENGTH]};
    return page;
}

static __device__ __forceinline__ i64 row_offset(Page page, u32 row) {
    u32 outer = row / page.inner;
    return outer * page.outer_stride + (row - outer * page.inner) * page.inner_stride;
}

// Is block a block of this view? A negative id is padding; one past the end is reported once a view.
static __device__ __forceinline__ bool usable(const i64* line, i64 block, u32* err, u32 operation, u32 index) {
    if (block < 0) return false;
    if (block < line[NUM_BLOCKS]) return true;
    if (blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0)
        report(err, operation, index, block, line[NUM_BLOCKS]);
    return false;
}

#define FOR_EACH_ROW(page)                                                                            \
    _Pragma("unroll 1") for (u32 row = blockIdx.x * blockDim.y + threadIdx.y; row < page.num_rows;    \
                             row += gridDim.x * blockDim.y)

template <class V>
static __device__ __forceinline__ void fill_pages(u8* base, const i64* table, const i64* blocks, u32 num_blocks,
                                                  u32 byte, u32* err) {
    const i64* line = table + blockIdx.z * PAGE_COLUMNS;
    Page page = page_of(line);
#pragma unroll 1
    for (u32 i = blockIdx.y; i < num_blocks; i += gridDim.y) {
        if (!usable(line, blocks[i], err, FILL_BLOCK, i)) continue;
        u8* to = base + line[OFFSET] + blocks[i] * line[BLOCK_STRIDE];
        FOR_EACH_ROW(page) fill_row<V>(to + row_offset(page, row), byte, page.row_length);
    }
}

// pairs: [num_pairs, 2] = source, destination. No destination is another pair's source (the launcher
// refuses that), so the order of the pairs is free.
template <class V>
static __device__ __forceinline__ void copy_pages(u8* base, const i64* table, const i64* pairs, u32 num_pairs,
                                                  u32* err) {
    const i64* line = table + blockIdx.z * PAGE_COLUMNS;
    Page page = page_of(line);
    KV_ROWS((u64)num_pairs * page.num_rows);
#pragma unroll 1
    for (u32 i = blockIdx.y; i < num_pairs; i += gridDim.y) {
        i64 source = pairs[2 * i], destination = pairs[2 * i + 1];
        if (!usable(line, source, err, COPY_BLOCK, i)) continue;
        if (!usable(line, destination, err, COPY_BLOCK, i)) continue;
        u8* from = base + line[OFFSET] + source * line[BLOCK_STRIDE];
        u8* to = base + line[OFFSET] + destination * line[BLOCK_STRIDE];
        FOR_EACH_ROW(page) copy_row<V>(to + row_offset(page, row), from + row_offset(page, row), page.row_length);
    }
}

template <class V, bool PACK>
static __device__ __forceinline__ void move_pages(u8* base, const i64* table, u8* packed, const i64* blocks,
                                                  u32 num_blocks, u32* err) {
    const i64* line = table + blockIdx.z * PAGE_COLUMNS;
    Page page = page_of(line);
    KV_ROWS((u64)num_blocks * page.num_rows);
#pragma unroll 1
    for (u32 i = blockIdx.y; i < num_blocks; i += gridDim.y) {
        if (!usable(line, blocks[i], err, PACK ? PACK_BLOCK : UNPACK_BLOCK, i)) continue;
        u8* paged = base + line[OFFSET] + blocks[i] * line[BLOCK_STRIDE];
        u8* flat = packed + line[PACKED_OFFSET] + i * line[PACKED_STRIDE];
        FOR_EACH_ROW(page) {
            u8* in_page = paged + row_offset(page, row);
            u8* in_flat = flat + (i64)row * ((i64)page.row_length * (i64)sizeof(V));
            copy_row<V>(PACK ? in_flat : in_page, PACK ? in_page : in_flat, page.row_length);
        }
    }
}

#define PAGE_KERNELS(suffix, V)                                                                         \
    KV_KERNEL(kv_fill_##suffix, u8* base, const i64* table, const i64* blocks, i64 num_blocks, i64 byte,\
              u32* err) {                                                                               \
        fill_pages<V>(base, table, blocks, (u32)num_blocks, (u32)byte, err);                            \
    }                                                                                                   \
    KV_KERNEL(kv_copy_##suffix, u8* base, const i64* table, const i64* pairs, i64 num_pairs, u32* err) {\
        copy_pages<V>(base, table, pairs, (u32)num_pairs, err);                                         \
    }                                                                                                   \
    KV_KERNEL(kv_pack_##suffix, u8* base, const i64* table, u8* packed, const i64* blocks,              \
              i64 num_blocks, u32* err) {                                                               \
        move_pages<V, true>(base, table, packed, blocks, (u32)num_blocks, err);                         \
    }                                                                                                   \
    KV_KERNEL(kv_unpack_##suffix, u8* base, const i64* table, u8* packed, const i64* blocks,            \
              i64 num_blocks, u32* err) {                                                               \
        move_pages<V, false>(base, table, packed, blocks, (u32)num_blocks, err);                        \
    }
PAGE_KERNELS(v16, uint4)
PAGE_KERNELS(v4, u32)
PAGE_KERNELS(v2, u16)
PAGE_KERNELS(v1, u8)

// ---------------------------------------------------------------------------------------------
// slot_mapping: slot of token t = block_table[request[t], position[t] / N] * N + position[t] % N.
// A negative request or position is padding (-1); a block that is not held gives -1; past the end is
// reported and gives -1, so that a wrong table never becomes an address.

KV_KERNEL(kv_slot_mapping, i64* slots, const int* block_table, i64 table_stride /* entries */,
          const i64* request, const i64* position, i64 num_tokens, i64 num_requests, i64 max_blocks,
          i64 block_size, u32* err) {
    u32 size = (u32)block_size;
#pragma unroll 1
    for (u32 t = blockIdx.x * blockDim.x + threadIdx.x; t < (u32)num_tokens; t += gridDim.x * blockDim.x) {
        i64 row = request[t], at = position[t], slot = -1;
        if (row < 0 || at < 0) {
        } else if (row >= num_requests) {
            report(err, MAP_REQUEST, t, row, num_requests);
        } else if (at >= max_blocks * block_size) {
            report(err, MAP_POSITION, t, at, max_blocks * block_size);
        } else {
            u32 index = (u32)at / size;
            int held = block_table[row * table_stride + index];
            if (held >= 0) slot = (i64)held * block_size + ((u32)at - index * size);
        }
        slots[t] = slot;
    }
}

// ---------------------------------------------------------------------------------------------
// Attention of one query a request over its pages (decode): softmax(q K) V of the tokens
// [first, stop), spans[2 r] and spans[2 r + 1], in three launches so that no thread waits for another.
//   scores   [R, Q, columns]: q . k of every visible token, times log2(e) and the scales
//   partials [R, H, S, G, D + 2]: of every split of the tokens sum(2^(s - m) v), m, and sum(2^(s - m))
//   out      [R, Q, D]: the splits together
// R requests, H KV heads, G query heads a KV head, Q = H * G, D head size, S splits. Query, scores and
// out are float32. ratio kernel blocks of block_size tokens stand behind one entry of the table. A
// token whose block is not held is not seen; nothing seen at all gives zeros.

#define NEGATIVE_INFINITY __uint_as_float(0xff800000u)

// 2^x for x <= 0 within 2 units in the last place; 0 below 2^-126. One code for every device, and
// loops of it are vectorised.
static __device__ __forceinline__ float exp2_negative(float x) {
    float rounded = (x + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: no fraction is left
    float fraction = x - rounded;
    float sum = 1.535336188319500e-4f;
    sum = __fmaf_rn(sum, fraction, 1.339887440266574e-3f);
    sum = __fmaf_rn(sum, fraction, 9.618437357674640e-3f);
    sum = __fmaf_rn(sum, fraction, 5.550332471162809e-2f);
    sum = __fmaf_rn(sum, fraction, 2.402264791363012e-1f);
    sum = __fmaf_rn(sum, fraction, 6.931472028550421e-1f);
    sum = __fmaf_rn(sum, fraction, 1.0f);
    u32 exponent = __float_as_uint(rounded + 12582912.0f) << 23;  // modulo 2^32: the integer, shifted
    float value = __uint_as_float(__float_as_uint(sum) + exponent);
    // A NaN stays one: both comparisons of it are false.
    return x < -125.0f ? 0.0f : x >= -125.0f ? value : x;
}

struct Paged {
    const u8* cache;  // element (block 0, token 0, head 0)
    i64 block_stride, token_stride, head_stride;
    const int* block_table;
    i64 table_stride, max_blocks, num_blocks;  // entries, entries, kernel blocks
    u32 ratio, block_size;
};

#define PAGED_PARAMETERS                                                                               \
    const u8 *cache, i64 block_stride, i64 token_stride, i64 head_stride, const int *block_table,      \
        i64 table_stride, i64 max_blocks, i64 num_blocks, i64 ratio, i64 block_size
#define PAGED                                                                                          \
    Paged { cache, block_stride, token_stride, head_stride, block_table, table_stride, max_blocks,     \
            num_blocks, (u32)ratio, (u32)block_size }

// The kernel block that holds tokens [index * block_size, ...) of a request; 0 where there is none.
static __device__ __forceinline__ const u8* paged_block(const Paged& paged, u32 request, u32 head, u32 index,
                                                        u32* err) {
    u32 entry = index / paged.ratio;
    if (entry >= paged.max_blocks) {
        if (err) report(err, ATTEND_TOKEN, request, (i64)index * paged.block_size,
                        paged.max_blocks * paged.ratio * paged.block_size);
        return 0;
    }
    int held = paged.block_table[request * paged.table_stride + entry];
    i64 block = (i64)held * paged.ratio + (index - entry * paged.ratio);
    if (held < 0) return 0;
    if (block >= paged.num_blocks) {
        if (err) report(err, ATTEND_BLOCK, entry, held, (u32)paged.num_blocks / paged.ratio);
        return 0;
    }
    return paged.cache + block * paged.block_stride + head * paged.head_stride;
}

#ifdef KV_HOST_FAST
// On a CPU 8 numbers at a time: the compiler does not reorder sums by itself.
typedef float Eight __attribute__((vector_size(32)));
typedef u16 Halves __attribute__((vector_size(16)));
typedef u32 Words __attribute__((vector_size(32)));

template <class T> static inline Eight decode8(T, const typename T::raw* from) {
    float one_by_one[8];
    for (u32 j = 0; j < 8; ++j) one_by_one[j] = decode(T(), from[j]);
    return kv_host::load<Eight>(one_by_one);
}
static inline Eight decode8(F32, const float* from) { return kv_host::load<Eight>(from); }
#ifdef __F16C__
static inline Eight decode8(F16, const u16* from) { return (Eight)kv_host::floats_of_halves(from); }
#endif
static inline Eight decode8(BF16, const u16* from) {
    return (Eight)(__builtin_convertvector(kv_host::load<Halves>(from), Words) << 16);
}
#endif

template <class Cached, int WIDTH>
static __device__ __forceinline__ float dot(const float* query, const u8* row, u32 length) {
    typedef typename Cached::raw Raw;
#ifdef KV_HOST_FAST
    const Raw* key = (const Raw*)row;
    Eight sums[4] = {};
    u32 d = 0, size = length * WIDTH;
    for (; d + 32 <= size; d += 32)
        for (u32 j = 0; j < 4; ++j)
            sums[j] = kv_host::fma(kv_host::load<Eight>(query + d + 8 * j), decode8(Cached(), key + d + 8 * j), sums[j]);
    float sum = kv_host::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; d < size; ++d) sum = __fmaf_rn(query[d], decode(Cached(), key[d]), sum);
    return sum;
#else
    float sum = 0.0f;
#pragma unroll 1
    for (u32 i = 0; i < length; ++i) {
        if (WIDTH == 1) {
            sum = __fmaf_rn(query[i], decode(Cached(), ((const Raw*)row)[i]), sum);
        } else {
            Raw k[8];
            float q[8];
            load8(k, row + (u64)i * 8u * sizeof(Raw));
            load8(q, (const u8*)query + (u64)i * 32u);
            for (u32 j = 0; j < 8; ++j) sum = __fmaf_rn(q[j], decode(Cached(), k[j]), sum);
        }
    }
    return sum;
#endif
}

// A row is a KV head of one kernel block of one request (the heads of a block side by side: their
// keys share memory pages); a lane is a token.
template <class Cached, int WIDTH>
static __device__ __forceinline__ void attend_scores(float* scores, i64 columns, const float* query, u32 num_requests,
                                                     u32 num_heads, u32 group, u32 length, Paged paged,
                                                     const i64* spans, u32 blocks_a_request, u32* err, float factor) {
    u32 num_rows = num_requests * num_heads * blocks_a_request, head_size = length * WIDTH;
#pragma unroll 1
    for (u32 row = blockIdx.x * blockDim.y + threadIdx.y; row < num_rows; row += gridDim.x * blockDim.y) {
        u32 rest = row / num_heads, head = row - rest * num_heads, request = rest / blocks_a_request;
        i64 first = spans[2 * request], stop = spans[2 * request + 1];
        u32 index = (u32)first / paged.block_size + (rest - request * blocks_a_request);
        i64 start = (i64)index * paged.block_size;
        if (start >= stop) continue;
        u32 from = start < first ? (u32)(first - start) : 0u;
        u32 to = stop - start < (i64)paged.block_size ? (u32)(stop - start) : paged.block_size;
        bool tells = head == 0 && threadIdx.x == 0;
        const u8* keys = paged_block(paged, request, head, index, tells ? err : 0);
#pragma unroll 1
        for (u32 g = 0; g < group; ++g) {
            i64 line = ((i64)request * num_heads + head) * group + g;
            float* out = scores + line * columns + (start - first);
            const float* q = query + line * head_size;
#pragma unroll 1
            for (u32 i = from + threadIdx.x; i < to; i += blockDim.x) {
                KV_PREFETCH(keys + (i + 2) * paged.token_stride, length * WIDTH * sizeof(typename Cached::raw));
                out[i] = keys ? dot<Cached, WIDTH>(q, keys + i * paged.token_stride, length) * factor
                              : NEGATIVE_INFINITY;
            }
        }
    }
}

// What one lane (on a CPU: one row) adds up over the tokens of a split.
#ifdef KV_HOST_FAST
template <class Cached, int WIDTH>
static void add_values(float* sums, u32 length, const u8* values, i64 token_stride, const float* weights, u32 from,
                       u32 to) {
    typedef typename Cached::raw Raw;
    u32 size = length * WIDTH, i = from;
    for (; i + 4 <= to; i += 4) {
        const Raw *a = (const Raw*)(values + i * token_stride), *b = (const Raw*)((const u8*)a + token_stride);
        const Raw *c = (const Raw*)((const u8*)b + token_stride), *e = (const Raw*)((const u8*)c + token_stride);
        for (u32 j = 4; j < 8; ++j) KV_PREFETCH((const u8*)a + j * token_stride, size * sizeof(Raw));
        Eight w0 = weights[i] - Eight{}, w1 = weights[i + 1] - Eight{}, w2 = weights[i + 2] - Eight{},
                w3 = weights[i + 3] - Eight{};
        u32 d = 0;
        for (; d + 8 <= size; d += 8) {
            Eight sum = kv_host::load<Eight>(sums + d);
            sum = kv_host::fma(w0, decode8(Cached(), a + d), sum);
            sum = kv_host::fma(w1, decode8(Cached(), b + d), sum);
            sum = kv_host::fma(w2, decode8(Cached(), c + d), sum);
            sum = kv_host::fma(w3, decode8(Cached(), e + d), sum);
            __builtin_memcpy(sums + d, &sum, 32);
        }
        for (; d < size; ++d) {
            float sum = __fmaf_rn(weights[i], decode(Cached(), a[d]), sums[d]);
            sum = __fmaf_rn(weights[i + 1], decode(Cached(), b[d]), sum);
            sum = __fmaf_rn(weights[i + 2], decode(Cached(), c[d]), sum);
            sums[d] = __fmaf_rn(weights[i + 3], decode(Cached(), e[d]), sum);
        }
    }
    for (; i < to; ++i) {
        const Raw* __restrict__ a = (const Raw*)(values + i * token_stride);
        float* __restrict__ acc = sums;
        for (u32 d = 0; d < size; ++d) acc[d] = __fmaf_rn(weights[i], decode(Cached(), a[d]), acc[d]);
    }
}
#endif

static __device__ __forceinline__ float largest(const float* scores, u32 from, u32 to, float so_far) {
#pragma unroll 1
    for (u32 i = from; i < to; ++i) so_far = scores[i] > so_far ? scores[i] : so_far;
    return so_far;
}

// Tokens [begin, end) of one request and KV head for one query head: sums [D], the largest score, and
// the sum of the weights, D + 2 numbers at `to`. lane: which vector of D.
template <class Cached, int WIDTH>
static __device__ __forceinline__ void attend_split(float* to, u32 length, u32 lane, const float* scores, i64 begin,
                                                    i64 end, i64 first, const Paged& paged, u32 request, u32 head) {
    float most = NEGATIVE_INFINITY, total = 0.0f;
#ifdef KV_HOST_FAST
    (void)lane;
    for (u32 d = 0; d < length * WIDTH; ++d) to[d] = 0.0f;
#else
    typedef typename Cached::raw Raw;
    float sums[WIDTH];
    for (u32 j = 0; j < WIDTH; ++j) sums[j] = 0.0f;
#endif
#pragma unroll 1
    for (u32 index = (u32)begin / paged.block_size; (i64)index * paged.block_size < end; ++index) {
        const u8* values = paged_block(paged, request, head, index, 0);
        if (!values) continue;
        i64 start = (i64)index * paged.block_size;
        u32 from = start < begin ? (u32)(begin - start) : 0u;
        u32 upto = end - start < (i64)paged.block_size ? (u32)(end - start) : paged.block_size;
        const float* here = scores + (start - first);
        float before = most;
        most = largest(here, from, upto, most);
        float shrink = before < most ? exp2_negative(before - most) : 1.0f;
        total *= shrink;
#ifdef KV_HOST_FAST
        for (u32 d = 0; d < length * WIDTH && before < most; ++d) to[d] *= shrink;
        for (u32 some = from; some < upto; some += 64) {
            float weights[64], sum = 0.0f;
            u32 count = upto - some < 64u ? upto - some : 64u;
            for (u32 i = 0; i < count; ++i) weights[i] = exp2_negative(here[some + i] - most);
            for (u32 i = 0; i < count; ++i) sum += weights[i];
            total += sum;
            add_values<Cached, WIDTH>(to, length, values + some * paged.token_stride, paged.token_stride, weights,
                                      0, count);
        }
#else
        for (u32 j = 0; j < WIDTH; ++j) sums[j] *= shrink;
#pragma unroll 1
        for (u32 i = from; i < upto; ++i) {
            float weight = exp2_negative(here[i] - most);
            total += weight;
            const u8* row = values + i * paged.token_stride + (u64)lane * WIDTH * sizeof(Raw);
            Raw v[WIDTH];
            if (WIDTH == 1) v[0] = ((const Raw*)row)[0];
            else load8(v, row);
            for (u32 j = 0; j < WIDTH; ++j) sums[j] = __fmaf_rn(weight, decode(Cached(), v[j]), sums[j]);
        }
#endif
    }
#ifndef KV_HOST_FAST
    for (u32 j = 0; j < WIDTH; ++j) to[lane * WIDTH + j] = sums[j];
    if (lane != 0) return;
#endif
    to[length * WIDTH] = most;
    to[length * WIDTH + 1] = total;
}

// A row is a query head of one split of one request (those of a KV head side by side: they read the
// same values); a lane is a vector of the head.
template <class Cached, int WIDTH>
static __device__ __forceinline__ void attend_values(float* partials, const float* scores, i64 columns,
                                                     u32 num_requests, u32 num_heads, u32 group, u32 length,
                                                     Paged paged, const i64* spans, u32 split, u32 num_splits) {
    u32 num_rows = num_requests * num_heads * num_splits * group;
#pragma unroll 1
    for (u32 row = blockIdx.x * blockDim.y + threadIdx.y; row < num_rows; row += gridDim.x * blockDim.y) {
        u32 rest = row / group, g = row - rest * group, line = rest / num_splits;
        u32 request = line / num_heads, head = line - request * num_heads;
        i64 first = spans[2 * request], stop = spans[2 * request + 1];
        i64 begin = first + (i64)(rest - line * num_splits) * split;
        i64 end = begin + split < stop ? begin + split : stop;
        float* to = partials + (i64)row * (length * WIDTH + 2u);
        const float* line_of = scores + ((i64)line * group + g) * columns;
#ifdef KV_HOST_FAST
        attend_split<Cached, WIDTH>(to, length, 0, line_of, begin, end, first, paged, request, head);
#else
#pragma unroll 1
        for (u32 lane = threadIdx.x; lane < length; lane += blockDim.x)
            attend_split<Cached, WIDTH>(to, length, lane, line_of, begin, end, first, paged, request, head);
#endif
    }
}

#define ATTEND_KERNELS(dtype, Cached, WIDTH)                                                           \
    KV_KERNEL(kv_scores_##dtype##_v##WIDTH, float* scores, i64 columns, const float* query,            \
              i64 num_requests, i64 num_heads, i64 group, i64 length, PAGED_PARAMETERS,                \
              const i64* spans, i64 blocks_a_request, u32* err, const float* factor) {                 \
        attend_scores<Cached, WIDTH>(scores, columns, query, (u32)num_requests, (u32)num_heads,        \
                                     (u32)group, (u32)length, PAGED, spans, (u32)blocks_a_request,     \
                                     err, factor[0]);                                                  \
    }                                                                                                  \
    KV_KERNEL(kv_values_##dtype##_v##WIDTH, float* partials, const float* scores, i64 columns,         \
              i64 num_requests, i64 num_heads, i64 group, i64 length, PAGED_PARAMETERS,                \
              const i64* spans, i64 split, i64 num_splits) {                                           \
        attend_values<Cached, WIDTH>(partials, scores, columns, (u32)num_requests, (u32)num_heads,     \
                                     (u32)group, (u32)length, PAGED, spans, (u32)split,                \
                                     (u32)num_splits);                                                 \
    }
ATTEND_KERNELS(float32, F32, 8)
ATTEND_KERNELS(float32, F32, 1)
ATTEND_KERNELS(float16, F16, 8)
ATTEND_KERNELS(float16, F16, 1)
ATTEND_KERNELS(bfloat16, BF16, 8)
ATTEND_KERNELS(bfloat16, BF16, 1)
ATTEND_KERNELS(fp8_e4m3, E4M3, 8)
ATTEND_KERNELS(fp8_e4m3, E4M3, 1)
ATTEND_KERNELS(fp8_e5m2, E5M2, 8)
ATTEND_KERNELS(fp8_e5m2, E5M2, 1)

// A row is a query head of a request; a lane is a number of it.
KV_KERNEL(kv_combine, float* out, const float* partials, i64 num_lines /* R * H */, i64 group, i64 num_splits,
          i64 head_size, const float* factor) {
    u32 size = (u32)head_size, splits = (u32)num_splits, heads = (u32)group;
#pragma unroll 1
    for (u32 row = blockIdx.x * blockDim.y + threadIdx.y; row < (u32)num_lines * heads;
         row += gridDim.x * blockDim.y) {
        u32 line = row / heads;
        i64 step = (i64)heads * (size + 2u);
        const float* part = partials + (i64)line * splits * step + (i64)(row - line * heads) * (size + 2u);
        float most = NEGATIVE_INFINITY, total = 0.0f;
#pragma unroll 1
        for (u32 s = 0; s < splits; ++s) most = part[s * step + size] > most ? part[s * step + size] : most;
#pragma unroll 1
        for (u32 s = 0; s < splits; ++s)
            if (part[s * step + size + 1u] != 0.0f)
                total += part[s * step + size + 1u] * exp2_negative(part[s * step + size] - most);
        float scale = total == 0.0f ? 0.0f : factor[1] / total;
#ifdef KV_HOST_FAST
        float* to = out + (i64)row * size;
        for (u32 d = 0; d < size; ++d) to[d] = 0.0f;
        for (u32 s = 0; s < splits; ++s) {
            if (part[s * step + size + 1u] == 0.0f) continue;
            float weight = exp2_negative(part[s * step + size] - most) * scale;
            for (u32 d = 0; d < size; ++d) to[d] = __fmaf_rn(part[s * step + d], weight, to[d]);
        }
#else
#pragma unroll 1
        for (u32 d = threadIdx.x; d < size; d += blockDim.x) {
            float sum = 0.0f;
#pragma unroll 1
            for (u32 s = 0; s < splits; ++s)
                if (part[s * step + size + 1u] != 0.0f)
                    sum = __fmaf_rn(part[s * step + d], exp2_negative(part[s * step + size] - most), sum);
            out[(i64)row * size + d] = sum * scale;
        }
#endif
    }
}
