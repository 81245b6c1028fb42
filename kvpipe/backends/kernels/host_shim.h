// Lets a C++ compiler build kv_cache.cu for the CPU: the CUDA words as C++, and one exported launcher
// a kernel. How a launch runs is chosen when compiling:
//   -DKV_HOST_FAST     one thread a row, lane loops become block copies (backend=host)
//   -DKV_HOST_EXACT    every block and thread of the grid, one by one (tests)
//   -DKV_HOST_REVERSE  the same, last block and thread first: shows code that depends on their order
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#define __device__
#define __forceinline__ inline __attribute__((always_inline))

struct KvDim { unsigned x, y, z; };
static thread_local KvDim threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };

static inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
static inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline unsigned atomicAdd(unsigned* at, unsigned add) {
    return __atomic_fetch_add(at, add, __ATOMIC_RELAXED);
}

#ifdef KV_HOST_FAST
#define KV_ROWS(count) kv_host::rows_in_launch = (count), kv_host::stream_from = kv_host::WRITES
#define KV_FRESH_ROWS(count) kv_host::rows_in_launch = (count), kv_host::stream_from = kv_host::READS
#define KV_PREFETCH(at, bytes) kv_host::prefetch(at, bytes)
#else
#define KV_PREFETCH(at, bytes)
#define KV_ROWS(count)
#define KV_FRESH_ROWS(count)
#endif

namespace kv_host {

#ifdef KV_HOST_FAST
static thread_local std::uint64_t rows_in_launch, stream_from;

// A launch that moves more than fits in a core's own cache writes around the caches: a cached store
// first reads the line it will overwrite, a third of all traffic. Smaller launches stay cached,
// because attention reads them next. So do gathers of up to 8 MiB: their target is fresh memory,
// whose lines are in the cache because the system has just zeroed them.
constexpr std::uint64_t WRITES = 1 << 20, READS = 8 << 20;

#ifdef __SSE2__
static inline void stream16(char*& to, const char*& from) {
    _mm_stream_si128((__m128i*)to, _mm_loadu_si128((const __m128i*)from));
    to += 16, from += 16;
}

// to and bytes are multiples of 16.
static inline void stream_bytes(char* to, const char* from, std::uint64_t bytes) {
    char* end = to + bytes;
    while (to < end && ((std::uintptr_t)to & 63)) stream16(to, from);
#ifdef __AVX512F__
    for (; end - to >= 64; to += 64, from += 64)
        _mm512_stream_si512((__m512i*)to, _mm512_loadu_si512(from));
#endif
    while (to < end) stream16(to, from);
}
#endif

static inline void copy_bytes(void* to, const void* from, std::uint64_t bytes) {
#ifdef __SSE2__
    if (rows_in_launch * bytes >= stream_from && (((std::uintptr_t)to | bytes) & 15) == 0)
        return stream_bytes((char*)to, (const char*)from, bytes);
#endif
    std::memcpy(to, from, bytes);
}

template <class V> static inline V load(const void* from) {
    V value;
    std::memcpy(&value, from, sizeof(V));
    return value;
}

// Of 8 floats.
template <class V> static inline V fma(V a, V b, V c) {
#ifdef __FMA__
    return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

template <class V> static inline float sum(V eight) {
#ifdef __AVX__
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)eight), _mm256_extractf128_ps((__m256)eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    float sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum += eight[i];
    return sum;
#endif
}

#ifdef __F16C__
// 8 of them. The hardware's conversion: in software a lane takes a dozen instructions.
static inline __m256 floats_of_halves(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
}
#endif

// Rows lie apart, and hardware does not guess beyond a page of memory.
static inline void prefetch(const void* at, std::uint64_t bytes) {
    for (std::uint64_t line = 0; line < bytes; line += 64) __builtin_prefetch((const char*)at + line);
}

static inline void finish() {
#ifdef __SSE2__
    _mm_sfence();  // streamed stores are not ordered with others
#endif
}
#endif  // KV_HOST_FAST

template <class T> T argument(std::uint64_t word) {
    static_assert(sizeof(T) == 8, "every kernel parameter is 64 bits wide");
    T value;
    std::memcpy(&value, &word, 8);
    return value;
}

template <class... P, std::size_t... I>
inline void call(void (*kernel)(P...), const std::uint64_t* words, std::index_sequence<I...>) {
    kernel(argument<P>(words[I])...);
}

#ifdef KV_HOST_FAST
template <class... P>
void run(void (*kernel)(P...), const std::uint64_t* words, KvDim grid, KvDim, int num_threads) {
    int threads = grid.x < (unsigned)num_threads ? (int)grid.x : num_threads;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) if (threads > 1)
#endif
    for (int x = 0; x < threads; ++x) {
        threadIdx = {0, 0, 0};
        blockDim = {1, 1, 1};
        gridDim = {(unsigned)threads, grid.y, grid.z};
        for (unsigned z = 0; z < grid.z; ++z)
            for (unsigned y = 0; y < grid.y; ++y) {
                blockIdx = {(unsigned)x, y, z};
                call(kernel, words, std::index_sequence_for<P...>{});
            }
        finish();
    }
}
#else
static inline KvDim at(std::uint64_t index, KvDim size) {
    return {(unsigned)(index % size.x), (unsigned)(index / size.x % size.y),
            (unsigned)(index / size.x / size.y)};
}
static inline std::uint64_t volume(KvDim size) { return (std::uint64_t)size.x * size.y * size.z; }
static inline std::uint64_t ordered(std::uint64_t index, std::uint64_t count) {
#ifdef KV_HOST_REVERSE
    return count - 1 - index;
#else
    return (void)count, index;
#endif
}
template <class... P>
void run(void (*kernel)(P...), const std::uint64_t* words, KvDim grid, KvDim block, int) {
    gridDim = grid;
    blockDim = block;
    for (std::uint64_t b = 0; b < volume(grid); ++b) {
        blockIdx = at(ordered(b, volume(grid)), grid);
        for (std::uint64_t t = 0; t < volume(block); ++t) {
            threadIdx = at(ordered(t, volume(block)), block);
            call(kernel, words, std::index_sequence_for<P...>{});
        }
    }
}
#endif

// shape: grid x, y, z and block x, y, z. Returns the number of parameters if num_words differs, else 0.
template <class... P>
int launch(void (*kernel)(P...), const std::uint64_t* words, int num_words, const std::uint32_t* shape,
           int num_threads) {
    if (num_words != (int)sizeof...(P)) return (int)sizeof...(P);
    run(kernel, words, {shape[0], shape[1], shape[2]}, {shape[3], shape[4], shape[5]}, num_threads);
    return 0;
}

}  // namespace kv_host

#define KV_KERNEL(name, ...)                                                                          \
    static void name(__VA_ARGS__);                                                                    \
    extern "C" int name##_launch(const std::uint64_t* words, int num_words, const std::uint32_t* shape, \
                                 int num_threads) {                                                   \
        return kv_host::launch(name, words, num_words, shape, num_threads);                           \
    }                                                                                                 \
    static void name(__VA_ARGS__)
