/* Nonblocking collectives: programs that complete while Python computes.
 *
 * One thread runs all programs that were submitted, never waiting for a message. It holds no GIL
 * (a reduction by a Python function takes it for as long as that runs). With nothing to do it sleeps; while messages are on their way it looks again at once for a
 * while, and then less and less often, so that computing threads keep their cores.
 */
#include "_runner.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

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
        outcome result = mpicoll_run(p, 0, &p->rc);
        pthread_mutex_lock(&lock);
        p->busy = 0;
        next = p->sibling;
        moved |= p->next != before;
        if (result != PENDING) {
            unlink_active(p);
            p->failed_at = p->next;
            if (result == DONE)
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
PyObject *mpicoll_submit(PyObject *self, PyObject *after) {
    Program *p = (Program *)self;
    if (p->broken || p->busy || atomic_load(&p->state) == QUEUED) {
        mpicoll_raise_failure(p, p->broken ? PLAN_IS_BROKEN : PLAN_IS_BUSY, p->next);
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
    int result = failed ? mpicoll_raise_failure(p, p->rc, p->failed_at) : 0;
    Py_DECREF(p);
    return result;
}

/* test() -> bool: whether the background thread has finished a submitted program. */
PyObject *mpicoll_test(PyObject *self, PyObject *unused) {
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
PyObject *mpicoll_join(PyObject *self, PyObject *unused) {
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
    p->joining = 1;
    int failed = atomic_load(&p->state) == QUEUED && mpicoll_advance(p, 1) < 0;
    p->joining = 0;
    if (failed) {
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
PyObject *mpicoll_stop_background(PyObject *self, PyObject *unused) {
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
PyObject *mpicoll_background_policy(PyObject *self, PyObject *args) {
    long new_spins, new_sleep;
    if (!PyArg_ParseTuple(args, "ll", &new_spins, &new_sleep))
        return NULL;
    spins = new_spins;
    longest_sleep_ns = new_sleep;
    Py_RETURN_NONE;
}
