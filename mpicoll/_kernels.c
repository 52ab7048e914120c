/* Reductions: out = left op right, for every arithmetic type of MPI. */
#include "_runner.h"
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

/* `out` may be `left` or `right` itself, never a shifted overlap: there is no dependency between
 * iterations, which is what ivdep promises. */
#define KERNEL(op, tag, type, expression)                                                              \
    CLONES static void op##_##tag(void *out_, const void *left_, const void *right_, int64_t n) {      \
        type *out = out_;                                                                              \
        const type *left = left_, *right = right_;                                                     \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++) {                                         \
            const type a = left[i], b = right[i];                                                      \
            out[i] = (type)(expression);                                                               \
        }                                                                                              \
    }

/* NaN wins, and of two equal values (+0 and -0) the right one: the same choice on every rank. */
#define ORDER(tag, type)                                                                               \
    KERNEL(max, tag, type, (a > b || a != a) ? a : b)                                                  \
    KERNEL(min, tag, type, (a < b || a != a) ? a : b)
#define ARITHMETIC(tag, type) KERNEL(sum, tag, type, a + b) KERNEL(prod, tag, type, a *b)
#define LOGICAL(tag, type)                                                                             \
    KERNEL(land, tag, type, a && b)                                                                    \
    KERNEL(lor, tag, type, a || b)                                                                     \
    KERNEL(lxor, tag, type, !a != !b)
#define BITWISE(tag, type)                                                                             \
    KERNEL(band, tag, type, a &b) KERNEL(bor, tag, type, a | b) KERNEL(bxor, tag, type, a ^ b)
/* Signed sums and products wrap: they are computed as unsigned. */
#define INTEGER(tag, type, unsigned_type)                                                              \
    KERNEL(sum, tag, type, (unsigned_type)a + (unsigned_type)b)                                        \
    KERNEL(prod, tag, type, (unsigned_type)a *(unsigned_type)b)                                        \
    ORDER(tag, type) LOGICAL(tag, type) BITWISE(tag, type)

INTEGER(i1, int8_t, uint32_t)
INTEGER(i2, int16_t, uint32_t)
INTEGER(i4, int32_t, uint32_t)
INTEGER(i8, int64_t, uint64_t)
INTEGER(u1, uint8_t, uint32_t)
INTEGER(u2, uint16_t, uint32_t)
INTEGER(u4, uint32_t, uint32_t)
INTEGER(u8, uint64_t, uint64_t)
ARITHMETIC(f4, float)
ORDER(f4, float)
ARITHMETIC(f8, double)
ORDER(f8, double)
ARITHMETIC(fg, long double)
ORDER(fg, long double)
#ifdef __FLT16_MANT_DIG__
ARITHMETIC(f2, _Float16)
ORDER(f2, _Float16)
#endif

/* A complex number is a pair of reals; sums are sums of twice as many reals. */
#define COMPLEX(tag, type, real)                                                                       \
    static void sum_##tag(void *out, const void *left, const void *right, int64_t n) {                 \
        sum_##real(out, left, right, 2 * n);                                                           \
    }                                                                                                  \
    static void prod_##tag(void *out_, const void *left_, const void *right_, int64_t n) {             \
        type *out = out_;                                                                              \
        const type *left = left_, *right = right_;                                                     \
        for (int64_t i = 0; i < 2 * n; i += 2) {                                                       \
            const type a = left[i], b = left[i + 1], c = right[i], d = right[i + 1];                   \
            out[i] = a * c - b * d;                                                                    \
            out[i + 1] = a * d + b * c;                                                                \
        }                                                                                              \
    }
COMPLEX(c4, float, f4)
COMPLEX(c8, double, f8)
COMPLEX(cg, long double, fg)

typedef struct {
    const char *name;
    kernel_fn function;
} named_kernel;

#define ENTRY(op, tag) {#op "_" #tag, op##_##tag},
#define ENTRIES_ARITHMETIC(tag) ENTRY(sum, tag) ENTRY(prod, tag)
#define ENTRIES_REAL(tag) ENTRIES_ARITHMETIC(tag) ENTRY(max, tag) ENTRY(min, tag)
#define ENTRIES_LOGICAL(tag) ENTRY(land, tag) ENTRY(lor, tag) ENTRY(lxor, tag)
#define ENTRIES_INTEGER(tag)                                                                           \
    ENTRIES_REAL(tag) ENTRIES_LOGICAL(tag) ENTRY(band, tag) ENTRY(bor, tag) ENTRY(bxor, tag)

static const named_kernel KERNELS[] = {
    ENTRIES_INTEGER(i1) ENTRIES_INTEGER(i2) ENTRIES_INTEGER(i4) ENTRIES_INTEGER(i8)
    ENTRIES_INTEGER(u1) ENTRIES_INTEGER(u2) ENTRIES_INTEGER(u4) ENTRIES_INTEGER(u8)
    ENTRIES_REAL(f4) ENTRIES_REAL(f8) ENTRIES_REAL(fg)
#ifdef __FLT16_MANT_DIG__
    ENTRIES_REAL(f2)
#endif
    ENTRIES_ARITHMETIC(c4) ENTRIES_ARITHMETIC(c8) ENTRIES_ARITHMETIC(cg)
};

kernel_fn mpicoll_kernel(const char *name) {
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (strcmp(KERNELS[i].name, name) == 0)
            return KERNELS[i].function;
    return NULL;
}
