/* What runs around every `next`: the state of an iterator, and the `__next__` of a recording class. */

#include "core.h"

#define FORMAT "<iiihHqqqqqqqiiqqqqqq"
typedef struct {
    int32_t iterator, turn, epoch;
    int16_t worker;
    uint16_t flags;
    int64_t sequence, delivery, rank, k, ask_ns, got_ns, dispatch_ns;
    int32_t queue_size, held_back;
    int64_t wait_cpu_ns, wait_run_queue_ns, step_ns, step_cpu_ns, step_process_cpu_ns, step_run_queue_ns;
} Delivery;
_Static_assert(sizeof(Delivery) == RECORD_SIZE, "a delivery is one record");

/* records/run.py */
enum { IN_CONSUMER = -1, UNKNOWN_WORKER = -2 };
/* core_python.py */
enum { IN_ORDER, OVERTAKING, HERE, UNSEEN };

static PyObject *str_next, *str_qsize, *str_asked, *str_broken;

/* A task that was dispatched and whose batch has not been delivered: the k-th of its worker. */
typedef struct {
    int64_t rank; /* MISSING where the place is free */
    int64_t k, dispatch_ns;
    int32_t worker;
} Task;

/* Open tasks stand at the low bits of their rank. They are as many as the loader prefetches; one that finds
   its place taken (a batch that thousands have overtaken) goes into a dictionary. */
enum { OPEN_TASKS = 256 };

typedef struct {
    PyObject_HEAD
    char live, reading, constructing;
    long long asks, sent, last_index, committed, first, drained, last_got_ns, due_ns, own_ns;
    long long usual_ns, preempted_ns, drain_every, mask, queue_limit, wait_cpu_ns, wait_run_queue_ns;
    int iterator, turn, epoch;
    Py_ssize_t workers;
    int64_t *given; /* tasks that each worker was given in this turn */
    Task *tasks;
    PyObject *overflow, *sequence, *queue_room;
    Py_buffer ring;
} DeliveryCore;

/* Whether there is a ring to write into: 0 with an exception set before `begin`. */
static int begun(DeliveryCore *core)
{
    if (core->ring.buf != NULL && core->overflow != NULL)
        return 1;
    PyErr_SetString(PyExc_RuntimeError, "begin has not been called");
    return 0;
}

static PyObject *delivery_new_turn(DeliveryCore *core, PyObject *unused)
{
    (void)unused;
    if (!begun(core))
        return NULL;
    core->asks = core->sent = core->last_got_ns = core->due_ns = 0;
    core->last_index = MISSING;
    core->first = core->committed;
    core->wait_cpu_ns = core->wait_run_queue_ns = MISSING;
    core->reading = 1;
    memset(core->given, 0, core->workers * sizeof *core->given);
    for (int place = 0; place < OPEN_TASKS; place++)
        core->tasks[place].rank = MISSING;
    PyDict_Clear(core->overflow);
    Py_RETURN_NONE;
}

static PyObject *delivery_begin(DeliveryCore *core, PyObject *args)
{
    PyObject *memory, *sequence;
    long long slots, drain_every, preempted_ns;
    Py_ssize_t workers;
    if (!PyArg_ParseTuple(args, "OLinOLL", &memory, &slots, &core->iterator, &workers, &sequence, &drain_every,
                          &preempted_ns))
        return NULL;
    if (get_ring(memory, &core->ring, slots) < 0)
        return NULL;
    Py_XSETREF(core->sequence, Py_NewRef(sequence));
    Py_XSETREF(core->overflow, PyDict_New());
    PyMem_Free(core->given);
    PyMem_Free(core->tasks);
    core->given = NULL;
    core->tasks = NULL;
    if (workers < 0 || (size_t)workers > PY_SSIZE_T_MAX / sizeof *core->given)
        return PyErr_NoMemory();
    core->given = PyMem_Calloc(workers > 0 ? workers : 1, sizeof *core->given);
    core->tasks = PyMem_Calloc(OPEN_TASKS, sizeof *core->tasks);
    if (core->overflow == NULL || core->given == NULL || core->tasks == NULL)
        return PyErr_NoMemory();
    core->workers = workers;
    core->mask = slots - 1;
    core->drain_every = drain_every;
    core->usual_ns = core->preempted_ns = preempted_ns;
    core->live = core->constructing = 1;
    core->committed = core->drained = core->own_ns = 0;
    core->turn = 0;
    core->epoch = MISSING;
    return delivery_new_turn(core, NULL);
}

