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
#include "_runner.h"

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

/* ---- programs ----------------------------------------------------------------------------------- */

static const int64_t IDLE_NS = 20000000; /* between two calls of `idle`, or, when it asks for that, … */
static const int64_t SOON_NS = 200000;
static const unsigned CLOCK_EVERY = 256; /* tests between two looks at the clock */
static const int64_t REDUCE_LIMIT = 1 << 30;

int64_t mpicoll_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Ask Python whether to go on waiting: nanoseconds until it wants to be asked again, or -1 to give up.
 * `first`: for the first time in this wait. Called without the GIL. */
static int64_t keep_waiting(Program *p, int first) {
    PyGILState_STATE gil = PyGILState_Ensure();
    int64_t next = -1;
    if (PyErr_CheckSignals() == 0) {
        PyObject *soon = PyObject_CallFunction(p->idle, "ni", p->next, first);
        if (soon != NULL)
            next = soon == Py_True ? SOON_NS : IDLE_NS;
        Py_XDECREF(soon);
    }
    PyGILState_Release(gil);
    return next;
}

int mpicoll_ask_at_times(Program *p, int64_t *ask_at, int *asked) {
    int64_t time = mpicoll_now();
    if (*ask_at == 0)
        *ask_at = time + SOON_NS;
    if (time < *ask_at)
        return 0;
    int64_t pause = keep_waiting(p, !(*asked)++);
    if (pause < 0)
        return -1;
    *ask_at = mpicoll_now() + pause;
    return 0;
}

static outcome wait_for(Program *p, const step *s, int blocking, int *rc) {
    char *first = p->requests + s->a * p->request_size;
    int64_t ask_at = 0;
    int asked = 0;
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
        if (tests % CLOCK_EVERY == 0 && mpicoll_ask_at_times(p, &ask_at, &asked) < 0)
            return RAISED;
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

outcome mpicoll_run(Program *p, int blocking, int *rc) {
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
        case MARK:
            *(int64_t *)s->a = mpicoll_now();
            break;
        }
        if (*rc != 0)
            return MPI_FAILED;
    }
    return DONE;
}

/* Run until the end, or, unless blocking, until a message is not there yet. 1 done, 0 pending, -1 raised. */
int mpicoll_advance(Program *p, int blocking) {
    if (p->broken)
        return mpicoll_raise_failure(p, PLAN_IS_BROKEN, p->next);
    if (p->busy || atomic_load(&p->state) == QUEUED)
        return mpicoll_raise_failure(p, PLAN_IS_BUSY, p->next);
    int rc = 0;
    outcome result;
    p->busy = 1;
    Py_BEGIN_ALLOW_THREADS
    result = mpicoll_run(p, blocking, &rc);
    Py_END_ALLOW_THREADS
    p->busy = 0;
    if (result == DONE)
        p->next = 0;
    if (result == DONE || result == PENDING)
        return result == DONE;
    p->broken = 1;
    return mpicoll_raise_failure(p, result == MPI_FAILED ? rc : GAVE_UP, p->next);
}

/* `failure` tells the other ranks and gives the exception, or None where one has been raised already. It is given
 * the statuses, which say more where a wait has failed in MPI. */
int mpicoll_raise_failure(Program *p, int code, Py_ssize_t position) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *error = PyObject_CallFunction(p->failure, "iny#", code, position, p->statuses, p->statuses_size);
    if (type != NULL) {
        PyErr_Restore(type, value, traceback);
    } else if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    }
    Py_XDECREF(error);
    return -1;
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
    if (mpicoll_advance((Program *)self, 1) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *program_advance(PyObject *self, PyObject *blocking) {
    int result = mpicoll_advance((Program *)self, PyObject_IsTrue(blocking));
    return result < 0 ? NULL : PyBool_FromLong(result);
}

static PyObject *program_position(PyObject *self, void *closure) {
    return PyLong_FromSsize_t(((Program *)self)->next);
}

static PyObject *program_flight(PyObject *self, void *closure) {
    Program *p = (Program *)self;
    return Py_BuildValue("dd", p->began * 1e-9, p->ended * 1e-9);
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
    p->statuses_size = status_size * longest;
    p->statuses = PyMem_Calloc(p->statuses_size + 1, 1);
    if (p->steps && p->requests && p->statuses) {
        memcpy(p->steps, steps.buf, steps.len);
        memcpy(p->requests, requests.buf, requests.len);
    }
    p->count = steps.len / (Py_ssize_t)sizeof(step);
    p->waits = 0;
    for (Py_ssize_t i = 0; p->steps && i < p->count; i++)
        p->waits += p->steps[i].code == WAIT;
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
    {"retire", mpicoll_retire, METH_NOARGS, "retire(): never run again; stop where it stands."},
    {"submit", mpicoll_submit, METH_O,
     "submit(after): let the background thread run it, once the program `after` (or None) is over."},
    {"test", mpicoll_test, METH_NOARGS, "test() -> bool: whether a submitted program is over."},
    {"pause", mpicoll_pause, METH_O,
     "pause(waited) -> how long [ns] the background thread would sleep with only this program in flight."},
    {"join", mpicoll_join, METH_NOARGS, "join(): drive all submitted programs from here until this one is over."},
    {"advance", program_advance, METH_O,
     "advance(blocking) -> bool: run until done (True), or until a message is not there yet (False)."},
    {NULL}};

static PyGetSetDef program_getset[] = {
    {"position", program_position, NULL, "The step that comes next.", NULL},
    {"flight", program_flight, NULL,
     "When it began and ended in the background [s of time.monotonic()], the last time.", NULL},
    {NULL}};

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
    {"stop_background", mpicoll_stop_background, METH_NOARGS, "stop_background(): end the background thread."},
    {"background_policy", mpicoll_background_policy, METH_VARARGS,
     "background_policy(spins, shortest, longest, patience, looks) -> the one before: the background thread looks\n"
     "for messages `spins` times, yielding; then after every 1/`patience` of the time waited, or, if that is\n"
     "longer, 1/`looks` of a flight (the shortest of the last three), but 1/`patience` of it shared by all steps\n"
     "that wait; in bounds [ns]. Without `looks` (0) the time waited alone counts."},
    {"hold", mpicoll_hold, METH_NOARGS, "hold(): keep the background thread out of MPI until release()."},
    {"release", mpicoll_release, METH_NOARGS, "release(): let the background thread go on."},
    {"kernel", kernel, METH_O, "kernel(name) -> address of a reduction such as 'sum_f4', or None."},
    {NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_runner", "The native engine.", -1,
                                    module_methods};

PyMODINIT_FUNC PyInit__runner(void) {
    if (PyType_Ready(&ProgramType) < 0)
        return NULL;
    mpicoll_background_init();
    PyObject *m = PyModule_Create(&module);
    if (m == NULL || PyModule_AddObjectRef(m, "Program", (PyObject *)&ProgramType) < 0)
        return NULL;
    return m;
}
