/* Nonblocking collectives: programs that complete while Python computes.
 *
 * One thread drives all programs that were submitted. It holds no GIL (a reduction by a Python function
 * takes it for as long as that runs). With nothing to do it waits for work; while messages are on their way
 * it looks again after a fixed part of the time it has waited already, or of the time that what is in flight takes:
 * so all its waits together are late by no more than that part, or by the shortest sleep each, and computing threads
 * keep their cores (a look costs them some 20 µs). What is submitted wakes it. It sleeps even for a moment rather
 * than yield: the scheduler lets one that slept in at once, and one that yielded when the other's slice is over.
 *
 * A thread that waits for a program has nothing to compute: it drives all programs itself until then, and
 * the background thread rests. Only one thread at a time is inside MPI for all of this (`driving`), which is
 * why MPI_THREAD_SERIALIZED is enough as long as nobody else calls MPI meanwhile.
 */
#include "_runner.h"

#include <pthread.h>
#include <sched.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_came; /* see mpicoll_background_init() */
static pthread_cond_t step_over = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static int thread_runs, thread_must_stop;
static int driving;      /* some thread is inside MPI: */
static pthread_t driver; /* this one */
static int foreground;   /* threads that drive, or keep MPI to themselves: the background thread rests */
static int in_line;      /* threads that wait for the driver to come out */
static Program *active;  /* singly linked by `sibling` */
/* The policy, see background_policy(). */
static long spins = 0; /* a thread that yields to one that computes is away for that one's time slice */
static long shortest_sleep_ns = 20000, longest_sleep_ns = 1500000;
static long patience = 8;
static long looks_a_flight = 16; /* at least so many in the time that it takes; 0: pauses know nothing of flights */

static const unsigned CLOCK_EVERY = 256; /* fruitless looks of a waiting thread between two at the clock */

static void unlink_active(Program *p) {
    for (Program **at = &active; *at != NULL; at = &(*at)->sibling)
        if (*at == p) {
            *at = p->sibling;
            p->sibling = NULL;
            return;
        }
}

static void start_driving(void) {
    driving = 1;
    driver = pthread_self();
}

static void stop_driving(void) {
    driving = 0;
    pthread_cond_broadcast(&step_over);
}

static void finish(Program *p, outcome result, int rc) {
    unlink_active(p);
    p->ended = mpicoll_now();
    memmove(p->recent + 1, p->recent, sizeof p->recent - sizeof *p->recent);
    p->recent[0] = p->ended - p->began;
    p->rc = rc;
    p->failed_at = p->next;
    if (result == DONE)
        p->next = 0;
    p->broken = result != DONE;
    atomic_store(&p->state, result == DONE ? FINISHED : FAILED);
}

/* One look at every active program, with `lock` held at entry and exit and `driving` free. Nonzero if
 * anything moved. */
static int look_around(void) {
    int moved = 0;
    Program *next;
    start_driving();
    for (Program *p = active; p != NULL; p = next) {
        if (p->after != NULL && atomic_load(&p->after->state) == QUEUED) {
            next = p->sibling;
            continue;
        }
        Py_ssize_t before = p->next;
        int rc = 0;
        p->busy = 1;
        pthread_mutex_unlock(&lock);
        if (p->began == 0)
            p->began = mpicoll_now();
        outcome result = mpicoll_run(p, 0, &rc);
        pthread_mutex_lock(&lock);
        p->busy = 0;
        next = p->sibling;
        moved |= p->next != before;
        if (result != PENDING) {
            finish(p, result, rc);
            moved = 1;
        }
    }
    stop_driving();
    return moved;
}

/* The part [ns] of a program's flight that may pass between two looks: every step that waits may be found out one
 * such pause late, and all of them together may not add more than a `patience`-th to the flight, or the next pause
 * would be longer for it. Of its last flights the shortest counts, as the others may have waited for a late rank;
 * 0 until there were so many. */