/* A task has been put into its worker's queue. -1 with an exception set when it cannot be kept. */
static int give(DeliveryCore *core, int64_t rank, int64_t worker, int64_t dispatch_ns)
{
    if (rank < 0 || worker < 0 || worker >= core->workers) {
        PyErr_Format(PyExc_IndexError, "rank %lld was given to worker %lld of %zd", (long long)rank,
                     (long long)worker, core->workers);
        return -1;
    }
    Task given = {rank, core->given[worker]++, dispatch_ns, (int32_t)worker};
    Task *place = &core->tasks[rank % OPEN_TASKS];
    if (place->rank != MISSING) {
        PyObject *key = PyLong_FromLongLong(place->rank);
        PyObject *kept = PyBytes_FromStringAndSize((const char *)place, sizeof *place);
        int failed = key == NULL || kept == NULL ? -1 : PyDict_SetItem(core->overflow, key, kept);
        Py_XDECREF(key);
        Py_XDECREF(kept);
        if (failed)
            return -1;
    }
    *place = given;
    return 0;
}

/* Take out the task that brought this rank: 1 where it is known, 0 where not, -1 with an exception set. */
static int take(DeliveryCore *core, int64_t rank, Task *task)
{
    if (rank < 0)
        return 0;
    Task *place = &core->tasks[rank % OPEN_TASKS];
    if (place->rank == rank) {
        *task = *place;
        place->rank = MISSING;
        return 1;
    }
    if (PyDict_GET_SIZE(core->overflow) == 0)
        return 0;
    PyObject *key = PyLong_FromLongLong(rank);
    if (key == NULL)
        return -1;
    PyObject *kept = PyDict_GetItemWithError(core->overflow, key);
    int found = kept != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
    if (found == 1) {
        memcpy(task, PyBytes_AS_STRING(kept), sizeof *task);
        if (PyDict_DelItem(core->overflow, key) < 0)
            found = -1;
    }
    Py_DECREF(key);
    return found;
}

