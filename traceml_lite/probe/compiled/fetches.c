/* What runs around every fetch: the counters of the worker, and the `fetch` of a recording fetcher. */

#include "core.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#define FORMAT "<iiihBxqqqqqqiiiiqqqiiqq"
typedef struct {
    int32_t iterator, turn, pid;
    int16_t worker;
    uint8_t state, pad;
    int64_t k, start_ns, end_ns, cpu_ns, thread_cpu_ns, run_queue_ns;
    int32_t minor_faults, major_faults, voluntary_switches, involuntary_switches;
    int64_t read_bytes, rchar, rss_bytes;
    int32_t samples, threads;
    int64_t spare[2];
} Fetch;
_Static_assert(sizeof(Fetch) == RECORD_SIZE, "a fetch is one record");

/* records/run.py */
enum { FETCH_STARTED, FETCH_DONE, FETCH_RAISED, FETCH_STOPPED };
/* counters.py */
enum { SCHED_BYTES = 80, IO_BYTES = 32, BLOCK_BYTES = 512 };

static PyObject *str_fetch, *str_moved, *str_resident;

typedef struct {
    PyObject_HEAD
    Py_buffer ring;
    PyObject *failed;
    long long capacity, committed, own_ns, usual_ns, preempted_ns, k;
    long long rchar_below_ns, rchar_every, resident_every_ns, last_wall_ns, last_resident_ns;
    int iterator, turn, worker, pid, sched, io, exec_live;
    pthread_t thread;
} FetchCore;

static PyObject *fetch_begin(FetchCore *core, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"memory", "capacity", "iterator", "worker", "turn", "rchar_below_ns",
                            "rchar_every", "resident_every_ns", "preempted_ns", NULL};
    PyObject *memory;
    long long capacity;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLiii$LLLL", words, &memory, &capacity, &core->iterator,
                                     &core->worker, &core->turn, &core->rchar_below_ns, &core->rchar_every,
                                     &core->resident_every_ns, &core->preempted_ns))
        return NULL;
    if (core->rchar_every < 1) {
        PyErr_SetString(PyExc_ValueError, "rchar_every is at least 1");
        return NULL;
    }
    if (get_ring(memory, &core->ring, capacity) < 0)
        return NULL;
    core->capacity = capacity;
    core->committed = core->own_ns = core->k = core->last_resident_ns = 0;
    core->usual_ns = core->preempted_ns;
    core->last_wall_ns = core->rchar_below_ns;
    core->pid = getpid();
    core->sched = core->io = MISSING;
    core->exec_live = 0;
    core->thread = pthread_self();
    Py_CLEAR(core->failed);
    Py_RETURN_NONE;
}

static PyObject *fetch_read_from(FetchCore *core, PyObject *args)
{
    if (!PyArg_ParseTuple(args, "iip", &core->sched, &core->io, &core->exec_live))
        return NULL;
    core->thread = pthread_self();
    Py_RETURN_NONE;
}

static PyObject *fetch_next_turn(FetchCore *core, PyObject *unused)
{
    (void)unused;
    core->turn++;
    core->k = 0;
    Py_RETURN_NONE;
}

static void fetch_dealloc(FetchCore *core)
{
    PyBuffer_Release(&core->ring);
    Py_XDECREF(core->failed);
    Py_TYPE(core)->tp_free(core);
}

/* What the counters say at one moment, and the bytes that the reading itself adds to rchar. */
typedef struct {
    struct rusage usage;
    int64_t exec_ns, delay_ns, thread_ns, rchar, own_bytes;
} Reading;

/* Read a file of /proc again and return its numbers' text, or NULL with an exception set. */
static const char *read_text(int descriptor, char *text, size_t size, int64_t *length)
{
    ssize_t got;
    do
        got = pread(descriptor, text, size - 1, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return NULL;
    }
    text[got] = 0;
    *length = got;
    return text;
}

static const char *number(const char *text, int64_t *value)
{
    int64_t found = 0;
    while (*text >= '0' && *text <= '9')
        found = found * 10 + (*text++ - '0');
    *value = found;
    return text;
}

