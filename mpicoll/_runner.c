/* The native engine: runs a compiled program without holding the GIL.
 *
 * This file includes no MPI header, so that one binary serves every MPI. Python hands it the addresses
 * of MPI_Startall, MPI_Testall and MPI_Reduce_local as found in the library that mpi4py has loaded, and
 * an array of opaque request handles of a given size. Handles passed by value (datatype, operation) are
 * passed as intptr_t: MPI libraries define them as int or as a pointer, and the calling conventions of
 * all 64-bit platforms that mpicoll builds on pass both in one integer register.
 *
 * Waiting is a loop around MPI_Testall rather than MPI_Waitall, so that a wait can give up the core when
 * ranks outnumber cores, answer Ctrl-C, notice that another rank has given up, and time out.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef int (*startall_fn)(int, void *);
typedef int (*testall_fn)(int, void *, int *, void *);
typedef int (*reduce_local_fn)(const void *, void *, int, intptr_t, intptr_t);
typedef void (*kernel_fn)(void *, const void *, const void *, int64_t);

/* ---- out = left op right, for every arithmetic type ------------------------------------------- */

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

static PyObject *kernel(PyObject *self, PyObject *name_object) {
    const char *name = PyUnicode_AsUTF8(name_object);
    if (name == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (strcmp(KERNELS[i].name, name) == 0)
            return PyLong_FromVoidPtr((void *)KERNELS[i].function);
    Py_RETURN_NONE;
}

/* ---- programs ----------------------------------------------------------------------------------- */

enum { START, WAIT, KERNEL_STEP, MPI_STEP, COPY };

typedef struct {
    int64_t code;
    int64_t a, b, c, n; /* START, WAIT: first, last; KERNEL_STEP: out, left, right, elements;
                           MPI_STEP: in, inout, extent, elements; COPY: out, source, -, bytes */
} step;

typedef struct {
    PyObject_HEAD
    step *steps;
    Py_ssize_t count, next;
    char *requests; /* opaque handles, `request_size` bytes each */
    Py_ssize_t request_size;
    void *statuses; /* room for the longest wait; read by nobody (MPI_STATUSES_IGNORE differs by library) */
    startall_fn startall;
    testall_fn testall;
    reduce_local_fn reduce_local;
    kernel_fn combine;
    intptr_t datatype, operation;
    PyObject *idle;    /* called now and then during a long wait with the step; raises to give up */
    PyObject *owner;   /* keeps memory and requests alive for as long as the program */
    PyObject *failure; /* called with (MPI error code, step); returns the exception to raise */
    int polite;        /* give up the core between tests */
    int busy, broken;
    vectorcallfunc call;
} Program;

static const int64_t IDLE_NS = 20000000; /* between two calls of `idle` */
static const unsigned CLOCK_EVERY = 256; /* tests between two looks at the clock */
static const int64_t REDUCE_LIMIT = 1 << 30;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

typedef enum { DONE, PENDING, MPI_FAILED, RAISED } outcome;

/* Ask Python whether to go on waiting. Called without the GIL. */
static int keep_waiting(Program *p) {
    PyGILState_STATE gil = PyGILState_Ensure();
    int good = PyErr_CheckSignals() == 0;
    if (good) {
        PyObject *result = PyObject_CallFunction(p->idle, "n", p->next);
        good = result != NULL;
        Py_XDECREF(result);
    }
    PyGILState_Release(gil);
    return good;
}

static outcome wait_for(Program *p, const step *s, int blocking, int *rc) {
    char *first = p->requests + s->a * p->request_size;
    int64_t asked = 0;
    for (unsigned tests = 1;; tests++) {
        int complete = 0;
        *rc = p->testall((int)(s->b - s->a), first, &complete, p->statuses);
        if (*rc != 0)
            return MPI_FAILED;
        if (complete)
            return DONE;
        if (!blocking)
            return PENDING;
        if (p->polite)
            sched_yield();
        if (tests % CLOCK_EVERY == 0) {
            int64_t time = now();
            if (asked == 0)
                asked = time;
            else if (time - asked >= IDLE_NS) {
                asked = time;
                if (!keep_waiting(p))
                    return RAISED;
            }
        }
    }
}

static int reduce_with_mpi(Program *p, const step *s) {
    const int64_t extent = s->c;
    const char *in = (const char *)s->a;
    char *inout = (char *)s->b;
    for (int64_t left = s->n; left > 0; left -= REDUCE_LIMIT) {
        int n = (int)(left < REDUCE_LIMIT ? left : REDUCE_LIMIT);
        int rc = p->reduce_local(in, inout, n, p->datatype, p->operation);
        if (rc != 0)
            return rc;
        in += n * extent;
        inout += n * extent;
    }
    return 0;
}

static outcome run(Program *p, int blocking, int *rc) {
    for (; p->next < p->count; p->next++) {
        const step *s = &p->steps[p->next];
        outcome result;
        switch (s->code) {
        case START:
            *rc = p->startall((int)(s->b - s->a), p->requests + s->a * p->request_size);
            break;
        case WAIT:
            result = wait_for(p, s, blocking, rc);
            if (result != DONE)
                return result;
            break;
        case KERNEL_STEP:
            p->combine((void *)s->a, (const void *)s->b, (const void *)s->c, s->n);
            break;
        case MPI_STEP:
            *rc = reduce_with_mpi(p, s);
            break;
        case COPY:
            memcpy((void *)s->a, (const void *)s->b, (size_t)s->n);
            break;
        }
        if (*rc != 0)
            return MPI_FAILED;
    }
    return DONE;
}

/* Run until the end, or, unless blocking, until a message is not there yet. 1 done, 0 pending, -1 raised. */
static int advance(Program *p, int blocking) {
    if (p->busy || p->broken) {
        PyErr_SetString(PyExc_RuntimeError, p->busy ? "the plan is being run by another thread"
                                                    : "the plan failed before and cannot run again");
        return -1;
    }
    int rc = 0;
    outcome result;
    p->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    result = run(p, blocking, &rc);
    Py_END_ALLOW_THREADS
    p->busy = 0;
    if (result == DONE)
        p->next = 0;
    if (result == DONE || result == PENDING)
        return result == DONE;
    p->broken = 1;
    if (result == MPI_FAILED) {
        PyObject *error = PyObject_CallFunction(p->failure, "in", rc, p->next);
        if (error != NULL) {
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
            Py_DECREF(error);
        }
    }
    return -1;
}

static PyObject *program_call(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names) {
    if (PyVectorcall_NARGS(nargs) != 0 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "a program takes no arguments");
        return NULL;
    }
    if (advance((Program *)self, 1) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *program_advance(PyObject *self, PyObject *blocking) {
    int result = advance((Program *)self, PyObject_IsTrue(blocking));
    return result < 0 ? NULL : PyBool_FromLong(result);
}

static PyObject *program_position(PyObject *self, void *closure) {
    return PyLong_FromSsize_t(((Program *)self)->next);
}

static int program_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    Program *p = (Program *)self;
    static char *names[] = {"steps", "requests", "request_size", "status_size", "longest_wait", "startall",
                            "testall", "reduce_local", "combine", "datatype", "operation", "idle",
                            "failure", "owner", "polite", NULL};
    Py_buffer steps, requests;
    Py_ssize_t status_size, longest;
    unsigned long long startall, testall, reduce_local, combine, datatype, operation;
    PyObject *idle, *failure, *owner;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*y*nnnKKKKKKOOOp", names, &steps, &requests,
                                     &p->request_size, &status_size, &longest, &startall, &testall,
                                     &reduce_local, &combine, &datatype, &operation, &idle, &failure,
                                     &owner, &p->polite))
        return -1;
    p->steps = PyMem_Malloc(steps.len + 1);
    p->requests = PyMem_Malloc(requests.len + 1);
    p->statuses = PyMem_Malloc(status_size * longest + 1);
    if (p->steps && p->requests && p->statuses) {
        memcpy(p->steps, steps.buf, steps.len);
        memcpy(p->requests, requests.buf, requests.len);
    }
    p->count = steps.len / (Py_ssize_t)sizeof(step);
    PyBuffer_Release(&steps);
    PyBuffer_Release(&requests);
    p->startall = (startall_fn)(uintptr_t)startall;
    p->testall = (testall_fn)(uintptr_t)testall;
    p->reduce_local = (reduce_local_fn)(uintptr_t)reduce_local;
    p->combine = (kernel_fn)(uintptr_t)combine;
    p->datatype = (intptr_t)datatype;
    p->operation = (intptr_t)operation;
    Py_INCREF(idle);
    Py_INCREF(failure);
    Py_INCREF(owner);
    p->idle = idle;
    p->failure = failure;
    p->owner = owner;
    p->call = program_call;
    if (!p->steps || !p->requests || !p->statuses) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int program_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Program *)self)->idle);
    Py_VISIT(((Program *)self)->failure);
    Py_VISIT(((Program *)self)->owner);
    return 0;
}