static PyObject *delivery_give(DeliveryCore *core, PyObject *args)
{
    long long rank, worker, dispatch_ns;
    if (!PyArg_ParseTuple(args, "LLL", &rank, &worker, &dispatch_ns) || !begun(core) ||
        give(core, rank, worker, dispatch_ns) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *delivery_take(DeliveryCore *core, PyObject *rank)
{
    Task task;
    long long wanted = PyLong_AsLongLong(rank);
    if ((wanted == -1 && PyErr_Occurred()) || !begun(core))
        return NULL;
    int found = take(core, wanted, &task);
    if (found < 0)
        return NULL;
    if (!found)
        Py_RETURN_NONE;
    return PyLong_FromLong(task.worker);
}

static int add_open(PyObject *open, const Task *task)
{
    PyObject *key = Py_BuildValue("(iL)", (int)task->worker, (long long)task->k);
    PyObject *rank = PyLong_FromLongLong(task->rank);
    int failed = key == NULL || rank == NULL ? -1 : PyDict_SetItem(open, key, rank);
    Py_XDECREF(key);
    Py_XDECREF(rank);
    return failed;
}

static PyObject *delivery_open_tasks(DeliveryCore *core, PyObject *unused)
{
    (void)unused;
    PyObject *open = begun(core) ? PyDict_New() : NULL, *key, *kept;
    if (open == NULL)
        return NULL;
    for (int place = 0; place < OPEN_TASKS; place++)
        if (core->tasks[place].rank != MISSING && add_open(open, &core->tasks[place]) < 0)
            goto failed;
    for (Py_ssize_t at = 0; PyDict_Next(core->overflow, &at, &key, &kept);) {
        Task task;
        memcpy(&task, PyBytes_AS_STRING(kept), sizeof task);
        if (add_open(open, &task) < 0)
            goto failed;
    }
    return open;
failed:
    Py_DECREF(open);
    return NULL;
}

static int delivery_traverse(DeliveryCore *core, visitproc visit, void *arg)
{
    Py_VISIT(core->overflow);
    Py_VISIT(core->sequence);
    Py_VISIT(core->queue_room);
    Py_VISIT(core->ring.obj);
    return 0;
}

static int delivery_clear(DeliveryCore *core)
{
    core->live = 0;
    Py_CLEAR(core->overflow);
    Py_CLEAR(core->sequence);
    Py_CLEAR(core->queue_room);
    PyBuffer_Release(&core->ring);
    return 0;
}

static void delivery_dealloc(DeliveryCore *core)
{
    PyObject_GC_UnTrack(core);
    delivery_clear(core);
    PyMem_Free(core->given);
    PyMem_Free(core->tasks);
    Py_TYPE(core)->tp_free(core);
}

static PyMethodDef delivery_methods[] = {
    {"begin", (PyCFunction)delivery_begin, METH_VARARGS, "Take the ring to write into."},
    {"new_turn", (PyCFunction)delivery_new_turn, METH_NOARGS, "The iterator begins another pass."},
    {"give", (PyCFunction)delivery_give, METH_VARARGS, "A task has been put into its worker's queue."},
    {"take", (PyCFunction)delivery_take, METH_O, "Take out the task that brought this rank."},
    {"open_tasks", (PyCFunction)delivery_open_tasks, METH_NOARGS, "(worker, k) of open tasks to rank."},
    {NULL},
};

#define LONG(owner, name) {#name, T_LONGLONG, offsetof(owner, name), 0, NULL}
static PyMemberDef delivery_members[] = {
    {"live", T_BOOL, offsetof(DeliveryCore, live), 0, NULL},
    {"reading", T_BOOL, offsetof(DeliveryCore, reading), 0, NULL},
    {"constructing", T_BOOL, offsetof(DeliveryCore, constructing), 0, NULL},
    {"queue_room", T_OBJECT, offsetof(DeliveryCore, queue_room), 0, NULL},
    {"turn", T_INT, offsetof(DeliveryCore, turn), 0, NULL},
    {"epoch", T_INT, offsetof(DeliveryCore, epoch), 0, NULL},
    LONG(DeliveryCore, queue_limit),
    LONG(DeliveryCore, wait_cpu_ns),
    LONG(DeliveryCore, wait_run_queue_ns),
    LONG(DeliveryCore, asks),
    LONG(DeliveryCore, sent),
    LONG(DeliveryCore, last_index),
    LONG(DeliveryCore, committed),
    LONG(DeliveryCore, first),
    LONG(DeliveryCore, drained),
    LONG(DeliveryCore, last_got_ns),
    LONG(DeliveryCore, due_ns),
    LONG(DeliveryCore, own_ns),
    {NULL},
};

static PyTypeObject DeliveryCoreType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "traceml_lite.probe._core.DeliveryCore",
    .tp_doc = "State of one iterator that its next needs; see core_python.DeliveryCore.",
    .tp_basicsize = sizeof(DeliveryCore),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_traverse = (traverseproc)delivery_traverse,
    .tp_clear = (inquiry)delivery_clear,
    .tp_dealloc = (destructor)delivery_dealloc,
    .tp_methods = delivery_methods,
    .tp_members = delivery_members,
};

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *cls, *key, *ended, *constructing;
    PyObject *queue_name, *tasks_name, *outstanding_name, *send_name, *received_name;
    int fetching, sized;
} NextMethod;

/* An attribute of an iterator, which torch keeps in its dictionary: looked for there first, as the classes
   above it would be gone through otherwise. */
static PyObject *attribute(PyObject *dict, PyObject *iterator, PyObject *name)
{
    PyObject *found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, name);
    if (found != NULL)
        return Py_NewRef(found);
    return PyErr_Occurred() ? NULL : PyObject_GetAttr(iterator, name);
}