static int read_rchar(int io, int64_t *rchar, int64_t *length)
{
    char text[IO_BYTES + 1];
    if (read_text(io, text, sizeof text, length) == NULL)
        return -1;
    if (*length <= 7 || memcmp(text, "rchar: ", 7) != 0) {
        PyErr_SetString(PyExc_ValueError, "/proc/self/io does not begin with rchar");
        return -1;
    }
    number(text + 7, rchar);
    return 0;
}

static int read_sched(int sched, Reading *reading)
{
    char text[SCHED_BYTES + 1];
    int64_t length;
    if (read_text(sched, text, sizeof text, &length) == NULL)
        return -1;
    const char *rest = number(text, &reading->exec_ns);
    if (*rest != ' ') {
        PyErr_SetString(PyExc_ValueError, "schedstat does not hold two numbers");
        return -1;
    }
    number(rest + 1, &reading->delay_ns);
    reading->own_bytes += length;
    return 0;
}

static int read_before(FetchCore *core, int io, Reading *reading)
{
    if (io >= 0 && read_rchar(io, &reading->rchar, &reading->own_bytes) < 0)
        return -1;
    getrusage(RUSAGE_SELF, &reading->usage);
    if (core->sched >= 0 && read_sched(core->sched, reading) < 0)
        return -1;
    if (!core->exec_live)
        reading->thread_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    return 0;
}

static int read_after(FetchCore *core, int io, Reading *reading)
{
    int64_t unused;
    if (!core->exec_live)
        reading->thread_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    getrusage(RUSAGE_SELF, &reading->usage);
    if (core->sched >= 0 && read_sched(core->sched, reading) < 0)
        return -1;
    return io >= 0 && read_rchar(io, &reading->rchar, &unused) < 0 ? -1 : 0;
}

