/* What the two halves of the native engine share. */
#ifndef MPICOLL_RUNNER_H
#define MPICOLL_RUNNER_H

#include <stdint.h>

/* out[i] = left[i] op right[i] for n elements; `out` may be `left` or `right`. */
typedef void (*kernel_fn)(void *out, const void *left, const void *right, int64_t n);

/* The kernel of a name such as "sum_f4", or NULL. */
kernel_fn mpicoll_kernel(const char *name);

#endif
