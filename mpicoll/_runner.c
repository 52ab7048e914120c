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
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "_runner.h"

typedef int (*startall_fn)(int, void *);
typedef int (*testall_fn)(int, void *, int *, void *);
typedef int (*reduce_local_fn)(const void *, void *, int, intptr_t, intptr_t);

/* ---- programs ----------------------------------------------------------------------------------- */

enum { START, WAIT, KERNEL_STEP, MPI_STEP, COPY };

typedef struct {
    int64_t code;
    int64_t a, b, c, n; /* START, WAIT: first, last; KERNEL_STEP: out, left, right, elements;
                           MPI_STEP: in, inout, extent, elements; COPY: out, source, -, bytes */
} step;

typedef struct Program {
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
    int busy;          /* somebody is running it */
    int broken;
    /* In the background (guarded by `lock`, but for `state`): */
    atomic_int state;
    int rc;                  /* why it FAILED */
    struct Program *after;   /* must be over before this one begins */
    struct Program *sibling; /* next in the list of the background thread */
    vectorcallfunc call;
} Program;

enum { IDLE, QUEUED, FINISHED, FAILED }; /* states */

static const int64_t IDLE_NS = 20000000; /* between two calls of `idle`, or, when it asks for that, … */
static const int64_t SOON_NS = 200000;
static const unsigned CLOCK_EVERY = 256; /* tests between two looks at the clock */
static const int64_t REDUCE_LIMIT = 1 << 30;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

typedef enum { DONE, PENDING, MPI_FAILED, RAISED } outcome;

/* Ask Python whether to go on waiting: nanoseconds until it wants to be asked again, or -1 to give up.
 * Called without the GIL. */
static int64_t keep_waiting(Program *p) {
    PyGILState_STATE gil = PyGILState_Ensure();
    int64_t next = -1;
    if (PyErr_CheckSignals() == 0) {
        PyObject *soon = PyObject_CallFunction(p->idle, "n", p->next);
        if (soon != NULL)
            next = soon == Py_True ? SOON_NS : IDLE_NS;
        Py_XDECREF(soon);
    }
    PyGILState_Release(gil);
    return next;
}