static int64_t used_us(const struct rusage *usage)
{
    return (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * INT64_C(1000000) + usage->ru_utime.tv_usec +
           usage->ru_stime.tv_usec;
}

static void fetch_failed(FetchCore *core)
{
    PyObject *error = take_error();
    PyObject *text = PyObject_Repr(error);
    if (text == NULL) {
        PyErr_Clear();
        text = PyUnicode_FromString("failed");
    }
    Py_XSETREF(core->failed, text);
    Py_XDECREF(error);
}

static Fetch *slot(FetchCore *core)
{
    return (Fetch *)((char *)core->ring.buf + HEADER_SIZE + core->committed % core->capacity * RECORD_SIZE);
}

/* Samples in a batch's index; 1 when there is no batching. -1 with an exception set when it cannot be told. */
static Py_ssize_t samples_in(PyObject *index)
{
    Py_ssize_t samples = PyObject_Size(index);
    if (samples < 0 && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        return 1;
    }
    return samples;
}

/* -1 with an exception set when something failed. */
static int begin_fetch(FetchCore *core, PyObject *index, int iterable, int64_t entered_ns, int *io,
                       Py_ssize_t *samples, Reading *before)
{
    if (!pthread_equal(pthread_self(), core->thread) &&
        done(PyObject_CallMethodObjArgs((PyObject *)core, str_moved, NULL)) < 0)
        return -1;
    /* Before the fetch: it may well consume its index. */
    *samples = iterable ? MISSING : samples_in(index);
    if (*samples < 0 && !iterable)
        return -1;
    /* The start mark: what a killed worker leaves behind names the batch in flight. */
    Fetch *mark = slot(core);
    mark->iterator = core->iterator;
    mark->turn = core->turn;
    mark->pid = core->pid;
    mark->worker = (int16_t)core->worker;
    mark->state = FETCH_STARTED;
    mark->k = core->k;
    mark->start_ns = entered_ns;
    *io = core->last_wall_ns < core->rchar_below_ns && core->k % core->rchar_every ? MISSING : core->io;
    if (read_before(core, *io, before) == 0)
        return 0;
    /* A thread may have the number of one that has ended, whose files cannot be read any more. */
    if (!PyErr_ExceptionMatches(PyExc_OSError))
        return -1;
    PyErr_Clear();
    if (done(PyObject_CallMethodObjArgs((PyObject *)core, str_moved, NULL)) < 0)
        return -1;
    if (*io >= 0)
        *io = core->io;
    *before = (Reading){.own_bytes = 0};
    return read_before(core, *io, before);
}

static int end_fetch(FetchCore *core, int state, Py_ssize_t samples, int io, const Reading *before,
                     int64_t entered_ns, int64_t started_ns, int64_t ended_ns)
{
    Reading after = {.own_bytes = 0};
    if (read_after(core, io, &after) < 0)
        return -1;
    int64_t rss_bytes = MISSING;
    int threads = MISSING;
    if (ended_ns - core->last_resident_ns > core->resident_every_ns) {
        long long resident;
        PyObject *answer = PyObject_CallMethodObjArgs((PyObject *)core, str_resident, NULL);
        if (answer == NULL)
            return -1;
        int parsed = PyArg_ParseTuple(answer, "Li", &resident, &threads);
        Py_DECREF(answer);
        if (!parsed)
            return -1;
        rss_bytes = resident;
        core->last_resident_ns = ended_ns;
    }
    const struct rusage *was = &before->usage, *is = &after.usage;
    core->last_wall_ns = ended_ns - started_ns;
    Fetch *record = slot(core);
    record->start_ns = started_ns;
    record->end_ns = ended_ns;
    record->cpu_ns = (used_us(is) - used_us(was)) * 1000;
    record->thread_cpu_ns =
        core->exec_live ? after.exec_ns - before->exec_ns : after.thread_ns - before->thread_ns;
    record->run_queue_ns = core->sched >= 0 ? after.delay_ns - before->delay_ns : MISSING;
    record->minor_faults = (int32_t)(is->ru_minflt - was->ru_minflt);
    record->major_faults = (int32_t)(is->ru_majflt - was->ru_majflt);
    record->voluntary_switches = (int32_t)(is->ru_nvcsw - was->ru_nvcsw);
    record->involuntary_switches = (int32_t)(is->ru_nivcsw - was->ru_nivcsw);
    record->read_bytes = (is->ru_inblock - was->ru_inblock) * BLOCK_BYTES;
    /* The readings in between count as reads of this process too; the last one not yet. */
    int64_t rchar = after.rchar - before->rchar - before->own_bytes - after.own_bytes;
    record->rchar = io < 0 ? MISSING : rchar < 0 ? 0 : rchar;
    record->rss_bytes = rss_bytes;
    record->samples = (int32_t)samples;
    record->threads = threads;
    record->spare[0] = record->spare[1] = MISSING;
    record->state = (uint8_t)state;
    core->k++;
    core->committed++;
    core->own_ns += counted(now_ns() - ended_ns + started_ns - entered_ns, core->preempted_ns, &core->usual_ns);
    publish(core->ring.buf, core->committed, core->own_ns);
    return 0;
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *cls, *key;
    int iterable;
} FetchMethod;

static PyTypeObject FetchCoreType;

static PyObject *fetch_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    FetchMethod *method = (FetchMethod *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf) + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    PyObject *batch = NULL, *held = NULL;
    PyObject *plain = PyObject_GetAttr(method->cls, str_fetch);
    if (plain == NULL)
        return NULL;
    if (given == 2) {
        held = PyObject_GetAttr(args[0], method->key);
        if (held == NULL)
            PyErr_Clear();
    }
    FetchCore *core = (FetchCore *)held;
    if (held == NULL || !PyObject_TypeCheck(held, &FetchCoreType) || core->ring.buf == NULL ||
        (core->failed != NULL && core->failed != Py_None)) {
        batch = PyObject_Vectorcall(plain, args, nargsf, kwnames);
        goto out;
    }
    int io;
    Py_ssize_t samples;
    Reading before = {.own_bytes = 0};
    const int64_t entered_ns = now_ns();
    if (begin_fetch(core, args[1], method->iterable, entered_ns, &io, &samples, &before) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            goto out; /* an interrupt: the user's */
        fetch_failed(core);
        batch = PyObject_Vectorcall(plain, args, nargsf, kwnames);
        goto out;
    }
    const int64_t started_ns = now_ns();
    batch = PyObject_Vectorcall(plain, args, nargsf, kwnames);
    const int64_t ended_ns = now_ns();
    PyObject *error = batch == NULL ? take_error() : NULL;
    int state = FETCH_DONE;
    if (batch == NULL)
        state = PyErr_GivenExceptionMatches(error, PyExc_StopIteration) ? FETCH_STOPPED : FETCH_RAISED;
    if (end_fetch(core, state, samples, io, &before, entered_ns, started_ns, ended_ns) < 0) {
        if (PyErr_ExceptionMatches(PyExc_Exception))
            fetch_failed(core); /* the batch is the user's: it goes out whatever became of ours */
        else {
            Py_CLEAR(batch);
            Py_CLEAR(error);
        }
    }
    if (error != NULL)
        give_error(error);
out:
    Py_XDECREF(held);
    Py_DECREF(plain);
    return batch;
}