static int64_t part_of_flight(const Program *p) {
    if (looks_a_flight == 0)
        return 0;
    int64_t least = p->recent[0];
    for (int i = 1; i < RECENT; i++)
        if (p->recent[i] < least)
            least = p->recent[i];
    int64_t by_looks = least / looks_a_flight, by_waits = least / (p->waits > 0 ? p->waits : 1) / patience;
    return by_looks < by_waits ? by_looks : by_waits;
}

/* The least such part of any program in flight. */
static int64_t least_part_of_flight(void) {
    int64_t least = INT64_MAX;
    for (const Program *p = active; p != NULL; p = p->sibling) {
        int64_t part = p->began != 0 ? part_of_flight(p) : least;
        if (part < least)
            least = part;
    }
    return least == INT64_MAX ? 0 : least;
}

/* How long [ns] to sleep, given the time waited so far and the part of a flight. */
static int64_t pause_after(int64_t waited, int64_t of_flight) {
    int64_t pause = waited / patience;
    pause = pause < of_flight ? of_flight : pause;
    pause = pause < shortest_sleep_ns ? shortest_sleep_ns : pause;
    return pause > longest_sleep_ns ? longest_sleep_ns : pause;
}

/* Sleep for a part of the time [ns] waited so far, or of a flight, with `lock` held at entry and exit. Who brings
 * work wakes the thread. It holds the lock when it does, and puts the work where the thread's last look, which ends
 * with the lock held, has seen it: so no call is lost. */
static void sleep_until_work_comes(int64_t waited) {
    if (thread_must_stop) /* said while `look_around` had let go of the lock */
        return;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t end = until.tv_nsec + pause_after(waited, least_part_of_flight());
    until.tv_sec += end / 1000000000;
    until.tv_nsec = end % 1000000000;
    pthread_cond_timedwait(&work_came, &lock, &until);
}