static int integer_attribute(PyObject *dict, PyObject *iterator, PyObject *name, int64_t *value)
{
    PyObject *found = attribute(dict, iterator, name);
    if (found == NULL)
        return -1;
    *value = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

/* What is known of a delivery before its batch is there. */
typedef struct {
    PyObject *dict; /* of the iterator */
    int64_t entered_ns, asked_ns, rank, queue_size, held_back;
} Ask;

/* Hand what failed of ours to the recorder. -1 with an exception set where it is not ours: an interrupt, or
   what a signal handler of the user's raised. */
static int broken(DeliveryCore *core, const char *doing)
{
    PyObject *error = take_error();
    if (!PyErr_GivenExceptionMatches(error, PyExc_Exception)) {
        give_error(error);
        return -1;
    }
    PyObject *text = PyUnicode_FromString(doing);
    int failed = text == NULL
                     ? -1
                     : done(PyObject_CallMethodObjArgs((PyObject *)core, str_broken, text, error, NULL));
    Py_XDECREF(text);
    Py_DECREF(error);
    return failed;
}

static int before_batch(NextMethod *method, DeliveryCore *core, PyObject *iterator, Ask *ask)
{
    if (core->reading) {
        PyObject *entered = PyLong_FromLongLong(ask->entered_ns);
        if (entered == NULL)
            return -1;
        int failed = done(PyObject_CallMethodObjArgs((PyObject *)core, str_asked, entered, NULL));
        Py_DECREF(entered);
        if (failed)
            return -1;
    }
    if (method->fetching == HERE)
        ask->rank = core->asks++;
    if (method->fetching != IN_ORDER && method->fetching != OVERTAKING)
        return 0;
    if (core->queue_room != NULL && core->queue_room != Py_None) {
        PyObject *room = PyObject_CallNoArgs(core->queue_room);
        if (room == NULL)
            return -1;
        const long long free_places = PyLong_AsLongLong(room);
        Py_DECREF(room);
        if (free_places == -1 && PyErr_Occurred())
            return -1;
        ask->queue_size = core->queue_limit - free_places;
    }
    else if (method->sized) {
        PyObject *queue = attribute(ask->dict, iterator, method->queue_name);
        if (queue == NULL)
            return -1;
        PyObject *size = PyObject_CallMethodObjArgs(queue, str_qsize, NULL);
        Py_DECREF(queue);
        if (size == NULL)
            return -1;
        ask->queue_size = PyLong_AsLongLong(size);
        Py_DECREF(size);
        if (ask->queue_size == -1 && PyErr_Occurred())
            return -1;
    }
    int64_t outstanding;
    PyObject *tasks = attribute(ask->dict, iterator, method->tasks_name);
    if (tasks == NULL)
        return -1;
    Py_ssize_t dispatched = PyObject_Size(tasks);
    Py_DECREF(tasks);
    if (dispatched < 0 || integer_attribute(ask->dict, iterator, method->outstanding_name, &outstanding) < 0)
        return -1;
    ask->held_back = dispatched - outstanding;
    return 0;
}

/* Note the one task that torch handed out within this `next`. */
static int give_next(DeliveryCore *core, PyObject *task_info, int64_t got_ns)
{
    int failed = -1;
    PyObject *rank = PyLong_FromLongLong(core->sent), *info = NULL, *worker = NULL;
    if (rank != NULL && (info = PyObject_GetItem(task_info, rank)) != NULL &&
        (worker = PySequence_GetItem(info, 0)) != NULL) {
        int64_t number = PyLong_AsLongLong(worker);
        if (!(number == -1 && PyErr_Occurred()))
            failed = give(core, core->sent, number, got_ns);
    }
    core->sent += !failed;
    Py_XDECREF(rank);
    Py_XDECREF(info);
    Py_XDECREF(worker);
    return failed;
}

static int after_batch(NextMethod *method, DeliveryCore *core, PyObject *iterator, Ask *ask, int64_t got_ns)
{
    Task found = {.worker = UNKNOWN_WORKER, .k = MISSING, .dispatch_ns = MISSING};
    int64_t rank = ask->rank;
    if (method->fetching == HERE) {
        found.worker = IN_CONSUMER;
        found.k = rank;
    }
    else if (method->fetching != UNSEEN) {
        int64_t sent;
        if (integer_attribute(ask->dict, iterator, method->send_name, &sent) < 0)
            return -1;
        if (sent != core->sent) {
            PyObject *tasks = attribute(ask->dict, iterator, method->tasks_name);
            if (tasks == NULL)
                return -1;
            /* torch hands out the next task just before it returns a batch. */
            int failed = sent == core->sent + 1
                             ? give_next(core, tasks, got_ns)
                             : done(PyObject_CallMethod((PyObject *)core, "dispatched", "OLL", tasks,
                                                        (long long)sent, (long long)got_ns));
            Py_DECREF(tasks);
            if (failed)
                return -1;
        }
        if (method->fetching == OVERTAKING)
            rank = core->last_index;
        else {
            if (integer_attribute(ask->dict, iterator, method->received_name, &rank) < 0)
                return -1;
            rank--;
        }
        if (take(core, rank, &found) < 0)
            return -1;
    }
    if (core->constructing) {
        PyObject *frame = (PyObject *)PyEval_GetFrame();
        PyObject *answer = PyObject_CallFunctionObjArgs(method->constructing, frame ? frame : Py_None, NULL);
        if (answer == NULL)
            return -1;
        core->constructing = PyObject_IsTrue(answer) == 1;
        Py_DECREF(answer);
    }
    const long long number = core->committed;
    if (core->reading && done(PyObject_CallMethod((PyObject *)core, "read_wait", "LLL", number,
                                                  (long long)ask->asked_ns, (long long)got_ns)) < 0)
        return -1;
    PyObject *sequence = PyIter_Next(core->sequence);
    if (sequence == NULL)
        return -1;
    const long long in_process = PyLong_AsLongLong(sequence);
    Py_DECREF(sequence);
    Delivery *record = (Delivery *)((char *)core->ring.buf + HEADER_SIZE + (number & core->mask) * RECORD_SIZE);
    *record = (Delivery){
        .iterator = core->iterator,
        .turn = core->turn,
        .epoch = core->epoch,
        .worker = (int16_t)found.worker,
        .flags = (uint16_t)core->constructing,
        .sequence = in_process,
        .delivery = number - core->first,
        .rank = rank,
        .k = found.k,
        .ask_ns = ask->asked_ns,
        .got_ns = got_ns,
        .dispatch_ns = found.dispatch_ns,
        .queue_size = (int32_t)ask->queue_size,
        .held_back = (int32_t)ask->held_back,
        .wait_cpu_ns = core->wait_cpu_ns,
        .wait_run_queue_ns = core->wait_run_queue_ns,
        /* The step behind it is filled in at the next ask, where its counters are read. */
        .step_ns = MISSING,
        .step_cpu_ns = MISSING,
        .step_process_cpu_ns = MISSING,
        .step_run_queue_ns = MISSING,
    };
    core->wait_cpu_ns = core->wait_run_queue_ns = MISSING;
    core->last_got_ns = got_ns;
    core->committed = number + 1;
    core->own_ns +=
        counted(now_ns() - got_ns + ask->asked_ns - ask->entered_ns, core->preempted_ns, &core->usual_ns);
    publish(core->ring.buf, core->committed, core->own_ns);
    if (core->reading || got_ns > core->due_ns || number >= core->drained + core->drain_every)
        return done(PyObject_CallMethod((PyObject *)core, "look", "L", (long long)got_ns));
    return 0;
}

static PyObject *plain_next(NextMethod *method, PyObject *iterator)
{
    PyObject *plain = PyObject_GetAttr(method->cls, str_next);
    if (plain == NULL)
        return NULL;
    PyObject *batch = PyObject_CallOneArg(plain, iterator);
    Py_DECREF(plain);
    return batch;
}

/* `next` raised: tell, and raise it again. */
static void tell_end(NextMethod *method, DeliveryCore *core, PyObject *iterator, Ask *ask)
{
    const long long ended_ns = now_ns();
    PyObject *error = take_error();
    if (error == NULL)
        return;
    if (done(PyObject_CallFunction(method->ended, "OOOLL", iterator, core, error, (long long)ask->asked_ns,
                                   ended_ns)) < 0)
        Py_DECREF(error); /* what a signal handler raised in there takes its place */
    else
        give_error(error);
}

static PyObject *next_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    NextMethod *method = (NextMethod *)callable;
    if (PyVectorcall_NARGS(nargsf) != 1 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames))) {
        PyErr_SetString(PyExc_TypeError, "__next__() takes no arguments");
        return NULL;
    }
    PyObject *iterator = args[0];
    PyObject *dict = PyObject_GenericGetDict(iterator, NULL), *batch = NULL;
    if (dict == NULL)
        PyErr_Clear();
    PyObject *held = attribute(dict, iterator, method->key);
    if (held == NULL)
        goto out;
    DeliveryCore *core = (DeliveryCore *)held;
    if (!PyObject_TypeCheck(held, &DeliveryCoreType) || !core->live || core->ring.buf == NULL) {
        batch = plain_next(method, iterator);
        goto out;
    }
    Ask ask = {dict, now_ns(), 0, MISSING, MISSING, MISSING};
    if (before_batch(method, core, iterator, &ask) < 0 && broken(core, "before a batch") < 0)
        goto out;
    ask.asked_ns = now_ns();
    batch = plain_next(method, iterator);
    if (batch == NULL)
        tell_end(method, core, iterator, &ask);
    else if (after_batch(method, core, iterator, &ask, now_ns()) < 0 && broken(core, "after a batch") < 0)
        Py_CLEAR(batch);
