/* The arguments of one call: what every kernel begins and ends with. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define FETCH(address, writing) __builtin_prefetch(address, writing, 3)
#else
#define FETCH(address, writing) ((void)0)
#endif

#define MOST 6 /* arrays of one call */

typedef Py_ssize_t size;

/* Arrays come first, then numbers. */
typedef struct {
    Py_buffer views[MOST];
    int held;
} Arrays;

/* Takes `count` arrays; those of the bits in `written` will be changed. */
static int take(Arrays *arrays, PyObject *const *args, int count, int written) {
    for (arrays->held = 0; arrays->held < count; arrays->held++) {
        int flags = PyBUF_ND | PyBUF_C_CONTIGUOUS | (written >> arrays->held & 1 ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(args[arrays->held], &arrays->views[arrays->held], flags)) {
            while (arrays->held--) PyBuffer_Release(&arrays->views[arrays->held]);
            return 0;
        }
    }
    return 1;
}

static PyObject *done(Arrays *arrays, PyObject *result) {
    while (arrays->held--) PyBuffer_Release(&arrays->views[arrays->held]);
    return result;
}

static PyObject *nothing(Arrays *arrays) { return done(arrays, Py_NewRef(Py_None)); }

static PyObject *wrong(Arrays *arrays, const char *what) {
    PyErr_SetString(PyExc_ValueError, what);
    return done(arrays, NULL);
}

/* Whether all IDs are those of rows. */
static inline int within(const int64_t *ids, size count, size records) {
    int all = 1;
    for (size i = 0; i < count; i++) all &= ids[i] >= 0 && ids[i] < records;
    return all;
}

#define BYTES(place) (arrays.views[place].len)
#define AT(type, place) ((type *)arrays.views[place].buf)
#define KERNEL(name) \
    static PyObject *name(PyObject *Py_UNUSED(module), PyObject *const *args, size given)
#define NEEDS(number) \
    if (given != number) return PyErr_Format(PyExc_TypeError, "%d arguments are needed", number)

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