static void *background(void *unused) {
    long fruitless = 0;
    int64_t since = 0; /* of the first fruitless look after one that moved something */
    (void)unused;
#ifdef PR_SET_TIMERSLACK
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); /* [ns], or sleeps take 50 µs more than asked for */
#endif
    pthread_mutex_lock(&lock);
    while (!thread_must_stop) {
        if (active == NULL || foreground || driving) {
            pthread_cond_wait(&work_came, &lock);
            fruitless = 0;
            continue;
        }
        if (look_around()) {
            fruitless = 0;
            continue;
        }
        if (fruitless++ == 0)
            since = mpicoll_now();
        if (fruitless <= spins) {
            pthread_mutex_unlock(&lock);
            sched_yield();
            pthread_mutex_lock(&lock);
        } else {
            sleep_until_work_comes(mpicoll_now() - since);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Take the driver's seat, with `lock` held: the background thread rests from now on. A thread that has it may
 * come by again, in Python code that runs while it waits (the garbage collector's, say). */
static void come_forward(void) {
    foreground++;
    if (!driving || pthread_equal(driver, pthread_self()))
        return;
    in_line++;
    while (driving)
        pthread_cond_wait(&step_over, &lock);
    in_line--;
    pthread_cond_broadcast(&step_over); /* those who let it pass */
}

static void step_back(void) {
    if (--foreground == 0 && active != NULL)
        pthread_cond_signal(&work_came);
}

/* Once, when the module is loaded. Sleeps end by a clock that nobody sets. */
void mpicoll_background_init(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&work_came, &monotonic);
    pthread_condattr_destroy(&monotonic);
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
    p->began = p->ended = 0;
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

/* After a submitted program is over, or was given up: give its reference back, raise if it failed. */
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

/* test() -> bool: whether a submitted program is over. */
PyObject *mpicoll_test(PyObject *self, PyObject *unused) {
    Program *p = (Program *)self;
    int state = atomic_load(&p->state);
    if (state == QUEUED)
        Py_RETURN_FALSE;
    if (state == IDLE)
        Py_RETURN_TRUE;
    if (state == FAILED) { /* other ranks will be told, by MPI */
        Py_BEGIN_ALLOW_THREADS
        pthread_mutex_lock(&lock);
        come_forward();
        pthread_mutex_unlock(&lock);
        Py_END_ALLOW_THREADS
    }
    int result = settle(p);
    if (state == FAILED) {
        pthread_mutex_lock(&lock);
        step_back();
        pthread_mutex_unlock(&lock);
    }
    if (result < 0)
        return NULL;
    Py_RETURN_TRUE;
}

/* Drive all programs until `p` is over, with `lock` held. Asks Python now and then whether to go on. */
static void drive_until_over(Program *p) {
    int64_t ask_at = 0;
    int asked = 0;
    unsigned fruitless = 0;
    while (atomic_load(&p->state) == QUEUED) {
        if (driving || in_line) { /* another thread that waits looks for all of us; or one wants to come in */
            pthread_cond_wait(&step_over, &lock);
            continue;
        }
        if (look_around()) {
            ask_at = asked = 0;
            continue;
        }
        start_driving(); /* what Python does when asked calls MPI, too */
        pthread_mutex_unlock(&lock);
        if (p->polite)
            sched_yield();
        int answer = 0;
        if (++fruitless % CLOCK_EVERY == 0)
            answer = mpicoll_ask_at_times(p, &ask_at, &asked);
        pthread_mutex_lock(&lock);
        stop_driving();
        if (answer < 0 && atomic_load(&p->state) == QUEUED)
            finish(p, RAISED, GAVE_UP);
    }
}

/* join(): drive all submitted programs from here until this one is over. */
PyObject *mpicoll_join(PyObject *self, PyObject *unused) {
    Program *p = (Program *)self;
    if (atomic_load(&p->state) == IDLE)
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    foreground++; /* the background thread finishes its look, then rests */
    drive_until_over(p);
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
    int result = settle(p); /* may tell other ranks of a failure: the background thread rests until then */
    pthread_mutex_lock(&lock);
    step_back();
    pthread_mutex_unlock(&lock);
    if (result < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* retire(): the program never runs again; one that was submitted stops where it stands. */
PyObject *mpicoll_retire(PyObject *self, PyObject *unused) {
    Program *p = (Program *)self;
    p->broken = 1;
    if (atomic_load(&p->state) == IDLE)
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    come_forward();
    unlink_active(p);
    p->broken = 1; /* even if it has just been completed */
    step_back();
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
    atomic_store(&p->state, FINISHED); /* those that come after it may begin, and fail for themselves */
    settle(p);
    Py_RETURN_NONE;
}

/* hold(): keep the background thread out of MPI until release(). Calls nest. */
PyObject *mpicoll_hold(PyObject *self, PyObject *unused) {
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&lock);
    come_forward();
    pthread_mutex_unlock(&lock);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *mpicoll_release(PyObject *self, PyObject *unused) {
    pthread_mutex_lock(&lock);
    if (foreground > 0)
        step_back();
    pthread_mutex_unlock(&lock);
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

/* pause(waited) -> how long [ns] the thread would sleep with only this program in flight. */
PyObject *mpicoll_pause(PyObject *self, PyObject *waited) {
    long long time = PyLong_AsLongLong(waited);
    if (time == -1 && PyErr_Occurred())
        return NULL;
    return PyLong_FromLongLong(pause_after(time, part_of_flight((Program *)self)));
}

/* background_policy(spins, shortest, longest, patience, looks) -> the policy before: how eagerly the thread looks. */
PyObject *mpicoll_background_policy(PyObject *self, PyObject *args) {
    long new[5];
    if (!PyArg_ParseTuple(args, "lllll", &new[0], &new[1], &new[2], &new[3], &new[4]))
        return NULL;
    if (new[0] < 0 || new[1] < 0 || new[2] < new[1] || new[3] < 1 || new[4] < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "spins >= 0, 0 <= shortest <= longest [ns], patience >= 1, looks >= 0");
        return NULL;
    }
    PyObject *before =
        Py_BuildValue("lllll", spins, shortest_sleep_ns, longest_sleep_ns, patience, looks_a_flight);
    pthread_mutex_lock(&lock);
    spins = new[0], shortest_sleep_ns = new[1], longest_sleep_ns = new[2], patience = new[3];
    looks_a_flight = new[4];
    pthread_mutex_unlock(&lock);
    return before;
}