static PyMethodDef fetch_core_methods[] = {
    {"begin", (PyCFunction)(void (*)(void))fetch_begin, METH_VARARGS | METH_KEYWORDS,
     "Take the ring to write into."},
    {"read_from", (PyCFunction)fetch_read_from, METH_VARARGS, "Read the counters from these descriptors."},
    {"next_turn", (PyCFunction)fetch_next_turn, METH_NOARGS, "The iterator starts another pass."},
    {NULL},
};

static PyMemberDef fetch_core_members[] = {
    {"turn", T_INT, offsetof(FetchCore, turn), 0, NULL},
    {"failed", T_OBJECT, offsetof(FetchCore, failed), 0, NULL},
    {NULL},
};

static PyTypeObject FetchCoreType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "traceml_lite.probe._core.FetchCore",
    .tp_doc = "State of one worker that its fetches need; see core_python.FetchCore.",
    .tp_basicsize = sizeof(FetchCore),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)fetch_dealloc,
    .tp_methods = fetch_core_methods,
    .tp_members = fetch_core_members,
};

static PyObject *fetch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"cls", "key", "iterable", NULL};
    PyObject *cls, *key;
    int iterable;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O$Up", words, &cls, &key, &iterable))
        return NULL;
    FetchMethod *method = (FetchMethod *)type->tp_alloc(type, 0);
    if (method == NULL)
        return NULL;
    method->vectorcall = fetch_call;
    method->cls = Py_NewRef(cls);
    method->key = Py_NewRef(key);
    method->iterable = iterable;
    return (PyObject *)method;
}

static int fetch_traverse(FetchMethod *method, visitproc visit, void *arg)
{
    Py_VISIT(method->cls);
    return 0;
}

static int fetch_clear(FetchMethod *method)
{
    Py_CLEAR(method->cls);
    return 0;
}

static void fetch_method_dealloc(FetchMethod *method)
{
    PyObject_GC_UnTrack(method);
    fetch_clear(method);
    Py_XDECREF(method->key);
    Py_TYPE(method)->tp_free(method);
}

static PyTypeObject FetchMethodType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "traceml_lite.probe._core.fetch_method",
    .tp_doc = "The fetch of a recording fetcher's class; see core_python.fetch_method.",
    .tp_basicsize = sizeof(FetchMethod),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(FetchMethod, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = bind,
    .tp_new = fetch_new,
    .tp_traverse = (traverseproc)fetch_traverse,
    .tp_clear = (inquiry)fetch_clear,
    .tp_dealloc = (destructor)fetch_method_dealloc,
};

int add_fetches(PyObject *module)
{
    if ((str_fetch = PyUnicode_InternFromString("fetch")) == NULL ||
        (str_moved = PyUnicode_InternFromString("moved")) == NULL ||
        (str_resident = PyUnicode_InternFromString("resident")) == NULL)
        return -1;
    if (PyModule_AddType(module, &FetchCoreType) < 0 || PyModule_AddType(module, &FetchMethodType) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "FETCH_FORMAT", FORMAT);
}