static int program_clear(PyObject *self) {
    Py_CLEAR(((Program *)self)->idle);
    Py_CLEAR(((Program *)self)->failure);
    Py_CLEAR(((Program *)self)->owner);
    return 0;
}

static void program_dealloc(PyObject *self) {
    Program *p = (Program *)self;
    PyObject_GC_UnTrack(self);
    program_clear(self);
    PyMem_Free(p->steps);
    PyMem_Free(p->requests);
    PyMem_Free(p->statuses);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef program_methods[] = {
    {"advance", program_advance, METH_O,
     "advance(blocking) -> bool: run until done (True), or until a message is not there yet (False)."},
    {NULL}};

static PyGetSetDef program_getset[] = {
    {"position", program_position, NULL, "The step that comes next.", NULL}, {NULL}};

static PyTypeObject ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "mpicoll._runner.Program",
    .tp_doc = "A compiled program, bound to memory and to requests. Calling it runs it to the end.",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = PyType_GenericNew,
    .tp_init = program_init,
    .tp_dealloc = program_dealloc,
    .tp_traverse = program_traverse,
    .tp_clear = program_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Program, call),
    .tp_methods = program_methods,
    .tp_getset = program_getset,
};

static PyMethodDef module_methods[] = {
    {"kernel", kernel, METH_O, "kernel(name) -> address of a reduction such as 'sum_f4', or None."},
    {NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_runner", "The native engine.", -1,
                                    module_methods};

PyMODINIT_FUNC PyInit__runner(void) {
    if (PyType_Ready(&ProgramType) < 0)
        return NULL;
    PyObject *m = PyModule_Create(&module);
    if (m == NULL || PyModule_AddObjectRef(m, "Program", (PyObject *)&ProgramType) < 0)
        return NULL;
    return m;
}