out:
    Py_XDECREF(dict);
    Py_XDECREF(held);
    return batch;
}

static PyObject *next_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"cls", "fetching", "key", "names", "sized", "ended", "constructing", NULL};
    PyObject *cls, *key, *ended, *constructing, *queue, *tasks, *outstanding, *send, *received;
    int fetching, sized;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O$iU(UUUUU)pOO", words, &cls, &fetching, &key, &queue,
                                     &tasks, &outstanding, &send, &received, &sized, &ended, &constructing))
        return NULL;
    NextMethod *method = (NextMethod *)type->tp_alloc(type, 0);
    if (method == NULL)
        return NULL;
    method->vectorcall = next_call;
    method->fetching = fetching;
    method->sized = sized;
    method->cls = Py_NewRef(cls);
    method->key = Py_NewRef(key);
    method->ended = Py_NewRef(ended);
    method->constructing = Py_NewRef(constructing);
    method->queue_name = Py_NewRef(queue);
    method->tasks_name = Py_NewRef(tasks);
    method->outstanding_name = Py_NewRef(outstanding);
    method->send_name = Py_NewRef(send);
    method->received_name = Py_NewRef(received);
    return (PyObject *)method;
}

static int next_traverse(NextMethod *method, visitproc visit, void *arg)
{
    Py_VISIT(method->cls);
    Py_VISIT(method->ended);
    Py_VISIT(method->constructing);
    return 0;
}

