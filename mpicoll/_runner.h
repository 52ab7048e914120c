/* What the parts of the native engine share: kernels, programs, and how they are run. */
#ifndef MPICOLL_RUNNER_H
#define MPICOLL_RUNNER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdint.h>

/* ---- _kernels.c -------------------------------------------------------------------------------- */

/* out[i] = left[i] op right[i] for n elements; `out` may be `left` or `right`. */
typedef void (*kernel_fn)(void *out, const void *left, const void *right, int64_t n);

/* The kernel of a name such as "sum_f4", or NULL. */
kernel_fn mpicoll_kernel(const char *name);

/* ---- _runner.c --------------------------------------------------------------------------------- */

typedef int (*startall_fn)(int, void *);
typedef int (*testall_fn)(int, void *, int *, void *);
typedef int (*reduce_local_fn)(const void *, void *, int, intptr_t, intptr_t);

enum { START, WAIT, KERNEL_STEP, MPI_STEP, COPY, MARK };

typedef struct {
    int64_t code;
    int64_t a, b, c, n; /* START, WAIT: first, last; KERNEL_STEP: out, left, right, elements;
                           MPI_STEP: in, inout, extent, elements; COPY: out, source, -, bytes;
                           MARK: where the time goes, in ns */
} step;

enum { RECENT = 3 }; /* flights that are remembered */

typedef struct Program {
    PyObject_HEAD
    step *steps;
    Py_ssize_t count, next;
    char *requests; /* opaque handles, `request_size` bytes each */
    Py_ssize_t request_size;
    char *statuses; /* of the last wait; room for the longest. Read when one fails */
    Py_ssize_t statuses_size; /* [bytes] */
    startall_fn startall;
    testall_fn testall;
    reduce_local_fn reduce_local;
    kernel_fn combine;
    intptr_t datatype, operation;
    PyObject *idle;    /* called now and then during a long wait with the step; raises to give up */
    PyObject *owner;   /* keeps memory and requests alive for as long as the program */
    PyObject *failure; /* called with (MPI error code, step, statuses); returns the exception to raise */
    int polite;        /* give up the core between tests */
    int busy;          /* somebody is running it */
    int broken;        /* it failed, or was freed: it never runs again */
    /* In the background (guarded by `lock`, but for `state`): */
    atomic_int state;
    int rc;                  /* why it FAILED, */
    Py_ssize_t failed_at;    /* and in which step */
    int64_t began, ended;    /* the clock when it was first and last looked at [ns] */
    int64_t recent[RECENT];  /* from `began` to `ended`, the last times, newest first [ns]; 0: not yet */
    int64_t waits;           /* steps that wait */
    struct Program *after;   /* must be over before this one begins */
    struct Program *sibling; /* next in the list of the background thread */
    vectorcallfunc call;
} Program;

enum { IDLE, QUEUED, FINISHED, FAILED }; /* states */

typedef enum { DONE, PENDING, MPI_FAILED, RAISED } outcome;

/* Run from the next step on, without the GIL; `*rc` is MPI's error code if it fails. */
outcome mpicoll_run(Program *p, int blocking, int *rc);

/* Run until the end, or, unless blocking, until a message is not there yet, releasing the GIL meanwhile.
 * 1 done, 0 pending, -1 raised. */
int mpicoll_advance(Program *p, int blocking);

/* The time [ns] of the clock that Python calls monotonic. */
int64_t mpicoll_now(void);

/* Called, without the GIL, often in a long wait: asks Python from time to time whether to go on. -1: no (it has
 * raised). The two variables start at 0 and belong to the wait. */
int mpicoll_ask_at_times(Program *p, int64_t *ask_at, int *asked);

/* What `failure` is told besides MPI's error codes, which are positive. */
enum { GAVE_UP = -1, PLAN_IS_BROKEN = -2, PLAN_IS_BUSY = -3 };

/* Raise what Python makes of a failure, keeping an exception that is being raised. Returns -1. */
int mpicoll_raise_failure(Program *p, int code, Py_ssize_t position);

/* ---- _background.c: methods of Program, functions of the module ------------------------------------ */

void mpicoll_background_init(void); /* before all else */
PyObject *mpicoll_submit(PyObject *self, PyObject *after);
PyObject *mpicoll_test(PyObject *self, PyObject *unused);
PyObject *mpicoll_join(PyObject *self, PyObject *unused);
PyObject *mpicoll_retire(PyObject *self, PyObject *unused);
PyObject *mpicoll_hold(PyObject *self, PyObject *unused);
PyObject *mpicoll_release(PyObject *self, PyObject *unused);
PyObject *mpicoll_stop_background(PyObject *self, PyObject *unused);
PyObject *mpicoll_pause(PyObject *self, PyObject *waited);
PyObject *mpicoll_background_policy(PyObject *self, PyObject *args);

#endif
