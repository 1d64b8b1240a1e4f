/* The core of the probe, compiled: what runs around every `next` and around every fetch.

   core_python.py is the same in Python, says what each attribute and argument means, and runs wherever this
   could not be built. Nothing here knows torch: the names that it reads of an iterator come from the hooks.
   No call here releases the GIL, and no failure here reaches the training loop: it goes to `broken` or ends
   the recording of a worker, and the batch goes out. */

#ifndef TRACEML_LITE_CORE_H
#define TRACEML_LITE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>
#include <time.h>

#if !defined(__linux__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "time.perf_counter_ns is CLOCK_MONOTONIC on Linux only, and a trace is little-endian"
#endif

/* store/layout.py and records/run.py */
enum { HEADER_SIZE = 128, COUNTS_OFFSET = 64, RECORD_SIZE = 128, MISSING = -1 };

/* Each adds its types to the module, and the format of its records as layout.py writes it: -1 on failure. */
int add_deliveries(PyObject *module);
int add_fetches(PyObject *module);

static inline int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static inline int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* Numbers of a ring's header that its readers go by: written when the record behind them is whole. */
static inline void publish(char *ring, int64_t committed, int64_t own_ns)
{
    int64_t *counts = (int64_t *)(ring + COUNTS_OFFSET);
    counts[1] = own_ns;
    __atomic_store_n(&counts[0], committed, __ATOMIC_RELEASE);
}

/* What bookkeeping took, or as much as the time before where its thread had lost the CPU on the way. */
static inline long long counted(long long own_ns, long long preempted_ns, long long *usual_ns)
{
    if (own_ns <= preempted_ns)
        *usual_ns = own_ns;
    return *usual_ns;
}

/* The exception that is set, as an object with its traceback; the indicator is clear afterwards. */
static inline PyObject *take_error(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Set it again; takes the reference. */
static inline void give_error(PyObject *error)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

static inline int done(PyObject *result)
{
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* A ring's mapping, to write into. */
static inline int get_ring(PyObject *memory, Py_buffer *ring, int64_t records)
{
    PyBuffer_Release(ring);
    if (PyObject_GetBuffer(memory, ring, PyBUF_WRITABLE) < 0)
        return -1;
    if (records < 1 || ring->len < HEADER_SIZE + records * RECORD_SIZE) {
        PyErr_Format(PyExc_ValueError, "a ring of %zd bytes does not hold %lld records", ring->len,
                     (long long)records);
        PyBuffer_Release(ring);
        return -1;
    }
    return 0;
}

/* What binds to an instance as a function does, without a frame of its own. */
static inline PyObject *bind(PyObject *method, PyObject *instance, PyObject *owner)
{
    (void)owner;
    return instance == NULL ? Py_NewRef(method) : PyMethod_New(method, instance);
}

#endif