static int next_clear(NextMethod *method)
{
    Py_CLEAR(method->cls);
    Py_CLEAR(method->ended);
    Py_CLEAR(method->constructing);
    return 0;
}

static void next_dealloc(NextMethod *method)
{
    PyObject_GC_UnTrack(method);
    next_clear(method);
    Py_XDECREF(method->key);
    Py_XDECREF(method->queue_name);
    Py_XDECREF(method->tasks_name);
    Py_XDECREF(method->outstanding_name);
    Py_XDECREF(method->send_name);
    Py_XDECREF(method->received_name);
    Py_TYPE(method)->tp_free(method);
}

static PyTypeObject NextMethodType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "traceml_lite.probe._core.next_method",
    .tp_doc = "The __next__ of a recording class; see core_python.next_method.",
    .tp_basicsize = sizeof(NextMethod),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(NextMethod, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = bind,
    .tp_new = next_new,
    .tp_traverse = (traverseproc)next_traverse,
    .tp_clear = (inquiry)next_clear,
    .tp_dealloc = (destructor)next_dealloc,
};

int add_deliveries(PyObject *module)
{
    if ((str_next = PyUnicode_InternFromString("__next__")) == NULL ||
        (str_qsize = PyUnicode_InternFromString("qsize")) == NULL ||
        (str_asked = PyUnicode_InternFromString("asked")) == NULL ||
        (str_broken = PyUnicode_InternFromString("broken")) == NULL)
        return -1;
    if (PyModule_AddType(module, &DeliveryCoreType) < 0 || PyModule_AddType(module, &NextMethodType) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "DELIVERY_FORMAT", FORMAT);
}