static outcome wait_for(Program *p, const step *s, int blocking, int *rc) {
    char *first = p->requests + s->a * p->request_size;
    int64_t ask_at = 0;
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
            if (ask_at == 0)
                ask_at = time + SOON_NS;
            else if (time >= ask_at) {
                int64_t pause = keep_waiting(p);
                if (pause < 0)
                    return RAISED;
                ask_at = now() + pause;
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

/* ---- in the background -------------------------------------------------------------------------- */

/* One thread runs all programs that were submitted, never waiting for a message. It needs no Python and
 * holds no GIL. With nothing to do it sleeps; while messages are on their way it looks again at once for a
 * while, and then less and less often, so that computing threads keep their cores. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_came = PTHREAD_COND_INITIALIZER, step_over = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static int thread_runs, thread_must_stop;
static Program *active;              /* singly linked by `sibling` */
static long spins = 200;             /* fruitless rounds with sched_yield before sleeping */
static long longest_sleep_ns = 50000;
static const long SHORTEST_SLEEP_NS = 2000;

static void unlink_active(Program *p) {
    for (Program **at = &active; *at != NULL; at = &(*at)->sibling)
        if (*at == p) {
            *at = p->sibling;
            p->sibling = NULL;
            return;
        }
}

/* One look at every active program, with `lock` held at entry and exit. Nonzero if anything moved. */
static int look_around(void) {
    int moved = 0;
    Program *next;
    for (Program *p = active; p != NULL; p = next) {
        if (p->busy || (p->after != NULL && atomic_load(&p->after->state) == QUEUED)) {
            next = p->sibling;
            continue;
        }
        Py_ssize_t before = p->next;
        p->busy = 1;
        pthread_mutex_unlock(&lock);
        outcome result = run(p, 0, &p->rc);
        pthread_mutex_lock(&lock);
        p->busy = 0;
        next = p->sibling;
        moved |= p->next != before;
        if (result != PENDING) {
            unlink_active(p);
            p->next = 0;
            p->broken = result != DONE;
            atomic_store(&p->state, result == DONE ? FINISHED : FAILED);
            moved = 1;
        }
        pthread_cond_broadcast(&step_over);
    }
    return moved;
}

static void *background(void *unused) {
    long fruitless = 0, pause = SHORTEST_SLEEP_NS;
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!thread_must_stop) {
        if (active == NULL) {
            pthread_cond_wait(&work_came, &lock);
            fruitless = 0;
            pause = SHORTEST_SLEEP_NS;
            continue;
        }
        if (look_around()) {
            fruitless = 0;
            pause = SHORTEST_SLEEP_NS;
            continue;
        }
        pthread_mutex_unlock(&lock);
        if (++fruitless < spins) {
            sched_yield();
        } else {
            struct timespec t = {0, pause};
            nanosleep(&t, NULL);
            pause = pause * 2 < longest_sleep_ns ? pause * 2 : longest_sleep_ns;
        }
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* submit(after): hand the program to the background thread. `after` is a program or None. */
static PyObject *program_submit(PyObject *self, PyObject *after) {
    Program *p = (Program *)self;
    if (p->busy || p->broken || atomic_load(&p->state) == QUEUED) {
        PyErr_SetString(PyExc_RuntimeError, "the plan is running or has failed");
        return NULL;
    }
    int failed = 0;
    Py_INCREF(self); /* the list's reference; given back by settle() */
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    p->after = after == Py_None ? NULL : (Program *)after;
    atomic_store(&p->state, QUEUED);
    Program **end = &active;
    while (*end != NULL)
        end = &(*end)->sibling;
    *end = p;
    if (!thread_runs) {
        thread_must_stop = 0;
        failed = pthread_create(&thread, NULL, background, NULL);
        thread_runs = !failed;
    }
    if (failed)
        unlink_active(p);
    pthread_cond_signal(&work_came);
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
    if (failed) {
        Py_DECREF(self);
        atomic_store(&p->state, IDLE);
        PyErr_SetString(PyExc_OSError, "the background thread could not be started");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* After a submitted program is over, or was taken back: give its reference back, raise if it failed. */
static int settle(Program *p) {
    int failed = atomic_exchange(&p->state, IDLE) == FAILED;
    pthread_mutex_lock(&lock); /* with the GIL: its holders never wait for that */
    for (Program *later = active; later != NULL; later = later->sibling)
        if (later->after == p)
            later->after = NULL; /* or it would wait for the next run of `p` */
    pthread_mutex_unlock(&lock);
    Py_DECREF(p);
    if (failed) {
        PyObject *error = PyObject_CallFunction(p->failure, "in", p->rc, (Py_ssize_t)0);
        if (error != NULL) {
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
            Py_DECREF(error);
        }
        return -1;
    }
    return 0;
}

/* test() -> bool: whether the background thread has finished a submitted program. */
static PyObject *program_test(PyObject *self, PyObject *unused) {
    Program *p = (Program *)self;
    int state = atomic_load(&p->state);
    if (state == QUEUED)
        Py_RETURN_FALSE;
    if (state != IDLE && settle(p) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

/* join(): take a submitted program back from the background thread and run it to its end here: a thread
 * that waits has nothing better to do. */
static PyObject *program_join(PyObject *self, PyObject *unused) {
    Program *p = (Program *)self;
    if (atomic_load(&p->state) == IDLE)
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    while (p->busy)
        pthread_cond_wait(&step_over, &lock);
    unlink_active(p);
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
    /* Programs that come after this one begin only when it is over, so it stays QUEUED until then. */
    if (atomic_load(&p->state) == QUEUED && advance(p, 1) < 0) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        settle(p);
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    if (settle(p) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* stop_background(): end the thread; programs that are still active stay as they are. */
static PyObject *stop_background(PyObject *self, PyObject *unused) {
    if (thread_runs) {
        Py_BEGIN_ALLOW_THREADS
        pthread_mutex_lock(&lock);
        thread_must_stop = 1;
        pthread_cond_signal(&work_came);
        pthread_mutex_unlock(&lock);
        pthread_join(thread, NULL);
        thread_runs = 0;
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

/* background_policy(spins, longest_sleep_ns): how eagerly the thread looks for messages. */
static PyObject *background_policy(PyObject *self, PyObject *args) {
    long new_spins, new_sleep;
    if (!PyArg_ParseTuple(args, "ll", &new_spins, &new_sleep))
        return NULL;
    spins = new_spins;
    longest_sleep_ns = new_sleep;
    Py_RETURN_NONE;
}

/* ---- the Python side ---------------------------------------------------------------------------- */

static PyObject *kernel(PyObject *self, PyObject *name_object) {
    const char *name = PyUnicode_AsUTF8(name_object);
    if (name == NULL)
        return NULL;
    kernel_fn found = mpicoll_kernel(name);
    if (found == NULL)
        Py_RETURN_NONE;
    return PyLong_FromVoidPtr((void *)found);
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
    {"submit", program_submit, METH_O,
     "submit(after): let the background thread run it, once the program `after` (or None) is over."},
    {"test", program_test, METH_NOARGS, "test() -> bool: whether a submitted program is over."},
    {"join", program_join, METH_NOARGS, "join(): run a submitted program to its end, here if need be."},
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
    {"stop_background", stop_background, METH_NOARGS, "stop_background(): end the background thread."},
    {"background_policy", background_policy, METH_VARARGS,
     "background_policy(spins, longest_sleep_ns): how eagerly the background thread looks for messages."},
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
